//! The test bed of the bench: which subject forwards when, and how one turn is measured.

use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::{Duration, Instant};

use bm_testbed::interrupt;
use bm_testbed::testbed::cores::{self, Cores};
use bm_testbed::testbed::namespace::command;
use bm_testbed::testbed::napi::{Napi, POLLING_PRIORITY};
use bm_testbed::testbed::{Testbed, TestbedError, TestbedOptions};
use bm_testbed::traffic::{Programs, Sink, SinkMode, Stream};
use serde_json::Value;

use super::rivals::{OnRouter, Rivals, borrow_program};
use super::{KernelOptions, SUBJECTS, check_arrived};
use crate::alternate::take_turns;
use crate::bench::BenchError;
use crate::demo::daemon::{Daemon, ForwardingPath};
use crate::measure::{Flow, Measure};
use crate::program::router;

/// Time for attaching, sending the first packets and draining, in each turn.
pub const OVERHEAD: Duration = Duration::from_millis(350);
/// Shorter turns would end before the caches are warm.
pub const SLOT: Duration = Duration::from_millis(150);
pub const WARM_UP: Duration = Duration::from_millis(60);
/// How long the daemon's CPU time is measured while nothing is sent.
const IDLE: Duration = Duration::from_secs(2);

/// Threads that poll the interfaces on which packets arrive, each on a core of its own.
pub struct Polling<'a> {
    router: (Napi<'a>, usize),
    sink: Option<(Napi<'a>, usize)>,
}

impl<'a> Polling<'a> {
    /// Pins the thread of the router's interface, and that of the sink's if the sink has a core.
    pub fn start(testbed: &'a Testbed, cores: &Cores) -> Result<Self, TestbedError> {
        let interfaces = &testbed.interfaces;
        let router = (Napi::threaded(&testbed.router, &interfaces.router_in)?, cores.router);
        let sink = match cores.sink {
            Some(core) => Some((Napi::threaded(&testbed.sink, &interfaces.sink)?, core)),
            None => None,
        };
        Ok(Self { router, sink })
    }

    /// Moves the threads to their cores; an interface may have new ones since an XDP program was attached.
    pub fn pin(&self) -> Result<(), TestbedError> {
        let mut all = std::iter::once(&self.router).chain(&self.sink);
        all.try_for_each(|(napi, core)| napi.pin(*core, POLLING_PRIORITY))
    }

    /// CPU time of the router's core.
    pub fn router_ns(&self) -> u64 {
        self.router.0.core_ns()
    }
}

/// Rounds of a case, in which each subject has a turn.
#[derive(Clone, Copy)]
pub struct Turns {
    runs: u32,
    slot: Duration,
}

impl Turns {
    /// The number of rounds that fit `cases` cases into a time, 3 to 15; the rest of the time makes turns longer.
    pub fn within(whole: Duration, cases: usize) -> Self {
        let turns = cases.max(1) as u32 * SUBJECTS.len() as u32;
        let least = OVERHEAD + WARM_UP + SLOT;
        let runs = (whole.as_secs_f64() / (turns * least).as_secs_f64()) as u32;
        let runs = runs.clamp(3, 15);
        let slot = (whole / turns / runs).saturating_sub(OVERHEAD + WARM_UP);
        Self { runs, slot: slot.clamp(SLOT, Duration::from_secs(1)) }
    }
}

/// The packets of a case.
pub struct Flows {
    /// With the next hop that the table returns.
    pub checked: Stream,
    /// Without a check of the next hop, since the floor has only one.
    pub anywhere: Stream,
    /// Routes of the family in the table.
    pub routes: usize,
}

/// One turn of one subject.
pub struct Turn {
    pub flow: Flow,
    /// Packets that Linux forwarded meanwhile.
    pub by_linux: u64,
    /// Share of a core that the daemon used, 0 to 1.
    pub daemon: f64,
}

/// The results of a subject in a case.
pub struct KernelResult {
    /// Turns by subject, in the order of `SUBJECTS`.
    pub turns: Vec<Vec<Turn>>,
    /// Mean size of the frames, with the frame check sequence.
    pub frame_bytes: f64,
    /// Number of destinations, used in turn.
    pub destinations: usize,
    /// Routes of the family.
    pub routes: usize,
}

/// The daemon; the bench attaches and detaches its program.
struct RunningDaemon {
    daemon: Daemon,
    program: OwnedFd,
}

/// What the daemon uses while no packets arrive.
#[derive(Clone, Copy, Default)]
pub struct Holds {
    /// Of the lookup structures of both families and the next hops.
    pub tables_bytes: u64,
    pub resident_bytes: u64,
    /// From its start until it was ready.
    pub ready: Duration,
    /// Share of a core, 0 to 1.
    pub idle: f64,
}

/// Namespaces, programs and the daemon.
pub struct Bed {
    running: Option<RunningDaemon>,
    programs: Programs,
    rivals: Rivals,
    cores: Cores,
    pub holds: Holds,
    pub testbed: Testbed,
}

impl Bed {
    pub fn up(options: &TestbedOptions) -> Result<Self, BenchError> {
        let cores = Cores::deal().ok_or(BenchError::Cores)?;
        let testbed = Testbed::up(options)?;
        let (programs, rivals) = (Programs::load()?, Rivals::load(&testbed)?);
        Ok(Self { running: None, programs, rivals, cores, holds: Holds::default(), testbed })
    }

    /// Starts the daemon with the routes that exist, and measures it for a while.
    pub fn start(&mut self, options: &KernelOptions) -> Result<(), BenchError> {
        let (program, began) = (options.program.as_deref(), Instant::now());
        let daemon =
            Daemon::start(&self.testbed, &options.testbed.prefix, program, ForwardingPath::Kernel, None)?;
        let ready = began.elapsed();
        let (used, began) = (daemon.core_ns(), Instant::now());
        interrupt::sleep(IDLE).map_err(TestbedError::from)?;
        let idle = (daemon.core_ns() - used) as f64 / began.elapsed().as_nanos() as f64;
        let resident_bytes = daemon.resident_bytes().unwrap_or(0);
        let tables_bytes = status(options, &daemon)?["tables_bytes"].as_u64().unwrap_or(0);
        self.holds = Holds { tables_bytes, resident_bytes, ready, idle };
        let program = borrow_program(&self.testbed)?;
        self.running = Some(RunningDaemon { daemon, program });
        Ok(())
    }

    /// Stops the daemon.
    pub fn stop(&mut self) -> Result<(), BenchError> {
        if let Some(mut running) = self.running.take() {
            running.daemon.stop()?;
        }
        Ok(())
    }

    /// Gives every subject its turns; each round begins with the next one.
    pub fn measure(&self, case: &str, flows: &Flows, turns: Turns) -> Result<KernelResult, BenchError> {
        let polling = Polling::start(&self.testbed, &self.cores)?;
        let _ahead = Ahead::of_others();
        let turns = take_turns(turns.runs, SUBJECTS.len(), |subject| -> Result<Turn, BenchError> {
            let turn = self.turn(subject, flows, turns.slot, &polling)?;
            check_arrived(case, SUBJECTS[subject], &turn.flow)?;
            Ok(turn)
        })?;
        let (frame_bytes, destinations) = (flows.checked.frame_bytes_mean(), flows.checked.destinations());
        Ok(KernelResult { turns, frame_bytes, destinations, routes: flows.routes })
    }

    fn turn(
        &self,
        subject: usize,
        flows: &Flows,
        slot: Duration,
        polling: &Polling<'_>,
    ) -> Result<Turn, BenchError> {
        let (program, mode, stream) = match SUBJECTS[subject] {
            "linux" => (None, SinkMode::Skbs, &flows.checked),
            "fib-helper" => (Some(&self.rivals.fib_helper), SinkMode::Frames, &flows.checked),
            "floor" => (Some(&self.rivals.floor), SinkMode::Frames, &flows.anywhere),
            _ => (self.running.as_ref().map(|running| &running.program), SinkMode::Frames, &flows.checked),
        };
        let _there = program.map(|program| OnRouter::attach(&self.testbed, program)).transpose()?;
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
        let (linux, used, began) = (forwarded_by_linux(&self.testbed)?, self.daemon_ns(), Instant::now());
        let flow = measure.run(stream, || polling.router_ns())?;
        let daemon = (self.daemon_ns() - used) as f64 / began.elapsed().as_nanos() as f64;
        Ok(Turn { flow, by_linux: forwarded_by_linux(&self.testbed)? - linux, daemon })
    }

    /// CPU time that the daemon has used.
    fn daemon_ns(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.daemon.core_ns())
    }
}

