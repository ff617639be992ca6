//! Free frames: a list for each worker, and a frame pool that all workers share.
//!
//! A worker allocates and frees frames in its own list, without a lock or a shared cache line. Only when that becomes
//! empty or full does it exchange frames with the frame pool, a lock-free queue, many at a time: so frames that one worker
//! receives and another sends come back. If workers are on several NUMA nodes there is a queue for each node, so that
//! frames stay near the workers that receive into them.

use std::ptr::NonNull;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use crate::frame::Frame;
use crate::memory::{Memory, MemoryError, Pages};
use crate::node::Node;
use crate::stack::{Stack, StackHead};

/// Frames exchanged with the frame pool at a time.
const TRADE: usize = 64;

/// The free frames of a region that are not in any worker's list.
pub struct FramePool {
    memory: &'static Memory,
    /// One share for each node; a single one if no nodes were requested.
    shares: Box<[Share]>,
}

/// The slots whose pages are on one NUMA node, and the free ones among them. A frame always returns to the share of
/// its slot.
struct Share {
    node: Option<Node>,
    /// The end of the range of slots (exclusive).
    end: u32,
    free: ArrayQueue<u32>,
}

impl Share {
    fn new(first: usize, end: usize, node: Option<Node>) -> Self {
        let free = ArrayQueue::new(end - first);
        for index in first as u32..end as u32 {
            free.push(index).expect("the queue holds as many as there are slots");
        }
        Self { node, end: end as u32, free }
    }
}

impl FramePool {
    /// All frames of `memory`, none of which may have been claimed yet.
    ///
    /// # Safety
    /// No slot of `memory` has been claimed, and none will be except by owners of the frames.
    pub unsafe fn over(memory: &'static Memory) -> Arc<Self> {
        Arc::new(Self { memory, shares: [Share::new(0, memory.slots(), None)].into() })
    }

    /// A new region of `slots` slots of `slot_size` bytes, all free.
    ///
    /// # Errors
    /// As for [`Memory::new`].
    pub fn new(slots: usize, slot_size: usize) -> Result<Arc<Self>, MemoryError> {
        Self::on(slots, slot_size, Pages::Huge)
    }

    /// A new region on pages of this kind: on huge pages only if there are enough, else on plain pages.
    ///
    /// # Errors
    /// As for [`Memory::on`].
    pub fn on(slots: usize, slot_size: usize, best: Pages) -> Result<Arc<Self>, MemoryError> {
        let memory = Memory::on(slots, slot_size, best)?;
        // SAFETY: the region was made just now, and nobody else has seen it.
        Ok(unsafe { Self::over(memory) })
    }

    /// A new region for workers on these NUMA nodes, with one entry for each worker: each node has slots for its workers,
    /// which [`Freelist::near`] allocates first. With one node, or none, this is like [`on`](Self::on). If a node has
    /// no free memory, frames are elsewhere and work as well.
    ///
    /// # Errors
    /// As for [`Memory::on`]; [`MemoryError::Node`] if there is no such node.
    pub fn on_nodes(
        slots: usize,
        slot_size: usize,
        best: Pages,
        workers: &[Node],
    ) -> Result<Arc<Self>, MemoryError> {
        let mut nodes = workers.to_vec();
        nodes.sort_unstable();
        nodes.dedup();
        // Each share has at least one slot.
        if nodes.len() < 2 || slots < workers.len() {
            return Self::on(slots, slot_size, best);
        }
        let memory = Memory::untouched(slots, slot_size, best)?;
        let (mut shares, mut first, mut served) = (Vec::new(), 0, 0);
        for node in nodes {
            served += workers.iter().filter(|&&other| other == node).count();
            let end = slots * served / workers.len();
            memory.place(first, end, node).map_err(|error| MemoryError::Node { node, error })?;
            shares.push(Share::new(first, end, Some(node)));
            first = end;
        }
        memory.populate();
        Ok(Arc::new(Self { memory, shares: shares.into() }))
    }

