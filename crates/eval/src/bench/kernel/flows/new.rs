//! `flows-new`: how many connections a second are opened through Linux's firewall, with Linux alone and with the daemon?
//!
//! ```text
//! linux       no daemon: the stack
//! brickmoon   `brickmoon up` without a path: what it chooses for the device
//! ```
//!
//! Sockets of Linux on both sides, on the router's cores: each connection is opened, has a request and its answer, and is
//! closed. No daemon makes any of these packets faster; the question is what it takes to see all of them go by.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bm_testbed::interrupt;
use bm_testbed::testbed::namespace::Handle;
use bm_testbed::testbed::{Testbed, TestbedError, TestbedOptions, next_hop_ipv4};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::super::{KernelOptions, tcp};
use super::{FLOWS_MIN, SUBJECTS, established, start_daemon};
use crate::alternate::{Quantiles, spread, take_turns};
use crate::bench::{BenchError, rounded};
use crate::demo::daemon::Daemon;
use crate::report::Row;

/// Time for start and end of the daemon in a turn.
const OVERHEAD: Duration = Duration::from_millis(1500);
/// Pause before each turn, after which the router has forgotten the connections of the turn before.
const PAUSE: Duration = Duration::from_millis(1500);
const WARM_UP: Duration = Duration::from_millis(400);
const SLOT_MIN: Duration = Duration::from_millis(500);
const SLOT_MAX: Duration = Duration::from_secs(3);
/// Clients, each with a server and a port of its own, which open one connection after the other.
const CLIENTS: u16 = 4;
const PORT: u16 = 5300;
/// Size of request and answer.
const BYTES: usize = 100;
/// Timeout of the sockets.
const PATIENCE: Duration = Duration::from_secs(10);
/// How soon a server that nobody connects to notices that it is to end.
const NOTICE: Duration = Duration::from_millis(100);
/// How long the daemon may take until packets go by flow.
const BY_FLOW: Duration = Duration::from_secs(10);

/// Measures the case within a time: connections a second.
pub fn measure(options: &KernelOptions, case: &str, whole: Duration) -> Result<Vec<Row>, BenchError> {
    let testbed = Testbed::up(&TestbedOptions { next_hops: 1, ..options.testbed.clone() })?;
    tcp::set_offloads(&testbed, true)?;
    established::set_rules(&testbed)?;
    forget_closed(&testbed)?;
    let beside = (OVERHEAD + PAUSE + WARM_UP) * 2;
    let runs = (whole.as_secs_f64() / (beside + 2 * SLOT_MIN).as_secs_f64()) as u32;
    let runs = runs.clamp(3, 15);
    let slot = (whole / runs).saturating_sub(beside) / 2;
    let slot = slot.clamp(SLOT_MIN, SLOT_MAX);
    let rates = take_turns(runs, SUBJECTS.len(), |subject| {
        turn(options, &testbed, SUBJECTS[subject] == "brickmoon", slot)
    })?;
    let ratios = spread(rates[0].iter().zip(&rates[1]).map(|(linux, ours)| ours / linux));
    let rows = SUBJECTS.into_iter().zip(&rates).map(|(subject, rates)| {
        let Quantiles { min, median, max } = spread(rates.iter().copied());
        let row = Row {
            bench: "kernel".into(),
            case: case.into(),
            subject: subject.into(),
            unit: "connections/s".into(),
            min: rounded(min),
            median: rounded(median),
            max: rounded(max),
            ns: 0.0,
            runs: rates.len(),
            detail: serde_json::Map::new(),
        };
        match subject {
            "brickmoon" => row
                .with("to_linux_min", rounded(ratios.min))
                .with("to_linux", rounded(ratios.median))
                .with("to_linux_max", rounded(ratios.max)),
            _ => row,
        }
    });
    Ok(rows.collect())
}

/// Hosts and router forget connections that have ended, so that the last turn finds as many of them as the first one, and
/// no host runs out of ports.
fn forget_closed(testbed: &Testbed) -> Result<(), TestbedError> {
    for host in [&testbed.source, &testbed.sink] {
        host.sysctl(&[("net/ipv4/tcp_max_tw_buckets", "0")])?;
    }
    testbed.router.sysctl(&[("net/netfilter/nf_conntrack_tcp_timeout_time_wait", "1")])
}

