//! `bench forward`: how long does a packet take in the whole router, in memory, on one core?
//!
//! Frames of 60 bytes circulate through two ports in memory and the router between them: receive, validate, look up,
//! rewrite, send, with all counters. The parts of this time are measured in turn with it: the ports without a router
//! (`source-sink`), the lookups alone (`lookup`), and reading and writing the headers alone (`headers`). `over_parts`
//! is the router's time divided by that of lookups and headers together.
//!
//! Frames of other sizes, or a mix of sizes, are measured only with the router and without (`source-sink`), since
//! lookups and headers take the same time for all sizes.
//!
//! Traffic of both families, and traffic with odd packets, are separate cases ([`mix`]), and so are filters, the reverse
//! path filter and hooks ([`features`]).
//!
//! Figures count only if every frame was forwarded correctly: all accounts must close, and before and after the turns
//! of a case the frames that leave are compared, byte by byte, with what an oracle (a plain binary search) says must
//! leave.

pub(super) mod batch;
pub(super) mod bed;
mod features;
mod headers;
mod loop_port;
mod mix;
mod packet;
mod pipeline;
pub mod ports;
mod running;
pub(super) mod workers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bm_fib::NextHop;
use bm_frame::BURST;
use bm_testbed::addresses::{FCS_BYTES, Pattern, Sizes, destinations};
use bm_testbed::random::Seed;
use bm_testbed::tables::{self, Table};
use bm_testbed::testbed::cores;

use super::{BenchError, Options, SMALLEST, size_suffix};
use crate::alternate::{Series, Subject, Turns, alternate, thread_time};
use crate::report::Row;
use bed::{Batching, Bed, BenchFamily, FRAMES, NEXT_HOPS, next_hop_mac, next_hop_port};
use packet::{FRAME, Packet, arriving, leaving, port_mac};
use running::RunningEngine;

/// Time limit of the bench in seconds, if none is given.
const SECONDS: u64 = 30;
/// Number of destinations within prefixes: as many as other benchmarks use.
const WITHIN: usize = 1 << 12;
/// Number of destinations with the other patterns.
const DESTINATIONS: usize = 1 << 17;
const SEED: Seed = Seed(7);
/// Least time for one subject of one case, whatever the time limit: five turns of 100 ms, and their warm-up.
const LEAST: Duration = Duration::from_millis(600);
/// Breaths between two readings of the clock.
const BREATHS: usize = 32;
/// Breaths whose frames are compared byte by byte, before the turns and after them.
const SAMPLE_BREATHS: usize = 16;

/// Which routes, family, destinations and sizes of frames.
#[derive(Clone, Copy)]
struct Case {
    family: &'static str,
    table: &'static str,
    pattern: Pattern,
    sizes: Sizes,
}

impl Case {
    /// The full table comes first, since it is the most realistic case.
    const ALL: [Self; 10] = {
        const fn case(family: &'static str, table: &'static str, pattern: Pattern) -> Case {
            Case { family, table, pattern, sizes: SMALLEST }
        }
        [
            case("ipv4", "full", Pattern::Prefix),
            case("ipv4", "full", Pattern::Zipf),
            case("ipv4", "full", Pattern::Flow),
            case("ipv4", "full", Pattern::Uniform),
            case("ipv4", "one", Pattern::Uniform),
            case("ipv6", "full", Pattern::Prefix),
            case("ipv6", "full", Pattern::Zipf),
            case("ipv6", "full", Pattern::Flow),
            case("ipv6", "full", Pattern::Uniform),
            case("ipv6", "one", Pattern::Uniform),
        ]
    };

    /// All selected sizes.
    fn all(sizes: Sizes) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().map(move |case| Self { sizes, ..case })
    }

    fn name(&self) -> String {
        format!("{}-{}-{}{}", self.family, self.table, self.pattern, size_suffix(self.sizes))
    }

    /// The router, and its ports alone; with the smallest frames also its lookups alone and headers alone.
    fn subjects(&self) -> usize {
        if self.sizes == SMALLEST { 4 } else { 2 }
    }

    /// Sizes of its frames in memory in bytes, used in turn.
    fn lengths(&self) -> Vec<u16> {
        self.sizes.in_memory(FRAME as u16)
    }

    /// Mean size of its frames.
    fn mean_bytes(&self) -> f64 {
        let lengths = self.lengths();
        lengths.iter().copied().map(f64::from).sum::<f64>() / lengths.len() as f64
    }
}

