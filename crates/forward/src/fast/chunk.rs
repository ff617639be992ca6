//! Up to 32 frames as columns: where their bytes are, and what the check reads there.

use bm_fib::{Form, NextHop};
use bm_filter::Key;
use bm_frame::{AnyFrame, BURST};

use super::by_family::ByFamily;
use super::lanes::{Lanes, nothing};
use super::{CHUNK, Criteria, FastFamily, LANES, each_bit};

/// Up to 32 frames as columns, with a lane for each.
///
/// Not shared: laid out for vectors.
#[repr(C, align(64))]
pub(super) struct Chunk<A> {
    pub lanes: Lanes,
    /// Lengths of the packets in bytes.
    pub lengths: [u16; CHUNK],
    pub destinations: [A; CHUNK],
    /// The words with the TTL and the checksum, after forwarding.
    pub ttl_words: [u32; CHUNK],
    pub hops: [NextHop; CHUNK],
    /// For the reverse path filter: sources, and where routes to them lead.
    pub sources: [A; CHUNK],
    pub back: [NextHop; CHUNK],
    /// For filters: the keys of eight lanes, and the counter of each.
    pub keys: [Key; LANES],
    pub counters: [u16; CHUNK],
    /// A bit for each lane that is plain so far.
    pub plain: u32,
    /// No plain packet is longer.
    pub longest: u16,
    /// Whether a plain frame has padding.
    pub padded: bool,
}

/// What a form of the check found.
pub(super) struct CheckResult {
    pub plain: u32,
    pub longest: u16,
    pub padded: bool,
}

impl<A: FastFamily> Chunk<A> {
    pub fn new() -> Self {
        Self {
            lanes: Lanes::new(),
            lengths: [0; CHUNK],
            destinations: [A::default(); CHUNK],
            ttl_words: [0; CHUNK],
            hops: [NextHop::NONE; CHUNK],
            sources: [A::default(); CHUNK],
            back: [NextHop::NONE; CHUNK],
            keys: [Key::empty(A::FAMILY); LANES],
            counters: [0; CHUNK],
            plain: 0,
            longest: 0,
            padded: false,
        }
    }

    /// Stores pointers to the bytes of up to 32 frames, and prefetches them.
    #[inline(always)]
    pub fn gather<F: AnyFrame>(&mut self, frames: &mut [Option<F>]) {
        let Lanes { heads, frame_lengths, count, .. } = &mut self.lanes;
        *count = frames.len().min(CHUNK);
        let mut lanes =
            heads.0.as_chunks_mut::<LANES>().0.iter_mut().zip(frame_lengths.as_chunks_mut::<LANES>().0);
        let (eights, rest) = frames.as_chunks_mut::<LANES>();
        for (frames, (heads, lengths)) in eights.iter_mut().zip(&mut lanes) {
            for lane in 0..LANES {
                (heads[lane], lengths[lane]) = place_of::<A, F>(&mut frames[lane]);
            }
        }
        if let Some((heads, lengths)) = lanes.next().filter(|_| !rest.is_empty()) {
            // The forms check whole groups.
            for lane in 0..LANES {
                (heads[lane], lengths[lane]) = rest.get_mut(lane).map_or_else(nothing, place_of::<A, F>);
            }
        }
    }

    /// Stores pointers to up to 32 frames of the family, from the one with the number `first` on.
    #[inline(always)]
    pub fn gather_sorted(&mut self, sorted: &ByFamily, first: usize) {
        sorted.gather::<A>(first, &mut self.lanes);
        let Lanes { heads, frame_lengths, count, .. } = &mut self.lanes;
        // The forms check whole groups.
        let unused = *count..count.next_multiple_of(LANES).min(CHUNK);
        let (head, length) = nothing();
        heads.0[unused.clone()].fill(head);
        frame_lengths[unused].fill(length);
    }

    /// Stores pointers to the next frames from the one with the number `first` on, of `count` that there are: those of the
    /// family, if they are sorted.
    #[inline(always)]
    pub fn gather_from<F: AnyFrame, const SORTED: bool>(
        &mut self,
        frames: &mut [Option<F>],
        sorted: &ByFamily,
        first: usize,
        count: usize,
    ) {
        if SORTED {
            self.gather_sorted(sorted, first);
        } else {
            self.gather(&mut frames[first..count.min(first + CHUNK)]);
        }
    }

    /// The place in its burst of the frame in a lane, where the first lane has the frame with the number `first`.
    #[inline(always)]
    pub fn place_of<const SORTED: bool>(&self, first: usize, lane: usize) -> usize {
        if SORTED { usize::from(self.lanes.places[lane]) } else { first + lane }
    }

    /// Adds the places of the frames in these lanes to a mask of the burst, whose frame `first` is in the first lane.
    #[inline(always)]
    pub fn add_places<const SORTED: bool>(&self, first: usize, lanes: u32, mask: &mut [u64; 4]) {
        if SORTED {
            each_bit(lanes, |lane| {
                let place = self.place_of::<SORTED>(first, lane);
                mask[place / 64] |= 1 << (place % 64);
            });
        } else {
            mask[first / 64] |= u64::from(lanes) << (first % 64);
        }
    }

    /// Copies what is stored by lane to the places of the sorted frames.
    #[inline(always)]
    pub fn spread(&self, by_lane: &[u16; CHUNK], by_place: &mut [u16; BURST]) {
        for (&place, &of) in self.lanes.places[..self.lanes.count.min(CHUNK)].iter().zip(by_lane) {
            by_place[usize::from(place)] = of;
        }
    }

    /// Lengths of the frames gathered last.
    #[inline(always)]
    pub fn frame_lengths(&self) -> &[u16] {
        &self.lanes.frame_lengths[..self.lanes.count.min(CHUNK)]
    }

    /// Finds out which frames are plain: untagged, for the port's MAC address, complete, with a TTL above 1, and
    /// between two addresses that may be routed between.
    ///
    /// - IPv4: without options, not a fragment, and not from an address that may be of this machine.
    /// - IPv6: without hop-by-hop options or another excluded header, and both addresses in 2000::/3 or fc00::/7.
    ///
    /// # Safety
    /// The frames gathered last are still the caller's, and unchanged in their place and length.
    #[inline]
    pub unsafe fn check(&mut self, form: Form, criteria: Criteria<'_>) {
        let groups = self.lanes.count.div_ceil(LANES);
        // SAFETY: gathering has filled whole groups, with frames of at least `HEAD` bytes or with `NOTHING`, and the
        // caller promises that they are still there.
        let checked = unsafe { A::check(self, form, groups, criteria) };
        CheckResult { plain: self.plain, longest: self.longest, padded: self.padded } = checked;
    }

    /// The columns of a lookup, in whole groups: what is in unused lanes may be looked up too, which is faster than
    /// single addresses at the end.
    #[inline(always)]
    pub fn lookup(&mut self) -> (&[A], &mut [NextHop]) {
        let count = self.lanes.count.next_multiple_of(LANES).min(CHUNK);
        (&self.destinations[..count], &mut self.hops[..count])
    }
}

/// Pointer to the bytes of a frame that has both headers, and their number; prefetches them.
#[inline(always)]
fn place_of<A: FastFamily, F: AnyFrame>(frame: &mut Option<F>) -> (*mut u8, u16) {
    match frame {
        Some(frame) if frame.len() >= A::HEAD => {
            frame.prefetch();
            (frame.data_mut().as_mut_ptr(), frame.len() as u16)
        }
        _ => nothing(),
    }
}
