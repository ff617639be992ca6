//! `bench kernel`, cases `tcp-..`: how fast is one TCP connection through the router, between two hosts on veths?
//!
//! ```text
//! linux    no daemon: the stack
//! xdp      the kernel path, attached as XDP
//! tc       the kernel path, attached at tc
//! user     workers, over AF_XDP
//! ```
//!
//! Sender and receiver are sockets of Linux in the namespaces on both sides, and share the cores with the router, like
//! a container that downloads from another. The daemon is started for its turn.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use bm_testbed::interrupt;
use bm_testbed::testbed::namespace::Feature;
use bm_testbed::testbed::{Testbed, TestbedError, TestbedOptions, next_hop_ipv4};

use super::KernelOptions;
use crate::alternate::{Quantiles, spread, take_turns};
use crate::bench::BenchError;
use crate::bench::rounded;
use crate::demo::daemon::{Daemon, ForwardingPath};
use crate::report::Row;

/// The subjects, and on which path the router forwards.
const SUBJECTS: [(&str, Option<ForwardingPath>); 4] = [
    ("linux", None),
    ("xdp", Some(ForwardingPath::Kernel)),
    ("tc", Some(ForwardingPath::KernelTc)),
    ("user", Some(ForwardingPath::User)),
];
/// Time of a turn besides the measurement: start and end of the daemon, and the connection's slow start.
const OVERHEAD: Duration = Duration::from_millis(900);
const WARM_UP: Duration = Duration::from_millis(400);
const SLOT_MIN: Duration = Duration::from_millis(300);
/// Timeout of the sockets.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that are written or read in one call.
const CHUNK: usize = 128 << 10;
const PORT: u16 = 5201;

/// Whether the hosts leave checksums and segmentation to their devices, which is the default of veths.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    offloads: bool,
}

impl Case {
    pub const ALL: [Self; 2] = [
        Self { name: "tcp-default-offloads", offloads: true },
        Self { name: "tcp-without-transmit-offload", offloads: false },
    ];
}

/// Measures these cases within a time.
pub fn measure(options: &KernelOptions, cases: &[Case], whole: Duration) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    for case in cases {
        let testbed = Testbed::up(&TestbedOptions { next_hops: 1, ..options.testbed.clone() })?;
        set_congestion_control(&testbed)?;
        set_offloads(&testbed, case.offloads)?;
        rows.extend(turns(options, &testbed, case, whole / cases.len() as u32)?);
    }
    Ok(rows)
}

/// BBR, the default of some machines, sends as fast as it thinks that the network is, and over veths it is wrong by a
/// factor of four. Reno, which each namespace may have, sends as fast as the router forwards.
pub fn set_congestion_control(testbed: &Testbed) -> Result<(), TestbedError> {
    [&testbed.source, &testbed.sink]
        .into_iter()
        .try_for_each(|host| host.sysctl(&[("net/ipv4/tcp_congestion_control", "reno")]))
}

/// Only on the hosts: the router's ends stay as they are.
pub fn set_offloads(testbed: &Testbed, on: bool) -> Result<(), TestbedError> {
    let interfaces = &testbed.interfaces;
    testbed.source.ethtool(&interfaces.source, Feature::TxChecksum, on)?;
    testbed.sink.ethtool(&interfaces.sink, Feature::TxChecksum, on)?;
    // The test bed turns these off, too.
    testbed.router.ethtool(&interfaces.router_in, Feature::TxChecksum, true)?;
    testbed.router.ethtool(&interfaces.router_out, Feature::TxChecksum, true)
}

