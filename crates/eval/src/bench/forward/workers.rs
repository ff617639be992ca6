//! `bench workers`: what do more cores gain, and is it better to run to completion on each, or to divide the router
//! between two?
//!
//! ```text
//! workers-1..N   N routers on N cores, each with its own ports: tables, frame memory and counters are shared
//! apart-2        two routers that share nothing: what workers-2 should reach
//! pipeline       a case of its own: two cores per router, divided after receiving, or around the router
//! ```
//!
//! Each worker is pinned and has packets of its own, as if from queues of its own. Every case is measured twice:
//! `-wall` by wall-clock time, so that other work on a worker's core reduces the rate; `-cpu` by the CPU time that the
//! workers used, which excludes other work, and shows how workers slow down each other. A part of a pipeline that waits
//! for the other part uses CPU time as well.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use bm_testbed::addresses::Pattern;
use bm_testbed::tables::Table;
use bm_testbed::testbed::cores;

use super::bed::{Bed, BenchFamily, Making, NEXT_HOPS};
use super::packet::Packet;
use super::pipeline::Boundary;
use super::running::RunningEngine;
use super::{BREATHS, BenchError, Options, breathe, check_all, routable};
use crate::alternate::{Quantiles, Sample, Series, Turns, alternate_samples, spread, thread_time};
use crate::bench::rounded;
use crate::report::Row;

/// Time limit of the bench in seconds, if none is given.
const SECONDS: u64 = 30;
/// Least time for one subject, whatever the time limit.
const LEAST: Duration = Duration::from_millis(600);
/// Real-time priority of workers, above normal work: turns are short, and the kernel reserves a twentieth of each
/// second for the rest.
const PRIORITY: i32 = 1;
/// The cases: which family, and whether run-to-completion is compared with pipelines.
const CASES: [(&str, bool); 4] = [("ipv4", false), ("ipv4", true), ("ipv6", false), ("ipv6", true)];

/// The rows, and notes about them.
#[derive(Debug, Default)]
pub struct WorkersFound {
    /// The figures.
    pub rows: Vec<Row>,
    /// How the rate grows with workers, in words.
    pub notes: Vec<String>,
}

/// How routers are distributed over cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// One router per core.
    Whole { workers: usize },
    /// One router on each of two cores, with nothing shared.
    Apart,
    /// One router per two cores.
    Pipelines { cut: Boundary, cores: usize },
}

impl Layout {
    fn cores(self) -> usize {
        match self {
            Self::Whole { workers } => workers,
            Self::Apart => 2,
            Self::Pipelines { cores, .. } => cores,
        }
    }

    /// How many of its engines have ports to send through: one of the two of a pipeline.
    fn senders(self) -> usize {
        match self {
            Self::Pipelines { cores, .. } => cores / 2,
            whole => whole.cores(),
        }
    }

    fn subject(self) -> String {
        match self {
            Self::Whole { workers } => format!("workers-{workers}"),
            Self::Apart => "apart-2".into(),
            Self::Pipelines { cut: Boundary::Receive, cores } => format!("pipeline-receive-{cores}"),
            Self::Pipelines { cut: Boundary::Router, cores } => format!("pipeline-router-{cores}"),
        }
    }

    /// The subjects of a case with this many cores.
    fn all(pipelines: bool, cores: usize) -> Vec<Self> {
        if !pipelines {
            let whole = (1..=cores).map(|workers| Self::Whole { workers });
            return whole.chain((cores > 1).then_some(Self::Apart)).collect();
        }
        let cores = cores - cores % 2;
        let cuts = [Boundary::Receive, Boundary::Router].map(|cut| Self::Pipelines { cut, cores });
        let whole = Self::Whole { workers: cores };
        if cores == 0 { Vec::new() } else { [whole].into_iter().chain(cuts).collect() }
    }
}