/// Packets of both families that the router's stack has forwarded.
pub(super) fn forwarded_by_linux(testbed: &Testbed) -> Result<u64, TestbedError> {
    testbed.router.enter(|| {
        let (ipv4, ipv6) = (counter_file("snmp")?, counter_file("snmp6")?);
        Ok(ipv4_forwarded(&ipv4) + ipv6_forwarded(&ipv6))
    })
}

/// As long as it lives, this thread and the generator, which it starts, have priority on their core: if the generator
/// has to wait, the router is idle, and all subjects look alike.
pub struct Ahead;

impl Ahead {
    pub fn of_others() -> Self {
        // If this is refused, rates are lower on a busy machine.
        let _refused = cores::prioritise(0, POLLING_PRIORITY + 10);
        Self
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        let _refused = cores::prioritise(0, 0);
    }
}

/// `Ip: ... ForwDatagrams ...`, names in one line and values in the next.
fn counter_file(name: &str) -> Result<String, TestbedError> {
    let path = format!("/proc/thread-self/net/{name}");
    std::fs::read_to_string(&path).map_err(TestbedError::system(path))
}

fn ipv4_forwarded(snmp: &str) -> u64 {
    let mut lines = snmp.lines().filter(|line| line.starts_with("Ip:"));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return 0 };
    let mut pairs = names.split(' ').zip(values.split(' '));
    pairs.find(|(name, _)| *name == "ForwDatagrams").and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

