//! Free frames: a list a worker, and a depot that all workers share.
//!
//! A worker takes and gives frames at its own list, without a lock or a shared cache line. Only when
//! that runs empty or over does it trade with the depot, a lock-free queue, many frames at a time: so
//! frames that one worker receives and another sends find their way back.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use crate::frame::Frame;
use crate::memory::{Memory, Pages};

/// Frames traded with the depot at a time.
const TRADE: usize = 64;

/// The free frames of a region that no worker holds.
pub struct Depot {
    memory: &'static Memory,
    free: ArrayQueue<u32>,
}

impl Depot {
    /// All frames of `memory`, which nobody may have claimed from yet.
    ///
    /// # Safety
    /// No slot of `memory` has been claimed, and none will be but by whom the frames go to.
    pub unsafe fn over(memory: &'static Memory) -> Arc<Self> {
        let free = ArrayQueue::new(memory.slots());
        for index in 0..memory.slots() as u32 {
            free.push(index).expect("the queue holds as many as there are slots");
        }
        Arc::new(Self { memory, free })
    }

    /// A fresh region of `slots` slots of `slot_size` bytes, all free.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn new(slots: usize, slot_size: usize) -> Result<Arc<Self>, crate::MemoryError> {
        Self::on(slots, slot_size, Pages::Huge)
    }

    /// The same on huge pages if there are enough, or on plain pages without asking for others.
    ///
    /// # Errors
    /// As [`Memory::on`].
    pub fn on(slots: usize, slot_size: usize, best: Pages) -> Result<Arc<Self>, crate::MemoryError> {
        let memory = Memory::on(slots, slot_size, best)?;
        // SAFETY: the region was made just now, and nobody else has seen it.
        Ok(unsafe { Self::over(memory) })
    }

    /// The region.
    pub fn memory(&self) -> &'static Memory {
        self.memory
    }

    /// How many frames are free here, not counting those in workers' lists.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    fn take(&self) -> Option<Frame> {
        // SAFETY: an index in the queue stands for a slot that its last owner gave up, and popping it
        // makes us the one who has it.
        self.free.pop().map(|index| unsafe { self.memory.claim(index) })
    }

    fn give(&self, frame: &Frame) {
        let held = self.free.push(self.memory.index(frame));
        debug_assert!(held.is_ok(), "a frame was freed twice");
    }
}

/// A worker's own free frames.
pub struct Freelist {
    depot: Arc<Depot>,
    local: Vec<Frame>,
    limit: usize,
}

impl Freelist {
    /// An empty list that keeps up to `limit` frames for itself.
    pub fn new(depot: Arc<Depot>, limit: usize) -> Self {
        let limit = limit.max(2 * TRADE);
        Self { depot, local: Vec::with_capacity(limit + 1), limit }
    }

    /// The region.
    pub fn memory(&self) -> &'static Memory {
        self.depot.memory
    }

    /// The depot behind the list.
    pub fn depot(&self) -> &Arc<Depot> {
        &self.depot
    }

    /// Frames in this list alone.
    pub fn held(&self) -> usize {
        self.local.len()
    }

    /// A free frame without data, or `None` if the region is used up.
    #[inline]
    pub fn allocate(&mut self) -> Option<Frame> {
        if self.local.is_empty() {
            self.refill();
        }
        let mut frame = self.local.pop()?;
        frame.copy_from(&[]).expect("no bytes always fit");
        Some(frame)
    }

    /// A frame with a copy of `bytes`, or `None` if none is free or the bytes do not fit.
    pub fn allocate_with(&mut self, bytes: &[u8]) -> Option<Frame> {
        let mut frame = self.allocate()?;
        match frame.copy_from(bytes) {
            Ok(()) => Some(frame),
            Err(_) => {
                self.free(frame);
                None
            }
        }
    }

    /// Takes a frame back.
    #[inline]
    pub fn free(&mut self, frame: Frame) {
        self.local.push(frame);
        if self.local.len() > self.limit {
            self.spill(TRADE);
        }
    }

    #[cold]
    fn refill(&mut self) {
        for _ in 0..TRADE {
            let Some(frame) = self.depot.take() else { break };
            self.local.push(frame);
        }
    }

    #[cold]
    fn spill(&mut self, count: usize) {
        for frame in self.local.drain(self.local.len() - count..) {
            self.depot.give(&frame);
        }
    }
}

impl Drop for Freelist {
    fn drop(&mut self) {
        self.spill(self.local.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_out_each_frame_once_and_then_none() {
        let depot = Depot::new(100, 2048).unwrap();
        let mut list = Freelist::new(depot.clone(), 128);
        let frames: Vec<_> = std::iter::from_fn(|| list.allocate()).collect();
        let mut slots: Vec<_> = frames.iter().map(|frame| depot.memory().index(frame)).collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..100).collect::<Vec<_>>());
        frames.into_iter().for_each(|frame| list.free(frame));
        drop(list);
        assert_eq!(depot.available(), 100);
    }

    #[test]
    fn frames_find_their_way_from_one_worker_to_another() {
        let depot = Depot::new(256, 2048).unwrap();
        let (mut receiver, mut sender) =
            (Freelist::new(depot.clone(), 128), Freelist::new(depot.clone(), 128));
        for _ in 0..10_000 {
            let frame = receiver.allocate().expect("the sender's list spills what it does not need");
            sender.free(frame);
        }
        drop((receiver, sender));
        assert_eq!(depot.available(), 256);
    }
}
