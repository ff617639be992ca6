//! The ring between two threads: one producer, one consumer, no locks.
//!
//! ```text
//! producer: write the places tail.. , then raise `tail` ---- release/acquire ----> consumer sees them
//! consumer: take the places head.. , then raise `head` ---- release/acquire ----> producer reuses them
//! ```
//!
//! Each side keeps a copy of the other's index and reads it again only when the copy says full or empty, so the cache
//! line of an index moves between cores once per burst and not once per frame.

use std::sync::Arc;

#[cfg(not(loom))]
use std::{
    cell::UnsafeCell,
    sync::atomic::{AtomicUsize, Ordering},
};

#[cfg(loom)]
use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicUsize, Ordering},
};

#[repr(align(128))]
struct Index(AtomicUsize);

struct Ring<T> {
    head: Index,
    tail: Index,
    places: Box<[Place<T>]>,
}

/// A slot of the ring. Loom models watch it: using one from both sides at the same time fails.
struct Place<T>(UnsafeCell<Option<T>>);

impl<T> Place<T> {
    fn empty() -> Self {
        Self(UnsafeCell::new(None))
    }

    /// # Safety
    /// The caller must have the slot to itself during the call.
    #[inline(always)]
    unsafe fn swap(&self, item: Option<T>) -> Option<T> {
        #[cfg(not(loom))]
        // SAFETY: by the contract.
        return unsafe { std::mem::replace(&mut *self.0.get(), item) };
        #[cfg(loom)]
        // SAFETY: by the contract, which loom checks.
        return self.0.with_mut(|place| unsafe { std::mem::replace(&mut *place, item) });
    }
}

// SAFETY: a place is touched by the producer alone while it lies between `tail` and `head + capacity`, and
// by the consumer alone while between `head` and `tail`; the indices hand it over by release and acquire.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: what it holds may be sent, so it may be.
unsafe impl<T: Send> Send for Ring<T> {}

/// The sending end.
pub struct Producer<T> {
    ring: Arc<Ring<T>>,
    tail: usize,
    head_seen: usize,
}

/// The receiving end.
pub struct Consumer<T> {
    ring: Arc<Ring<T>>,
    head: usize,
    tail_seen: usize,
}

/// A ring with at least `capacity` slots (rounded up to a power of two).
pub fn channel<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let places = (0..capacity.max(2).next_power_of_two()).map(|_| Place::empty()).collect();
    let ring = Arc::new(Ring { head: Index(AtomicUsize::new(0)), tail: Index(AtomicUsize::new(0)), places });
    (Producer { ring: ring.clone(), tail: 0, head_seen: 0 }, Consumer { ring, head: 0, tail_seen: 0 })
}

impl<T: Send> Producer<T> {
    /// Slots that are certainly free; checks the other end if there are fewer than `wanted`.
    fn free(&mut self, wanted: usize) -> usize {
        let capacity = self.ring.places.len();
        let mut free = capacity - self.tail.wrapping_sub(self.head_seen);
        if free < wanted {
            self.head_seen = self.ring.head.0.load(Ordering::Acquire);
            free = capacity - self.tail.wrapping_sub(self.head_seen);
        }
        free
    }

    /// Whether there is room for another item.
    pub fn has_room(&mut self) -> bool {
        self.free(1) > 0
    }

    /// Adds an item.
    ///
    /// # Errors
    /// Returns the item if the ring is full.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.free(1) == 0 {
            return Err(item);
        }
        let place = &self.ring.places[self.tail & (self.ring.places.len() - 1)];
        // SAFETY: the place is free, so the consumer has left it and may not read it before the store
        // below; `&mut self` on the only producer keeps every other writer out.
        let _empty = unsafe { place.swap(Some(item)) };
        self.tail = self.tail.wrapping_add(1);
        self.ring.tail.0.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Adds the items in `items`, from the front until the ring is full, and leaves the rest; returns how many were
    /// added. The consumer sees all of them at once: one store to the cache line that both sides share, not one per
    /// item.
    pub fn push_some(&mut self, items: &mut [Option<T>]) -> usize {
        let free = self.free(items.len());
        let waiting = items.iter_mut().filter(|item| item.is_some());
        let mut count = 0;
        for item in waiting.take(free) {
            let at = self.tail.wrapping_add(count) & (self.ring.places.len() - 1);
            // SAFETY: as in `push`; no more places are written than were free, and the store comes after all.
            let _empty = unsafe { self.ring.places[at].swap(item.take()) };
            count += 1;
        }
        self.tail = self.tail.wrapping_add(count);
        self.ring.tail.0.store(self.tail, Ordering::Release);
        count
    }

    /// Whether the other end was dropped.
    pub fn is_closed(&self) -> bool {
        Arc::strong_count(&self.ring) == 1
    }
}

impl<T: Send> Consumer<T> {
    /// Removes the oldest item.
    pub fn pop(&mut self) -> Option<T> {
        if self.tail_seen == self.head {
            self.tail_seen = self.ring.tail.0.load(Ordering::Acquire);
            if self.tail_seen == self.head {
                return None;
            }
        }
        let place = &self.ring.places[self.head & (self.ring.places.len() - 1)];
        // SAFETY: the place lies before the tail that we acquired, so the producer has written it and may
        // not touch it before the store below; `&mut self` keeps every other reader out.
        let item = unsafe { place.swap(None) };
        self.head = self.head.wrapping_add(1);
        self.ring.head.0.store(self.head, Ordering::Release);
        item
    }