/// `Ip6OutForwDatagrams VALUE`.
fn ipv6_forwarded(snmp6: &str) -> u64 {
    let line = snmp6.lines().find(|line| line.starts_with("Ip6OutForwDatagrams"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// What `brickmoon status` says.
pub fn status(options: &KernelOptions, daemon: &Daemon) -> Result<Value, BenchError> {
    let program = options.program.clone().unwrap_or_else(router);
    let socket = daemon.socket();
    let words = ["status", "--json", "--socket", socket.to_str().unwrap_or_default()];
    let output = command(&mut Command::new(program), &words, "")?;
    Ok(serde_json::from_str(&output).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_linux_forwarded() {
        let snmp = "Ip: Forwarding InReceives ForwDatagrams\nIp: 1 20 7\nIcmp: InMsgs\nIcmp: 3\n";
        assert_eq!((ipv4_forwarded(snmp), ipv4_forwarded("")), (7, 0));
        let snmp6 = "Ip6InReceives  \t5\nIp6OutForwDatagrams  \t9\n";
        assert_eq!((ipv6_forwarded(snmp6), ipv6_forwarded("")), (9, 0));
    }

    #[test]
    fn keeps_to_the_time_limit() {
        for (seconds, cases) in [(120, 8), (30, 1), (1, 8), (600, 2)] {
            let turns = Turns::within(Duration::from_secs(seconds), cases);
            assert!((3..=15).contains(&turns.runs) && turns.slot >= SLOT);
            let whole = (turns.slot + WARM_UP + OVERHEAD) * turns.runs * 4 * cases as u32;
            assert!(turns.runs == 3 || whole <= Duration::from_secs(seconds + 1), "{whole:?}");
        }
    }
}
