//! `bench loss`: how many packets do Linux, the user path and the kernel path lose, on a machine with other work to do?
//!
//! There are three namespaces in a row, and one process for each core that keeps it busy at nice 5. The three subjects
//! take turns in the middle with the same route. In a turn each case is measured once for a subject:
//!
//! ```text
//! bursts-1000   bursts of 1,000 frames back to back, from a socket, 20 ms apart
//! rate-150k     65,536 frames at 150,000 a second, from a socket; likewise 200k, 264k and 400k
//! flood-1m      a million frames a second for one second, more than any user path can forward here
//! flood         as many as a core can generate, for one second
//! ```
//!
//! The result of the first four is the number of frames lost in a turn, that of floods the millions of frames a second
//! that arrived. The sender of the former waits for room, so missing frames were lost by the router. Nothing is pinned,
//! and the daemon has its default settings.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{BenchError, Options, rounded};
use crate::alternate::{Quantiles, Sample, Series, spread};
use crate::demo::daemon::{self, Daemon, ForwardingPath};
use crate::program::router;
use crate::report::Row;
use bm_testbed::addresses::{Pattern, Sizes, destinations};
use bm_testbed::interrupt::{self, Watch};
use bm_testbed::oracle::Oracle;
use bm_testbed::random::Seed;
use bm_testbed::tables::{Route, Table};
use bm_testbed::testbed::busy::Busy;
use bm_testbed::testbed::kernel::Change;
use bm_testbed::testbed::namespace::command;
use bm_testbed::testbed::{Testbed, TestbedError, TestbedOptions};
use bm_testbed::traffic::host::{self, Pace};
use bm_testbed::traffic::{Arrived, FlowStatistics, Generator, Programs, Sink, SinkMode, Stream, Traffic};
use bm_wire::prefix::Prefix;

/// Time limit of the bench in seconds, if none is given.
const SECONDS: u64 = 60;
const SEED: Seed = Seed(12);
/// Number of destinations, all of which are tracked.
const DESTINATIONS: usize = 4096;
/// The subjects, in the order of reports.
const SUBJECTS: [(&str, Option<ForwardingPath>); 3] = [
    ("linux", None),
    ("user-path", Some(ForwardingPath::User)),
    ("kernel-path", Some(ForwardingPath::Kernel)),
];
/// Time until the kernel path has noticed that the other end accepts frames.
const NOTICED: Duration = Duration::from_millis(1200);
/// Time until the others are ready.
const SETTLED: Duration = Duration::from_millis(200);
/// The longest wait for packets that are still in transit after all were sent.
const DRAIN: Duration = Duration::from_millis(500);

/// Options of the bench.
#[derive(Clone, Debug)]
pub struct LossOptions {
    /// Options that every bench has.
    pub common: Options,
    /// The router's program; by default `brickmoon` in the folder of this program, or in PATH.
    pub program: Option<PathBuf>,
    /// Names of namespaces and interfaces.
    pub testbed: TestbedOptions,
}

impl LossOptions {
    /// Options with the usual test bed and the installed router.
    pub fn new(common: Options) -> Self {
        // Different for each process: tests run it at the same time as others.
        let prefix = format!("bm-loss-{}", std::process::id());
        let testbed = TestbedOptions { prefix, ..TestbedOptions::default() };
        Self { common, program: None, testbed }
    }
}

/// How packets are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Load {
    /// By a socket, which waits for room.
    Paced(Pace),
    /// By the generator, which does not wait, at a rate or as fast as it can.
    Flood(Option<f64>),
}

/// A load with its name.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    load: Load,
}

impl Case {
    const ALL: [Self; 7] = {
        const fn rate(name: &'static str, per_second: f64) -> Case {
            Case { name, load: Load::Paced(Pace::Rate { frames: 65_536, per_second }) }
        }
        const BURSTS: Pace = Pace::Bursts { count: 20, frames: 1_000, pause: Duration::from_millis(20) };
        [
            Case { name: "ipv4-one-uniform-bursts-1000", load: Load::Paced(BURSTS) },
            rate("ipv4-one-uniform-rate-150k", 150e3),
            rate("ipv4-one-uniform-rate-200k", 200e3),
            rate("ipv4-one-uniform-rate-264k", 264e3),
            rate("ipv4-one-uniform-rate-400k", 400e3),
            Case { name: "ipv4-one-uniform-flood-1m", load: Load::Flood(Some(1e6)) },
            Case { name: "ipv4-one-uniform-flood", load: Load::Flood(None) },
        ]
    };
    /// Duration of a flood.
    const FLOOD: Duration = Duration::from_secs(1);
}

/// The result of one turn of one case.
struct Turn {
    sent: u64,
    time: Duration,
    arrived: Arrived,
    tracked: FlowStatistics,
    /// CPU time of the daemon's threads.
    daemon_ns: u64,
    /// Counters of the ports' devices that are not zero.
    device: Vec<(String, u64)>,
}

impl Turn {
    fn sample(&self) -> Sample {
        Sample {
            items: self.arrived.good,
            rate: self.rate(),
            ns: self.daemon_ns as f64 / self.arrived.good.max(1) as f64,
        }
    }

    fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.arrived.good + self.arrived.bad())
    }

    fn offered(&self) -> f64 {
        self.sent as f64 / self.time.as_secs_f64().max(1e-9)
    }

    fn rate(&self) -> f64 {
        self.arrived.good as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Measures all selected cases.
///
/// # Errors
/// See [`BenchError`]; without root nothing can be measured.
pub fn loss(options: &LossOptions) -> Result<Vec<Row>, BenchError> {
    let began = Instant::now();
    bm_testbed::testbed::require_root()?;
    let cases: Vec<_> = Case::ALL.into_iter().filter(|case| options.common.wants(case.name)).collect();
    if cases.is_empty() {
        return Err(BenchError::NoCase { wanted: options.common.case.clone().unwrap_or_default() });
    }
    let _watch = Watch::begin();
    let before = daemon::Before::look();
    let seconds = if options.common.seconds == 0 { SECONDS } else { options.common.seconds };
    let rows = measure(options, &cases, began + Duration::from_secs(seconds));
    // Everything has been dropped by now, also after an error. Pins are not checked: other daemons may have some.
    before.unmount_new();
    match daemon::left_of(&options.testbed.prefix) {
        Some(left) if rows.is_ok() => Err(BenchError::build("clean up")(format!("left behind: {left}"))),
        _ => rows,
    }
}

/// Rounds in which every subject has a turn: as many as fit into the time, at least one.
fn measure(options: &LossOptions, cases: &[Case], end: Instant) -> Result<Vec<Row>, BenchError> {
    let testbed = Testbed::up(&options.testbed)?;
    let route = vec![Route { prefix: Prefix::default(), next_hop: 1 }];
    let addresses = addresses(&route);
    let stream = u32::stream(&addresses, Sizes::Fixed(64), &Oracle::new(&route));
    testbed.change_routes(Change::Add, &Table { ipv4: route, ipv6: Vec::new() })?;
    let busy = Busy::on_all_cores()?;
    let bed = Bed { options, testbed: &testbed, programs: Programs::load()?, stream, busy: busy.count() };
    let mut turns: Vec<[Vec<Turn>; 3]> = cases.iter().map(|_| Default::default()).collect();
    let (mut round, mut longest) = (0, Duration::ZERO);
    while round == 0 || Instant::now() + longest < end {
        let began = Instant::now();
        for place in 0..SUBJECTS.len() {
            let subject = (round + place) % SUBJECTS.len();
            bed.take_turn(subject, cases, &mut turns)?;
        }
        (round, longest) = (round + 1, longest.max(began.elapsed()));
    }
    let rows = cases.iter().zip(&turns).flat_map(|(case, turns)| bed.rows(case, turns));
    Ok(rows.collect())
}

fn addresses(route: &[Route<u32>]) -> Vec<u32> {
    let mut addresses = destinations(Pattern::Uniform, SEED, DESTINATIONS, route);
    addresses.retain(|&address| address.is_forwardable());
    addresses
}

/// What is the same in all turns.
struct Bed<'a> {
    options: &'a LossOptions,
    testbed: &'a Testbed,
    programs: Programs,
    stream: Stream,
    busy: usize,
}

