//! `bench kernel`, cases `auto-..`: is brickmoon, as it comes, ever slower than Linux alone?
//!
//! ```text
//! linux   no daemon: the stack
//! auto    `brickmoon up` without a path: what it chooses for the device
//! ```
//!
//! On each kind of veth, with sockets of Linux on both sides: UDP in frames of 60 and of 1,500 bytes, as many as the
//! sender can send, and one TCP connection. Each turn of `auto` starts the daemon, and first sends for as long as it
//! may take until a port has moved from XDP to tc. A ratio compares the two turns of one round.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bm_testbed::interrupt;
use bm_testbed::testbed::namespace::{Feature, Namespace};
use bm_testbed::testbed::{Testbed, TestbedError, TestbedOptions, next_hop_ipv4};

use super::{KernelOptions, tcp};
use crate::alternate::{Quantiles, spread, take_turns};
use crate::bench::BenchError;
use crate::bench::rounded;
use crate::demo::daemon::{Daemon, ForwardingPath};
use crate::report::Row;

/// Time for start and end of the daemon.
const OVERHEAD: Duration = Duration::from_millis(900);
/// The daemon looks once a second at what a port received, and compares with the time before.
const SETTLES: Duration = Duration::from_millis(2600);
const SLOT_MIN: Duration = Duration::from_millis(300);
const PORT: u16 = 5202;
/// Headers of a frame of UDP over IPv4.
const HEADERS: usize = 14 + 20 + 8;

/// A kind of veth: its hosts' ends, since those of the router are as Linux creates them.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    /// Receive offload, without which XDP cannot send to them.
    gro: bool,
    /// Whether they leave checksums and segmentation to their devices.
    offloads: bool,
    mtu: usize,
}

const KINDS: [Kind; 5] = [
    Kind { name: "veth", gro: false, offloads: true, mtu: 1500 },
    Kind { name: "veth-gro", gro: true, offloads: true, mtu: 1500 },
    Kind { name: "veth-no-offload", gro: false, offloads: false, mtu: 1500 },
    Kind { name: "veth-gro-no-offload", gro: true, offloads: false, mtu: 1500 },
    Kind { name: "veth-jumbo", gro: false, offloads: true, mtu: 9000 },
];

#[derive(Clone, Copy)]
enum Traffic {
    /// UDP in frames of this size.
    Frames(usize),
    Tcp,
}

const TRAFFIC: [(&str, Traffic); 3] =
    [("60", Traffic::Frames(60)), ("1500", Traffic::Frames(1500 + 14)), ("tcp", Traffic::Tcp)];

/// A kind of device with one sort of traffic.
#[derive(Clone)]
pub struct Case {
    pub name: String,
    kind: Kind,
    traffic: Traffic,
}

impl Case {
    pub fn all() -> Vec<Self> {
        let of_kind = KINDS.iter().flat_map(|kind| TRAFFIC.map(|(name, traffic)| (*kind, name, traffic)));
        of_kind
            .map(|(kind, name, traffic)| Self { name: format!("auto-{}-{name}", kind.name), kind, traffic })
            .collect()
    }
}

/// Measures these cases within a time.
pub fn measure(options: &KernelOptions, cases: &[Case], whole: Duration) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    for case in cases {
        let testbed = Testbed::up(&TestbedOptions { next_hops: 1, ..options.testbed.clone() })?;
        tcp::set_congestion_control(&testbed)?;
        prepare(&testbed, case.kind)?;
        rows.extend(turns(options, &testbed, case, whole / cases.len() as u32)?);
    }
    Ok(rows)
}

fn prepare(testbed: &Testbed, kind: Kind) -> Result<(), TestbedError> {
    let names = &testbed.interfaces;
    for (namespace, name) in [(&testbed.source, &names.source), (&testbed.sink, &names.sink)] {
        namespace.ethtool(name, Feature::TxChecksum, kind.offloads)?;
        namespace.ethtool(name, Feature::Gro, kind.gro)?;
        namespace.ip_batch(&format!("link set {name} mtu {}\n", kind.mtu))?;
    }
    for name in [&names.router_in, &names.router_out] {
        testbed.router.ethtool(name, Feature::TxChecksum, true)?;
        testbed.router.ethtool(name, Feature::Gro, false)?;
        testbed.router.ip_batch(&format!("link set {name} mtu {}\n", kind.mtu))?;
    }
    Ok(())
}

