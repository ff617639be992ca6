//! The fast path where a hook sees packets between lookup and rewriting.
//!
//! ```text
//! all chunks of a burst: gather, check, look up -> the hook, once for all -> all chunks: gather again, rewrite
//! ```
//!
//! They are gathered again since a hook may do anything to a frame.

use bm_fib::NextHop;
use bm_frame::{BURST, Mask};
use bm_wire::Family;

use super::burst::FastPath;
use super::chunk::Chunk;
use super::each_bit;
use super::hop_cache::HopCache;
use super::{CHUNK, Criteria, FastFamily, every};
use crate::burst::{InputPort, RoutedBurst};
use crate::hook::{Hooks, TableRoutes};
use crate::tables::Vrf;

impl FastPath {
    /// Rewrites the plain frames of a burst, through the next hops that the hook leaves them or chooses; returns the places
    /// of all frames that the hook has not seen. A frame that it has seen leaves, or is refused.
    #[inline(never)]
    pub fn forward_hooked(
        &mut self,
        from: &InputPort<'_>,
        burst: &mut RoutedBurst,
        hooks: &mut Hooks,
    ) -> Mask {
        let count = burst.frames.len();
        let vrf = from.view.untagged_vrf.and_then(|vrf| from.tables.vrfs.get(usize::from(vrf)));
        let Some(vrf) = vrf.filter(|_| count != 0) else { return Mask::first(count) };
        if self.pause > 0 {
            self.pause -= 1;
            return Mask::first(count);
        }
        let mut left = Mask::first(count);
        for family in [self.family, self.family.other()] {
            let seen = match family {
                Family::V4 => self.forward_family_hooked::<u32>(from, vrf, burst, hooks),
                Family::V6 => self.forward_family_hooked::<u128>(from, vrf, burst, hooks),
            };
            left = left.without(&seen);
            if !self.mixed && !self.learn_from(&left, burst.frames.places()) {
                break;
            }
        }
        left
    }

    /// Returns the places of those frames that are plain and of the family.
    fn forward_family_hooked<A: FastFamily>(
        &mut self,
        from: &InputPort<'_>,
        vrf: &Vrf,
        burst: &mut RoutedBurst,
        hooks: &mut Hooks,
    ) -> Mask {
        let Self { form, chunks, hop_caches, .. } = self;
        let Some(criteria) = Criteria::of::<A>(from.tables, from.view) else { return Mask::NONE };
        let (fib, reverse) = (A::fib(vrf), A::reverse_path(from.tables, from.view));
        let chunks = A::chunks(chunks);
        for (chunk, frames) in chunks.iter_mut().zip(burst.frames.places_mut().chunks_mut(CHUNK)) {
            chunk.gather(frames);
        }
        let mut words = [0; BURST / 64];
        let mut next_hops = [NextHop::NONE; BURST];
        let firsts = (0..burst.frames.len()).step_by(CHUNK);
        for (chunk, first) in chunks.iter_mut().zip(firsts.clone()) {
            // SAFETY: nothing has happened to the frames since they were gathered.
            unsafe { chunk.check(*form, criteria) };
            chunk.plain &= every(burst.frames.len() - first);
            let (destinations, hops) = chunk.lookup();
            fib.lookup_burst(destinations, hops);
            if let Some(reverse) = reverse {
                // SAFETY: see above.
                unsafe { chunk.read_sources() };
                let (sources, back) = chunk.reverse_lookup();
                fib.lookup_burst(sources, back);
                chunk.check_reverse(&from.tables.next_hops, reverse);
            }
            words[first / 64] |= u64::from(chunk.plain) << (first % 64);
            next_hops[first..first + CHUNK].copy_from_slice(&chunk.hops);
        }
        let plain = Mask::from_words(words);
        if plain.is_empty() {
            return plain;
        }
        let routes = TableRoutes::of(from.tables, from.number);
        let RoutedBurst { frames, refused, .. } = burst;
        let mut mask = plain;
        hooks.lookup(&routes, A::IP_VERSION, frames, &mut mask, &mut next_hops, refused);
        for (chunk, first) in chunks.iter_mut().zip(firsts) {
            chunk.hops.copy_from_slice(&next_hops[first..first + CHUNK]);
            chunk.plain = (mask.words()[first / 64] >> (first % 64)) as u32;
            chunk.rewrite_hooked(from, hop_caches.of_port(), first, burst, hooks);
        }
        plain
    }
}

impl<A: FastFamily> Chunk<A> {
    /// Rewrites the frames of lanes whose bit is set, or refuses them. The first lane has the frame at place `first`.
    fn rewrite_hooked(
        &mut self,
        from: &InputPort<'_>,
        hop_cache: &mut HopCache,
        first: usize,
        burst: &mut RoutedBurst,
        hooks: &Hooks,
    ) {
        let end = burst.frames.len().min(first + CHUNK);
        let (before, left) = (self.lanes.frame_lengths, self.plain);
        let frames = &mut burst.frames.places_mut()[first..end];
        self.gather(frames);
        if self.lanes.frame_lengths != before {
            // Lanes without both headers have length 0.
            for lane in 0..CHUNK {
                self.plain &= !(u32::from(self.lanes.frame_lengths[lane] == 0) << lane);
            }
            self.padded = true;
        }
        // SAFETY: nothing has happened to the frames since they were gathered, and each has both headers.
        let done = unsafe { self.rewrite(from.tables, hop_cache, &mut burst.ports[first..end]) };
        self.cut_padding(done, |lane, length| {
            if let Some(frame) = &mut frames[lane] {
                frame.truncate(length);
            }
        });
        each_bit(left & !done, |lane| {
            let place = first + lane;
            let Some(frame) = burst.frames.get_mut(place) else { return };
            match self.rewrite_as_stages(from.tables, from.view.untagged, lane, frame) {
                Ok(port) => burst.ports[place] = port,
                Err(why) => burst.refuse(place, why, hooks.chose(place).then_some(self.hops[lane])),
            }
        });
    }
}
