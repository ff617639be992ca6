//! Keeps workers out of a driver while its device is stopped: DPDK allows no receiving or sending then. Workers do not
//! wait: they leave the device alone until the change is done.
//!
//! ```text
//! thread that changes it:   odd number ──► wait until each queue has acknowledged it ──► stop, change, start ──► even number
//! worker, in each call:     odd: acknowledge it, do nothing       even: use the driver
//! ```
//!
//! For a worker this costs one load per call. A number is never used twice, so a queue that is slow to return is not
//! mistaken for one that has left again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bm_sys::Mutex;

/// The pause of a device, and its queues.
#[derive(Default)]
pub(crate) struct Pause {
    /// Odd while queues must be left alone.
    number: AtomicU32,
    /// Locked by the thread that changes the device.
    queues: Mutex<Vec<Weak<AtomicU32>>>,
}

/// The last pause that a queue has acknowledged.
pub(crate) struct QueuePause(Arc<AtomicU32>);

impl Pause {
    /// Registers one more queue.
    pub fn register(&self) -> QueuePause {
        let pause = Arc::<AtomicU32>::default();
        let mut pauses = self.queues.lock();
        pauses.retain(|pause| pause.strong_count() > 0);
        pauses.push(Arc::downgrade(&pause));
        QueuePause(pause)
    }

    /// Whether the worker with this pause must leave its queue alone now; if not, it may be in the driver until the
    /// next call.
    #[inline]
    pub fn is_paused(&self, QueuePause(pause): &QueuePause) -> bool {
        let number = self.number.load(Ordering::Acquire);
        if number & 1 == 0 {
            return false;
        }
        // Everything that this worker did in the driver happens before this is seen.
        pause.store(number, Ordering::Release);
        true
    }

    /// Begins a pause that never ends, and waits for all queues to acknowledge it, `patience` at most.
    pub(crate) fn make_permanent(&self, patience: Duration) {
        let ended = self.during(patience, || ((), false));
        if ended.is_none() {
            self.number.fetch_or(1, Ordering::Release);
        }
    }

    /// Calls `change` once all queues are left alone, and then lets workers continue if it returns true. `None` if a
    /// worker does not leave within `patience`; then nothing was called.
    pub fn during<R>(&self, patience: Duration, change: impl FnOnce() -> (R, bool)) -> Option<R> {
        let pauses = self.queues.lock();
        let before = self.number.load(Ordering::Relaxed);
        // It is odd already if the last change left the device in an unusable state.
        let number = before | 1;
        self.number.store(number, Ordering::Release);
        let begin = Instant::now();
        while !pauses.iter().all(|pause: &Weak<AtomicU32>| {
            pause.upgrade().is_none_or(|pause| pause.load(Ordering::Acquire) == number)
        }) {
            if begin.elapsed() > patience {
                // The next pause gets another number, since some queues have acknowledged this one.
                let next = if before == number { number } else { number.wrapping_add(1) };
                self.number.store(next, Ordering::Release);
                return None;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let (result, runs) = change();
        if runs {
            self.number.store(number.wrapping_add(1), Ordering::Release);
        }
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn nobody_is_in_the_driver_during_a_change() {
        let (pause, inside, ended) = (Pause::default(), AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (pause, inside, ended, queue) = (&pause, &inside, &ended, pause.register());
                scope.spawn(move || {
                    while !ended.load(Ordering::Relaxed) {
                        if !pause.is_paused(&queue) {
                            inside.fetch_add(1, Ordering::SeqCst);
                            std::hint::spin_loop();
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                });
            }
            for round in 0..200 {
                let met = pause.during(PATIENCE, || {
                    let met: u32 = (0..100).map(|_| inside.load(Ordering::SeqCst)).sum();
                    (met, true)
                });
                assert_eq!(met, Some(0), "round {round}");
            }
            ended.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn gives_up_if_a_worker_stays_and_forgets_dropped_queues() {
        let pause = Pause::default();
        let queue = pause.register();
        assert_eq!(pause.during(Duration::ZERO, || ((), true)), None);
        assert!(!pause.is_paused(&queue), "workers continue");
        drop(queue);
        assert_eq!(pause.during(Duration::ZERO, || ((), true)), Some(()));
    }

    #[test]
    fn a_removed_device_is_left_alone_for_good() {
        let pause = Pause::default();
        let queue = pause.register();
        // Even if a worker does not leave in time.
        pause.make_permanent(Duration::ZERO);
        assert!(pause.is_paused(&queue));
        pause.make_permanent(PATIENCE);
        assert!(pause.is_paused(&queue));
        assert_eq!(pause.during(PATIENCE, || ((), false)), Some(()));
        assert!(pause.is_paused(&queue));
    }

    #[test]
    fn a_device_that_does_not_run_again_is_left_alone() {
        let pause = Pause::default();
        assert_eq!(pause.during(PATIENCE, || ((), false)), Some(()));
        let queue = pause.register();
        assert!(pause.is_paused(&queue));
        assert_eq!(pause.during(PATIENCE, || ((), true)), Some(()));
        assert!(!pause.is_paused(&queue));
    }
}