/// Connections a second, with the daemon or without.
fn turn(
    options: &KernelOptions,
    testbed: &Testbed,
    with_daemon: bool,
    slot: Duration,
) -> Result<f64, BenchError> {
    interrupt::sleep(PAUSE).map_err(TestbedError::from)?;
    if !with_daemon {
        return connections(testbed, slot);
    }
    let mut daemon = start_daemon(testbed, options, FLOWS_MIN, &[])?;
    await_flows(options, &daemon)?;
    let rate = connections(testbed, slot)?;
    daemon.stop()?;
    Ok(rate)
}

/// Waits until packets go by flow.
fn await_flows(options: &KernelOptions, daemon: &Daemon) -> Result<(), BenchError> {
    let began = Instant::now();
    loop {
        let flows = established::flows(options, daemon)?;
        if flows["families"].as_array().is_some_and(|families| !families.is_empty()) {
            return Ok(());
        }
        if began.elapsed() > BY_FLOW {
            let why = flows["why_not"].as_str().unwrap_or("`brickmoon status` does not say why");
            return Err(BenchError::build("packets do not go by flow")(why));
        }
        interrupt::sleep(Duration::from_millis(20)).map_err(TestbedError::from)?;
    }
}

/// Opens and closes connections for a while; how many in a second.
fn connections(testbed: &Testbed, slot: Duration) -> Result<f64, BenchError> {
    let failed = TestbedError::system("open connections through the router");
    let ports = || PORT..PORT + CLIENTS;
    let listeners: Vec<TcpListener> = testbed
        .sink
        .enter(|| ports().map(listen).collect::<io::Result<_>>().map_err(TestbedError::system("listen")))?;
    let clients = ports().map(|port| Ok((testbed.source.handle()?, port)));
    let clients: Vec<(Handle, u16)> = clients.collect::<Result<_, TestbedError>>()?;
    let (opened, done, closed) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
    let rate = std::thread::scope(|scope| {
        let closed = &closed;
        let servers: Vec<_> =
            listeners.iter().map(|listener| scope.spawn(move || serve(listener, closed))).collect();
        let (opened, done) = (&opened, &done);
        let clients: Vec<_> = clients
            .into_iter()
            .map(|(source, port)| scope.spawn(move || open(&source, port, opened, done)))
            .collect();
        let rate = rate(opened, slot);
        done.store(true, Relaxed);
        let asked: Vec<io::Result<()>> = clients.into_iter().map(|client| ended(client.join())).collect();
        closed.store(true, Relaxed);
        let answered: Vec<io::Result<()>> = servers.into_iter().map(|server| ended(server.join())).collect();
        asked.into_iter().chain(answered).collect::<io::Result<()>>().map_err(failed)?;
        rate
    });
    Ok(rate?)
}

fn ended(thread: std::thread::Result<io::Result<()>>) -> io::Result<()> {
    thread.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

fn rate(opened: &AtomicU64, slot: Duration) -> Result<f64, TestbedError> {
    interrupt::sleep(WARM_UP)?;
    let (before, began) = (opened.load(Relaxed), Instant::now());
    interrupt::sleep(slot)?;
    Ok((opened.load(Relaxed) - before) as f64 / began.elapsed().as_secs_f64())
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    set_socket_timeout(&listener, Timeout::Recv, Some(NOTICE))?;
    Ok(listener)
}

/// Answers each connection's request and closes it.
fn serve(listener: &TcpListener, closed: &AtomicBool) -> io::Result<()> {
    let mut request = [0; BYTES];
    while !closed.load(Relaxed) {
        let mut client = match listener.accept() {
            Ok((client, _)) => client,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        client.set_read_timeout(Some(PATIENCE))?;
        client.read_exact(&mut request)?;
        client.write_all(&request)?;
        client.shutdown(Shutdown::Write)?;
    }
    Ok(())
}

/// Opens one connection after the other, each with a request and its answer, and counts them.
fn open(source: &Handle, port: u16, opened: &AtomicU64, done: &AtomicBool) -> io::Result<()> {
    source.join_this_thread()?;
    let to = SocketAddr::from((next_hop_ipv4(1), port));
    let mut answer = Vec::with_capacity(BYTES);
    while !done.load(Relaxed) {
        let mut server = TcpStream::connect_timeout(&to, PATIENCE)?;
        server.set_read_timeout(Some(PATIENCE))?;
        server.write_all(&[0x5a; BYTES])?;
        answer.clear();
        // To its end: the server closes first.
        server.read_to_end(&mut answer)?;
        if answer.len() != BYTES {
            return Err(io::Error::other("an answer is not complete"));
        }
        opened.fetch_add(1, Relaxed);
    }
    Ok(())
}