/// Measures all selected cases whose family has routes.
///
/// # Errors
/// See [`BenchError`].
pub fn workers(options: &Options) -> Result<WorkersFound, BenchError> {
    let begin = Instant::now();
    let cores = cores::allowed();
    let table = options.table(NEXT_HOPS)?;
    let mut cases = Vec::new();
    for (family, pipelines) in CASES {
        let has_routes = !if family == "ipv4" { table.ipv4.is_empty() } else { table.ipv6.is_empty() };
        if has_routes && options.wants(&case(family, pipelines)) {
            cases.push((family, pipelines));
        }
    }
    if cases.is_empty() {
        return Err(BenchError::NoCase { wanted: options.case.clone().unwrap_or_default() });
    }
    let beds = Beds::new(table, cores.len())?;
    let whole = Duration::from_secs(if options.seconds == 0 { SECONDS } else { options.seconds });
    let subjects = cases.iter().map(|&(_, pipelines)| Layout::all(pipelines, cores.len()).len()).sum();
    let turns = Turns::within(whole.saturating_sub(begin.elapsed()).max(LEAST * subjects as u32), subjects);
    let mut found = WorkersFound::default();
    if cores.len() == 1 {
        found
            .notes
            .push("this machine has only one core: neither scaling nor a pipeline can be measured".into());
    }
    for (family, pipelines) in cases {
        let name = case(family, pipelines);
        let layouts = Layout::all(pipelines, cores.len());
        let (wall, cpu) = match family {
            "ipv4" => measure::<u32>(&name, &beds, &layouts, &cores, turns)?,
            _ => measure::<u128>(&name, &beds, &layouts, &cores, turns)?,
        };
        found.add(&name, &layouts, &wall, &cpu);
    }
    Ok(found)
}

fn case(family: &str, pipelines: bool) -> String {
    format!("{family}-full-prefix-{}", if pipelines { "pipeline" } else { "workers" })
}

/// Two routers with everything that workers share, but each with its own.
struct Beds([Bed; 2]);

impl Beds {
    fn new(table: Table, cores: usize) -> Result<Self, BenchError> {
        let (one, two) = (Bed::frame_pool_of(cores)?, Bed::frame_pool_of(1)?);
        Ok(Self([Bed::new(table.clone(), one)?, Bed::new(table, two)?]))
    }

    /// The engines of a layout, one for each core.
    fn engines<A: Packet>(
        &self,
        layout: Layout,
        destinations: &Arc<[A]>,
    ) -> Result<Vec<RunningEngine>, BenchError> {
        let Self([bed, other]) = self;
        match layout {
            Layout::Whole { workers } => bed.routers(destinations, workers),
            Layout::Apart => Ok([bed.routers(destinations, 1)?, other.routers(destinations, 1)?]
                .into_iter()
                .flatten()
                .collect()),
            Layout::Pipelines { cut, cores } => {
                let registry = Making::registry(cores)?;
                let making = |worker| Making::of_worker(bed.frames(), &registry, worker);
                let mut engines = Vec::new();
                for at in (0..cores).step_by(2) {
                    engines.extend(bed.pipeline(destinations, cut, making(at), making(at + 1))?);
                }
                Ok(engines)
            }
        }
    }
}

/// The result of one worker in a turn.
struct Shift {
    items: u64,
    wall: Duration,
    cpu: Duration,
}

/// Measures all layouts in turn: by wall-clock time, and by CPU time.
fn measure<A: BenchFamily>(
    case: &str,
    beds: &Beds,
    layouts: &[Layout],
    cores: &[usize],
    turns: Turns,
) -> Result<(Vec<Series>, Vec<Series>), BenchError> {
    let table = A::table(&beds.0[0]);
    let destinations = routable(Pattern::Prefix, table);
    let subjects: Vec<String> = layouts.iter().map(|layout| layout.subject()).collect();
    let mut cpu: Vec<Series> =
        subjects.iter().map(|subject| Series { subject: subject.clone(), samples: Vec::new() }).collect();
    let wall = alternate_samples(turns.runs, subjects, |index| -> Result<Sample, BenchError> {
        let mut engines = beds.engines(layouts[index], &destinations)?;
        // So that layouts with few workers do not always use the same cores.
        let from = cpu[index].samples.len();
        let cores: Vec<_> = cores.iter().cycle().skip(from % cores.len()).take(engines.len()).collect();
        check_all(case, table, &mut engines, layouts[index].senders())?;
        let shifts = work(&mut engines, &cores, turns).map_err(BenchError::build("a worker's thread"))?;
        check_all(case, table, &mut engines, layouts[index].senders())?;
        let (by_wall, by_cpu) = rates(&shifts);
        cpu[index].samples.push(by_cpu);
        Ok(by_wall)
    })?;
    Ok((wall, cpu))
}

