//! Counters of matched rules, for all workers.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use bm_fib::memory::{Array, Filled, OutOfMemory};
use bm_filter::COUNTERS;

/// Rows of counters: workers with different numbers modulo this share no line.
const ROWS: usize = 16;

/// A counter for each rule name, and one for packets that match no rule.
pub struct RuleCounts(Array<AtomicU64>);

impl RuleCounts {
    /// All at zero.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new() -> Result<Self, OutOfMemory> {
        Array::zeroed(ROWS * COUNTERS, Filled::ByNeed).map(Self)
    }

    /// Counts packets for this worker.
    #[inline]
    pub fn add(&self, worker: usize, counter: u16, packets: u32) {
        let at = worker % ROWS * COUNTERS + usize::from(counter);
        if let Some(count) = self.0.get(at) {
            count.fetch_add(packets.into(), Relaxed);
        }
    }

    /// The count of all workers.
    pub fn count(&self, counter: u16) -> u64 {
        self.rows(counter).map(|count| count.load(Relaxed)).sum()
    }

    /// Has a counter begin at zero, for another rule.
    pub fn clear(&self, counter: u16) {
        self.rows(counter).for_each(|count| count.store(0, Relaxed));
    }

    fn rows(&self, counter: u16) -> impl Iterator<Item = &AtomicU64> {
        self.0.iter().skip(usize::from(counter)).step_by(COUNTERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_filter::UNMATCHED;

    #[test]
    fn workers_count_together() {
        let counts = RuleCounts::new().unwrap();
        for (worker, counter) in [(0, 3), (1, 3), (17, 3), (15, UNMATCHED), (0, 4)] {
            counts.add(worker, counter, 1);
        }
        assert_eq!([3, 4, 5, UNMATCHED].map(|counter| counts.count(counter)), [3, 1, 0, 1]);
        counts.clear(3);
        assert_eq!([3, 4].map(|counter| counts.count(counter)), [0, 1]);
    }
}