/// To two decimals.
fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Measures all selected cases; if files of routes are given, those whose family they have routes of.
///
/// # Errors
/// See [`BenchError`].
pub fn forward(options: &Options) -> Result<Vec<Row>, BenchError> {
    let begin = Instant::now();
    let mut cases: Vec<_> = options.sizes().into_iter().flat_map(Case::all).collect();
    let others = [mix::CASE, features::CASE].map(|case| (case.to_string(), true));
    options.refuse_unused_rib(cases.iter().map(|case| (case.name(), case.table == "full")).chain(others))?;
    let table = options.table(NEXT_HOPS)?;
    cases.retain(|case| {
        let has_routes = match case.family {
            "ipv4" => !table.ipv4.is_empty(),
            _ => !table.ipv6.is_empty(),
        };
        options.wants(&case.name()) && has_routes
    });
    let mixes = options.wants(mix::CASE) && !table.ipv4.is_empty() && !table.ipv6.is_empty();
    let features = options.wants(features::CASE) && !table.ipv4.is_empty();
    if cases.is_empty() && !mixes && !features {
        return Err(BenchError::NoCase { wanted: options.case.clone().unwrap_or_default() });
    }
    pin();
    let frame_pool = Bed::frame_pool_of(4)?;
    let (full, one) = (Bed::new(table, frame_pool.clone())?, Bed::new(Table::default(), frame_pool)?);
    let whole = Duration::from_secs(if options.seconds == 0 { SECONDS } else { options.seconds });
    let measurements = cases.iter().map(Case::subjects).sum::<usize>()
        + if mixes { mix::Mix::ALL.len() } else { 0 }
        + if features { features::Feature::ALL.len() } else { 0 };
    let left = whole.saturating_sub(begin.elapsed()).max(LEAST * measurements as u32);
    let turns = Turns::within(left, measurements);
    let mut rows = Vec::new();
    for case in &cases {
        let bed = if case.table == "full" { &full } else { &one };
        rows.extend(match case.family {
            "ipv4" => measure::<u32>(case, bed, turns)?,
            _ => measure::<u128>(case, bed, turns)?,
        });
    }
    if mixes {
        rows.extend(mix::measure(&full, turns)?);
    }
    if features {
        rows.extend(features::measure(&full, turns)?);
    }
    Ok(rows)
}

/// A thread that moves between cores starts with cold caches. If pinning is refused, measure without.
fn pin() {
    if let Some(&core) = cores::allowed().last() {
        let _refused = cores::pin(0, core);
    }
}

fn measure<A: BenchFamily>(case: &Case, bed: &Bed, turns: Turns) -> Result<Vec<Row>, BenchError> {
    let table = A::table(bed);
    let destinations = routable(case.pattern, table);
    let mut router = bed.router_of_sizes(&destinations, case.sizes, Batching::default())?;
    let mut ports = bed.source_sink(&destinations, case.sizes)?;
    check(case, table, &mut router)?;
    check_ports::<A>(case, &mut ports)?;
    let (mut looked_up, mut headers) = (0, bed.headers(&destinations)?);
    let mut subjects: [Subject<'_>; 4] = [
        ("brickmoon", &mut || breathe(&mut router)),
        ("source-sink", &mut || breathe(&mut ports)),
        ("lookup", &mut || look_up(table, &destinations, &mut looked_up)),
        ("headers", &mut || (0..BREATHS).map(|_| headers.pass()).sum()),
    ];
    let measured = alternate(turns, &mut subjects[..case.subjects()]);
    check(case, table, &mut router)?;
    check_ports::<A>(case, &mut ports)?;
    let mut rows: Vec<_> = measured.iter().map(|measured| row(case, table, measured)).collect();
    if let [router, _, lookup, headers] = &mut rows[..] {
        let parts = lookup.ns + headers.ns;
        let over = rounded(router.ns / parts);
        *router = router.clone().with("parts_ns", rounded(parts)).with("over_parts", over);
    }
    Ok(rows)
}

/// Options of [`forward_counted`].
#[derive(Clone, Copy, Debug)]
pub struct CountOptions {
    /// Number of breaths that are counted.
    pub breaths: usize,
    /// Maximum number of frames that a port returns at a time, 1 to 256.
    pub burst: usize,
    /// Number of routes in the table.
    pub routes: usize,
}

