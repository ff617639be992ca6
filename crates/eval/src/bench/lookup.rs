//! `bench lookup`: how long does a longest-prefix match take, on one core, with a full table?
//!
//! Every structure, ours and on request DPDK's, has the same routes and looks up the same addresses, in turn within
//! each case:
//!
//! ```text
//! {family}-full-{uniform|prefix|zipf|flow}   64 addresses per call           unit mpps, M lookups a second
//! {family}-full-prefix-batch-{1 .. 256}      this many addresses per call    unit mpps
//! {family}-full-updates-{bulk|single}        many changes per call, or one   unit mups, M changes a second
//! {family}-full-build                        the whole table                 unit mrps, M routes a second
//! ```
//!
//! Before it is measured, and after its updates, each structure is compared with a simple oracle: a single wrong
//! answer ends the bench with an error that says where.

mod check;
mod contender;
pub mod dxr;
mod family;
mod peers;
mod updates;
mod variant;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bm_fib::Form;
use bm_testbed::addresses::{Pattern, destinations};
use bm_testbed::random::Seed;
use bm_testbed::tables::Table;
use bm_testbed::testbed::cores;

use super::{BenchError, Options};
use crate::alternate::{Sample, Series, Subject, Turns, alternate, thread_time};
use crate::report::Row;
use check::Probes;
use contender::{Contender, Queries};
use family::Family;
use peers::Peers;
use updates::Churn;

/// Time limit of the bench in seconds if none is given, with peers and without.
const SECONDS: [u64; 2] = [150, 90];
/// Number of next hops of the table, as in published figures.
const NEXT_HOPS: u16 = 255;
/// Number of addresses, used in turn, and of those between two readings of the clock.
const ADDRESSES: usize = 1 << 20;
const WINDOW: usize = 1 << 14;
/// Addresses per call if a case does not say; 256 is a burst of the router.
const BATCH: usize = 64;
const BATCH_MAX: usize = 256;
/// How often our structures are built, in turn. DPDK's take seconds, so they are built once.
const BUILDS: usize = 3;
/// Number of changes per call of the bulk updates.
const CHANGES: usize = 1 << 16;
/// Least time for one subject of one case, whatever the time limit: three turns of 20 ms.
const LEAST: Duration = Duration::from_millis(60);
const SEED: Seed = Seed(7);

/// Options of `bench lookup`.
#[derive(Clone, Debug, Default)]
pub struct LookupOptions {
    /// Options that every bench with a routing table has.
    pub common: Options,
    /// Only this structure, also in its scalar form; by default all, each in its fastest form.
    pub structure: Option<String>,
    /// Whether DPDK's structures are measured, too.
    pub peers: bool,
}

/// The result of `bench lookup`.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    /// The figures, case by case.
    pub rows: Vec<Row>,
    /// What was left out and why, one line each.
    pub notes: Vec<String>,
}

/// What a case measures.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Lookups { pattern: Pattern, batch: usize },
    Updates { singly: bool },
    Build,
}

impl Operation {
    fn all() -> Vec<Self> {
        let patterns = Pattern::ALL.map(|pattern| Self::Lookups { pattern, batch: BATCH });
        let sweep =
            (0..=BATCH_MAX.ilog2()).map(|log| Self::Lookups { pattern: Pattern::Prefix, batch: 1 << log });
        let rest = [Self::Updates { singly: false }, Self::Updates { singly: true }, Self::Build];
        // The sweep measures 64 again, so that it is measured near the other sizes in time.
        patterns.into_iter().chain(sweep).chain(rest).collect()
    }

    /// Its share of the time: lookups with the usual batch matter most, and a short turn starts cold, which flatters
    /// large tables. Builds are measured elsewhere.
    fn weight(self) -> u32 {
        match self {
            Self::Lookups { batch: BATCH, .. } => 4,
            Self::Lookups { .. } | Self::Updates { .. } => 1,
            Self::Build => 0,
        }
    }

    /// All cases of a family, with their names.
    fn cases(family: &str) -> Vec<(String, Self)> {
        let mut cases = Vec::new();
        for (index, work) in Self::all().into_iter().enumerate() {
            let name = match work {
                Self::Lookups { pattern, .. } if index < Pattern::ALL.len() => format!("{pattern}"),
                Self::Lookups { pattern, batch } => format!("{pattern}-batch-{batch}"),
                Self::Updates { singly: false } => "updates-bulk".into(),
                Self::Updates { singly: true } => "updates-single".into(),
                Self::Build => "build".into(),
            };
            cases.push((format!("{family}-full-{name}"), work));
        }
        cases
    }
}

