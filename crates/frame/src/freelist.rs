//! Free frames: a list a worker, and a depot that all workers share.
//!
//! A worker takes and gives frames at its own list, without a lock or a shared cache line. Only when
//! that runs empty or over does it trade with the depot, a lock-free queue, many frames at a time: so
//! frames that one worker receives and another sends find their way back.

use std::ptr::NonNull;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use crate::frame::Frame;
use crate::memory::{Memory, Pages};
use crate::stack::{Stack, StackHead};

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

    /// A free frame, fresh; `None` if the region is used up.
    pub fn take(&self) -> Option<Frame> {
        // SAFETY: an index in the queue stands for a slot that its last owner gave up, and popping it
        // makes us the one who has it.
        self.free.pop().map(|index| unsafe { self.memory.claim(index) })
    }

    /// Takes a frame back.
    pub fn give(&self, frame: Frame) {
        let held = self.free.push(self.memory.index(&frame));
        debug_assert!(held.is_ok(), "a frame was freed twice");
    }
}

/// A worker's own free frames. Lua takes and gives them at the same stack.
pub struct Freelist {
    depot: Arc<Depot>,
    local: Stack,
}

impl Freelist {
    /// An empty list that keeps up to `limit` frames for itself.
    pub fn new(depot: Arc<Depot>, limit: usize) -> Self {
        Self { depot, local: Stack::new(limit.max(2 * TRADE)) }
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

    /// The stack of free frames, for Lua. It stays where it is until the list is dropped.
    pub fn stack(&self) -> NonNull<StackHead> {
        self.local.address()
    }

    /// A free frame without data, or `None` if the region is used up.
    #[inline]
    pub fn allocate(&mut self) -> Option<Frame> {
        let mut frame = match self.local.pop() {
            Some(frame) => frame,
            None => {
                self.refill();
                self.local.pop()?
            }
        };
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
        if let Err(frame) = self.local.push(frame) {
            self.spill(TRADE);
            let pushed = self.local.push(frame);
            debug_assert!(pushed.is_ok(), "spilling makes room");
        }
    }

    /// Takes frames from the depot until the list has some; none if the region is used up.
    #[cold]
    pub fn refill(&mut self) {
        let mut count = 0;
        while count < TRADE && !self.local.is_full() {
            let Some(frame) = self.depot.take() else { break };
            let pushed = self.local.push(frame);
            debug_assert!(pushed.is_ok(), "the list is not full");
            count += 1;
        }
        self.local.trade(count as i64);
    }

    /// Gives frames back to the depot, so that a full list has room again.
    #[cold]
    pub fn make_room(&mut self) {
        self.spill(TRADE);
    }

    #[cold]
    fn spill(&mut self, count: usize) {
        let mut gone = 0;
        while gone < count {
            let Some(frame) = self.local.pop() else { break };
            self.depot.give(frame);
            gone += 1;
        }
        self.local.trade(-(gone as i64));
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