/// The result.
#[derive(Clone, Copy, Debug)]
pub struct BreathCount {
    /// Packets that the router received in the breaths that count.
    pub packets: u64,
    /// CPU time that they used.
    pub time: Duration,
}

/// Runs a number of breaths over a small table, for tools that count instructions. `traffic` is `ipv4` or `ipv6`, or
/// `mix-` and a kind of [`mix::Mix`], or `with-` and a [`features::Feature`]; with DPDK also `net_ring`, IPv4 on a port whose bursts are always of 256, or
/// `net_ring-minimal`, that port without a router.
///
/// # Errors
/// See [`BenchError`].
pub fn forward_counted(traffic: &str, options: CountOptions) -> Result<BreathCount, BenchError> {
    if traffic.starts_with("net_ring") {
        return ports::counted(traffic, options);
    }
    let CountOptions { breaths, burst, routes } = options;
    let options = tables::TableOptions { ipv4: routes, ipv6: routes, ..tables::TableOptions::default() };
    let table = tables::generate(&options).map_err(BenchError::Table)?;
    let bed = Bed::new(table, Bed::frame_pool_of(4)?)?;
    let batching = Batching { receive: burst, ..Batching::default() };
    let mixed = mix::Mix::ALL.into_iter().find(|mix| traffic.strip_prefix("mix-") == Some(mix.name()));
    let with = traffic.strip_prefix("with-");
    if let Some(feature) = features::Feature::ALL.into_iter().find(|feature| with == Some(feature.name())) {
        let mut featured = features::router(&bed, feature)?;
        return Ok(count_breaths(&mut featured.running, breaths, RunningEngine::received));
    }
    let mut running = match (traffic, mixed) {
        (_, Some(mix)) => mix::router(&bed, mix, batching)?,
        ("ipv4", None) => bed.router::<u32>(&routable(Pattern::Prefix, &bed.ipv4), batching)?,
        ("ipv6", None) => bed.router::<u128>(&routable(Pattern::Prefix, &bed.ipv6), batching)?,
        (other, None) => return Err(BenchError::NoCase { wanted: other.into() }),
    };
    let counted = count_breaths(&mut running, breaths, RunningEngine::received);
    let checked = if mixed.is_some() { running.check_closed() } else { running.check_accounts() };
    checked.map_err(|counters| BenchError::Lost { case: traffic.into(), counters })?;
    Ok(counted)
}

fn count_breaths(
    running: &mut RunningEngine,
    breaths: usize,
    packets: fn(&RunningEngine) -> u64,
) -> BreathCount {
    let (begin, before) = (thread_time(), packets(running));
    (0..breaths).for_each(|_| _ = running.engine.breathe());
    BreathCount { packets: packets(running) - before, time: thread_time() - begin }
}

fn row<A: Packet>(case: &Case, table: &bed::FamilyTable<A>, measured: &Series) -> Row {
    let row = Row::mpps("forward", &case.name(), measured);
    let row = match &case.lengths()[..] {
        [length] => row.with("frame_bytes", *length),
        _ => row.with("frame_bytes", rounded(case.mean_bytes())),
    };
    // Frame sizes as usual: with the frame check sequence, without preamble and gap. Lookups have none.
    let gbit_s = row.median * 8e-3 * (case.mean_bytes() + f64::from(FCS_BYTES));
    let carries = ["brickmoon", "source-sink"].contains(&measured.subject.as_str());
    let row = if carries { row.with("gbit_s", rounded(gbit_s)) } else { row };
    row.with("sizes", case.sizes.to_string())
        .with("routes", table.routes.len())
        .with("structure", table.structure)
        .with("table_bytes", table.bytes)
        .with("build_s", (table.built.as_secs_f64() * 1e3).round() / 1e3)
        .with("pages", table.pages.as_str())
        .with("frames", FRAMES)
        .with("burst", BURST)
}

/// The destinations of a case, without those that a router must not forward to.
fn routable<A: Packet>(pattern: Pattern, table: &bed::FamilyTable<A>) -> Arc<[A]> {
    let seeds = (SEED.0..).map(Seed);
    let mut drawn = seeds.map(|seed| -> Vec<A> {
        let count = if pattern == Pattern::Prefix { WITHIN } else { DESTINATIONS };
        let drawn = destinations(pattern, seed, count, &table.routes[usize::from(table.routes.len() > 1)..]);
        drawn.into_iter().filter_map(A::routable).collect()
    });
    drawn.find(|drawn| !drawn.is_empty()).expect("the seeds do not end").into()
}

