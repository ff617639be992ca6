//! `bench ipsec`: how long does ESP take, compared with the cipher itself, on one core?
//!
//! ```text
//! {suite}-{encrypt|decrypt}-{64|256|1420|imix}      unit gbps: bits of whole inner packets a second
//! gateway-{suite}-{64|256|1420|imix}
//!
//! bare        the fastest library's cipher alone, on as many bytes: no headers, padding, sequence numbers or window
//! brickmoon   an IPv4 packet through an SA in tunnel mode, with ESN and a replay window, over IPv4;
//!             `gateway`: a frame that is received, routed, encrypted, routed again and sent, as workers do it
//!
//! handover                                        unit mpps: 64 bytes, AES-128-GCM
//! own, handed   the gateway with the SA on the worker that receives, or on another one (forward/bed/gateway.rs)
//!
//! per-worker-{64|1420}                            unit mpps: AES-128-GCM, two workers on two cores
//! one-sa        both have one SA, which is the first worker's: the second one hands its packets over
//! own-sas       each has one of its own
//!
//! sas, policies                                   unit mpps: lookups of one among 1, 100 and 10,000 (lookup.rs)
//! ```
//!
//! All libraries take turns with the SA, on the same memory: a burst of 256 packets in frame slots that are prepared
//! before the clock starts. `bare` is the one that was fastest in this run, and `library` its name.
//! Before it is measured, each SA must decrypt what it has encrypted to the original packet.

mod bare;
mod burst;
mod lookup;

use std::time::{Duration, Instant};

use bm_ipsec::{Direction, Library, Sa, Secret, Suite};
use bm_testbed::testbed::cores;
use serde_json::{Map, Value};

use super::forward::bed::gateway::Gateway;
use super::{BenchError, Options};
use crate::alternate::{Sample, Series, Turns, alternate_samples, thread_time};
use crate::report::Row;
use bare::Bare;
use burst::Burst;

/// Time limit of the bench in seconds, if none is given.
const SECONDS: u64 = 60;
/// Bytes of inner packets. The mix is 7 of 46, 4 of 576 and 1 of 1,500: what Ethernet's 64, 594 and 1,518 contain.
const SIZES: [(&str, &[usize]); 4] = [
    ("64", &[64]),
    ("256", &[256]),
    ("1420", &[1420]),
    ("imix", &[46, 576, 46, 46, 576, 46, 1500, 46, 576, 46, 576, 46]),
];

/// The subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Encrypt,
    Decrypt,
    Gateway,
}

/// The case that hands packets to another worker.
const HANDOVER: &str = "handover";
/// The cases of two workers.
const PER_WORKER: [WorkersCase; 2] = [
    WorkersCase { name: "per-worker-64", packet_bytes: 64 },
    WorkersCase { name: "per-worker-1420", packet_bytes: 1420 },
];
/// Breaths of a gateway between two readings of the clock.
const BREATHS: usize = 8;

#[derive(Clone, Copy)]
struct Case {
    suite: Suite,
    work: Operation,
    size: (&'static str, &'static [usize]),
}

impl Case {
    fn name(&self) -> String {
        match self.work {
            Operation::Encrypt => format!("{}-encrypt-{}", self.suite, self.size.0),
            Operation::Decrypt => format!("{}-decrypt-{}", self.suite, self.size.0),
            Operation::Gateway => format!("gateway-{}-{}", self.suite, self.size.0),
        }
    }

    fn all() -> impl Iterator<Item = Self> {
        Self::of(&[Operation::Encrypt, Operation::Decrypt]).chain(Self::of(&[Operation::Gateway]))
    }

    fn of(works: &'static [Operation]) -> impl Iterator<Item = Self> {
        let sizes = Suite::ALL.into_iter().flat_map(|suite| SIZES.iter().map(move |&size| (suite, size)));
        sizes.flat_map(|(suite, size)| works.iter().map(move |&work| Self { suite, work, size }))
    }

    /// All libraries, and ours.
    fn subjects(&self) -> usize {
        Library::all(self.suite).len() + 1
    }
}

