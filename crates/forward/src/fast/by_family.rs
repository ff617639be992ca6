//! The frames of a mixed burst by family.
//!
//! ```text
//! frame -> pointer, length, family, a column each                        (8 frames at a time)
//! families of 8 frames, a bit each -> places of IPv4's, places of IPv6's (from a table with all 256 cases)
//! 32 places of a family -> pointers and lengths of a chunk
//! ```
//!
//! No step depends on a branch or on a number that the frame before has just changed in memory.

use bm_frame::{AnyFrame, BURST};
use bm_wire::ethernet;
use bm_wire::{Family, prefix::Address};

use super::lanes::{Heads, Lanes, nothing};
use super::{CHUNK, FastFamily, LANES};

/// The frames of a burst: where their bytes are, and which of them are of which family.
pub(super) struct ByFamily {
    heads: Heads<BURST>,
    frame_lengths: [u16; BURST],
    /// IPv4 and IPv6.
    families: [Places; 2],
}

/// Places of frames in their burst.
struct Places {
    /// With room for a whole chunk after the last one.
    places: [u8; BURST + CHUNK],
    count: usize,
}

impl Places {
    const NONE: Self = Self { places: [0; BURST + CHUNK], count: 0 };

    /// Adds those lanes whose bit is set, of a group that begins at place `first`.
    #[inline(always)]
    fn add(&mut self, first: u8, lanes: u8) {
        let (lanes, count) = LISTS[usize::from(lanes)];
        let places = lanes + u64::from_le_bytes([first; LANES]);
        if let Some(to) = self.places[self.count.min(BURST)..].first_chunk_mut() {
            *to = places.to_le_bytes();
        }
        self.count += count as usize;
    }
}

/// For each set of lanes their numbers, a byte each, and how many they are.
static LISTS: [(u64, u64); 256] = {
    let mut lists = [(0, 0); 256];
    let mut set = 0;
    while set < lists.len() {
        let mut lane = 0;
        while lane < LANES {
            if set >> lane & 1 == 1 {
                let (list, count) = &mut lists[set];
                *list |= (lane as u64) << (8 * *count);
                *count += 1;
            }
            lane += 1;
        }
        set += 1;
    }
    lists
};

impl ByFamily {
    pub fn new() -> Self {
        let heads = Heads([std::ptr::null_mut(); BURST]);
        Self { heads, frame_lengths: [0; BURST], families: [Places::NONE; 2] }
    }

    /// Removes all.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.families.iter_mut().for_each(|places| places.count = 0);
    }

    /// The places of the frames of a family.
    #[inline(always)]
    pub fn places<A: Address>(&self) -> &[u8] {
        let Places { places, count } = &self.families[index::<A>()];
        &places[..(*count).min(BURST)]
    }

    /// Adds frames of a burst, the first of which is at place `first`, a multiple of 8. All that is not IPv6 by its type
    /// is IPv4 here: the check finds out. A frame shorter than both headers of IPv6 counts as IPv4, too.
    #[inline(never)]
    pub fn add<F: AnyFrame>(&mut self, frames: &mut [Option<F>], first: usize) {
        let heads = self.heads.0[first..].as_chunks_mut::<LANES>().0.iter_mut();
        let lengths = self.frame_lengths[first..].as_chunks_mut::<LANES>().0;
        let [ipv4, ipv6] = &mut self.families;
        let mut first = first as u8;
        let (groups, rest) = frames.as_chunks_mut::<LANES>();
        let mut columns = heads.zip(lengths);
        for (group, (heads, lengths)) in groups.iter_mut().zip(&mut columns) {
            let mut six = 0;
            for lane in 0..LANES {
                let is_ipv6;
                (heads[lane], lengths[lane], is_ipv6) = place_of(&mut group[lane]);
                six |= u8::from(is_ipv6) << lane;
            }
            ipv4.add(first, !six);
            ipv6.add(first, six);
            first = first.wrapping_add(LANES as u8);
        }
        if let Some((heads, lengths)) = columns.next().filter(|_| !rest.is_empty()) {
            let mut six = 0;
            for (lane, frame) in rest.iter_mut().enumerate() {
                let is_ipv6;
                (heads[lane], lengths[lane], is_ipv6) = place_of(frame);
                six |= u8::from(is_ipv6) << lane;
            }
            ipv4.add(first, !six & !(u8::MAX << rest.len()));
            ipv6.add(first, six);
        }
    }

    /// Stores up to 32 frames of a family, from the one with the number `first` on, in the lanes of a chunk.
    #[inline(always)]
    pub(super) fn gather<A: Address>(&self, first: usize, lanes: &mut Lanes) {
        let Self { heads, frame_lengths, families } = self;
        let Places { places, count } = &families[index::<A>()];
        lanes.count = count.saturating_sub(first).min(CHUNK);
        // All lanes, which is faster; those without a frame are overwritten.
        if let Some(places) = places[first.min(BURST)..].first_chunk() {
            lanes.places = *places;
        }
        for lane in 0..CHUNK {
            let place = usize::from(lanes.places[lane]);
            lanes.heads.0[lane] = heads.0[place];
            lanes.frame_lengths[lane] = frame_lengths[place];
        }
    }

    /// Lengths of all frames of the burst, by their place.
    #[inline(always)]
    pub fn frame_lengths(&self) -> &[u16; BURST] {
        &self.frame_lengths
    }
}

fn index<A: Address>() -> usize {
    usize::from(A::FAMILY == Family::V6)
}

/// Pointer to the bytes of a frame that has both headers, their number, and whether the type is that of IPv6.
#[inline(always)]
fn place_of<F: AnyFrame>(frame: &mut Option<F>) -> (*mut u8, u16, bool) {
    let bytes = frame.as_mut().map_or(&mut [][..], F::data_mut);
    let (pointer, length) = (bytes.as_mut_ptr(), bytes.len() as u16);
    match bytes.first_chunk::<{ <u128 as FastFamily>::HEAD }>() {
        Some(head) => {
            let ethertype = u16::from_ne_bytes([head[12], head[13]]);
            (pointer, length, ethertype == ethernet::ethertype::IPV6.to_be())
        }
        None => {
            let (pointer, length) = nothing();
            (pointer, length, false)
        }
    }
}
