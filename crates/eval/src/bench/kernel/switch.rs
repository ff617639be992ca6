//! `bench kernel`, cases `switch-..`: how long does a frame take in our switch, and how long in Linux's bridge?
//!
//! The test bed is that of the router, but its IP addresses are not used: frames go straight to the MAC addresses of
//! hosts behind the other port. Each turn begins with an empty switch; every host sends one frame, then the generator
//! sends to the hosts in turn.

use std::time::Duration;

use bm_switch::{Pattern, Settings, Switch};
use bm_testbed::addresses::Sizes;
use bm_testbed::testbed::cores::Cores;
use bm_testbed::testbed::{Testbed, TestbedError, TestbedOptions, mac};
use bm_testbed::traffic::{Programs, Sink, SinkMode, Stream, packet_socket};
use rustix::net::{self, AddressFamily, SendFlags, SocketType};

use super::bed::{Ahead, OVERHEAD, Polling, SLOT, WARM_UP};
use super::figures::with_spread;
use super::{KernelOptions, check_arrived};
use crate::alternate::{Sample, Series as Rates, take_turns};
use crate::bench::BenchError;
use crate::bench::rounded;
use crate::measure::{Flow, Measure};
use crate::report::Row;

const SUBJECTS: [&str; 2] = ["linux", "brickmoon"];
/// Number of flows, used in turn.
const FLOWS: u32 = 1024;
/// The first of the destination IP addresses, which no switch looks at (RFC 2544).
const FIRST: u32 = 0xc612_0000;
const BRIDGE: &str = "br0";
/// EtherType for experiments (IEEE 802 local), for the first frame of each host.
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];

/// How many hosts are behind the other port, and which frames are sent to them.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    hosts: u16,
    sizes: Sizes,
}

impl Case {
    pub const ALL: [Self; 3] = [
        Self { name: "switch-one-64", hosts: 1, sizes: Sizes::Fixed(64) },
        Self { name: "switch-1000-64", hosts: 1000, sizes: Sizes::Fixed(64) },
        Self { name: "switch-1000-1514", hosts: 1000, sizes: Sizes::Fixed(1518) },
    ];

    fn stream(&self) -> Stream {
        let addresses: Vec<u32> = (FIRST..FIRST + FLOWS).collect();
        Stream::ipv4(&addresses, self.sizes).bridged(self.hosts)
    }
}

/// The switch of a turn, removed when this is dropped.
enum Switching<'a> {
    Linux(&'a Testbed),
    // Only held: when it is dropped, the switch is removed.
    Ours(#[expect(dead_code, reason = "dropping it detaches the programs")] Box<Switch>),
}

impl<'a> Switching<'a> {
    fn start(subject: &str, testbed: &'a Testbed) -> Result<Self, BenchError> {
        let (near, far) = (&testbed.interfaces.router_in, &testbed.interfaces.router_out);
        if subject == "linux" {
            testbed.router.ip_batch(&format!(
                "link add {BRIDGE} up type bridge mcast_snooping 0\n\
                 link set {near} master {BRIDGE}\nlink set {far} master {BRIDGE}\n"
            ))?;
            return Ok(Self::Linux(testbed));
        }
        let mut settings = Settings::new("bench");
        settings.ports = [near, far].map(|name| Pattern::new(name)).into();
        let switch = testbed.router.enter(|| Ok(Switch::open(settings)))?;
        let switch = switch.map_err(BenchError::build("the switch"))?;
        match switch.refused().iter().next() {
            Some((name, why)) => Err(BenchError::build("the switch")(format!("{name}: {why}"))),
            None => Ok(Self::Ours(Box::new(switch))),
        }
    }
}

impl Drop for Switching<'_> {
    fn drop(&mut self) {
        if let Self::Linux(testbed) = self {
            // If it fails, the next turn reports it.
            let _gone = testbed.router.ip_batch(&format!("link del {BRIDGE}\n"));
        }
    }
}