/// Measures all selected cases; if files of routes are given, those whose family they have routes of.
///
/// # Errors
/// See [`BenchError`].
pub fn lookup(options: &LookupOptions) -> Result<Lookup, BenchError> {
    options.check_structure()?;
    let begin = Instant::now();
    let table = options.common.table(NEXT_HOPS)?;
    let mut bench = Bench { options, peers: None, found: Lookup::default() };
    // A thread that moves between cores starts with cold caches. If pinning is refused, measure without.
    let core = cores::allowed().last().copied().unwrap_or(0);
    let _refused = cores::pin(0, core);
    if options.wants_peers() {
        match Peers::start(core) {
            Ok(peers) => bench.peers = Some(peers),
            Err(missing) => bench.found.notes.push(missing.to_string()),
        }
    }
    let seconds = match options.common.seconds {
        0 => SECONDS[usize::from(bench.peers.is_none())],
        seconds => seconds,
    };
    let whole = Duration::from_secs(seconds);
    // IPv6 has fewer structures.
    let both = bench.has_work::<u32>(&table) && bench.has_work::<u128>(&table);
    let first = if both { whole * 3 / 5 } else { whole };
    bench.family::<u32>(&table, begin + first)?;
    bench.family::<u128>(&table, begin + whole)?;
    if bench.found.rows.is_empty() {
        return Err(BenchError::NoCase { wanted: options.common.case.clone().unwrap_or_default() });
    }
    Ok(bench.found)
}

impl LookupOptions {
    fn wants_peers(&self) -> bool {
        self.peers || self.structure.as_ref().is_some_and(|name| name.starts_with("rte_"))
    }

    fn wants(&self, structure: &str) -> bool {
        self.structure.as_deref().is_none_or(|name| name == structure)
    }

    /// Whether a structure has this name.
    fn check_structure(&self) -> Result<(), BenchError> {
        let names = names();
        match &self.structure {
            Some(wanted) if !names.contains(&wanted.as_str()) => {
                Err(BenchError::NoStructure { wanted: wanted.clone(), known: names })
            }
            _ => Ok(()),
        }
    }
}

/// All structures by name, DPDK's last.
pub fn names() -> Vec<&'static str> {
    let ours = u32::structures().map(|of| of.name).chain(u128::structures().map(|of| of.name));
    let peers = u32::PEERS.iter().chain(u128::PEERS).map(|of| of.name);
    let mut names: Vec<_> = ours.chain(peers).collect();
    let mut seen = Vec::new();
    names.retain(|name| {
        !seen.contains(name) && {
            seen.push(*name);
            true
        }
    });
    names
}

struct Bench<'o> {
    options: &'o LookupOptions,
    peers: Option<Arc<Peers>>,
    found: Lookup,
}

impl Bench<'_> {
    fn cases<A: Family>(&self) -> Vec<(String, Operation)> {
        let cases = Operation::cases(A::NAME).into_iter();
        cases.filter(|(name, _)| self.options.common.wants(name)).collect()
    }

    fn has_work<A: Family>(&self, table: &Table) -> bool {
        let ours = A::structures().any(|of| self.options.wants(of.name));
        let peers = A::PEERS.iter().any(|of| self.options.wants(of.name));
        !A::routes(table).is_empty() && (ours || peers) && !self.cases::<A>().is_empty()
    }

    /// All cases of a family, until `end`.
    fn family<A: Family>(&mut self, table: &Table, end: Instant) -> Result<(), BenchError> {
        if !self.has_work::<A>(table) {
            return Ok(());
        }
        let routes = A::routes(table);
        let mut contenders = self.contenders::<A>(table)?;
        let probes = Probes::new(routes, SEED, self.peers.is_some());
        probes.check(A::NAME, &contenders)?;
        let cases = self.cases::<A>();
        let weights: u32 = cases.iter().map(|(_, work)| work.weight()).sum();
        let left = end.saturating_duration_since(Instant::now()) / weights.max(1);
        let share = left.max(LEAST * contenders.len() as u32);
        let mut queries: Option<(Pattern, Queries<A>)> = None;
        for (name, work) in cases {
            let turns = Turns::within(share * work.weight(), contenders.len());
            let measured = match work {
                Operation::Lookups { pattern, batch } => {
                    let kept = queries.take().filter(|(of, _)| *of == pattern);
                    let (_, asked) = queries.insert(kept.unwrap_or_else(|| {
                        let drawn = destinations(pattern, SEED, ADDRESSES, routes);
                        (pattern, Queries::new(drawn, self.peers.is_some()))
                    }));
                    lookups(&contenders, asked, batch, turns)
                }
                Operation::Updates { singly } => {
                    let measured = updates(&mut contenders, routes, singly, turns)?;
                    self.leave_out(&mut contenders);
                    measured
                }
                Operation::Build => builds(&contenders, routes.len()),
            };
            self.report(&name, work, &contenders, &measured, routes.len());
        }
        // The changes were made and undone.
        probes.check(A::NAME, &contenders)
    }

    /// Removes subjects that refused a change, with a note: their tables differ from those of the others.
    fn leave_out<A: Family>(&mut self, contenders: &mut Vec<Contender<A>>) {
        contenders.retain(|of| {
            let Some(refused) = &of.refused else { return true };
            self.found.notes.push(format!(
                "{} has no room for {refused}: it is left out of the measurements after its updates",
                of.name
            ));
            false
        });
    }

    /// DPDK's fastest first, then ours, all with the same routes.
    fn contenders<A: Family>(&mut self, table: &Table) -> Result<Vec<Contender<A>>, BenchError> {
        let routes = A::routes(table);
        let mut contenders = Vec::new();
        if let Some(peers) = &self.peers {
            // If one of ours is selected by name, --peers means all of DPDK's.
            let wanted = A::PEERS.iter().filter(|of| self.options.peers || self.options.wants(of.name));
            for variant in wanted {
                let begin = thread_time();
                match peers.build(*variant, routes) {
                    Ok(peer) => {
                        contenders.push(Contender::peer(peer, (thread_time() - begin).as_secs_f64()));
                    }
                    Err(missing) => self.found.notes.push(missing.to_string()),
                }
            }
        }
        let mut ours: Vec<Contender<A>> = Vec::new();
        for round in 0..BUILDS {
            let wanted = A::structures().filter(|of| self.options.wants(of.name));
            for (index, structure) in wanted.enumerate() {
                let built = Contender::ours(structure, None, routes)?;
                match ours.get_mut(index) {
                    Some(before) if round > 0 => before.built_again(built),
                    _ => ours.push(built),
                }
            }
        }
        contenders.extend(ours);
        if self.options.structure.is_some() {
            let wide = contenders.iter().filter(|built| built.is_wide());
            let scalar: Vec<_> =
                wide.filter_map(|built| A::structures().find(|of| of.name == built.name)).collect();
            for structure in scalar {
                contenders.push(Contender::ours(structure, Some(Form::SCALAR), routes)?);
            }
        }
        Ok(contenders)
    }

    fn report<A: Family>(
        &mut self,
        case: &str,
        work: Operation,
        contenders: &[Contender<A>],
        measured: &[Series],
        routes: usize,
    ) {
        for measured in measured {
            let Some(contender) = contenders.iter().find(|of| of.name == measured.subject) else { continue };
            let mut row = Row::mpps("lookup", case, measured);
            row.detail = contender.detail();
            row = row.with("routes", routes).with("next_hops", NEXT_HOPS);
            match work {
                Operation::Lookups { batch, .. } => row = row.with("batch", batch),
                Operation::Updates { singly } => {
                    row.unit = "mups".into();
                    row = row.with("changes_a_call", if singly { 1 } else { CHANGES });
                }
                Operation::Build => row.unit = "mrps".into(),
            }
            self.found.rows.push(row);
        }
    }
}