/// Gives each subject its turns; each round begins with the next one.
fn turns(
    options: &KernelOptions,
    testbed: &Testbed,
    case: &Case,
    whole: Duration,
) -> Result<Vec<Row>, BenchError> {
    let least = (OVERHEAD + WARM_UP + SLOT_MIN) * SUBJECTS.len() as u32;
    let runs = ((whole.as_secs_f64() / least.as_secs_f64()) as u32).clamp(3, 15);
    let slot = (whole / runs / SUBJECTS.len() as u32).saturating_sub(OVERHEAD + WARM_UP);
    let slot = slot.clamp(SLOT_MIN, Duration::from_secs(2));
    let rates = take_turns(runs, SUBJECTS.len(), |at| turn(options, testbed, SUBJECTS[at].1, slot))?;
    let linux = spread(rates[0].iter().copied()).median;
    let rows = SUBJECTS.iter().zip(&rates).map(|((subject, _), rates)| {
        let Quantiles { min, median, max } = spread(rates.iter().copied());
        Row {
            bench: "kernel".into(),
            case: case.name.into(),
            subject: (*subject).into(),
            unit: "gbps".into(),
            min: rounded(min),
            median: rounded(median),
            max: rounded(max),
            ns: 0.0,
            runs: rates.len(),
            detail: serde_json::Map::new(),
        }
        .with("to_linux", rounded(median / linux))
    });
    Ok(rows.collect())
}

/// One connection through the router for a while: gigabits a second as received.
fn turn(
    options: &KernelOptions,
    testbed: &Testbed,
    path: Option<ForwardingPath>,
    slot: Duration,
) -> Result<f64, BenchError> {
    let start =
        |path| Daemon::start(testbed, &options.testbed.prefix, options.program.as_deref(), path, None);
    let mut daemon = path.map(start).transpose()?;
    let rate = connection(testbed, slot)?;
    if let Some(daemon) = &mut daemon {
        daemon.stop()?;
    }
    Ok(rate)
}

/// Sends over one connection through the router for a while: gigabits a second as received.
pub fn connection(testbed: &Testbed, slot: Duration) -> Result<f64, BenchError> {
    let failed = TestbedError::system("send over TCP through the router");
    let to = SocketAddr::from((next_hop_ipv4(1), PORT));
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
    let listener = testbed.sink.enter(|| TcpListener::bind(any).map_err(TestbedError::system("listen")))?;
    let sender = testbed
        .source
        .enter(|| TcpStream::connect_timeout(&to, PATIENCE).map_err(TestbedError::system("connect")))?;
    let (receiver, _) = listener.accept().map_err(TestbedError::system("accept"))?;
    let (stop, stopped) = channel::<()>();
    let rate = std::thread::scope(|scope| {
        let sending = scope.spawn(move || send(sender, &stopped));
        let rate = receive(receiver, slot);
        drop(stop);
        // The sender's result matters only if nothing was received.
        let _sent = sending.join();
        rate
    });
    interrupt::check().map_err(TestbedError::from)?;
    Ok(rate.map_err(failed)?)
}

/// Sends until the other side has ended.
fn send(mut to: TcpStream, stopped: &Receiver<()>) -> io::Result<()> {
    to.set_write_timeout(Some(PATIENCE))?;
    let chunk = vec![0x5a; CHUNK];
    while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
        to.write_all(&chunk)?;
    }
    to.shutdown(Shutdown::Both)
}

/// Receives for a while after the warm-up: gigabits a second.
fn receive(mut from: TcpStream, slot: Duration) -> io::Result<f64> {
    from.set_read_timeout(Some(PATIENCE))?;
    let mut chunk = vec![0; CHUNK];
    receive_for(WARM_UP, &mut from, &mut chunk)?;
    let rate = receive_for(slot, &mut from, &mut chunk);
    // The sender may be waiting for room.
    from.shutdown(Shutdown::Both)?;
    rate
}

fn receive_for(time: Duration, from: &mut TcpStream, chunk: &mut [u8]) -> io::Result<f64> {
    let (begin, mut bytes) = (Instant::now(), 0);
    while begin.elapsed() < time {
        match from.read(chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => bytes += read,
        }
    }
    Ok(bytes as f64 * 8e-9 / begin.elapsed().as_secs_f64())
}
