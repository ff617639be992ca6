//! Measures the cost of a hook, and whether it is too high for too long.

use std::time::{Duration, Instant};

/// Frames over which a value is averaged.
const WINDOW: u64 = 1024;

/// The processor's clock; nanoseconds where there is none to read.
#[inline(always)]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor that we run on has the instruction, and it touches no memory.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Measures the cost of one hook on one worker.
pub struct Meter {
    budget: u64,
    patience: Duration,
    frames: u64,
    cycles: u64,
    over_since: Option<Instant>,
}

impl Meter {
    pub fn new(budget: u64, patience: Duration) -> Self {
        Self { budget, patience, frames: 0, cycles: 0, over_since: None }
    }

    /// Notes a burst. The cost of a frame, once it has been over the budget for too long.
    #[inline]
    pub fn note(&mut self, frames: u64, cycles: u64) -> Option<u64> {
        self.frames += frames;
        self.cycles += cycles;
        if self.frames < WINDOW { None } else { self.close(Instant::now) }
    }

    #[cold]
    fn close(&mut self, now: impl Fn() -> Instant) -> Option<u64> {
        let each = self.cycles / self.frames;
        (self.frames, self.cycles) = (0, 0);
        if self.budget == 0 || each <= self.budget {
            self.over_since = None;
            return None;
        }
        let now = now();
        let since = *self.over_since.get_or_insert(now);
        (now.duration_since(since) >= self.patience).then_some(each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lasting_excess_is_over_budget() {
        let start = Instant::now();
        let mut meter = Meter::new(100, Duration::from_secs(1));
        let mut window = |each: u64, ms: u64| {
            (meter.frames, meter.cycles) = (WINDOW, WINDOW * each);
            meter.close(|| start + Duration::from_millis(ms))
        };
        assert_eq!((window(101, 0), window(500, 900)), (None, None));
        assert_eq!(window(100, 1000), None, "within the budget again");
        assert_eq!((window(101, 1100), window(101, 2000), window(102, 2100)), (None, None, Some(102)));
        let mut free = Meter::new(0, Duration::ZERO);
        assert_eq!(free.note(WINDOW, u64::MAX / 2), None);
    }
}
