//! How often the data path has failed, and what its next start needs.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::ports::spare::Spare;

/// A data path that fails more often than this is not restarted; Linux forwards instead.
pub const FAILURES_MAX: usize = 5;
/// For how long a failure counts.
pub const FAILURES_WITHIN: Duration = Duration::from_secs(600);

/// Held by the one thread that may start or end the data path.
#[derive(Default)]
pub struct Restarts {
    /// When the data path failed recently.
    failures: VecDeque<Instant>,
    /// Descriptors that keep our interfaces in Linux until a data path has them again.
    pub keep_open: Vec<OwnedFd>,
    /// Reserved file descriptors for the next start.
    pub spare: Spare,
    /// The daemon is ending: nothing may be started any more.
    pub ended: bool,
}

impl Restarts {
    /// No failures yet, with reserved descriptors for the first restart.
    pub fn with_spare() -> Self {
        let mut restarts = Self::default();
        restarts.spare.fill();
        restarts
    }

    /// Whether recent failures are few enough for another restart.
    pub fn may(&mut self, now: Instant) -> bool {
        self.failures.retain(|then| now.duration_since(*then) < FAILURES_WITHIN);
        self.failures.len() < FAILURES_MAX
    }

    /// Records a failure; returns whether recent failures are few enough for a restart.
    pub fn allows(&mut self, now: Instant) -> bool {
        self.failures.retain(|then| now.duration_since(*then) < FAILURES_WITHIN);
        self.failures.push_back(now);
        self.failures.len() <= FAILURES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_failures_do_not_count() {
        let begin = Instant::now();
        let (mut restarts, often) = (Restarts::default(), Duration::from_secs(60));
        for nth in 0..FAILURES_MAX as u32 {
            assert!(restarts.allows(begin + often * nth), "{nth}");
        }
        assert!(!restarts.may(begin + often * 4));
        assert!(!restarts.allows(begin + often * 5), "the sixth within ten minutes");
        assert!(!restarts.may(begin + often * 10) && restarts.may(begin + often * 11));
        let mut restarts = Restarts::default();
        // Every two minutes is five times in ten minutes, never six.
        assert!((0..1000).all(|nth| restarts.allows(begin + often * 2 * nth)));
    }
}
