//! From a worker to the slow path: two bounded queues and a waker.
//!
//! ```text
//! worker: push frames -> if the slow path sleeps, wake it once    slow path: announce sleep -> check again -> sleep
//! ```
//!
//! Frames for Linux have a queue of their own: a flood of packets that need an answer must not keep routing protocols
//! from their daemons. A worker wakes the slow path at most once for each sleep, so a busy slow path costs it no
//! system call.

use std::sync::Arc;

use bm_frame::Frame;
use bm_graph::Waker;
use bm_link::{Asleep, Consumer, Producer, channel};

/// Wakes a slow path that sleeps.
pub(crate) struct Bell {
    asleep: Asleep,
    waker: Waker,
}

impl Bell {
    pub fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self { asleep: Asleep::default(), waker })
    }

    /// Wakes the slow path if it sleeps. It sees what was queued before this call, whether awake or just waking.
    pub fn ring(&self) {
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

/// A worker's end.
pub struct Entrance {
    host: Producer<Frame>,
    work: Producer<Frame>,
    bell: Arc<Bell>,
    unrung: usize,
}

/// The slow path's end.
pub(crate) struct Arrivals {
    pub host: Consumer<Frame>,
    pub work: Consumer<Frame>,
}

/// Both ends of queues with a capacity of `capacity` frames each.
pub(crate) fn entrance(capacity: usize, bell: &Arc<Bell>) -> (Entrance, Arrivals) {
    let (host, from_host) = channel(capacity);
    let (work, from_work) = channel(capacity);
    let entrance = Entrance { host, work, bell: bell.clone(), unrung: 0 };
    (entrance, Arrivals { host: from_host, work: from_work })
}

impl Entrance {
    /// Queues a frame; returns it if the queue is full, or its other end is gone.
    pub(crate) fn push(&mut self, frame: Frame, for_host: bool) -> Result<(), Frame> {
        let queue = if for_host { &mut self.host } else { &mut self.work };
        if queue.is_closed() {
            return Err(frame);
        }
        queue.push(frame)?;
        self.unrung += 1;
        Ok(())
    }

    /// After a burst: wakes the slow path if anything was queued.
    #[inline]
    pub(crate) fn ring(&mut self) {
        if self.unrung > 0 {
            self.unrung = 0;
            self.bell.ring();
        }
    }
}