    /// The region.
    pub fn memory(&self) -> &'static Memory {
        self.memory
    }

    /// NUMA nodes on which slots were placed, and how many on each; none if no nodes were requested.
    pub fn nodes(&self) -> impl Iterator<Item = (Node, usize)> {
        self.shares.iter().filter_map(|share| Some((share.node?, share.free.capacity())))
    }

    /// The number of free frames here, not counting those in workers' lists.
    pub fn available(&self) -> usize {
        self.shares.iter().map(|share| share.free.len()).sum()
    }

    /// Allocates a frame; `None` if all are in use.
    pub fn take(&self) -> Option<Frame> {
        self.take_near(0)
    }

    /// Allocates from the share `near` if that has any free frames.
    fn take_near(&self, near: usize) -> Option<Frame> {
        let (before, rest) = self.shares.split_at(near);
        let index = rest.iter().chain(before).find_map(|share| share.free.pop())?;
        // SAFETY: an index in the queue stands for a slot that its last owner gave up, and popping it
        // makes us the one who has it.
        Some(unsafe { self.memory.claim(index) })
    }

    /// Frees a frame.
    pub fn give(&self, frame: Frame) {
        let index = self.memory.index(&frame);
        let share = self.shares.iter().find(|share| index < share.end);
        let held = share.is_some_and(|share| share.free.push(index).is_ok());
        debug_assert!(held, "a frame was freed twice");
    }
}

/// A worker's own free frames. Lua allocates and frees them on the same stack.
pub struct Freelist {
    frame_pool: Arc<FramePool>,
    /// The frame pool's share from which it allocates first.
    near: usize,
    local: Stack,
}

impl Freelist {
    /// An empty list that keeps up to `limit` frames.
    pub fn new(frame_pool: Arc<FramePool>, limit: usize) -> Self {
        Self::near(frame_pool, limit, None)
    }

    /// An empty list for a worker on a NUMA node: it allocates frames of that node first.
    pub fn near(frame_pool: Arc<FramePool>, limit: usize, node: Option<Node>) -> Self {
        let near = node.and_then(|node| frame_pool.shares.iter().position(|share| share.node == Some(node)));
        Self { frame_pool, near: near.unwrap_or(0), local: Stack::new(limit.max(2 * TRADE)) }
    }