/// Measures all selected cases.
///
/// # Errors
/// See [`BenchError`].
pub fn ipsec(options: &Options) -> Result<Vec<Row>, BenchError> {
    let cases: Vec<Case> = Case::all().filter(|case| options.wants(&case.name())).collect();
    let lookups: Vec<_> = lookup::Case::ALL.into_iter().filter(|case| options.wants(case.name())).collect();
    let handover = options.wants(HANDOVER);
    let per_worker: Vec<_> = PER_WORKER.into_iter().filter(|case| options.wants(case.name)).collect();
    if cases.is_empty() && lookups.is_empty() && !handover && per_worker.is_empty() {
        return Err(BenchError::NoCase { wanted: options.case.clone().unwrap_or_default() });
    }
    // A thread that moves between cores starts with cold caches. If pinning is refused, measure without.
    let allowed = cores::allowed();
    let _refused = cores::pin(0, allowed.last().copied().unwrap_or(0));
    let whole = Duration::from_secs(if options.seconds == 0 { SECONDS } else { options.seconds });
    let subjects: usize = cases.iter().map(Case::subjects).sum();
    let pairs = usize::from(handover) + per_worker.len();
    let turns = Turns::within(whole, subjects + lookups.len() * 3 + pairs * 2);
    let mut rows = Vec::new();
    for case in &cases {
        rows.extend(measure(case, turns)?);
    }
    if handover {
        rows.extend(hand_over(turns)?);
    }
    for case in per_worker {
        rows.extend(two_workers(case, &allowed, turns)?);
    }
    for case in lookups {
        rows.extend(lookup::measure(case, turns)?);
    }
    Ok(rows)
}

fn measure(case: &Case, turns: Turns) -> Result<[Row; 2], BenchError> {
    let mut burst = Burst::new(case.suite, case.size.1);
    burst.check(&case.name())?;
    let mut gateway = match case.work {
        Operation::Gateway => Some(Gateway::new(&burst::sa(case.suite), case.size.1, 0)?),
        _ => None,
    };
    gateway.iter_mut().try_for_each(|gateway| gateway.check(&case.name()))?;
    let libraries = Library::all(case.suite);
    let mut bares: Vec<Bare> = libraries.iter().map(|&library| Bare::new(case.suite, library)).collect();
    let names = libraries.iter().map(Library::to_string).chain(["brickmoon".into()]).collect();
    let measured = alternate_samples(turns.runs, names, |subject| -> Result<Sample, BenchError> {
        let mut turn = |time| match (bares.get_mut(subject), &mut gateway) {
            (Some(bare), _) => bare_turn(time, &mut burst, bare, case.work),
            (None, Some(gateway)) => breathe(time, gateway),
            (None, None) => sa_turn(time, &mut burst, case.work),
        };
        turn(turns.warm_up);
        Ok(turn(turns.slot))
    })?;
    burst.check_none_failed(&case.name())?;
    gateway.iter_mut().try_for_each(|gateway| gateway.check(&case.name()))?;
    Ok(rows(case, &measured))
}

/// The fastest library as `bare`, and ours, which is the last.
fn rows(case: &Case, measured: &[Series]) -> [Row; 2] {
    let bytes = case.size.1.iter().sum::<usize>() as f64 / case.size.1.len() as f64;
    let row = |measured: &Series, subject: &str, library: &str| {
        let mut row = Row::mpps("ipsec", &case.name(), measured);
        for mpps in [&mut row.min, &mut row.median, &mut row.max] {
            *mpps = (*mpps * bytes * 8.0 / 1e3 * 1e4).round() / 1e4;
        }
        (row.unit, row.subject) = ("gbps".into(), subject.into());
        row.with("bytes", bytes).with("library", library)
    };
    let (ours, libraries) = measured.split_last().expect("there are two subjects at least");
    let fastest = libraries.iter().min_by(|one, other| one.ns().total_cmp(&other.ns()));
    let fastest = fastest.expect("a suite has a library");
    let direction = if case.work == Operation::Decrypt { Direction::In } else { Direction::Out };
    let chosen = bm_ipsec::library(case.suite, direction);
    let all: Map<String, Value> =
        libraries.iter().map(|one| (one.subject.clone(), one.ns().round().into())).collect();
    [row(fastest, "bare", &fastest.subject).with("libraries_ns", all), row(ours, "brickmoon", &chosen)]
}

fn bare_turn(time: Duration, burst: &mut Burst, bare: &mut Bare, work: Operation) -> Sample {
    let mut prepared = (burst, bare);
    let seal = |(burst, bare): &mut (&mut Burst, &mut Bare)| burst.seal(bare);
    if work == Operation::Decrypt {
        timed(time, &mut prepared, seal, |(burst, bare)| burst.open(bare))
    } else {
        timed(time, &mut prepared, |_| {}, seal)
    }
}

fn sa_turn(time: Duration, burst: &mut Burst, work: Operation) -> Sample {
    if work == Operation::Encrypt {
        return timed(time, burst, Burst::reset, Burst::encrypt);
    }
    timed(
        time,
        burst,
        |burst| {
            burst.reset();
            burst.encrypt();
        },
        Burst::decrypt,
    )
}

/// A gateway's breaths for a time.
fn breathe(time: Duration, gateway: &mut Gateway) -> Sample {
    let (wall, start, mut items) = (Instant::now(), thread_time(), 0);
    while items == 0 || wall.elapsed() < time {
        items += (0..BREATHS).map(|_| gateway.breathe()).sum::<u64>();
    }
    let rate = items as f64 / (thread_time() - start).as_secs_f64().max(1e-9);
    Sample { items, rate, ns: 1e9 / rate }
}

