//! Re-batching, for comparison: after each stage every frame goes, with all that is known of it, to a new batch.
//!
//! The router itself has masks: frames stay where they are, and a refused one's bit is cleared. `bench batch` shows
//! what the difference is worth.

use bm_frame::{BURST, Mask};

use super::Work;
use crate::verdict::Refused;

impl Work {
    /// Moves the frames that go on to the front of a new batch, and behind them those that are refused.
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
        std::mem::swap(&mut self.burst, &mut self.leaving);
        for &from in order {
            let frame = self.leaving.take(usize::from(from));
            let lost = frame.and_then(|frame| self.burst.push(frame).err());
            debug_assert!(lost.is_none(), "a batch holds as many as the one before");
        }
        self.leaving.reset();
        moved(order, &mut self.ipv4.destinations);
        moved(order, &mut self.ipv4.facts.lengths);
        moved(order, &mut self.ipv4.facts.hops);
        moved(order, &mut self.ipv4.facts.spent);
        moved(order, &mut self.ipv4.hops);
        if !self.ipv6.mask.is_empty() {
            moved(order, &mut self.ipv6.destinations);
            moved(order, &mut self.ipv6.facts.lengths);
            moved(order, &mut self.ipv6.facts.hops);
            moved(order, &mut self.ipv6.facts.spent);
            moved(order, &mut self.ipv6.hops);
        }
        moved(order, &mut self.sources);
        moved(order, &mut self.arrivals);
        moved(order, &mut self.port);
        for mask in [&mut self.ipv4.mask, &mut self.ipv6.mask, &mut self.suspects] {
            *mask = mask_of(order, mask);
        }
        self.all = Mask::first(count);
        let mut refused = Refused::new();
        for (to, &from) in
            order.iter().enumerate().filter(|&(_, &from)| self.refused.mask.has(usize::from(from)))
        {
            refused.add(to, self.refused.why(usize::from(from)));
        }
        self.refused = refused;
    }
}

/// What stands at the places that `order` names, in that order.
fn moved<T: Copy>(order: &[u8], column: &mut [T; BURST]) {
    let before = *column;
    column.iter_mut().zip(order).for_each(|(to, &from)| *to = before[usize::from(from)]);
}

fn mask_of(order: &[u8], before: &Mask) -> Mask {
    let mut mask = Mask::NONE;
    let is_set = |&(_, &from): &(usize, &u8)| before.has(usize::from(from));
    order.iter().enumerate().filter(is_set).for_each(|(to, _)| mask.set(to));
    mask
}