/// Gives each subject its turns; each round begins with the other one.
fn turns(
    options: &KernelOptions,
    testbed: &Testbed,
    case: &Case,
    whole: Duration,
) -> Result<Vec<Row>, BenchError> {
    let beside = (OVERHEAD + SETTLES) * 2;
    let runs = (whole.as_secs_f64() / (beside + 2 * SLOT_MIN).as_secs_f64()) as u32;
    let runs = runs.clamp(3, 15);
    let slot = (whole / runs).saturating_sub(beside) / 2;
    let slot = slot.clamp(SLOT_MIN, Duration::from_secs(2));
    let rates = take_turns(runs, 2, |subject| turn(options, testbed, case, subject == 1, slot))?;
    let ratios = spread(rates[0].iter().zip(&rates[1]).map(|(linux, auto)| auto / linux));
    let rows = ["linux", "auto"].into_iter().zip(&rates).map(|(subject, rates)| {
        let Quantiles { min, median, max } = spread(rates.iter().copied());
        let row = Row {
            bench: "kernel".into(),
            case: case.name.clone(),
            subject: subject.into(),
            unit: if matches!(case.traffic, Traffic::Tcp) { "gbps" } else { "mpps" }.into(),
            min: rounded(min),
            median: rounded(median),
            max: rounded(max),
            ns: 0.0,
            runs: rates.len(),
            detail: serde_json::Map::new(),
        };
        match subject {
            "auto" => row
                .with("to_linux_min", rounded(ratios.min))
                .with("to_linux", rounded(ratios.median))
                .with("to_linux_max", rounded(ratios.max)),
            _ => row,
        }
    });
    Ok(rows.collect())
}

/// What arrives in a second, with the daemon or without: millions of packets, or gigabits.
fn turn(
    options: &KernelOptions,
    testbed: &Testbed,
    case: &Case,
    with_daemon: bool,
    slot: Duration,
) -> Result<f64, BenchError> {
    let path = ForwardingPath::Auto;
    let mut daemon = match with_daemon {
        true => {
            Some(Daemon::start(testbed, &options.testbed.prefix, options.program.as_deref(), path, None)?)
        }
        false => None,
    };
    let settles = if with_daemon { SETTLES } else { SETTLES / 10 };
    let rate = match case.traffic {
        Traffic::Tcp => {
            tcp::connection(testbed, settles)?;
            tcp::connection(testbed, slot)?
        }
        Traffic::Frames(size) => datagrams(testbed, size - HEADERS, settles, slot)?,
    };
    if let Some(daemon) = &mut daemon {
        daemon.stop()?;
    }
    Ok(rate)
}

/// Sends datagrams of this size for both times; millions of frames a second that arrive in the second.
fn datagrams(
    testbed: &Testbed,
    bytes: usize,
    settles: Duration,
    slot: Duration,
) -> Result<f64, TestbedError> {
    let to = SocketAddr::from((next_hop_ipv4(1), PORT));
    // Nobody reads it: it only keeps Linux from answering that the port is unreachable.
    let _taken = bind(&testbed.sink, PORT)?;
    let sender = bind(&testbed.source, 0)?;
    sender.connect(to).map_err(TestbedError::system("connect"))?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| send(&sender, bytes, &stop));
        let rate = rate_at_sink(testbed, settles, slot);
        stop.store(true, Relaxed);
        rate
    })
}

fn bind(namespace: &Namespace, port: u16) -> Result<UdpSocket, TestbedError> {
    let address = SocketAddr::from(([0, 0, 0, 0], port));
    namespace.enter(|| UdpSocket::bind(address).map_err(TestbedError::system("bind")))
}

fn rate_at_sink(testbed: &Testbed, settles: Duration, slot: Duration) -> Result<f64, TestbedError> {
    interrupt::sleep(settles)?;
    let (before, begin) = (arrived(testbed)?, Instant::now());
    interrupt::sleep(slot)?;
    let count = arrived(testbed)? - before;
    Ok(count as f64 * 1e-6 / begin.elapsed().as_secs_f64())
}

/// Frames that the sink's interface has received.
fn arrived(testbed: &Testbed) -> Result<u64, TestbedError> {
    let failed = TestbedError::system("count frames at the sink");
    testbed.sink.enter(|| received(&testbed.interfaces.sink).map_err(failed))
}

fn send(sender: &UdpSocket, bytes: usize, stop: &AtomicBool) {
    let payload = vec![0x5a; bytes];
    while !stop.load(Relaxed) {
        // A full queue is what is measured here.
        let _sent = sender.send(&payload);
    }
}

/// Packets that an interface of this thread's namespace has received.
fn received(interface: &str) -> io::Result<u64> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let line = table.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
    let packets = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    packets.ok_or_else(|| io::Error::other(format!("no counters of {interface}")))
}