impl Bed<'_> {
    /// All cases of one subject.
    fn take_turn(
        &self,
        subject: usize,
        cases: &[Case],
        turns: &mut [[Vec<Turn>; 3]],
    ) -> Result<(), BenchError> {
        let (name, path) = SUBJECTS[subject];
        let mut daemon = None;
        if let Some(path) = path {
            let (prefix, program) = (&self.options.testbed.prefix, self.options.program.as_deref());
            daemon = Some(Daemon::start(self.testbed, prefix, program, path, None)?);
        }
        // Each kind of traffic uses the cheapest sink.
        let (mode, settled) = match path {
            Some(ForwardingPath::Kernel) => (SinkMode::Frames, NOTICED),
            _ => (SinkMode::Skbs, SETTLED),
        };
        let sink = Sink::attach(&self.programs, self.testbed, mode)?;
        interrupt::sleep(settled).map_err(TestbedError::from)?;
        for (case, turns) in cases.iter().zip(turns) {
            let turn = self.turn(case, &sink, daemon.as_ref())?;
            if turn.arrived.bad() > 0 || turn.arrived.good == 0 {
                return Err(BenchError::Arrived {
                    case: case.name.into(),
                    subject: name.into(),
                    arrived: turn.arrived,
                });
            }
            turns[subject].push(turn);
        }
        if let Some(daemon) = &mut daemon {
            daemon.stop()?;
        }
        Ok(())
    }

    fn turn(&self, case: &Case, sink: &Sink<'_>, daemon: Option<&Daemon>) -> Result<Turn, BenchError> {
        sink.reset()?;
        sink.track(&self.stream);
        let (used, before) = (daemon.map_or(0, Daemon::core_ns), self.device_counters(daemon)?);
        let (sent, time) = match case.load {
            Load::Paced(pace) => (pace.frames(), host::send(self.testbed, &self.stream, pace)?),
            Load::Flood(rate) => self.flood(rate)?,
        };
        self.drain(sink, sent)?;
        let after = self.device_counters(daemon)?;
        let grown = after.into_iter().zip(before).map(|((name, after), (_, before))| (name, after - before));
        let device = grown.filter(|(_, count)| *count > 0).collect();
        let (arrived, tracked) = (sink.arrived()?, sink.tracked());
        let daemon_ns = daemon.map_or(0, Daemon::core_ns) - used;
        Ok(Turn { sent, time, arrived, tracked, daemon_ns, device })
    }

    /// Floods for a while; returns what was sent, and in which time.
    fn flood(&self, rate: Option<f64>) -> Result<(u64, Duration), TestbedError> {
        let stream = self.stream.clone();
        let stream = rate.map_or(stream.clone(), |rate| stream.at_rate(rate));
        let generator = Generator::start(&self.programs, self.testbed, &stream, None)?;
        interrupt::sleep(Case::FLOOD)?;
        let sent = generator.stop()?;
        Ok((sent.packets, sent.time))
    }

    /// Waits until everything has arrived, or nothing arrives any more.
    fn drain(&self, sink: &Sink<'_>, sent: u64) -> Result<(), TestbedError> {
        let began = Instant::now();
        while began.elapsed() < DRAIN && sink.arrived()?.good < sent {
            interrupt::sleep(Duration::from_millis(10))?;
        }
        Ok(())
    }

    /// What the ports of the user path report about their devices, as `show ports` does.
    fn device_counters(&self, daemon: Option<&Daemon>) -> Result<Vec<(String, u64)>, BenchError> {
        let Some(daemon) = daemon else { return Ok(Vec::new()) };
        // The worker updates them ten times a second.
        interrupt::sleep(Duration::from_millis(150)).map_err(TestbedError::from)?;
        let program = self.options.program.clone().unwrap_or_else(router);
        let socket = daemon.socket();
        let words = ["show", "ports", "--json", "--socket", socket.to_str().unwrap_or_default()];
        let output = command(&mut std::process::Command::new(program), &words, "")?;
        let ports: Value = serde_json::from_str(&output).unwrap_or_default();
        let mut counters = Vec::new();
        for port in ports["ports"].as_array().into_iter().flatten() {
            let name = port["name"].as_str().unwrap_or_default();
            for (counter, value) in port["device_counters"].as_object().into_iter().flatten() {
                counters.push((format!("{name}_{counter}"), value.as_u64().unwrap_or(0)));
            }
        }
        Ok(counters)
    }

    /// One row for each subject.
    fn rows(&self, case: &Case, turns: &[Vec<Turn>; 3]) -> Vec<Row> {
        SUBJECTS.iter().zip(turns).map(|((subject, _), turns)| self.row(case, subject, turns)).collect()
    }

    fn row(&self, case: &Case, subject: &str, turns: &[Turn]) -> Row {
        let rates = Series { subject: subject.into(), samples: turns.iter().map(Turn::sample).collect() };
        let mut row = Row::mpps("loss", case.name, &rates);
        if let Load::Paced(_) = case.load {
            let Quantiles { min, median, max } = spread(turns.iter().map(|turn| turn.lost() as f64));
            row = Row { unit: "lost".into(), min, median, max, ..row };
        }
        let delay_mean = turns.iter().map(|turn| turn.tracked.delay_mean.as_secs_f64() * 1e3);
        let delay_max = turns.iter().map(|turn| turn.tracked.delay_max.as_secs_f64() * 1e3);
        let sent = turns.iter().map(|turn| turn.sent).sum::<u64>();
        let lost = turns.iter().map(Turn::lost).sum::<u64>();
        let reordered = turns.iter().map(|turn| turn.tracked.reordered).sum::<u64>();
        row = row
            .with("sent", sent)
            .with("lost", lost)
            .with("lost_percent", rounded(lost as f64 * 100.0 / sent.max(1) as f64))
            .with("reordered", reordered)
            .with("offered_mpps", rounded(spread(turns.iter().map(Turn::offered)).median / 1e6))
            .with("mpps", rounded(rates.rates().median / 1e6))
            .with("delay_ms_mean", rounded(spread(delay_mean).median))
            .with("delay_ms_max", rounded(spread(delay_max).max))
            .with("busy_processes", self.busy);
        let mut device = std::collections::BTreeMap::<&str, u64>::new();
        for (name, count) in turns.iter().flat_map(|turn| &turn.device) {
            *device.entry(name).or_default() += count;
        }
        device.into_iter().fold(row, |row, (name, count)| row.with(name, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_errors_before_creating_anything() {
        if bm_testbed::testbed::require_root().is_err() {
            return eprintln!("skipped reports_errors_before_creating_anything: needs root");
        }
        let common = Options { case: Some("ipv5".into()), ..Options::default() };
        let error = loss(&LossOptions::new(common)).unwrap_err().to_string();
        assert!(error.contains("no case with \"ipv5\""), "{error}");
    }
}