/// Measures these cases within a time.
pub fn measure(options: &KernelOptions, cases: &[Case], whole: Duration) -> Result<Vec<Row>, BenchError> {
    if cases.is_empty() {
        return Ok(Vec::new());
    }
    let options = TestbedOptions { next_hops: 1, ..options.testbed.clone() };
    let cores = Cores::deal().ok_or(BenchError::Cores)?;
    let (testbed, programs) = (Testbed::up(&options)?, Programs::load()?);
    let each = whole / cases.len() as u32;
    let least = (OVERHEAD + WARM_UP + SLOT) * SUBJECTS.len() as u32;
    let runs = (each.as_secs_f64() / least.as_secs_f64()) as u32;
    let runs = runs.clamp(3, 15);
    let slot = (each / runs / SUBJECTS.len() as u32).saturating_sub(OVERHEAD + WARM_UP);
    let bed = Bed { testbed, programs, cores, slot: slot.clamp(SLOT, Duration::from_secs(1)) };
    let rows = cases.iter().map(|case| bed.measure(case, runs));
    Ok(rows.collect::<Result<Vec<_>, _>>()?.concat())
}

struct Bed {
    testbed: Testbed,
    programs: Programs,
    cores: Cores,
    slot: Duration,
}

impl Bed {
    /// Gives both their turns; they alternate in going first.
    fn measure(&self, case: &Case, runs: u32) -> Result<Vec<Row>, BenchError> {
        let polling = Polling::start(&self.testbed, &self.cores)?;
        let _ahead = Ahead::of_others();
        let stream = case.stream();
        let turns = take_turns(runs, SUBJECTS.len(), |subject| -> Result<Flow, BenchError> {
            let flow = self.turn(subject, case, &stream, &polling)?;
            check_arrived(case.name, SUBJECTS[subject], &flow)?;
            Ok(flow)
        })?;
        Ok((0..SUBJECTS.len()).map(|subject| row(case, &stream, subject, &turns)).collect())
    }

    fn turn(
        &self,
        subject: usize,
        case: &Case,
        stream: &Stream,
        polling: &Polling<'_>,
    ) -> Result<Flow, BenchError> {
        let _there = Switching::start(SUBJECTS[subject], &self.testbed)?;
        let mode = if SUBJECTS[subject] == "linux" { SinkMode::Skbs } else { SinkMode::Frames };
        let sink = Sink::attach(&self.programs, &self.testbed, mode)?;
        sink.expect_bridged();
        // An interface may have new threads since the program was attached.
        polling.pin()?;
        self.announce(case.hosts)?;
        let measure = Measure {
            testbed: &self.testbed,
            programs: &self.programs,
            sink: &sink,
            core: Some(self.cores.source),
            warm_up: WARM_UP,
            time: self.slot,
            slices: 1,
        };
        Ok(measure.run(stream, || polling.router_ns())?)
    }

    /// Each host sends a frame to the source, from which the switch learns its port.
    fn announce(&self, hosts: u16) -> Result<(), TestbedError> {
        self.testbed.sink.enter(|| {
            let words = (1..=hosts).map(|number| {
                let mut frame = [&mac::SOURCE[..], &mac::next_hop(number), &EXPERIMENT].concat();
                frame.resize(60, 0);
                frame
            });
            let words: Vec<_> = words.collect();
            send_frames(&self.testbed.interfaces.sink, &words)
                .map_err(TestbedError::system("send the first frame of each host"))
        })
    }
}

/// Sends frames on an interface of this thread's namespace.
fn send_frames(interface: &str, frames: &[Vec<u8>]) -> std::io::Result<()> {
    let device = net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let socket = packet_socket(net::netdevice::name_to_index(device, interface)?)?;
    for frame in frames {
        net::send(&socket, frame, SendFlags::empty())?;
    }
    Ok(())
}

fn row(case: &Case, stream: &Stream, subject: usize, turns: &[Vec<Flow>]) -> Row {
    let ours = &turns[subject];
    let samples: Vec<Sample> = ours.iter().flat_map(|flow| flow.samples.clone()).collect();
    let rates = Rates { subject: SUBJECTS[subject].into(), samples };
    let ratios = ours.iter().zip(&turns[0]).map(|(ours, linux)| linux.first_ns() / ours.first_ns().max(1e-9));
    let row = Row::mpps("kernel", case.name, &rates)
        .with("hosts", case.hosts)
        .with("frame_bytes", rounded(stream.frame_bytes_mean()));
    with_spread(row, "linux_ratio", ratios)
        .with("sent", ours.iter().map(|flow| flow.sent).sum::<u64>())
        .with("lost", ours.iter().map(Flow::lost).sum::<u64>())
        .with("bad", ours.iter().map(|flow| flow.arrived.bad()).sum::<u64>())
}
