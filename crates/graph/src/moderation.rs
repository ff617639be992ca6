//! Interrupt moderation for workers: one that is woken too often pauses a moment instead, so that it processes
//! several packets each time it runs.
//!
//! A worker without work sleeps until its ports wake it. At some hundred thousand packets per second they do so every
//! few packets, and waking costs as much as the packets: a core that could forward twice as much has no time left.
//! Network cards moderate their interrupts for the same reason (`ethtool -C adaptive-rx on`).
//!
//! ```text
//! 16 sleeps in less than 16 times 40 us     sleep for 50 us each time, however many packets come
//! fewer than 8 moves since the last sleep   sleep until woken, as before
//! ```
//!
//! So only a worker that is woken more than 25,000 times per second delays packets, and by 50 us at most.

use std::time::{Duration, Instant};

/// The length of a pause.
pub(crate) const PAUSE: Duration = Duration::from_micros(50);
/// If the average interval between sleeps is shorter than this, there are too many.
const OFTEN: Duration = Duration::from_micros(40);
/// The number of sleeps over which the average is taken.
const SLEEPS: u32 = 16;
/// Frame moves over links that justify the delay of a pause: about four packets, each from a port to the router and
/// to another port.
const WORTH: u64 = 8;

/// Whether a worker is woken too often.
pub(crate) struct Moderation {
    /// Sleeps since `since`.
    sleeps: u32,
    since: Instant,
    pausing: bool,
}

impl Moderation {
    pub fn new(now: Instant) -> Self {
        Self { sleeps: 0, since: now, pausing: false }
    }

    /// Whether the worker should pause instead of sleeping until it is woken. `moved` is the number of frames it
    /// moved since the last call.
    pub fn should_pause(&mut self, now: Instant, moved: u64) -> bool {
        if self.pausing {
            if moved < WORTH {
                *self = Self::new(now);
            }
            return self.pausing;
        }
        self.sleeps += 1;
        if self.sleeps == SLEEPS {
            let pausing = now.saturating_duration_since(self.since) < OFTEN * SLEEPS;
            *self = Self { pausing, ..Self::new(now) };
        }
        self.pausing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What it decides at each of `count` sleeps, `interval` apart, with `moved` before each.
    fn decisions(count: u32, interval: Duration, moved: u64) -> Vec<bool> {
        let began = Instant::now();
        let mut moderation = Moderation::new(began);
        (1..=count).map(|sleep| moderation.should_pause(began + interval * sleep, moved)).collect()
    }

    #[test]
    fn pauses_once_it_is_woken_too_often() {
        let decisions = decisions(40, Duration::from_micros(10), 20);
        assert!(decisions[..15].iter().all(|pauses| !pauses));
        assert!(decisions[15..].iter().all(|pauses| *pauses));
    }

    #[test]
    fn never_pauses_at_few_packets() {
        assert!(decisions(100, Duration::from_micros(50), 20).iter().all(|pauses| !pauses));
    }

    #[test]
    fn pauses_no_longer_than_packets_come() {
        let began = Instant::now();
        let mut moderation = Moderation::new(began);
        let at = |us| began + Duration::from_micros(us);
        assert!((1..=16).any(|sleep| moderation.should_pause(at(sleep), 2)));
        assert!(moderation.should_pause(at(70), 8));
        assert!(!moderation.should_pause(at(130), 7), "a pause brought little");
        assert!(!moderation.should_pause(at(140), 100), "and it begins to count again");
    }
}