fn hand_over(turns: Turns) -> Result<Vec<Row>, BenchError> {
    let sa = burst::sa(Suite::Aes128Gcm);
    let mut gateways = [Gateway::new(&sa, &[64], 0)?, Gateway::new(&sa, &[64], 1)?];
    gateways.iter_mut().try_for_each(|gateway| gateway.check(HANDOVER))?;
    let names = ["own", "handed"].map(String::from).to_vec();
    let measured = alternate_samples(turns.runs, names, |subject| -> Result<Sample, BenchError> {
        breathe(turns.warm_up, &mut gateways[subject]);
        Ok(breathe(turns.slot, &mut gateways[subject]))
    })?;
    gateways.iter_mut().try_for_each(|gateway| gateway.check(HANDOVER))?;
    let more = ((measured[1].ns() - measured[0].ns()) * 10.0).round() / 10.0;
    let rows = measured.iter().map(|measured| Row::mpps("ipsec", HANDOVER, measured));
    Ok(rows.map(|row| row.with("handover_ns", more)).collect())
}

/// A case of two workers.
struct WorkersCase {
    name: &'static str,
    packet_bytes: usize,
}

/// One SA and two, for two workers.
fn two_workers(case: WorkersCase, cores: &[usize], turns: Turns) -> Result<Vec<Row>, BenchError> {
    let WorkersCase { name: case, packet_bytes: length } = case;
    let first = burst::sa(Suite::Aes128Gcm);
    let second = Sa { spi: first.spi + 1, encryption_key: Secret::new(&[3; 20]), ..first.clone() };
    let one = Gateway::of_two(std::slice::from_ref(&first), &[length])?;
    let mut gateways = [one, Gateway::of_two(&[first, second], &[length])?];
    gateways.iter_mut().try_for_each(|gateway| gateway.check(case))?;
    let names = ["one-sa", "own-sas"].map(String::from).to_vec();
    let measured = alternate_samples(turns.runs, names, |subject| -> Result<Sample, BenchError> {
        gateways[subject].run(turns.warm_up, cores);
        let (items, spent) = gateways[subject].run(turns.slot, cores);
        let rate = items as f64 / spent.as_secs_f64().max(1e-9);
        Ok(Sample { items, rate, ns: 1e9 / rate.max(1e-9) })
    })?;
    gateways.iter_mut().try_for_each(|gateway| gateway.check(case))?;
    let rows = measured.iter().map(|measured| Row::mpps("ipsec", case, measured));
    Ok(rows.map(|row| row.with("cores", cores.len().min(2))).collect())
}

/// Repeats the work for a time; the preparation before each repetition is not measured.
fn timed<T>(time: Duration, burst: &mut T, before: impl Fn(&mut T), work: impl Fn(&mut T)) -> Sample {
    let (wall, mut spent, mut items) = (Instant::now(), Duration::ZERO, 0);
    while items == 0 || wall.elapsed() < time {
        before(burst);
        let start = thread_time();
        work(burst);
        spent += thread_time() - start;
        items += burst::PACKETS as u64;
    }
    let rate = items as f64 / spent.as_secs_f64().max(1e-9);
    Sample { items, rate, ns: 1e9 / rate }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_every_case() {
        let turns = Turns { runs: 3, slot: Duration::from_micros(300), warm_up: Duration::ZERO };
        let mut names = Vec::new();
        for case in Case::all() {
            let rows = measure(&case, turns).unwrap();
            assert!(rows.iter().all(|row| row.unit == "gbps" && row.min > 0.0 && row.min <= row.max));
            assert_eq!(rows.each_ref().map(|row| row.subject.as_str()), ["bare", "brickmoon"]);
            names.push(case.name());
        }
        assert_eq!((names.len(), names[0].as_str()), (84, "aes128gcm16-encrypt-64"));
        let rows = hand_over(turns).unwrap();
        assert_eq!(rows.iter().map(|row| row.subject.as_str()).collect::<Vec<_>>(), ["own", "handed"]);
        assert!(rows.iter().all(|row| row.detail.contains_key("handover_ns")));
        for case in PER_WORKER {
            let rows = two_workers(case, &cores::allowed(), turns).unwrap();
            // In so short a turn, a worker may not even have begun.
            let subjects: Vec<_> = rows.iter().map(|row| (row.subject.as_str(), row.max > 0.0)).collect();
            assert_eq!(subjects, [("one-sa", true), ("own-sas", true)]);
        }
    }

    #[test]
    fn reports_unknown_cases() {
        let outcome = ipsec(&Options { case: Some("des".into()), ..Options::default() });
        assert!(matches!(outcome, Err(BenchError::NoCase { wanted }) if wanted == "des"));
    }
}