    /// The region.
    pub fn memory(&self) -> &'static Memory {
        self.frame_pool.memory
    }

    /// The frame pool from which the list is refilled.
    pub fn frame_pool(&self) -> &Arc<FramePool> {
        &self.frame_pool
    }

    /// The number of frames in this list.
    pub fn held(&self) -> usize {
        self.local.len()
    }

    /// The stack of free frames, for Lua. It does not move until the list is dropped.
    pub fn stack(&self) -> NonNull<StackHead> {
        self.local.address()
    }

    /// Allocates a frame without data; `None` if all are in use.
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

    /// Allocates a frame with a copy of `bytes`; `None` if no frame is free or the bytes do not fit.
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

    /// Frees a frame.
    #[inline]
    pub fn free(&mut self, frame: Frame) {
        if let Err(frame) = self.local.push(frame) {
            self.spill(TRADE);
            let pushed = self.local.push(frame);
            debug_assert!(pushed.is_ok(), "spilling makes room");
        }
    }

    /// Takes frames from the frame pool until the list has some; none if all are in use.
    #[cold]
    pub fn refill(&mut self) {
        let mut count = 0;
        while count < TRADE && !self.local.is_full() {
            let Some(frame) = self.frame_pool.take_near(self.near) else { break };
            let pushed = self.local.push(frame);
            debug_assert!(pushed.is_ok(), "the list is not full");
            count += 1;
        }
        self.local.trade(count as i64);
    }

    /// Returns frames to the frame pool, so that a full list has room again.
    #[cold]
    pub fn make_room(&mut self) {
        self.spill(TRADE);
    }

    #[cold]
    fn spill(&mut self, count: usize) {
        let mut gone = 0;
        while gone < count {
            let Some(frame) = self.local.pop() else { break };
            self.frame_pool.give(frame);
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
        let frame_pool = FramePool::new(100, 2048).unwrap();
        let mut list = Freelist::new(frame_pool.clone(), 128);
        let frames: Vec<_> = std::iter::from_fn(|| list.allocate()).collect();
        let mut slots: Vec<_> = frames.iter().map(|frame| frame_pool.memory().index(frame)).collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..100).collect::<Vec<_>>());
        frames.into_iter().for_each(|frame| list.free(frame));
        drop(list);
        assert_eq!(frame_pool.available(), 100);
    }

    #[test]
    fn frames_find_their_way_from_one_worker_to_another() {
        let frame_pool = FramePool::new(256, 2048).unwrap();
        let (mut receiver, mut sender) =
            (Freelist::new(frame_pool.clone(), 128), Freelist::new(frame_pool.clone(), 128));
        for _ in 0..10_000 {
            let frame = receiver.allocate().expect("the sender's list spills what it does not need");
            sender.free(frame);
        }
        drop((receiver, sender));
        assert_eq!(frame_pool.available(), 256);
    }

    /// Each thread writes its number into the frames that it owns; with two owners at a time it would change.
    #[test]
    fn workers_exchange_frames_and_none_has_two_owners() {
        let frame_pool = FramePool::new(512, 2048).unwrap();
        let owns = |frame_pool: &Arc<FramePool>, worker: u32| {
            let mut list = Freelist::new(frame_pool.clone(), 128);
            for turn in 0..2_000u32 {
                let number = (worker << 24 | turn).to_be_bytes();
                let frames: Vec<_> = std::iter::from_fn(|| list.allocate_with(&number)).take(150).collect();
                std::thread::yield_now();
                assert!(frames.iter().all(|frame| frame.data() == number), "worker {worker}, turn {turn}");
                frames.into_iter().for_each(|frame| list.free(frame));
            }
        };
        std::thread::scope(|scope| {
            (0..4).for_each(|worker| {
                _ = scope.spawn({
                    let frame_pool = &frame_pool;
                    move || owns(frame_pool, worker)
                })
            });
        });
        assert_eq!(frame_pool.available(), 512);
    }

    /// A machine has node 0, and node 1 perhaps not: the frame pool is what it would be where both are there.
    fn two_nodes() -> Arc<FramePool> {
        let memory = Memory::on(192, 2048, Pages::Plain).unwrap();
        let shares = [Share::new(0, TRADE, Some(0)), Share::new(TRADE, 192, Some(1))].into();
        Arc::new(FramePool { memory, shares })
    }

    #[test]
    fn a_worker_gets_frames_of_its_own_node_first() {
        let frame_pool = two_nodes();
        assert_eq!(frame_pool.nodes().collect::<Vec<_>>(), [(0, 64), (1, 128)]);
        let slots = |node, count: usize| {
            let mut list = Freelist::near(frame_pool.clone(), 0, node);
            let frames: Vec<_> = std::iter::from_fn(|| list.allocate()).take(count).collect();
            let slots: Vec<_> = frames.iter().map(|frame| frame_pool.memory().index(frame)).collect();
            // They return to their own share, whichever list frees them.
            frames.into_iter().for_each(|frame| Freelist::new(frame_pool.clone(), 0).free(frame));
            slots
        };
        for _ in 0..3 {
            assert!(slots(Some(1), 128).iter().all(|&slot| slot >= 64));
            assert!(slots(Some(0), 64).iter().all(|&slot| slot < 64));
            // When its own are used up it gets those of others; a node without a share gets any.
            assert_eq!((slots(Some(1), 200).len(), slots(Some(7), 200).len()), (192, 192));
        }
        assert_eq!(frame_pool.available(), 192);
    }

    #[test]
    fn one_node_is_as_none_and_a_node_that_is_not_there_is_an_error() {
        let frame_pool = FramePool::on_nodes(100, 2048, Pages::Plain, &[0, 0]).unwrap();
        assert_eq!((frame_pool.nodes().count(), frame_pool.available()), (0, 100));
        let wrong = FramePool::on_nodes(100, 2048, Pages::Plain, &[0, 1023]).err().unwrap().to_string();
        assert!(wrong.starts_with("cannot allocate memory on NUMA node 1023: "), "{wrong}");
    }
}
