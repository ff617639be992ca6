//! `bench kernel`, cases `flows-..`: what does a packet of a connection take that Linux's firewall has accepted?
//!
//! ```text
//! linux       no program on the interfaces: the stack, its connection tracking and NAT
//! brickmoon   the daemon's program, which repeats what Linux has decided about each connection
//! ```
//!
//! Both forward the same packets, from one source to 1, 10,000 or 1,000,000 destinations, through the same rules: a chain
//! with policy drop that accepts new connections from inside, and masquerade. Every connection has been established, and
//! the daemon has learned its flow, before the first turn. Case `flows-new` opens connections instead.
//!
//! The daemon runs all the time, since it would have to learn a million flows again. Whatever it attaches is there in its
//! own turns alone, its observer of what Linux sends included: Linux forwards as if there were no daemon.

mod established;
mod new;

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use bm_testbed::testbed::cores::Cores;
use bm_testbed::testbed::kernel::Change;
use bm_testbed::testbed::{Testbed, TestbedError};
use bm_testbed::traffic::{Programs, Sink, SinkMode, Stream};

use super::bed::{Ahead, OVERHEAD, Polling, Turn, WARM_UP, forwarded_by_linux};
use super::figures::{pairs, with_spread};
use super::rivals::{OnRouter, borrow_observer, borrow_program, is_observed, map_bytes};
use super::{KernelOptions, check_arrived, one_route};
use crate::alternate::{Series as Rates, spread, take_turns};
use crate::bench::{BenchError, Options, rounded};
use crate::demo::daemon::Daemon;
use crate::measure::Measure;
use crate::program::router;
use crate::report::Row;
use established::Limits;

const SUBJECTS: [&str; 2] = ["linux", "brickmoon"];
const LINUX: usize = 0;
const BRICKMOON: usize = 1;
/// Even of a million destinations, most have had a packet after that.
const SLOT_MIN: Duration = Duration::from_millis(300);
const SLOT_MAX: Duration = Duration::from_secs(2);
/// The least and the most flows that the daemon may be set to have.
const FLOWS_MIN: usize = 16_384;
const FLOWS_MAX: usize = 4_000_000;

/// How many connections there are.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    /// `None` if connections are opened and closed all the time.
    connections: Option<usize>,
}

impl Case {
    /// The last one is that whose connections Linux takes seconds to delete, in which it starts and stops no daemon.
    pub const ALL: [Self; 4] = [
        Self { name: "flows-1", connections: Some(1) },
        Self { name: "flows-10000", connections: Some(10_000) },
        Self { name: "flows-new", connections: None },
        Self { name: "flows-1000000", connections: Some(1_000_000) },
    ];

    /// The cases that are asked for: one by its whole name, which the names of others may contain, or several.
    pub fn selected(options: &Options) -> Vec<Self> {
        let wanted = options.case.as_deref();
        let one = Self::ALL.into_iter().find(|case| wanted == Some(case.name));
        let several = Self::ALL.into_iter().filter(|case| wanted.is_some() && options.wants(case.name));
        one.map_or_else(|| several.collect(), |case| vec![case])
    }
}

/// Measures these cases; what it takes to establish a million connections is not counted in the time.
pub fn measure(options: &KernelOptions, cases: &[Case], whole: Duration) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    for case in cases {
        let share = whole / cases.len() as u32;
        match case.connections {
            Some(connections) => {
                let bed = Bed::up(options, case.name, connections)?;
                rows.extend(bed.measure(case.name, share)?);
            }
            None => rows.extend(new::measure(options, case.name, share)?),
        }
    }
    Ok(rows)
}

/// What the daemon attaches, taken from it.
struct DaemonPrograms {
    program: OwnedFd,
    observer: OwnedFd,
}

/// A test bed with established connections, and a daemon that has learned them.
struct Bed {
    daemon: Daemon,
    programs_of_daemon: DaemonPrograms,
    /// Flows that it had learned before the first turn.
    learned: u64,
    /// Size of the table of flows.
    table_bytes: u64,
    stream: Stream,
    programs: Programs,
    cores: Cores,
    testbed: Testbed,
    _limits: Limits,
}

impl Bed {
    fn up(options: &KernelOptions, case: &str, connections: usize) -> Result<Self, BenchError> {
        let cores = Cores::deal().ok_or(BenchError::Cores)?;
        let testbed = Testbed::up(&options.testbed)?;
        testbed.change_routes(Change::Add, &one_route())?;
        established::set_rules(&testbed)?;
        let _limits = Limits::raise(&testbed, connections)?;
        let (programs, stream) = (Programs::load()?, established::stream(connections));
        // A connection is two flows. The daemon learns none that began before it, so it starts first.
        let flows = (2 * connections).clamp(FLOWS_MIN, FLOWS_MAX);
        let daemon = start_daemon(&testbed, options, flows, &["--path", "kernel", "--attach", "xdp"])?;
        established::establish(&testbed, &programs, case, &stream)?;
        let learned = established::learn(options, &daemon, &testbed, &programs, &stream)?;
        let table_bytes = map_bytes(&testbed, "flows")?;
        let program = borrow_program(&testbed)?;
        let observer =
            borrow_observer(&testbed)?.ok_or("it is not at tc's egress of the router's interfaces");
        let observer = observer.map_err(BenchError::build("the daemon's observer of what Linux sends"))?;
        let programs_of_daemon = DaemonPrograms { program, observer };
        Ok(Self {
            daemon,
            programs_of_daemon,
            learned,
            table_bytes,
            stream,
            programs,
            cores,
            testbed,
            _limits,
        })
    }

