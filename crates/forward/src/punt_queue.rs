//! Frames that a worker punts to the slow path: two bounded queues and a doorbell.
//!
//! ```text
//! worker: push frames -> if the slow path sleeps, wake it once    slow path: announce sleep -> check again -> sleep
//! ```
//!
//! Frames for Linux have a queue of their own: a flood of packets that need an answer must not keep routing protocols
//! from their daemons. A worker wakes the slow path at most once for each sleep, so a busy slow path costs it no
//! system call.
//!
//! Where the queue for Linux is full, the worker waits for the slow path: packets that only Linux may forward are not
//! lost because a thread was not scheduled, and those that come meanwhile wait in the rings of the ports, as with Linux,
//! which handles all packets of a queue one after the other. It does not wait for a slow path that takes nothing.

use std::sync::Arc;
use std::time::Duration;

use bm_frame::Frame;
use bm_graph::Waker;
use bm_link::{Asleep, Consumer, Producer, channel};

/// Wakes a slow path that sleeps.
pub(crate) struct Doorbell {
    asleep: Asleep,
    waker: Waker,
}

impl Doorbell {
    pub fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self { asleep: Asleep::default(), waker })
    }

    /// Wakes the slow path if it sleeps. It sees what was queued before this call, whether awake or just waking.
    pub fn notify(&self) {
        if self.asleep.must_wake() {
            self.waker.wake();
        }
    }

    /// Announces that the slow path is about to sleep; it must check its queues once more after that.
    pub fn sleeps(&self) {
        self.asleep.sleeps();
    }

    /// Announces that it is awake.
    pub fn wakes(&self) {
        self.asleep.wakes();
        self.waker.clear();
    }

    pub fn waker(&self) -> &Waker {
        &self.waker
    }
}

/// A worker's end of the queues to the slow path.
pub struct PuntQueue {
    host: Producer<Frame>,
    work: Producer<Frame>,
    doorbell: Arc<Doorbell>,
    unannounced: usize,
    /// Waiting for room has been of no use, and there has been none since.
    stuck: bool,
}

/// How often a worker looks for room, and how often before it gives up: after 20 ms at least.
const PAUSE: Duration = Duration::from_micros(50);
const PAUSES: usize = 400;

/// The slow path's end of both queues.
pub(crate) struct Arrivals {
    pub host: Consumer<Frame>,
    pub work: Consumer<Frame>,
}

/// Both ends of queues with a capacity of `capacity` frames each.
pub(crate) fn punt_queue(capacity: usize, doorbell: &Arc<Doorbell>) -> (PuntQueue, Arrivals) {
    let (host, from_host) = channel(capacity);
    let (work, from_work) = channel(capacity);
    let queue = PuntQueue { host, work, doorbell: doorbell.clone(), unannounced: 0, stuck: false };
    (queue, Arrivals { host: from_host, work: from_work })
}

impl PuntQueue {
    /// Queues a frame; returns it if its other end is gone, or the queue stays full. One for Linux waits for room.
    pub(crate) fn push(&mut self, frame: Frame, for_host: bool) -> Result<(), Frame> {
        let queue = if for_host { &mut self.host } else { &mut self.work };
        if queue.is_closed() {
            return Err(frame);
        }
        if for_host {
            self.stuck &= !queue.has_room();
            if !queue.has_room() && !self.wait_for_room() {
                return Err(frame);
            }
        }
        let queue = if for_host { &mut self.host } else { &mut self.work };
        queue.push(frame)?;
        self.unannounced += 1;
        Ok(())
    }

    /// Waits until the slow path has taken frames for Linux; whether it has.
    #[cold]
    fn wait_for_room(&mut self) -> bool {
        if self.stuck {
            return false;
        }
        self.notify();
        for _ in 0..PAUSES {
            std::thread::sleep(PAUSE);
            if self.host.has_room() || self.host.is_closed() {
                return self.host.has_room();
            }
        }
        self.stuck = true;
        false
    }

    /// After a burst: wakes the slow path if anything was queued.
    #[inline]
    pub(crate) fn notify(&mut self) {
        if self.unannounced > 0 {
            self.unannounced = 0;
            self.doorbell.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_frame::{FramePool, Freelist};
    use bm_graph::Waker;

    const FRAMES: usize = 1000;

    fn queues() -> (PuntQueue, Arrivals, Freelist) {
        let pool = FramePool::new(2 * FRAMES, 2048).unwrap();
        let bell = Doorbell::new(Waker::new().unwrap());
        let (punt_queue, arrivals) = punt_queue(4, &bell);
        (punt_queue, arrivals, Freelist::new(pool, 16))
    }

    #[test]
    fn no_frame_for_linux_is_lost_while_the_slow_path_takes_some() {
        let (mut punt_queue, mut arrivals, mut frames) = queues();
        let taker = std::thread::spawn(move || {
            let mut taken = Vec::new();
            while taken.len() < FRAMES {
                taken.extend(arrivals.host.pop());
                std::thread::yield_now();
            }
            taken.iter().map(|frame| frame.meta().port).collect::<Vec<_>>()
        });
        for number in 0..FRAMES as u16 {
            let mut frame = frames.allocate_with(&[0; 14]).unwrap();
            frame.meta_mut().port = number;
            assert!(punt_queue.push(frame, true).is_ok(), "{number}");
        }
        assert_eq!(taker.join().unwrap(), (0..FRAMES as u16).collect::<Vec<_>>(), "in order");
    }

    #[test]
    fn a_slow_path_that_takes_nothing_is_waited_for_once() {
        let (mut punt_queue, mut arrivals, mut frames) = queues();
        let mut push = |punt_queue: &mut PuntQueue, for_host| {
            let frame = frames.allocate_with(&[0; 14]).unwrap();
            punt_queue.push(frame, for_host).map_err(|frame| frames.free(frame)).is_ok()
        };
        for for_host in [true, false] {
            assert!((0..4).all(|_| push(&mut punt_queue, for_host)));
        }
        assert!(!punt_queue.stuck && !push(&mut punt_queue, false), "those that need an answer do not wait");
        assert!(!punt_queue.stuck);
        assert!(!push(&mut punt_queue, true));
        assert!(punt_queue.stuck);
        assert!(!push(&mut punt_queue, true));
        assert!(arrivals.host.pop().is_some());
        assert!(push(&mut punt_queue, true), "there is room again");
        assert!(!punt_queue.stuck);
        drop(arrivals);
        assert!(!push(&mut punt_queue, true));
    }
}
