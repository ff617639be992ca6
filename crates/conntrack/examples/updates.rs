//! Measures what an update costs. Changes the connections of its network namespace, so it is run in one of its own:
//!
//! ```text
//! unshare --net target/release/examples/updates
//! ```

use bm_conntrack::{Connection, Conntrack, Update, status};
use std::error::Error;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

/// Connections, and how often each is updated in a round.
const CONNECTIONS: usize = 400;
const REPEATS: usize = 50;
/// Rounds, of which least, median and greatest are printed.
const ROUNDS: usize = 9;
const TRACKED: &str = "ip link set lo up && nft 'add table inet t; \
    add chain inet t seen { type filter hook input priority 0; }; add rule inet t seen ct state new accept'";

fn main() -> Result<(), Box<dyn Error>> {
    if !Command::new("sh").args(["-c", TRACKED]).status()?.success() {
        return Err("needs root, iproute2 and nft".into());
    }
    let mut conntrack = Conntrack::open()?;
    if !conntrack.list(None)?.is_empty() {
        return Err("this namespace has connections: run it with unshare --net".into());
    }
    let _plain = connect("127.0.0.1")?;
    let _ipv6 = connect("::1")?;
    let connections = conntrack.list(None)?;
    println!("us of CPU time per update: least, median, greatest of {ROUNDS}");
    measure("timeout", &mut conntrack, &updates(&connections, false))?;
    measure("timeout and liberal windows", &mut conntrack, &updates(&connections, true))?;
    let mut gone = updates(&connections, false);
    gone.iter_mut().for_each(|update| update.original.source_port = 1);
    measure("connections that are gone", &mut conntrack, &gone)?;

    list(&mut conntrack)
}

/// Both ends of many TCP connections.
fn connect(address: &str) -> Result<Vec<[TcpStream; 2]>, Box<dyn Error>> {
    let listener = TcpListener::bind((address, 0))?;
    let to = listener.local_addr()?;
    let each = (0..CONNECTIONS / 2).map(|_| Ok([TcpStream::connect(to)?, listener.accept()?.0]));
    each.collect()
}

/// Of established connections.
fn updates(connections: &[Connection], liberal: bool) -> Vec<Update> {
    let assured = connections.iter().filter(|connection| connection.status & status::ASSURED != 0);
    let update = |connection: &Connection| Update {
        original: connection.original,
        zone: 0,
        timeout_s: Some(432_000),
        liberal,
        status: None,
    };
    assured.map(update).collect()
}

fn measure(what: &str, conntrack: &mut Conntrack, updates: &[Update]) -> Result<(), Box<dyn Error>> {
    let mut times = Vec::new();
    let mut refused = 0;
    for _ in 0..ROUNDS {
        let start = cpu_time()?;
        for _ in 0..REPEATS {
            refused += conntrack.update(updates)?.iter().filter(|result| result.is_err()).count();
        }
        times.push(cpu_time()? - start);
    }
    times.sort_unstable();
    let each = |time: Duration| time.as_secs_f64() * 1e6 / (REPEATS * updates.len()) as f64;
    let [least, median, greatest] = [0, ROUNDS / 2, ROUNDS - 1].map(|at| each(times[at]));
    let share = refused * 100 / (ROUNDS * REPEATS * updates.len());
    println!(
        "{what:32} {least:.2} {median:.2} {greatest:.2}  ({} in a send, {share} % refused)",
        updates.len()
    );
    Ok(())
}

/// CPU time of this thread, with that in the kernel: other programs of a busy machine do not count.
fn cpu_time() -> Result<Duration, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let ns = text.split_whitespace().next().ok_or("schedstat is empty")?;
    Ok(Duration::from_nanos(ns.parse()?))
}

fn list(conntrack: &mut Conntrack) -> Result<(), Box<dyn Error>> {
    let start = cpu_time()?;
    let count = conntrack.list(None)?.len();
    let time = cpu_time()? - start;
    let buckets = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_buckets")?;
    println!("listing {count}: {:.1} ms, with {} buckets", time.as_secs_f64() * 1e3, buckets.trim());
    Ok(())
}