    /// Gives each subject its turns within a time, and stops the daemon.
    fn measure(mut self, case: &str, whole: Duration) -> Result<Vec<Row>, BenchError> {
        let beside = OVERHEAD + WARM_UP;
        let runs = (whole.as_secs_f64() / (2 * (beside + SLOT_MIN)).as_secs_f64()) as u32;
        let runs = runs.clamp(3, 15);
        let slot = (whole / runs / 2).saturating_sub(beside).clamp(SLOT_MIN, SLOT_MAX);
        let turns = self.turns(case, runs, slot)?;
        self.daemon.stop()?;
        Ok((0..SUBJECTS.len()).map(|subject| self.row(case, subject, &turns)).collect())
    }

    fn turns(&self, case: &str, runs: u32, slot: Duration) -> Result<Vec<Vec<Turn>>, BenchError> {
        let polling = Polling::start(&self.testbed, &self.cores)?;
        let _ahead = Ahead::of_others();
        take_turns(runs, SUBJECTS.len(), |subject| -> Result<Turn, BenchError> {
            // The daemon attaches it again when it changes its tables.
            borrow_observer(&self.testbed)?;
            let turn = self.turn(subject, slot, &polling)?;
            check_arrived(case, SUBJECTS[subject], &turn.flow)?;
            if subject == LINUX && is_observed(&self.testbed)? {
                let why = "the daemon has attached its observer of what Linux sends: repeat the bench";
                return Err(BenchError::build("a turn of Linux alone")(why));
            }
            Ok(turn)
        })
    }

    fn turn(&self, subject: usize, slot: Duration, polling: &Polling<'_>) -> Result<Turn, BenchError> {
        let (mut attached, mut mode) = (Vec::new(), SinkMode::Skbs);
        if subject == BRICKMOON {
            let DaemonPrograms { program, observer } = &self.programs_of_daemon;
            attached.push(OnRouter::observe(&self.testbed, observer)?);
            attached.push(OnRouter::attach(&self.testbed, program)?);
            mode = SinkMode::Frames;
        }
        let sink = Sink::attach(&self.programs, &self.testbed, mode)?;
        polling.pin()?;
        let measure = Measure {
            testbed: &self.testbed,
            programs: &self.programs,
            sink: &sink,
            core: Some(self.cores.source),
            warm_up: WARM_UP,
            time: slot,
            slices: 1,
        };
        let (linux, used) = (forwarded_by_linux(&self.testbed)?, self.daemon.core_ns());
        let began = Instant::now();
        let flow = measure.run(&self.stream, || polling.router_ns())?;
        let daemon = (self.daemon.core_ns() - used) as f64 / began.elapsed().as_nanos() as f64;
        Ok(Turn { flow, by_linux: forwarded_by_linux(&self.testbed)? - linux, daemon })
    }

    fn row(&self, case: &str, subject: usize, turns: &[Vec<Turn>]) -> Row {
        let ours = &turns[subject];
        let samples = ours.iter().flat_map(|turn| turn.flow.samples.clone()).collect();
        let rates = Rates { subject: SUBJECTS[subject].into(), samples };
        let sum = |of: fn(&Turn) -> u64| ours.iter().map(of).sum::<u64>();
        let row = Row::mpps("kernel", case, &rates)
            .with("connections", self.stream.destinations())
            .with("frame_bytes", rounded(self.stream.frame_bytes_mean()));
        let ratios = pairs(ours, &turns[LINUX]).map(|(ours, linux)| linux.ns / ours.ns.max(1e-9));
        let row = with_spread(row, "linux_ratio", ratios)
            .with("sent", sum(|turn| turn.flow.sent))
            .with("lost", sum(|turn| turn.flow.lost()))
            .with("bad", sum(|turn| turn.flow.arrived.bad()))
            .with("by_linux", sum(|turn| turn.by_linux));
        if subject != BRICKMOON {
            return row;
        }
        let loaded = spread(ours.iter().map(|turn| turn.daemon)).median;
        row.with("flows_learned", self.learned)
            .with("flows_bytes", self.table_bytes)
            .with("daemon_loaded_percent", rounded(loaded * 100.0))
    }
}

/// Starts the daemon on both ports with room for so many flows. `path` are options that say how it forwards.
fn start_daemon(
    testbed: &Testbed,
    options: &KernelOptions,
    flows: usize,
    path: &[&str],
) -> Result<Daemon, BenchError> {
    let folder = Path::new("/run").join(&options.testbed.prefix);
    let file = folder.join("config.toml");
    let text = format!("[daemon]\n[flows]\nmode = \"auto\"\nmax = {flows}\n");
    let written = fs::create_dir_all(&folder).and_then(|()| fs::write(&file, text));
    written.map_err(TestbedError::system("write a configuration"))?;
    let mut arguments = vec!["--config".into(), file.into_os_string()];
    arguments.extend(path.iter().map(Into::into));
    let ports = [&testbed.interfaces.router_in, &testbed.interfaces.router_out];
    arguments.extend(ports.iter().flat_map(|port| ["--port".into(), port.into()]));
    let program = options.program.clone().unwrap_or_else(router);
    Ok(Daemon::start_in(&testbed.router, folder, &program, &arguments)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_name_selects_one_case() {
        let names = |wanted: Option<&str>| {
            let options = Options { case: wanted.map(Into::into), ..Options::default() };
            Case::selected(&options).iter().map(|case| case.name).collect::<Vec<_>>()
        };
        assert_eq!(names(Some("flows-1")), ["flows-1"]);
        assert_eq!(names(Some("flows-10")), ["flows-10000", "flows-1000000"]);
        assert_eq!(names(Some("flows")).len(), 4);
        assert!(names(None).is_empty());
    }
}
