//! `bench kernel`, cases `user-..`: what does a packet cost on the user path over veth?
//!
//! ```text
//! linux    no daemon: the stack
//! user     workers, over AF_XDP
//! floor    the same sockets without a router: each frame that comes in leaves on the other port, to one next hop
//! ```
//!
//! Router and floor share a core with the thread that polls their input, with one priority more than it. What the
//! floor takes, no router over AF_XDP can save.

mod floor;

use std::time::{Duration, Instant};

use bm_testbed::testbed::Testbed;
use bm_testbed::testbed::cores::Cores;
use bm_testbed::testbed::kernel::Change;
use bm_testbed::traffic::{Programs, Sink, SinkMode, Stream};

use super::bed::{Ahead, Flows, OVERHEAD, Polling, SLOT, WARM_UP};
use super::figures::with_spread;
use super::{KernelOptions, check_arrived};
use crate::alternate::{Sample, Series as Rates, take_turns};
use crate::bench::BenchError;
use crate::demo::daemon::{Daemon, ForwardingPath};
use crate::measure::{Flow, Measure};
use crate::report::Row;
use floor::Floor;

/// What forwards in a turn.
#[derive(Clone)]
enum Subject {
    Linux,
    User,
    /// With rings of this many entries.
    Floor(u32),
}

/// Time to start and end the daemon in a turn.
const DAEMON: Duration = Duration::from_millis(700);

/// Which table and frames.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    /// Whether there is the full table, or a default route alone.
    pub is_full: bool,
    /// The size as cases of the kernel path are called by it.
    pub size: &'static str,
}

impl Case {
    pub const ALL: [Self; 4] = [
        Self { name: "user-one-64", is_full: false, size: "64" },
        Self { name: "user-one-1514", is_full: false, size: "1514" },
        Self { name: "user-full-64", is_full: true, size: "64" },
        Self { name: "user-full-1514", is_full: true, size: "1514" },
    ];
}

/// A test bed with the routes of a case.
struct Bed<'a> {
    options: &'a KernelOptions,
    testbed: Testbed,
    programs: Programs,
    cores: Cores,
    slot: Duration,
}

/// Measures a case within a time.
pub fn measure(
    options: &KernelOptions,
    case: &Case,
    table: &bm_testbed::tables::Table,
    flows: &Flows,
    whole: Duration,
) -> Result<Vec<Row>, BenchError> {
    let begin = Instant::now();
    let cores = Cores::deal().ok_or(BenchError::Cores)?;
    let testbed = Testbed::up(&options.testbed)?;
    let mut bed = Bed { options, testbed, programs: Programs::load()?, cores, slot: SLOT };
    bed.testbed.change_routes(Change::Add, table)?;
    let subjects = subjects();
    let left = whole.saturating_sub(begin.elapsed());
    let least = (OVERHEAD + DAEMON + WARM_UP + SLOT) * subjects.len() as u32;
    let runs = ((left.as_secs_f64() / least.as_secs_f64()) as u32).clamp(3, 15);
    let slot = (left / runs / subjects.len() as u32).saturating_sub(OVERHEAD + DAEMON + WARM_UP);
    bed.slot = slot.clamp(SLOT, Duration::from_secs(1));
    let polling = Polling::start(&bed.testbed, &bed.cores)?;
    let _ahead = Ahead::of_others();
    let turns = take_turns(runs, subjects.len(), |at| -> Result<Flow, BenchError> {
        let (name, subject) = &subjects[at];
        let flow = bed.turn(subject, flows, &polling)?;
        check_arrived(case.name, name, &flow)?;
        Ok(flow)
    })?;
    Ok((0..subjects.len()).map(|at| row(case, &subjects[at].0, &turns[at], &turns[0])).collect())
}

/// Entries of the floor's rings: few, so that its memory stays in the cache, and as many as the daemon chooses.
const RINGS: [u32; 2] = [512, 16_384];

fn subjects() -> [(String, Subject); 4] {
    let [few, many] = RINGS.map(|ring| (format!("floor-{ring}"), Subject::Floor(ring)));
    [("linux".into(), Subject::Linux), ("user".into(), Subject::User), few, many]
}

impl Bed<'_> {
    fn turn(&self, subject: &Subject, flows: &Flows, polling: &Polling<'_>) -> Result<Flow, BenchError> {
        let mut daemon = None;
        let mut floor = None;
        let mut stream: &Stream = &flows.checked;
        match subject {
            Subject::Linux => {}
            Subject::User => {
                let (options, core) = (self.options, Some(self.cores.router));
                let program = options.program.as_deref();
                daemon = Some(Daemon::start(
                    &self.testbed,
                    &options.testbed.prefix,
                    program,
                    ForwardingPath::User,
                    core,
                )?);
            }
            Subject::Floor(ring) => {
                floor = Some(Floor::start(&self.testbed, self.cores.router, *ring)?);
                stream = &flows.anywhere;
            }
        }
        let sink = Sink::attach(&self.programs, &self.testbed, SinkMode::Skbs)?;
        // An interface may have new threads since a program came.
        polling.pin()?;
        let measure = Measure {
            testbed: &self.testbed,
            programs: &self.programs,
            sink: &sink,
            core: Some(self.cores.source),
            warm_up: WARM_UP,
            time: self.slot,
            slices: 1,
        };
        let flow = measure.run(stream, || {
            let worker =
                daemon.as_ref().map_or(0, Daemon::core_ns) + floor.as_ref().map_or(0, Floor::core_ns);
            polling.router_ns() + worker
        })?;
        if let Some(daemon) = &mut daemon {
            daemon.stop()?;
        }
        if let Some(floor) = floor {
            floor.stop()?;
        }
        Ok(flow)
    }
}

fn row(case: &Case, subject: &str, ours: &[Flow], linux: &[Flow]) -> Row {
    let samples: Vec<Sample> = ours.iter().flat_map(|flow| flow.samples.clone()).collect();
    let rates = Rates { subject: subject.into(), samples };
    let pairs = ours.iter().zip(linux);
    let of_rates = pairs.clone().map(|(ours, linux)| ours.first_rate() / linux.first_rate().max(1e-9));
    let of_times = pairs.map(|(ours, linux)| linux.first_ns() / ours.first_ns().max(1e-9));
    let row = Row::mpps("kernel", case.name, &rates);
    let row = with_spread(with_spread(row, "linux_rate", of_rates), "linux_time", of_times);
    row.with("sent", ours.iter().map(|flow| flow.sent).sum::<u64>())
        .with("lost", ours.iter().map(Flow::lost).sum::<u64>())
        .with("bad", ours.iter().map(|flow| flow.arrived.bad()).sum::<u64>())
}
