//! Re-batching, for comparison: after each stage every frame goes, with all that is known of it, to a new batch.
//!
//! The router itself uses masks: frames stay where they are, and a refused one's bit is cleared. `bench batch` shows
//! the benefit.

use bm_fib::NextHop;
use bm_frame::{BURST, Mask};

use super::Work;
use crate::verdict::{Refusal, Verdict};

/// Where a column's entries are put in their new order: only as many as there are.
pub(super) struct Columns {
    halves: [u16; BURST],
    words: [u32; BURST],
    bytes: [[u8; 4]; BURST],
    addresses: [u128; BURST],
    hops: [NextHop; BURST],
    arrivals: [(u16, u16); BURST],
    refusals: [Refusal; BURST],
}

impl Columns {
    pub fn new() -> Box<Self> {
        Box::new(Self {
            halves: [0; BURST],
            words: [0; BURST],
            bytes: [[0; 4]; BURST],
            addresses: [0; BURST],
            hops: [NextHop::NONE; BURST],
            arrivals: [(0, 0); BURST],
            refusals: [Refusal::Slow(Verdict::Host); BURST],
        })
    }
}

impl Work {
    /// Moves the frames that continue to the front of a new batch, and those that are refused after them.
    #[inline(never)]
    pub(super) fn rebatch(&mut self) {
        let mut order = [0; BURST];
        let mut count = 0;
        for is_refused in [false, true] {
            let alike = |&place: &usize| {
                self.refused.mask.has(place) == is_refused && self.burst.get(place).is_some()
            };
            for place in (0..self.burst.len()).filter(alike) {
                order[count] = place as u8;
                count += 1;
            }
        }
        let order = &order[..count];
        let Some(mut room) = self.rebatches.take() else { return };
        std::mem::swap(&mut self.burst, &mut self.leaving);
        for &from in order {
            let frame = self.leaving.take(usize::from(from));
            let lost = frame.and_then(|frame| self.burst.push(frame).err());
            debug_assert!(lost.is_none(), "a batch holds as many as the one before");
        }
        self.leaving.reset();
        let Columns { halves, words, bytes, addresses, hops, arrivals, refusals } = &mut *room;
        if !self.batches.ipv4.mask.is_empty() {
            moved(order, &mut self.batches.ipv4.destinations, words);
            moved(order, &mut self.batches.ipv4.facts.lengths, halves);
            moved(order, &mut self.batches.ipv4.facts.ttl, halves);
            moved(order, &mut self.batches.ipv4.facts.spent, bytes);
            moved(order, &mut self.batches.ipv4.hops, hops);
            moved(order, &mut self.sources, words);
        }
        if !self.batches.ipv6.mask.is_empty() {
            moved(order, &mut self.batches.ipv6.destinations, addresses);
            moved(order, &mut self.batches.ipv6.facts.lengths, halves);
            moved(order, &mut self.batches.ipv6.facts.ttl, halves);
            moved(order, &mut self.batches.ipv6.facts.spent, bytes);
            moved(order, &mut self.batches.ipv6.hops, hops);
        }
        moved(order, &mut self.arrivals, arrivals);
        moved(order, &mut self.port, halves);
        if !self.refused.mask.is_empty() {
            moved(order, &mut self.refused.why, refusals);
            self.refused.mask = mask_of(order, &self.refused.mask);
        }
        for mask in [&mut self.batches.ipv4.mask, &mut self.batches.ipv6.mask, &mut self.suspects] {
            *mask = mask_of(order, mask);
        }
        self.all = Mask::first(count);
        self.rebatches = Some(room);
    }
}

/// Reorders the entries at the slots in `order`, using `room`.
fn moved<T: Copy>(order: &[u8], column: &mut [T; BURST], room: &mut [T; BURST]) {
    let room = &mut room[..order.len()];
    room.iter_mut().zip(order).for_each(|(to, &from)| *to = column[usize::from(from)]);
    column[..order.len()].copy_from_slice(room);
}

fn mask_of(order: &[u8], before: &Mask) -> Mask {
    let mut mask = Mask::NONE;
    let is_set = |&(_, &from): &(usize, &u8)| before.has(usize::from(from));
    order.iter().enumerate().filter(is_set).for_each(|(to, _)| mask.set(to));
    mask
}