fn breathe(running: &mut RunningEngine) -> u64 {
    let before = running.sent();
    (0..BREATHS).for_each(|_| _ = running.engine.breathe());
    running.sent() - before
}

fn look_up<A: Packet>(table: &bed::FamilyTable<A>, destinations: &[A], from: &mut usize) -> u64 {
    let mut hops = [NextHop::NONE; BURST];
    let mut count = 0;
    for _ in 0..BREATHS {
        let burst = &destinations[*from..(*from + BURST).min(destinations.len())];
        table.fib.lookup_burst(burst, &mut hops);
        std::hint::black_box(&hops);
        count += burst.len();
        *from = (*from + burst.len()) % destinations.len();
    }
    count as u64
}

/// Runs the router for a while and compares the frames that leave with the expected ones.
fn check<A: Packet>(
    case: &Case,
    table: &bed::FamilyTable<A>,
    router: &mut RunningEngine,
) -> Result<(), BenchError> {
    compare(&case.name(), std::slice::from_mut(router), 1, |port, found| {
        expected(table, port, &case.lengths(), found)
    })
}

/// Checks the ports alone: each must send what the other received.
fn check_ports<A: Packet>(case: &Case, ports: &mut RunningEngine) -> Result<(), BenchError> {
    compare(&case.name(), std::slice::from_mut(ports), 1, |port, found| {
        let length = known_length(&case.lengths(), found)?;
        Some(arriving(A::destination(found.first_chunk()?), port_mac(1 - port), length))
    })
}

/// Checks several engines that run in turn, `senders` of which send, with the smallest frames.
fn check_all<A: Packet>(
    case: &str,
    table: &bed::FamilyTable<A>,
    engines: &mut [RunningEngine],
    senders: usize,
) -> Result<(), BenchError> {
    compare(case, engines, senders, |port, found| expected(table, port, &[FRAME as u16], found))
}

/// Runs engines for a while and compares the frames that leave through each port with the expected ones.
fn compare(
    case: &str,
    engines: &mut [RunningEngine],
    senders: usize,
    expected: impl Fn(usize, &[u8]) -> Option<Vec<u8>>,
) -> Result<(), BenchError> {
    engines.iter().for_each(|running| running.sample.begin());
    for _ in 0..SAMPLE_BREATHS {
        engines.iter_mut().for_each(|running| _ = running.engine.breathe());
    }
    for running in engines.iter() {
        running.check_accounts().map_err(|counters| BenchError::Lost { case: case.into(), counters })?;
    }
    let samples: Vec<_> = engines.iter().map(|running| running.sample.end()).collect();
    if samples.iter().filter(|sample| !sample.is_empty()).count() < senders {
        return Err(BenchError::NothingLeft { case: case.into() });
    }
    for (port, found) in samples.into_iter().flatten() {
        let expected = expected(port, &found).unwrap_or_default();
        if expected != found {
            return Err(BenchError::Wrong { case: case.into(), expected, found });
        }
    }
    Ok(())
}

/// The frame as the router must send it through `port`, in one of these lengths; `None` if it must not send it there.
fn expected<A: Packet>(
    table: &bed::FamilyTable<A>,
    port: usize,
    lengths: &[u16],
    found: &[u8],
) -> Option<Vec<u8>> {
    let length = known_length(lengths, found)?;
    // A frame without its tag may be shorter than the smallest one.
    let mut head = [0; FRAME];
    let count = found.len().min(head.len());
    head[..count].copy_from_slice(&found[..count]);
    let destination = A::destination(&head);
    let hop = table.oracle.next_hop(destination);
    let leaves = hop > 0 && next_hop_port(hop) == port;
    if !leaves {
        return None;
    }
    let mut frame = leaving(destination, next_hop_mac(hop), port_mac(port), length);
    frame.truncate(usize::from(length));
    Some(frame)
}

/// The length of a frame, if it is one of these.
fn known_length(lengths: &[u16], found: &[u8]) -> Option<u16> {
    lengths.iter().copied().find(|&length| usize::from(length) == found.len())
}

#[cfg(test)]
mod tests;
