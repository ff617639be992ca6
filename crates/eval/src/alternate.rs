//! Measures rivals in turn, so that the noise of a busy machine affects all of them alike.
//!
//! In each round every subject has one turn; each round begins with the next subject. A turn warms up, then repeats
//! the subject's work for some time: short turns start cold and flatter large tables. Time is the thread's own CPU
//! time, so that other work on the machine does not count.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// How often and how long each subject is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// Rounds, each with one turn a subject.
    pub runs: u32,
    /// Measured time of one turn.
    pub slot: Duration,
    /// Time before that, which is not measured.
    pub warm_up: Duration,
}

impl Default for Turns {
    fn default() -> Self {
        Self { runs: 5, slot: Duration::from_millis(150), warm_up: Duration::from_millis(30) }
    }
}

impl Turns {
    /// Turns that measure `measurements` subjects (of all cases together) within a time.
    ///
    /// Turns become shorter first, down to 100 ms; then there are fewer, down to three; then they become shorter again.
    pub fn within(whole: Duration, measurements: usize) -> Self {
        let measurements = measurements.max(1) as u32;
        let one = whole / measurements;
        let least = Duration::from_millis(100) * 6 / 5;
        let runs = (3..=5).rev().find(|&runs| one / runs >= least).unwrap_or(3);
        let turn = (one / runs).min(Duration::from_secs(1));
        Self { runs, slot: turn * 5 / 6, warm_up: turn / 6 }
    }
}

/// The result of one turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// How many items were processed: packets, lookups.
    pub items: u64,
    /// Items a second.
    pub rate: f64,
    /// Nanoseconds of CPU time per item.
    pub ns: f64,
}

/// All turns of one subject.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name of the subject.
    pub subject: String,
    /// One sample per turn.
    pub samples: Vec<Sample>,
}

impl Series {
    /// The rates of all turns, in items a second.
    pub fn rates(&self) -> Quantiles {
        spread(self.samples.iter().map(|sample| sample.rate))
    }

    /// Nanoseconds of CPU time per item, at the median.
    pub fn ns(&self) -> f64 {
        spread(self.samples.iter().map(|sample| sample.ns)).median
    }
}

/// Minimum, median and maximum of some values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantiles {
    /// The least.
    pub min: f64,
    pub median: f64,
    /// The greatest.
    pub max: f64,
}

/// Of no values, all are zero; the median of an even number is the mean of the two in the middle.
pub fn spread(values: impl Iterator<Item = f64>) -> Quantiles {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let count = values.len();
    if count == 0 {
        return Quantiles::default();
    }
    let median = (values[(count - 1) / 2] + values[count / 2]) / 2.0;
    Quantiles { min: values[0], median, max: values[count - 1] }
}

/// A subject of a bench: its name, and its work, which returns how many items it processed.
pub type Subject<'a> = (&'a str, &'a mut dyn FnMut() -> u64);

/// Measures the subjects on this thread, in turn.
pub fn alternate(turns: Turns, subjects: &mut [Subject<'_>]) -> Vec<Series> {
    let names: Vec<String> = subjects.iter().map(|subject| subject.0.into()).collect();
    let measured =
        alternate_samples(turns.runs, names, |index| -> Result<Sample, std::convert::Infallible> {
            let work = &mut *subjects[index].1;
            repeat(turns.warm_up, work);
            Ok(repeat(turns.slot, work))
        });
    match measured {
        Ok(measured) => measured,
    }
}

/// Alternates between subjects that measure themselves, such as traffic through namespaces: `take` is called with
/// the subject's index.
pub fn alternate_samples<E>(
    runs: u32,
    subjects: Vec<String>,
    take: impl FnMut(usize) -> Result<Sample, E>,
) -> Result<Vec<Series>, E> {
    let samples = take_turns(runs, subjects.len(), take)?;
    let measured = subjects.into_iter().zip(samples);
    Ok(measured.map(|(subject, samples)| Series { subject, samples }).collect())
}

/// Gives each of some subjects a turn in every run; each run begins with the next subject. Returns what `take` returned
/// for each subject.
///
/// # Errors
/// The first of `take`.
pub fn take_turns<T, E>(
    runs: u32,
    subjects: usize,
    mut take: impl FnMut(usize) -> Result<T, E>,
) -> Result<Vec<Vec<T>>, E> {
    let mut taken: Vec<Vec<T>> = (0..subjects).map(|_| Vec::new()).collect();
    for run in 0..runs as usize {
        for turn in 0..subjects {
            let subject = (run + turn) % subjects;
            taken[subject].push(take(subject)?);
        }
    }
    Ok(taken)
}

/// Repeats the work for a time. The wall clock limits it; the thread's clock measures it.
pub(crate) fn repeat(time: Duration, work: &mut dyn FnMut() -> u64) -> Sample {
    let (wall, start, mut items) = (Instant::now(), thread_time(), 0);
    loop {
        items += work();
        if wall.elapsed() >= time {
            break;
        }
    }
    let seconds = (thread_time() - start).as_secs_f64().max(1e-9);
    let rate = items as f64 / seconds;
    Sample { items, rate, ns: if items == 0 { 0.0 } else { 1e9 / rate } }
}

/// CPU time that this thread has used.
pub fn thread_time() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

/// CPU time that all threads of this process have used.
pub fn process_time() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

fn clock(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternates_and_advances() {
        let mut order = Vec::new();
        let sample = Sample { items: 1, rate: 1.0, ns: 1.0 };
        let taken: Result<_, ()> = alternate_samples(3, vec!["a".into(), "b".into()], |index| {
            order.push(index);
            Ok(sample)
        });
        assert_eq!(order, [0, 1, 1, 0, 0, 1]);
        assert!(taken.unwrap().iter().all(|measured| measured.samples.len() == 3));
        assert_eq!(alternate_samples(1, vec!["a".into()], |_| Err("off")), Err("off"));
    }

    #[test]
    fn distinguishes_slow_and_fast_subjects() {
        let turns = Turns { runs: 3, slot: Duration::from_millis(5), warm_up: Duration::from_millis(1) };
        let spin = |rounds: u64| (0..rounds).fold(1u64, |sum, n| std::hint::black_box(sum ^ n));
        let measured = alternate(
            turns,
            &mut [("quick", &mut || spin(1_000) & 1 | 1), ("slow", &mut || spin(100_000) & 1 | 1)],
        );
        assert!(measured[1].ns() > 10.0 * measured[0].ns(), "{measured:?}");
        let Quantiles { min, median, max } = measured[0].rates();
        assert!(min <= median && median <= max);
    }

    #[test]
    fn spreads() {
        assert_eq!(spread([3.0, 1.0, 2.0].into_iter()), Quantiles { min: 1.0, median: 2.0, max: 3.0 });
        assert_eq!(spread([4.0, 1.0].into_iter()), Quantiles { min: 1.0, median: 2.5, max: 4.0 });
        assert_eq!(spread(std::iter::empty()), Quantiles::default());
    }

    #[test]
    fn keeps_to_the_time_limit() {
        for (seconds, measurements) in [(1, 4), (10, 12), (60, 3), (5, 400)] {
            let turns = Turns::within(Duration::from_secs(seconds), measurements);
            let whole = (turns.slot + turns.warm_up) * turns.runs * measurements as u32;
            assert!(whole <= Duration::from_secs(seconds) && turns.runs >= 3, "{turns:?}");
        }
    }
}