/// Runs each engine on its core for one turn, all at the same time.
fn work(engines: &mut [RunningEngine], cores: &[&usize], turns: Turns) -> std::io::Result<Vec<Shift>> {
    let start = Barrier::new(engines.len());
    std::thread::scope(|scope| {
        let start = &start;
        let mut threads = Vec::new();
        for (running, &&core) in engines.iter_mut().zip(cores) {
            threads.push(scope.spawn(move || {
                let pinned = cores::pin(0, core);
                // Other work that gets a core stops a whole pipeline. If the system refuses the priority, that shows.
                let _refused = cores::prioritise(0, PRIORITY);
                let shift = one_shift(running, start, turns);
                pinned.map(|()| shift)
            }));
        }
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.map(|shift| shift.map_err(|_| std::io::Error::other("it panicked"))?).collect()
    })
}

fn one_shift(running: &mut RunningEngine, start: &Barrier, turns: Turns) -> Shift {
    breathe_for(turns.warm_up, running);
    start.wait();
    let cpu = thread_time();
    let (items, wall) = breathe_for(turns.slot, running);
    Shift { items, wall, cpu: thread_time() - cpu }
}

fn breathe_for(time: Duration, running: &mut RunningEngine) -> (u64, Duration) {
    let begin = Instant::now();
    let mut items = 0;
    while begin.elapsed() < time {
        items += breathe(running);
    }
    (items, begin.elapsed())
}

/// All workers together, by wall-clock time and by the CPU time of each.
fn rates(shifts: &[Shift]) -> (Sample, Sample) {
    let items: u64 = shifts.iter().map(|shift| shift.items).sum();
    let cores = shifts.len() as f64;
    let sample = |rate: f64| Sample { items, rate, ns: if items == 0 { 0.0 } else { cores * 1e9 / rate } };
    let seconds = |time: Duration| time.as_secs_f64().max(1e-9);
    let by_wall = shifts.iter().map(|shift| shift.items as f64 / seconds(shift.wall)).sum();
    let cpu: f64 = shifts.iter().map(|shift| seconds(shift.cpu)).sum();
    (sample(by_wall), sample(items as f64 * cores / cpu))
}

/// The rate on several cores, divided by the rate on one core times the number of cores, in each round.
fn efficiency(measured: &Series, one: &Series, cores: usize) -> Quantiles {
    let rounds = measured.samples.iter().zip(&one.samples);
    spread(rounds.map(|(many, one)| many.rate / (one.rate * cores as f64)))
}

impl WorkersFound {
    fn add(&mut self, case: &str, layouts: &[Layout], wall: &[Series], cpu: &[Series]) {
        for (clock, measured) in [("wall", wall), ("cpu", cpu)] {
            let case = format!("{case}-{clock}");
            for (layout, measured_one) in layouts.iter().zip(measured) {
                let row = row(&case, *layout, measured_one);
                let one = measured.first().filter(|_| layouts[0] == Layout::Whole { workers: 1 });
                self.rows.push(one.map_or_else(
                    || row.clone(),
                    |one| {
                        let efficiency = efficiency(measured_one, one, layout.cores());
                        let row = row.clone().with("efficiency", rounded(efficiency.median));
                        row.with("efficiency_min", rounded(efficiency.min))
                            .with("efficiency_max", rounded(efficiency.max))
                    },
                ));
            }
        }
        let Some((last, _)) = layouts.iter().zip(wall).rfind(|(layout, _)| {
            matches!(layout, Layout::Whole { workers } if *workers > 1) && layouts[0] != **layout
        }) else {
            return;
        };
        let workers = last.cores();
        let times = |measured: &[Series]| {
            let Quantiles { min, median, max } = efficiency(&measured[workers - 1], &measured[0], workers);
            let [min, median, max] = [min, median, max].map(|part| part * workers as f64);
            format!("{median:.2} times as much as one ({min:.2} to {max:.2})")
        };
        self.notes.push(format!(
            "{case}: {workers} workers forward {} by the CPU time that they got, {} by wall-clock time",
            times(cpu),
            times(wall)
        ));
    }
}

