//! What does the router cost a packet, in memory, on one core?
//!
//! ```text
//! Ring: takes frames back, writes a fresh header, sends them again <--- router (or nothing: the floor)
//!   '-------------------------------------------------------------------^
//! ```
//!
//! 60-byte frames go round through the router app with one route and with a full table; the same ring without
//! a router is the floor that is subtracted. Subjects take turns; seeds are in the source.
//!
//! `cargo run --release -p bm-forward --example router -- [frames in the ring] [turns] [subjects with this name]`

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

use bm_fib::next_hop::{Action, Gateway, NextHopWriter};
use bm_fib::published::{Published, Readers};
use bm_fib::{BuildFib, Dir24_8, NextHop, Range6};
use bm_forward::tables::{Interface, PortInterfaces, Settings, Tables, Vrf};
use bm_forward::{Resolver, Router, RouterPort, SlowConfig, SlowPath, SlowReturn, WaitLimits};
use bm_frame::{Burst, Frame, FramePool, Freelist};
use bm_graph::{App, Engine, Io, Network, Waker};
use bm_stats::{Account, Counters, Registry, Scope};
use bm_wire::checksum;
use bm_wire::prefix::{Address, Prefix};

/// Destinations that are gone through in order, over and over.
const DESTINATIONS: usize = 1 << 20;
const NEXT_HOPS: u32 = 64;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Packets of one turn.
const TURN: u64 = 4_000_000;

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Sends frames round, each with the next destination.
struct Ring {
    waiting: VecDeque<Frame>,
    burst: Burst,
    headers: Vec<u8>,
    header: usize,
    at: usize,
}

impl App for Ring {
    fn pull(&mut self, io: &mut Io<'_>) {
        let Self { waiting, headers, header, at, .. } = self;
        for _ in 0..bm_frame::BURST {
            let Some(mut frame) = waiting.pop_front() else { break };
            frame.data_mut()[..*header].copy_from_slice(&headers[*at..*at + *header]);
            *at = (*at + *header) % headers.len();
            if let Err(frame) = io.transmit(0, frame) {
                waiting.push_front(frame);
                break;
            }
        }
    }

    fn push(&mut self, io: &mut Io<'_>) {
        while io.receive_burst(0, &mut self.burst) > 0 {
            for frame in self.burst.drain() {
                self.waiting.push_back(frame);
            }
        }
    }

    fn stop(&mut self, io: &mut Io<'_>) {
        self.waiting.drain(..).for_each(|frame| io.frames.free(frame));
    }
}

/// What the floor has in the router's place.
struct Nothing(Burst);

impl App for Nothing {
    fn push(&mut self, io: &mut Io<'_>) {
        while io.receive_burst(0, &mut self.0) > 0 {
            for frame in self.0.drain() {
                if let Err(frame) = io.transmit(0, frame) {
                    io.frames.free(frame);
                }
            }
        }
    }
}

struct NoResolver;

impl Resolver for NoResolver {
    fn resolve(&mut self, _ifindex: u32, _address: std::net::IpAddr) {}
}

/// A table of both families: one default route each, or many prefixes with lengths as the internet has them.
struct Routes {
    ipv4: Vec<(Prefix<u32>, NextHop)>,
    ipv6: Vec<(Prefix<u128>, NextHop)>,
}

/// An address that is routed: of 1/8 to 126/8.
fn random_ipv4(random: &mut Random) -> u32 {
    ((1 + random.below(126)) as u32) << 24 | (random.next() as u32 & 0x00ff_ffff)
}

fn random_ipv6(random: &mut Random) -> u128 {
    0x2u128 << 124 | u128::from(random.next() >> 4) << 64 | u128::from(random.next())
}

fn one() -> Routes {
    let all4 = Prefix::containing(0, 0).expect("a length of IPv4");
    let all6 = Prefix::containing(0, 0).expect("a length of IPv6");
    Routes { ipv4: vec![(all4, NextHop(1))], ipv6: vec![(all6, NextHop(1))] }
}

