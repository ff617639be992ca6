//! `bench ipsec`: how long does ESP take, compared with the cipher itself, on one core?
//!
//! ```text
//! {suite}-{encrypt|decrypt}-{64|256|1420|imix}      unit gbps: bits of whole inner packets a second
//!
//! bare        the library's cipher alone, on as many bytes: no headers, padding, sequence numbers or window
//! brickmoon   an IPv4 packet through an SA in tunnel mode, with ESN and a replay window, over IPv4
//!
//! sas, policies                                   unit mpps: lookups of one among 1, 100 and 10,000 (lookup.rs)
//! ```
//!
//! Both use the same memory, a burst of 256 packets in frame slots that are prepared before the clock starts.
//! Before it is measured, each SA must decrypt what it has encrypted to the original packet.

mod bare;
mod burst;
mod lookup;

use std::time::{Duration, Instant};

use bm_ipsec::Suite;
use bm_testbed::testbed::cores;

use super::{BenchError, Options};
use crate::alternate::{Sample, Turns, alternate_samples, thread_time};
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
enum Work {
    Encrypt,
    Decrypt,
}

#[derive(Clone, Copy)]
struct Case {
    suite: Suite,
    work: Work,
    size: (&'static str, &'static [usize]),
}

impl Case {
    fn name(&self) -> String {
        let work = if self.work == Work::Encrypt { "encrypt" } else { "decrypt" };
        format!("{}-{work}-{}", self.suite, self.size.0)
    }

    fn all() -> impl Iterator<Item = Self> {
        let of_suite = |suite| SIZES.iter().map(move |&size| (suite, size));
        let sizes = Suite::ALL.into_iter().flat_map(of_suite);
        sizes.flat_map(|(suite, size)| [Work::Encrypt, Work::Decrypt].map(|work| Self { suite, work, size }))
    }
}

/// Measures all selected cases.
///
/// # Errors
/// See [`BenchError`].
pub fn ipsec(options: &Options) -> Result<Vec<Row>, BenchError> {
    let cases: Vec<Case> = Case::all().filter(|case| options.wants(&case.name())).collect();
    let lookups: Vec<_> = lookup::Case::ALL.into_iter().filter(|case| options.wants(case.name())).collect();
    if cases.is_empty() && lookups.is_empty() {
        return Err(BenchError::NoCase { wanted: options.case.clone().unwrap_or_default() });
    }
    // A thread that moves between cores starts with cold caches. If pinning is refused, measure without.
    let _refused = cores::pin(0, cores::allowed().last().copied().unwrap_or(0));
    let whole = Duration::from_secs(if options.seconds == 0 { SECONDS } else { options.seconds });
    let turns = Turns::within(whole, cases.len() * 2 + lookups.len() * 3);
    let mut rows = Vec::new();
    for case in &cases {
        rows.extend(measure(case, turns)?);
    }
    for case in lookups {
        rows.extend(lookup::measure(case, turns)?);
    }
    Ok(rows)
}

fn measure(case: &Case, turns: Turns) -> Result<[Row; 2], BenchError> {
    let mut burst = Burst::new(case.suite, case.size.1);
    burst.check(&case.name())?;
    let bare = Bare::new(case.suite);
    let subjects = ["bare", "brickmoon"].map(String::from).to_vec();
    let measured = alternate_samples(turns.runs, subjects, |subject| -> Result<Sample, BenchError> {
        let mut turn = |time| match (subject, case.work) {
            (0, Work::Encrypt) => {
                timed(time, &mut burst, |_| {}, |burst| burst.bare(|bytes| bare.seal(bytes)))
            }
            (0, Work::Decrypt) => timed(
                time,
                &mut burst,
                |burst| burst.bare(|bytes| bare.seal(bytes)),
                |burst| burst.bare(|bytes| bare.open(bytes)),
            ),
            (_, Work::Encrypt) => timed(time, &mut burst, Burst::reset, Burst::encrypt),
            (_, Work::Decrypt) => timed(
                time,
                &mut burst,
                |burst| {
                    burst.reset();
                    burst.encrypt();
                },
                Burst::decrypt,
            ),
        };
        turn(turns.warm_up);
        Ok(turn(turns.slot))
    })?;
    burst.check_none_failed(&case.name())?;
    let bytes = case.size.1.iter().sum::<usize>() as f64 / case.size.1.len() as f64;
    let row = |index: usize| {
        let mut row = Row::mpps("ipsec", &case.name(), &measured[index]);
        let gbps = |mpps: f64| (mpps * bytes * 8.0 / 1e3 * 1e4).round() / 1e4;
        (row.min, row.median, row.max) = (gbps(row.min), gbps(row.median), gbps(row.max));
        row.unit = "gbps".into();
        row.with("bytes", bytes).with("library", bare::library(case.suite))
    };
    Ok([row(0), row(1)])
}

/// Repeats the work for a time; the preparation before each repetition is not measured.
fn timed(
    time: Duration,
    burst: &mut Burst,
    before: impl Fn(&mut Burst),
    work: impl Fn(&mut Burst),
) -> Sample {
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
        assert_eq!((names.len(), names[0].as_str()), (56, "aes128gcm16-encrypt-64"));
    }

    #[test]
    fn reports_unknown_cases() {
        let outcome = ipsec(&Options { case: Some("des".into()), ..Options::default() });
        assert!(matches!(outcome, Err(BenchError::NoCase { wanted }) if wanted == "des"));
    }
}
