//! Measures the compiler with a full table, and with 100,000 changes of it.
//!
//! `cargo run --release -p bm-control --example compile`. Prefixes are generated from a seed, with the share of
//! /24 and /48 of a full table; 300 gateways on two links. Times are of the compiler only: the mirror has
//! received the messages before. The second time is CPU time, which other load does not affect.

use bm_control::compile::{Compiler, Options};
use bm_fib::published::Readers;
use bm_netlink::{Change, Hop, Link, Message, Mirror, RouteBody, RouteEvent, RouteMessage, Via, neighbor};
use bm_wire::prefix::{Address, Prefix};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

const GATEWAYS: u64 = 300;
const MAIN: u32 = 254;

/// A generator of the same numbers each time (Steele, Lea, Flood 2014).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

fn prefixes<A: Address>(
    numbers: &mut Numbers,
    count: usize,
    lengths: &[u8],
    address: impl Fn(u64) -> A,
) -> Vec<Prefix<A>> {
    let mut set = BTreeSet::new();
    while set.len() < count {
        let length = lengths[(numbers.next() % lengths.len() as u64) as usize];
        set.extend(Prefix::containing(address(numbers.next()), length));
    }
    let mut list: Vec<_> = set.into_iter().collect();
    for at in (1..list.len()).rev() {
        list.swap(at, (numbers.next() % (at as u64 + 1)) as usize);
    }
    list
}

fn body(gateway: IpAddr, number: u64) -> RouteBody {
    let hop = Hop::via(gateway, 1 + (number % 2) as u32);
    RouteBody { protocol: 186, priority: 20, via: Via::One(hop), ..RouteBody::default() }
}

fn ipv4_gateway(number: u64) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + (number % GATEWAYS) as u32))
}

fn ipv6_gateway(number: u64) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from((0xfe80 << 112) + u128::from(number % GATEWAYS)))
}

fn machine() -> Mirror {
    let mut mirror = Mirror::default();
    for ifindex in [1, 2] {
        let link =
            Link { ifindex, hardware: 1, mac: Some([2; 6]), mtu: 1500, flags: 0x1_0041, ..Link::default() };
        mirror.apply(Message::Link(link));
    }
    for number in 0..GATEWAYS {
        for address in [ipv4_gateway(number), ipv6_gateway(number)] {
            let (ifindex, mac) = (1 + (number % 2) as u32, Some([2, 0, 0, 0, 0, number as u8]));
            let state = neighbor::state::REACHABLE;
            mirror.apply(Message::Neighbor(bm_netlink::Neighbor {
                ifindex,
                address,
                state,
                mac,
                router: false,
            }));
        }
    }
    mirror
}

/// CPU time of this thread, from the kernel.
fn core_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0))
}

/// Resident memory of this process, in MiB.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) >> 10
}

/// Runs `job` and prints how long it took.
fn timed<T>(what: &str, job: impl FnOnce() -> T) -> T {
    let (started, core) = (Instant::now(), core_time());
    let done = job();
    println!(
        "{what:<12} {:>8.1?}, of a core {:>8.1?}, resident {} MiB",
        started.elapsed(),
        core_time() - core,
        resident()
    );
    done
}

fn main() {
    let mut numbers = Numbers(1);
    let four = [24, 24, 24, 24, 24, 24, 23, 22, 22, 21, 20, 19, 16];
    let four = prefixes(&mut numbers, 1_000_000, &four, |number| number as u32);
    let six = [48, 48, 48, 48, 44, 40, 36, 32, 46, 64];
    let six = prefixes(&mut numbers, 200_000, &six, |number| (0x2000 << 112) + (u128::from(number) << 60));
    let mut mirror = machine();
    let message4 = |event, prefix, number| {
        let body = body(ipv4_gateway(number), number);
        Message::Route4(RouteMessage { event, table: MAIN, prefix, body, lifetime: 0 })
    };
    let message6 = |event, prefix, number| {
        let body = body(ipv6_gateway(number), number);
        Message::Route6(RouteMessage { event, table: MAIN, prefix, body, lifetime: 0 })
    };
    timed("mirror", || {
        four.iter().for_each(|prefix| mirror.apply(message4(RouteEvent::Listed, *prefix, numbers.next())));
        six.iter().for_each(|prefix| mirror.apply(message6(RouteEvent::Listed, *prefix, numbers.next())));
    });
    mirror.take_changes();

    let readers = Readers::new();
    let mut compiler: Compiler = Compiler::new(&readers, Options::default()).expect("memory for the tables");
    compiler.set_ports(vec![Some(1), Some(2)]);
    let mut apply = |what: &str, mirror: &Mirror, changes: &[Change]| {
        let report = timed(what, || compiler.apply(mirror, changes).expect("memory for the tables"));
        println!("{:12} {} changes, {} entries", "", changes.len(), report.entries);
    };
    apply("everything", &mirror, &[Change::Everything]);
    apply("again", &mirror, &[Change::Everything]);
    for event in [RouteEvent::Replaced, RouteEvent::Deleted] {
        for (prefix, number) in four.iter().take(80_000).zip(0..) {
            mirror.apply(message4(event, *prefix, number));
        }
        for (prefix, number) in six.iter().take(20_000).zip(0..) {
            mirror.apply(message6(event, *prefix, number));
        }
        let changes = mirror.take_changes();
        apply(if event == RouteEvent::Replaced { "replaced" } else { "deleted" }, &mirror, &changes);
    }
    mirror.apply(message4(RouteEvent::Added, Prefix::default(), 0));
    let changes = mirror.take_changes();
    apply("default", &mirror, &changes);
    let comparison = timed("verify", || compiler.verify(&mirror));
    println!("{:12} {} compared, {} differ", "", comparison.compared, comparison.count);
}
