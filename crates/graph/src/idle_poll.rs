//! How long a worker sleeps if a port must be polled: nothing wakes it, so each such sleep is the longest wait of a
//! packet, and each wakeup costs CPU time.
//!
//! ```text
//! since the last frame   0 .. 5 ms   ..            64 times the longest ..
//! a sleep                  75 us       a 64th of it  the longest: sixty times what waking costs, 75 us to 2 ms
//! ```
//!
//! The cost of a wakeup is measured, because it differs by a factor of twenty: about a microsecond on a dedicated
//! machine, 25 in a virtual one whose caches are used by others in the meantime. If it is low, no packet waits longer
//! than the shortest sleep; if it is high, an idle worker costs a little more than a sixtieth of a core.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The shortest sleep: the first packet waits less than 100 us.
const LEAST: Duration = Duration::from_micros(75);
/// The longest sleep.
const MOST: Duration = Duration::from_millis(2);
/// A sleep lasts one part in this many of the time since the last frame.
const PART: u32 = 64;
/// When no frame has arrived for long, a sleep lasts this many times longer than the wakeup takes.
const TIMES: u32 = 60;
/// Number of sleeps between two measurements of their cost.
const LOOK_EVERY: u32 = 64;

/// What is known about a worker's sleeps. Reads the CPU time of its thread, so it must stay on that thread.
pub(crate) struct IdlePoll {
    /// Sleeps since the last measurement, and the thread's CPU time then.
    since: u32,
    had: Duration,
    /// Idle time at the previous sleep.
    idle: Duration,
    longest: Duration,
}

impl IdlePoll {
    pub fn new() -> Self {
        Self { since: 0, had: thread_time(), idle: Duration::ZERO, longest: LEAST }
    }

    /// How long to sleep if no frame has arrived for `idle`.
    pub fn next(&mut self, idle: Duration) -> Duration {
        if idle < self.idle {
            // A frame has arrived: its cost is not that of waking.
            (self.since, self.had) = (0, thread_time());
        }
        self.idle = idle;
        if self.since == LOOK_EVERY {
            let had = thread_time();
            self.learn(had.saturating_sub(self.had));
            (self.since, self.had) = (0, had);
        }
        self.since += 1;
        (idle / PART).clamp(LEAST, self.longest)
    }

    /// Records the total cost of the last sleeps.
    fn learn(&mut self, cost: Duration) {
        self.longest = (cost / LOOK_EVERY * TIMES).clamp(LEAST, MOST);
    }
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    #[test]
    fn sleeps_grow_with_idle_time_if_waking_is_expensive() {
        let mut idle_poll = IdlePoll::new();
        idle_poll.learn(micros(64 * 25));
        let next_sleep = |idle_poll: &mut IdlePoll, idle| {
            idle_poll.since = 0;
            idle_poll.next(micros(idle))
        };
        assert_eq!(next_sleep(&mut idle_poll, 50), LEAST);
        assert_eq!(next_sleep(&mut idle_poll, 64_000), micros(1000));
        assert_eq!(next_sleep(&mut idle_poll, 1_000_000), micros(1500), "a sixtieth of a core");
        idle_poll.learn(micros(64 * 1000));
        assert_eq!(next_sleep(&mut idle_poll, 1_000_000), MOST);
    }

    #[test]
    fn sleeps_stay_short_if_waking_is_cheap() {
        let mut idle_poll = IdlePoll::new();
        assert_eq!(idle_poll.next(micros(1_000_000)), LEAST, "before anything is known");
        idle_poll.learn(micros(64));
        assert_eq!(idle_poll.next(micros(2_000_000)), LEAST);
    }

    #[test]
    fn time_for_frames_does_not_count_as_waking() {
        let mut idle_poll = IdlePoll::new();
        idle_poll.since = LOOK_EVERY;
        idle_poll.next(micros(100));
        assert_eq!(idle_poll.since, 1, "it looked");
        idle_poll.since = LOOK_EVERY;
        idle_poll.had = Duration::ZERO;
        idle_poll.next(micros(50));
        assert_eq!((idle_poll.since, idle_poll.longest), (1, LEAST), "it began anew");
        assert!(idle_poll.had > Duration::ZERO);
    }
}