fn full() -> Routes {
    let random = &mut Random(1);
    let hop = |random: &mut Random| NextHop(1 + random.below(u64::from(NEXT_HOPS)) as u32);
    let ipv4 = (0..1_000_000).map(|_| {
        let address = random_ipv4(random);
        // Roughly the histogram of today's table.
        let length = match random.below(100) {
            0..60 => 24,
            60..72 => 22,
            72..82 => 23,
            82..88 => 21,
            88..93 => 20,
            93..96 => 19,
            96..98 => 18,
            _ => 16,
        };
        (Prefix::containing(address, length).expect("at most 24"), hop(random))
    });
    let ipv4 = ipv4.collect();
    let ipv6 = (0..200_000).map(|_| {
        let address = random_ipv6(random);
        let length = match random.below(100) {
            0..48 => 48,
            48..62 => 32,
            62..74 => 40,
            74..84 => 44,
            84..92 => 36,
            _ => 29,
        };
        (Prefix::containing(address, length).expect("at most 48"), hop(random))
    });
    Routes { ipv4, ipv6: ipv6.collect() }
}

/// Headers of packets to random addresses within random prefixes, each as long as the next.
fn headers<A: Address>(
    routes: &[(Prefix<A>, NextHop)],
    random_address: impl Fn(&mut Random) -> A,
    write: impl Fn(A) -> Vec<u8>,
) -> Vec<u8> {
    let random = &mut Random(2);
    let one = |_| {
        let (prefix, _) = routes[random.below(routes.len() as u64) as usize];
        let within = random_address(random).and(A::mask(prefix.length()).not());
        write(if routes.len() == 1 { random_address(random) } else { prefix.first().or(within) })
    };
    (0..DESTINATIONS).flat_map(one).collect()
}