    /// Moves the oldest items into `places`, as many as there are; returns how many. The producer sees all slots free
    /// at once.
    pub fn pop_some(&mut self, places: &mut [Option<T>]) -> usize {
        let count = self.readable().min(places.len());
        for (ahead, place) in places[..count].iter_mut().enumerate() {
            let at = self.head.wrapping_add(ahead) & (self.ring.places.len() - 1);
            // SAFETY: as in `pop`; no more places are read than lie before the tail, and the store comes after all.
            *place = unsafe { self.ring.places[at].swap(None) };
        }
        self.head = self.head.wrapping_add(count);
        self.ring.head.0.store(self.head, Ordering::Release);
        count
    }

    /// The number of waiting items.
    pub fn readable(&mut self) -> usize {
        self.tail_seen = self.ring.tail.0.load(Ordering::Acquire);
        self.tail_seen.wrapping_sub(self.head)
    }

    /// Whether the other end was dropped. Its items can still be received.
    pub fn is_closed(&self) -> bool {
        Arc::strong_count(&self.ring) == 1
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn refuses_when_full_and_continues_afterwards() {
        let (mut producer, mut consumer) = channel(4);
        assert_eq!((0..6).map(|n| producer.push(n)).filter(Result::is_ok).count(), 4);
        assert_eq!((consumer.pop(), consumer.readable()), (Some(0), 3));
        assert_eq!(producer.push(9), Ok(()));
        assert_eq!(std::iter::from_fn(|| consumer.pop()).collect::<Vec<_>>(), [1, 2, 3, 9]);
    }

    #[test]
    fn moves_several_at_a_time_and_leaves_the_rest() {
        let (mut producer, mut consumer) = channel(4);
        let mut items = [Some(1), None, Some(2), Some(3), Some(4), Some(5)];
        assert_eq!((producer.push_some(&mut items), items), (4, [None, None, None, None, None, Some(5)]));
        assert_eq!(producer.push_some(&mut items), 0);
        let mut places = [None; 3];
        assert_eq!((consumer.pop_some(&mut places), places), (3, [Some(1), Some(2), Some(3)]));
        assert_eq!((producer.push_some(&mut items), items[5]), (1, None));
        assert_eq!((consumer.pop_some(&mut places), &places[..2]), (2, &[Some(4), Some(5)][..]));
        assert_eq!((consumer.pop_some(&mut places), consumer.pop()), (0, None));
    }

    #[test]
    fn several_at_a_time_cross_threads_in_order() {
        let (mut producer, mut consumer) = channel(64);
        let writer = std::thread::spawn(move || {
            for first in (0..100_000u64).step_by(50) {
                let mut items: [_; 50] = std::array::from_fn(|n| Some(first + n as u64));
                let mut sent = 0;
                while sent < items.len() {
                    sent += producer.push_some(&mut items);
                    std::thread::yield_now();
                }
            }
        });
        let (mut expected, mut places) = (0, [None; 30]);
        while expected < 100_000 {
            let count = consumer.pop_some(&mut places);
            for place in &mut places[..count] {
                assert_eq!(place.take(), Some(expected));
                expected += 1;
            }
            std::thread::yield_now();
        }
        writer.join().unwrap();
    }

    #[test]
    fn two_threads_keep_order_and_lose_nothing() {
        let (mut producer, mut consumer) = channel(64);
        let writer = std::thread::spawn(move || {
            for n in 0..100_000u64 {
                while producer.push(n).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < 100_000 {
            match consumer.pop() {
                Some(n) => {
                    assert_eq!(n, expected);
                    expected += 1;
                }
                None => std::thread::yield_now(),
            }
        }
        writer.join().unwrap();
        assert!(consumer.is_closed() && consumer.pop().is_none());
    }

    #[test]
    fn drops_what_nobody_took() {
        let token = Arc::new(());
        let (mut producer, consumer) = channel(8);
        producer.push(token.clone()).unwrap();
        drop((producer, consumer));
        assert_eq!(Arc::strong_count(&token), 1);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;

    /// Every interleaving of three pushes and pops over a ring of two: order kept, nothing lost, and no place used
    /// from both sides at a time.
    #[test]
    fn hands_over_in_order() {
        loom::model(|| {
            let (mut producer, mut consumer) = channel(2);
            let writer = loom::thread::spawn(move || {
                for n in 0..3 {
                    while producer.push(n).is_err() {
                        loom::thread::yield_now();
                    }
                }
            });
            let mut expected = 0;
            while expected < 3 {
                match consumer.pop() {
                    Some(n) => {
                        assert_eq!(n, expected);
                        expected += 1;
                    }
                    None => loom::thread::yield_now(),
                }
            }
            writer.join().unwrap();
        });
    }

    /// Several items at a time, which one store hands over, with threads switched at any two places: all interleavings
    /// are too many.
    #[test]
    fn hands_over_several_in_order() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let (mut producer, mut consumer) = channel(2);
            let writer = loom::thread::spawn(move || {
                let mut items = [Some(0), Some(1), Some(2)];
                while items.iter().any(Option::is_some) {
                    if producer.push_some(&mut items) == 0 {
                        loom::thread::yield_now();
                    }
                }
            });
            let (mut expected, mut places) = (0, [None; 2]);
            while expected < 3 {
                let count = consumer.pop_some(&mut places);
                for place in &mut places[..count] {
                    assert_eq!(place.take(), Some(expected));
                    expected += 1;
                }
                if count == 0 {
                    loom::thread::yield_now();
                }
            }
            writer.join().unwrap();
        });
    }
}
