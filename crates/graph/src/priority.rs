//! Real-time priority for workers, with limits that protect the rest of the machine.
//!
//! Linux forwards in softirqs, which user processes cannot delay. A worker is a thread: on a busy machine it waits
//! for its turn, for some milliseconds at a time, while its rings fill up. SCHED_FIFO avoids that wait. It is
//! limited:
//!
//! ```text
//! sleeps as soon as nothing is left to do: a real-time worker never polls
//! works on without sleep:  95 ms real-time, 5 ms normal, 95 ms real-time, ..      the others have their turn
//! hangs:                   the supervisor makes it normal (`Demote`)
//! ```
//!
//! The kernel limits it as well: all real-time threads together leave 5 % of each core to others
//! (`kernel.sched_rt_runtime_us`, and the deadline server of Linux 6.8).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bm_sys::set_real_time;

/// How long a worker may run with real-time priority without sleeping.
const REAL_TIME: Duration = Duration::from_millis(95);
/// How long it then runs as a normal thread.
const NORMAL: Duration = Duration::from_millis(5);

/// The real-time priority of the thread that created it.
pub(crate) struct RealTime {
    priority: u8,
    demoted: Arc<AtomicBool>,
    /// Has real-time priority now; if not, until `since` is [`NORMAL`] ago.
    raised: bool,
    /// When it started to work in its current scheduling class.
    since: Instant,
}

/// Turns a worker that hangs into a normal thread.
#[derive(Clone)]
pub(crate) struct Demote {
    thread: libc::pid_t,
    demoted: Arc<AtomicBool>,
}

impl RealTime {
    /// Gives the calling thread real-time priority, 1 to 99.
    ///
    /// # Errors
    /// What the system said: without CAP_SYS_NICE, or in a control group without real-time budget, EPERM.
    pub fn begin(priority: u8) -> io::Result<(Self, Demote)> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        set_real_time(0, priority)?;
        let demoted = Arc::new(AtomicBool::new(false));
        let real_time = Self { priority, demoted: demoted.clone(), raised: true, since: Instant::now() };
        Ok((real_time, Demote { thread, demoted }))
    }

    /// Frames have moved up to `now`: changes the scheduling class when it is time.
    #[inline]
    pub fn worked(&mut self, now: Instant) {
        let most = if self.raised { REAL_TIME } else { NORMAL };
        if now.saturating_duration_since(self.since) >= most {
            self.change(!self.raised, now);
        }
    }

    /// The worker is about to sleep: when it wakes, it has real-time priority.
    pub fn sleeps(&mut self) {
        if !self.raised || self.demoted.swap(false, Ordering::Relaxed) {
            self.change(true, self.since);
        }
    }

    /// The worker has slept.
    pub fn wakes(&mut self, now: Instant) {
        self.since = now;
    }

    fn change(&mut self, raise: bool, now: Instant) {
        // If raising the priority is refused, the worker continues as it is and tries again later.
        let refused = set_real_time(0, if raise { self.priority } else { 0 }).is_err();
        (self.raised, self.since) = (raise && !refused, now);
    }
}

impl Demote {
    /// Makes the thread a normal one until it sleeps or its scheduling class changes. The thread must be alive.
    pub fn demote(&self) {
        // A thread that has ended in the meantime does not matter.
        let _ended = set_real_time(self.thread, 0);
        self.demoted.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(unsafe_code, reason = "no safe crate that we use has sched_getscheduler")]
    fn class() -> i32 {
        // SAFETY: takes a number, touches nothing; 0 is the calling thread.
        unsafe { libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK }
    }

    /// Runs on a thread of its own, whose class nobody else minds.
    fn in_real_time(test: impl FnOnce(RealTime, Demote) + Send) {
        std::thread::scope(|scope| {
            scope.spawn(|| match RealTime::begin(1) {
                Ok((real_time, demote)) => test(real_time, demote),
                Err(error) => eprintln!("skipped: real-time priority is refused: {error}"),
            });
        });
    }

    #[test]
    fn a_worker_that_never_sleeps_gives_way_now_and_then() {
        in_real_time(|mut real_time, _| {
            let began = real_time.since;
            let at = |ms| began + Duration::from_millis(ms);
            real_time.worked(at(94));
            assert_eq!(class(), libc::SCHED_FIFO);
            real_time.worked(at(95));
            assert_eq!(class(), libc::SCHED_OTHER);
            real_time.worked(at(99));
            assert_eq!(class(), libc::SCHED_OTHER);
            real_time.worked(at(100));
            assert_eq!(class(), libc::SCHED_FIFO);
            // It has slept in between: no time counts.
            real_time.sleeps();
            real_time.wakes(at(190));
            real_time.worked(at(284));
            assert_eq!(class(), libc::SCHED_FIFO);
        });
    }

    #[test]
    fn a_worker_sleeps_in_real_time() {
        in_real_time(|mut real_time, demote| {
            real_time.worked(real_time.since + REAL_TIME);
            assert_eq!(class(), libc::SCHED_OTHER);
            real_time.sleeps();
            assert_eq!(class(), libc::SCHED_FIFO);
            demote.demote();
            assert_eq!(class(), libc::SCHED_OTHER, "it hung");
            real_time.sleeps();
            assert_eq!(class(), libc::SCHED_FIFO, "it hangs no more");
        });
    }

    #[test]
    fn what_a_worker_starts_is_normal() {
        in_real_time(|_, _| {
            assert_eq!(class(), libc::SCHED_FIFO);
            assert_eq!(std::thread::spawn(class).join().unwrap(), libc::SCHED_OTHER);
        });
    }
}