fn header_ipv4(destination: u32) -> Vec<u8> {
    let mut bytes = [&MAC[..], &[2, 0, 0, 0, 0, 9], &[8, 0]].concat();
    bytes.extend([0x45, 0, 0, 46, 0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 9]);
    bytes.extend(destination.to_be_bytes());
    let sum = checksum::checksum(&bytes[14..]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn header_ipv6(destination: u128) -> Vec<u8> {
    let mut bytes = [&MAC[..], &[2, 0, 0, 0, 0, 9], &[0x86, 0xdd]].concat();
    bytes.extend([0x60, 0, 0, 0, 0, 6, 17, 64, 0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    bytes.extend(destination.to_be_bytes());
    bytes
}

fn interface() -> Interface {
    Interface {
        name: "port".into(),
        ifindex: 1,
        port: 0,
        mac: MAC,
        ipv4: vec![(Ipv4Addr::new(192, 0, 2, 1), 24)],
        ..Interface::default()
    }
}

/// What is measured: the engine, and what must live as long.
struct Subject {
    name: &'static str,
    engine: Engine,
    _slow: Option<(SlowPath, SlowReturn)>,
    ns: Vec<f64>,
}

fn ring(headers: Vec<u8>, header: usize, length: usize, frames: usize, list: &mut Freelist) -> Ring {
    let fresh = |_| list.allocate_with(&vec![0; length]).expect("as many frames as the ring wants");
    let waiting = (0..frames).map(fresh).collect();
    Ring { waiting, burst: Burst::new(), headers, header, at: 0 }
}

fn engine(middle: Box<dyn App>, headers: Vec<u8>, header: usize, frames: usize) -> Engine {
    let frame_pool = FramePool::new(frames + 512, 2048).expect("memory for frames");
    let mut list = Freelist::new(frame_pool, 256);
    let ring = ring(headers, header, 60, frames, &mut list);
    let mut network = Network::new();
    network.app("ring", Box::new(ring)).expect("names differ");
    network.app("middle", middle).expect("names differ");
    network.link("ring.output -> middle.port").expect("well-formed");
    network.link("middle.port -> ring.input").expect("well-formed");
    Engine::new(network, list).expect("whole")
}

fn router(name: &'static str, routes: &Routes, headers: Vec<u8>, header: usize, frames: usize) -> Subject {
    let readers = Readers::new();
    let mut hops = NextHopWriter::new(&readers).expect("memory for next hops");
    for n in 0..NEXT_HOPS {
        let action = Action::Forward { mac: [2, 0, 0, 0, 1, n as u8], interface: 0 };
        hops.add(action, Gateway::default(), 0).expect("room for next hops");
    }
    let ipv4 = Dir24_8::build(routes.ipv4.iter().copied(), &readers).expect("room for routes");
    let ipv6 = Range6::build(routes.ipv6.iter().copied(), &readers).expect("room for routes");
    let tables = Tables::new(
        vec![Vrf { ipv4: ipv4.reader(), ipv6: ipv6.reader() }],
        vec![interface()],
        vec![PortInterfaces { untagged: Some(0), tagged: Vec::new() }],
        hops.table().clone(),
        (vec![Ipv4Addr::new(192, 0, 2, 1)], Vec::new()),
        Settings::default(),
    );
    let published = Arc::new(Published::new(tables, &readers));
    let registry = Registry::anonymous(2048).expect("memory for counters");
    let account = |name| Account::open(&registry, Scope::Other(name)).expect("room for counters");
    let mut slow = SlowPath::new(SlowConfig {
        published: published.clone(),
        reader: readers.register(),
        frames: Freelist::new(FramePool::new(64, 2048).expect("memory"), 128),
        resolver: Box::new(NoResolver),
        waker: Waker::new().expect("an eventfd"),
        counters: Counters::open(&registry, Scope::Slow).expect("room for counters"),
        waits: WaitLimits::default(),
        seed: 1,
    });
    let (punt_queue, back) = slow.add_worker(64, vec!["port".into()], account("return"), None);
    let ports = vec![RouterPort { name: "port".into(), account: account("router") }];
    let app = Router::new(ports, published, readers.register(), punt_queue);
    let engine = engine(Box::new(app), headers, header, frames);
    // The builders may go: readers hold the tables.
    Subject { name, engine, _slow: Some((slow, back)), ns: Vec::new() }
}

/// Nanoseconds that this thread has been on a core: other work on the machine does not count.
fn on_core_ns() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

/// Nanoseconds of core a packet over one turn.
fn turn(engine: &mut Engine, packets: u64) -> f64 {
    let sent = |engine: &Engine| engine.link_stats().next().map_or(0, |stats| stats.rxpackets);
    let (before, start) = (sent(engine), on_core_ns());
    while sent(engine) - before < packets {
        assert!(engine.breathe() > 0, "the router has dropped all frames of the ring");
    }
    (on_core_ns() - start) / (sent(engine) - before) as f64
}

fn main() {
    let arguments: Vec<usize> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let (frames, turns) =
        (arguments.first().copied().unwrap_or(1024), arguments.get(1).copied().unwrap_or(7));
    let (one, full) = (one(), full());
    let ipv4 = |routes: &Routes| headers(&routes.ipv4, random_ipv4, header_ipv4);
    let ipv6 = |routes: &Routes| headers(&routes.ipv6, random_ipv6, header_ipv6);
    let floor = |name, headers, header| {
        let engine = engine(Box::new(Nothing(Burst::new())), headers, header, frames);
        Subject { name, engine, _slow: None, ns: Vec::new() }
    };
    let wanted = std::env::args().nth(3).unwrap_or_default();
    let make: [(&'static str, &dyn Fn(&'static str) -> Subject); 6] = [
        ("floor ipv4", &|name| floor(name, ipv4(&one), 34)),
        ("ipv4 one route", &|name| router(name, &one, ipv4(&one), 34, frames)),
        ("ipv4 full table", &|name| router(name, &full, ipv4(&full), 34, frames)),
        ("floor ipv6", &|name| floor(name, ipv6(&one), 54)),
        ("ipv6 one route", &|name| router(name, &one, ipv6(&one), 54, frames)),
        ("ipv6 full table", &|name| router(name, &full, ipv6(&full), 54, frames)),
    ];
    let wanted = make.iter().filter(|(name, _)| name.contains(&wanted));
    let mut subjects: Vec<Subject> = wanted.map(|(name, make)| make(name)).collect();
    println!("{frames} frames in the ring, {} IPv4 and {} IPv6 routes", full.ipv4.len(), full.ipv6.len());
    for _ in 0..turns {
        for subject in &mut subjects {
            turn(&mut subject.engine, TURN / 20);
            subject.ns.push(turn(&mut subject.engine, TURN));
        }
    }
    println!("{:<18} {:>8} {:>8} {:>8}   ns of core a packet; less its floor", "", "min", "median", "max");
    let mut under = 0.0;
    for subject in &mut subjects {
        subject.ns.sort_by(f64::total_cmp);
        let (min, median, max) =
            (subject.ns[0], subject.ns[subject.ns.len() / 2], subject.ns[subject.ns.len() - 1]);
        if subject.name.starts_with("floor") {
            under = median;
        }
        println!("{:<18} {min:>8.1} {median:>8.1} {max:>8.1}   {:>6.1}", subject.name, median - under);
    }
}
