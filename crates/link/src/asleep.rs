//! Waking a consumer that sleeps until something is queued, without a system call while it is awake.
//!
//! ```text
//! consumer: sleeps()  ─► look at the queue once more ─► empty: sleep until woken ─► wakes()
//! producer: queue it  ─► must_wake()? ─► wake it
//! ```
//!
//! Each side has a full barrier between its two steps. So either the producer sees that the consumer sleeps, or the
//! consumer sees what was queued; a loom model runs every order of the two.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};

/// Whether a consumer sleeps.
#[derive(Debug)]
pub struct Asleep(AtomicBool);

impl Default for Asleep {
    fn default() -> Self {
        Self(AtomicBool::new(false))
    }
}

impl Asleep {
    /// Called by the consumer, which must then check its queue once more before it sleeps.
    pub fn sleeps(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Called by the consumer when it is awake again, for whatever reason.
    pub fn wakes(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Called by a producer after it has queued something: whether it must wake the consumer. For each sleep, one
    /// producer gets true.
    #[inline]
    #[must_use]
    pub fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_producer_wakes_for_each_sleep() {
        let asleep = Asleep::default();
        assert!(!asleep.must_wake(), "it is awake");
        asleep.sleeps();
        assert_eq!([asleep.must_wake(), asleep.must_wake()], [true, false]);
        asleep.sleeps();
        asleep.wakes();
        assert!(!asleep.must_wake(), "something else woke it");
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::channel;
    use loom::sync::Arc;

    /// Every order in which one side queues and looks at the sleeper while the other falls asleep and looks at the
    /// queue: nobody sleeps beside a full queue unless it is being woken.
    #[test]
    fn no_wakeup_is_lost() {
        loom::model(|| {
            let (mut producer, mut consumer) = channel(2);
            let asleep = Arc::new(Asleep::default());
            let theirs = asleep.clone();
            let queues = loom::thread::spawn(move || {
                producer.push(1).expect("there is room");
                theirs.must_wake()
            });
            asleep.sleeps();
            let sleeps = consumer.readable() == 0;
            let woken = queues.join().expect("it does not panic");
            assert!(!sleeps || woken);
        });
    }

    /// Two producers queue while the consumer falls asleep: one of them wakes it.
    #[test]
    fn no_wakeup_is_lost_with_two_producers() {
        loom::model(|| {
            let asleep = Arc::new(Asleep::default());
            let (queues, queue): (Vec<_>, Vec<_>) = (0..2)
                .map(|n| {
                    let ((mut producer, consumer), theirs) = (channel(2), asleep.clone());
                    let queue = loom::thread::spawn(move || {
                        producer.push(n).expect("there is room");
                        theirs.must_wake()
                    });
                    (queue, consumer)
                })
                .unzip();
            asleep.sleeps();
            let mut queue = queue;
            let sleeps = queue.iter_mut().all(|consumer| consumer.readable() == 0);
            let woken = queues.into_iter().map(|queue| queue.join().expect("it does not panic"));
            let woken = woken.filter(|woken| *woken).count();
            assert!(woken <= 1 && (!sleeps || woken == 1));
        });
    }
}