fn lookups<A: Family>(
    contenders: &[Contender<A>],
    queries: &Queries<A>,
    batch: usize,
    turns: Turns,
) -> Vec<Series> {
    let mut works: Vec<_> = contenders
        .iter()
        .map(|contender| {
            let mut from = 0;
            move || {
                let count = contender.look_up(queries, from, WINDOW, batch);
                from = (from + WINDOW) % ADDRESSES;
                count
            }
        })
        .collect();
    let subjects = contenders.iter().zip(&mut works);
    let mut subjects: Vec<Subject<'_>> = subjects
        .map(|(contender, work)| (contender.name.as_str(), work as &mut dyn FnMut() -> u64))
        .collect();
    alternate(turns, &mut subjects)
}

fn updates<A: Family>(
    contenders: &mut [Contender<A>],
    routes: &[bm_testbed::tables::Route<A>],
    singly: bool,
    turns: Turns,
) -> Result<Vec<Series>, BenchError> {
    let churn = Churn::new(routes, NEXT_HOPS, CHANGES, SEED);
    let failed = RefCell::new(None);
    let mut able: Vec<_> = contenders.iter_mut().filter(|contender| contender.has_updates()).collect();
    let names: Vec<String> = able.iter().map(|contender| contender.name.clone()).collect();
    let mut works: Vec<_> = able
        .iter_mut()
        .map(|contender| {
            || {
                let there = contender.update(&churn.there, singly);
                let both = there.and_then(|there| Ok(there + contender.update(&churn.back, singly)?));
                both.unwrap_or_else(|why| {
                    failed.borrow_mut().get_or_insert(why);
                    0
                })
            }
        })
        .collect();
    let mut subjects: Vec<Subject<'_>> = names
        .iter()
        .zip(&mut works)
        .map(|(name, work)| (name.as_str(), work as &mut dyn FnMut() -> u64))
        .collect();
    let measured = alternate(turns, &mut subjects);
    drop(subjects);
    drop(works);
    failed.into_inner().map_or(Ok(measured), Err)
}

/// Builds were measured when the contenders were created.
fn builds<A: Family>(contenders: &[Contender<A>], routes: usize) -> Vec<Series> {
    let mut builds = Vec::new();
    // The tables that we fill ourselves say nothing about DPDK's build.
    for contender in contenders.iter().filter(|contender| contender.builds_itself()) {
        let samples = contender.builds.iter().map(|seconds| {
            let rate = routes as f64 / seconds.max(1e-9);
            Sample { items: routes as u64, rate, ns: 1e9 / rate }
        });
        builds.push(Series { subject: contender.name.clone(), samples: samples.collect() });
    }
    builds
}

#[cfg(test)]
mod tests;