fn row(case: &str, layout: Layout, measured: &Series) -> Row {
    let per_core = measured.rates().median / layout.cores() as f64 / 1e6;
    Row::mpps("workers", case, measured)
        .with("cores", layout.cores())
        .with("per_core_mpps", rounded(per_core))
        .with("breaths_at_a_time", BREATHS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_testbed::tables::{TableOptions, generate};

    fn beds() -> Beds {
        let options = TableOptions { ipv4: 3_000, ipv6: 1_000, ..TableOptions::default() };
        Beds::new(generate(&options).unwrap(), 4).unwrap()
    }

    fn turns() -> Turns {
        Turns { runs: 3, slot: Duration::from_millis(3), warm_up: Duration::from_millis(1) }
    }

    #[test]
    fn every_layout_forwards_all_it_receives() {
        let beds = beds();
        for pipelines in [false, true] {
            let layouts = Layout::all(pipelines, 4);
            let cores: Vec<_> = cores::allowed().into_iter().cycle().take(4).collect();
            let (wall, cpu) = measure::<u32>("case", &beds, &layouts, &cores, turns()).unwrap();
            assert_eq!((wall.len(), cpu.len()), (layouts.len(), layouts.len()));
            for measured in wall.iter().chain(&cpu) {
                assert!(measured.samples.len() == 3 && measured.rates().min > 0.0, "{measured:?}");
            }
            let (wall, _) = measure::<u128>("case", &beds, &layouts, &cores, turns()).unwrap();
            assert!(wall.iter().all(|measured| measured.rates().min > 0.0));
        }
        let free = beds.0[0].frames().available();
        assert_eq!(free, beds.0[0].frames().memory().slots(), "no layout keeps a frame");
    }

    #[test]
    fn distributes_routers_over_cores() {
        let subjects = |pipelines, cores| -> Vec<String> {
            Layout::all(pipelines, cores).into_iter().map(Layout::subject).collect()
        };
        assert_eq!(subjects(false, 1), ["workers-1"]);
        assert_eq!(subjects(false, 3), ["workers-1", "workers-2", "workers-3", "apart-2"]);
        assert_eq!(subjects(true, 3), ["workers-2", "pipeline-receive-2", "pipeline-router-2"]);
        assert!(subjects(true, 1).is_empty());
    }

    #[test]
    fn computes_rates_from_each_clock() {
        let shift = |items, wall, cpu| Shift {
            items,
            wall: Duration::from_millis(wall),
            cpu: Duration::from_millis(cpu),
        };
        // Another thread had the second core for half of the time.
        let (wall, cpu) = rates(&[shift(1_000, 100, 100), shift(500, 100, 50)]);
        assert_eq!((wall.rate.round(), cpu.rate.round()), (15_000.0, 20_000.0));
        let one = Series { subject: "workers-1".into(), samples: vec![rates(&[shift(1_000, 100, 100)]).1] };
        let two = Series { subject: "workers-2".into(), samples: vec![cpu] };
        assert!((efficiency(&two, &one, 2).median - 1.0).abs() < 1e-9);
        let mut found = WorkersFound::default();
        let layouts = [Layout::Whole { workers: 1 }, Layout::Whole { workers: 2 }];
        found.add("case", &layouts, &[one.clone(), two.clone()], &[one, two]);
        assert_eq!(
            found.notes,
            [
                "case: 2 workers forward 2.00 times as much as one (2.00 to 2.00) by the CPU time that they got, 2.00 times as much as one (2.00 to 2.00) by wall-clock time"
            ]
        );
        assert_eq!(found.rows[3].case, "case-cpu");
        assert_eq!(found.rows[3].detail["efficiency"], 1.0);
    }
}
