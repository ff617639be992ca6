//! The fast path through a burst, chosen once for it: one routing table, no hook behind the lookup.
//!
//! ```text
//! chunk n + 1:  gather ........... check, prefetch from the table ....................
//! chunk n:             look up ................................ (filter) .... rewrite
//! ```
//!
//! While one chunk waits for memory, the other is processed. Filters and the reverse path filter have a form of the loop of
//! their own, so that others do not pay for them. Nothing is sent before all frames have a port, so the frames of a burst
//! leave in the order they came.
//!
//! All frames of a burst are taken for one family, that of the last burst. If many of a burst are of the other family,
//! the frames of those that follow are sorted by their type, and those of each family go through chunks of their own.

use bm_fib::published::Epoch;
use bm_fib::{Fib, Form};
use bm_frame::{AnyFrame, BURST, Mask};
use bm_stats::Reason;
use bm_wire::{Family, ethernet};

use super::by_family::ByFamily;
use super::chunk::Chunk;
use super::filter::ReverseFilter;
use super::hop_cache::HopCaches;
use super::{BothChunks, CHUNK, Criteria, FastFamily, each_bit, every};
use crate::burst::{InputPort, RoutedBurst};
use crate::filter::PlainFilter;
use crate::tables::{Tables, Vrf};
use crate::verdict::{Refusal, RefusedFrames};

/// The number of bursts that do not try this path after one of which more than three quarters were left to the stages:
/// they are most likely similar.
const PAUSE: u32 = 31;
/// A burst is mixed if at least one frame in this many is of the other family.
const MIXED: usize = 8;

/// The fast path of a worker, and what it keeps between bursts.
pub(crate) struct FastPath {
    pub(super) form: Form,
    /// The family that frames are first assumed to be.
    pub(super) family: Family,
    /// How many more bursts do not try it.
    pub(super) pause: u32,
    /// How many more bursts get headers first, instead of being described by their mbufs: only those can get tags.
    pub(super) with_headers: u32,
    /// Whether the last burst had many frames of both families.
    pub(super) mixed: bool,
    pub(super) chunks: Box<BothChunks>,
    /// Frames of a mixed burst by family.
    by_family: ByFamily,
    pub(super) hop_caches: HopCaches,
}

/// A burst as this path sees it: frames of either kind, at most [`BURST`], and where to write what becomes of them.
pub(super) struct FastBurst<'a, F> {
    pub frames: &'a mut [Option<F>],
    pub ports: &'a mut [u16; BURST],
    pub lengths: &'a mut [u16; BURST],
    pub refused: &'a mut RefusedFrames,
}

/// What plain frames of a family must pass before they are rewritten, where there is such.
struct PacketFilters<'a> {
    filter: Option<PlainFilter<'a>>,
    reverse: Option<ReverseFilter>,
}

impl<'a> PacketFilters<'a> {
    /// None if filters must look at each frame one by one.
    #[inline(always)]
    fn of<A: FastFamily>(from: &InputPort<'a>) -> Option<Self> {
        let reverse = A::reverse_path(from.tables, from.view);
        match from.filter {
            None => Some(Self { filter: None, reverse }),
            Some(filter) => Some(Self { filter: Some(PlainFilter::of(filter)?), reverse }),
        }
    }

    #[inline(always)]
    fn are_none(&self) -> bool {
        self.filter.is_none() && self.reverse.is_none()
    }

    /// Removes the bits of frames that do not pass; returns a bit for each that is to be dropped.
    ///
    /// # Safety
    /// As for [`Chunk::check`], which was called for these frames, and [`Chunk::read_sources`] if there is a reverse path
    /// filter.
    #[inline(always)]
    unsafe fn pass<A: FastFamily>(
        &self,
        form: Form,
        tables: &Tables,
        fib: &dyn Fib<Address = A>,
        chunk: &mut Chunk<A>,
    ) -> u32 {
        // SAFETY: the caller's promise.
        let dropped = self.filter.as_ref().map_or(0, |filter| unsafe { chunk.filter(form, filter) });
        if let Some(reverse) = self.reverse {
            let (sources, back) = chunk.reverse_lookup();
            fib.lookup_burst(sources, back);
            chunk.check_reverse(&tables.next_hops, reverse);
        }
        dropped
    }

    /// Counts those that filters let pass, once they have been rewritten.
    #[inline(always)]
    fn count<A: FastFamily>(&self, chunk: &Chunk<A>, done: u32) {
        if let Some(filter) = &self.filter {
            chunk.count_passed(filter, done);
        }
    }
}

impl FastPath {
    pub fn new(ports: usize) -> Self {
        Self {
            form: Form::best(),
            family: Family::V4,
            pause: 0,
            with_headers: 0,
            mixed: false,
            chunks: Box::new(BothChunks::new()),
            by_family: ByFamily::new(),
            hop_caches: HopCaches::new(ports),
        }
    }

    /// Never tries this path from now on.
    #[cfg(any(test, feature = "testing"))]
    pub fn stop(&mut self) {
        self.pause = u32::MAX;
    }

    /// Before the bursts of a port.
    #[inline]
    pub fn arrive_on(&mut self, from: &InputPort<'_>, epoch: Epoch, now_ns: u64) {
        self.hop_caches.arrive_on(from.number, from.view.untagged, epoch, now_ns);
    }

    /// Rewrites the plain frames of a burst, and stores their ports; returns the places of all others. Frames that filters
    /// drop are refused.
    #[inline(always)]
    pub fn forward(&mut self, from: &InputPort<'_>, burst: &mut RoutedBurst) -> Mask {
        if self.with_headers > 0 {
            self.with_headers -= 1;
            burst.write_headers();
        }
        let RoutedBurst { frames, mbufs, ports, lengths, refused, .. } = burst;
        if mbufs.is_empty() {
            self.forward_frames(from, FastBurst { frames: frames.places_mut(), ports, lengths, refused })
        } else {
            self.forward_frames(from, FastBurst { frames: mbufs.places_mut(), ports, lengths, refused })
        }
    }

    #[inline(always)]
    pub(super) fn forward_frames<F: AnyFrame>(
        &mut self,
        from: &InputPort<'_>,
        mut burst: FastBurst<'_, F>,
    ) -> Mask {
        let count = burst.frames.len();
        let vrf = from.view.untagged_vrf.and_then(|vrf| from.tables.vrfs.get(usize::from(vrf)));
        let Some(vrf) = vrf.filter(|_| count != 0) else { return Mask::first(count) };
        if self.pause > 0 {
            self.pause -= 1;
            return Mask::first(count);
        }
        if self.mixed {
            return self.forward_mixed(from, vrf, &mut burst);
        }
        let left = self.forward_assumed(from, vrf, &mut burst);
        if !left.is_empty() && left.count() * MIXED >= count && self.learn_from(&left, burst.frames) {
            return self.forward_again(from, vrf, &mut burst);
        }
        left
    }

    /// After a change of the family that is assumed.
    #[cold]
    #[inline(never)]
    fn forward_again<F: AnyFrame>(
        &mut self,
        from: &InputPort<'_>,
        vrf: &Vrf,
        burst: &mut FastBurst<'_, F>,
    ) -> Mask {
        self.forward_assumed(from, vrf, burst)
    }

    /// All frames as packets of the family that is assumed.
    #[inline(always)]
    fn forward_assumed<F: AnyFrame>(
        &mut self,
        from: &InputPort<'_>,
        vrf: &Vrf,
        burst: &mut FastBurst<'_, F>,
    ) -> Mask {
        match self.family {
            Family::V4 => self.forward_family::<u32, F, false>(from, vrf, burst),
            Family::V6 => self.forward_family::<u128, F, false>(from, vrf, burst),
        }
    }

    /// Whether most frames are plain, and of the family that is assumed, as far as is known from the bursts before.
    pub(super) fn is_likely_plain(&self) -> bool {
        self.pause == 0 && !self.mixed
    }

    /// Finds out what many frames are that are left; whether all of them are of the other family, which is assumed from now
    /// on.
    #[cold]
    pub(super) fn learn_from<F: AnyFrame>(&mut self, left: &Mask, frames: &[Option<F>]) -> bool {
        let (count, other) = (frames.len(), self.family.other());
        let others = left.iter().filter(|&place| family_of(frames[place].as_ref()) == Some(other)).count();
        if others == count {
            self.family = other;
            return true;
        }
        if others * MIXED >= count {
            self.mixed = true;
        } else {
            self.pause_after::<F>(left, count);
        }
        false
    }

    /// If the stages got too many frames of a burst, the next bursts do not try this path, or not with mbufs.
    fn pause_after<F: AnyFrame>(&mut self, left: &Mask, count: usize) {
        if left.is_empty() || left.count() * 4 <= count * 3 {
            return;
        }
        let after = if F::IS_MBUF { &mut self.with_headers } else { &mut self.pause };
        *after = PAUSE;
    }

    /// The frames of one family, or all frames as packets of one: `SORTED` says which. Returns those of them that are left
    /// to the stages.
    #[inline(always)]
    fn forward_family<A: FastFamily, F: AnyFrame, const SORTED: bool>(
        &mut self,
        from: &InputPort<'_>,
        vrf: &Vrf,
        burst: &mut FastBurst<'_, F>,
    ) -> Mask {
        let Some(criteria) = Criteria::of::<A>(from.tables, from.view) else {
            return self.all::<A, SORTED>(burst.frames.len());
        };
        match PacketFilters::of::<A>(from) {
            None => self.all::<A, SORTED>(burst.frames.len()),
            Some(filters) if filters.are_none() => {
                self.forward_chunks::<A, F, false, SORTED>(from, criteria, vrf, &filters, burst)
            }
            Some(filters) => self.forward_chunks::<A, F, true, SORTED>(from, criteria, vrf, &filters, burst),
        }
    }

    /// The frames of a family if they are sorted, and all if they are not.
    #[cold]
    fn all<A: FastFamily, const SORTED: bool>(&self, count: usize) -> Mask {
        if !SORTED {
            return Mask::first(count);
        }
        let mut all = Mask::NONE;
        self.by_family.places::<A>().iter().for_each(|&place| all.set(usize::from(place)));
        all
    }

    /// Chunk by chunk. `FILTERED` says whether there are filters.
    #[inline(never)]
    fn forward_chunks<A: FastFamily, F: AnyFrame, const FILTERED: bool, const SORTED: bool>(
        &mut self,
        from: &InputPort<'_>,
        criteria: Criteria<'_>,
        vrf: &Vrf,
        filters: &PacketFilters<'_>,
        burst: &mut FastBurst<'_, F>,
    ) -> Mask {
        let Self { form, chunks, by_family, hop_caches, .. } = self;
        let FastBurst { frames, ports, lengths, refused } = burst;
        let (form, tables, hop_cache) = (*form, from.tables, hop_caches.of_port());
        let [now, next, ..] = A::chunks(chunks);
        let (mut now, mut next) = (now, next);
        let fib = A::fib(vrf);
        let count = if SORTED { by_family.places::<A>().len() } else { frames.len() };
        let mut left = [0; 4];
        if count != 0 {
            now.gather_from::<F, SORTED>(frames, by_family, 0, count);
            // SAFETY: nothing happens to the frames in between, since they are borrowed; the same below.
            unsafe { now.check_ahead::<FILTERED>(form, criteria, fib, filters.reverse) };
        }
        for first in (0..count).step_by(CHUNK) {
            let end = count.min(first + CHUNK);
            let more = end < count;
            if more {
                next.gather_from::<F, SORTED>(frames, by_family, end, count);
            }
            let (destinations, hops) = now.lookup();
            fib.lookup_burst(destinations, hops);
            if more {
                // SAFETY: see above.
                unsafe { next.check_ahead::<FILTERED>(form, criteria, fib, filters.reverse) };
                fib.prefetch(next.lookup().0);
            }
            // SAFETY: see above.
            let dropped = if FILTERED { unsafe { filters.pass(form, tables, fib, now) } } else { 0 };
            let mut by_lane = [0; CHUNK];
            let to = if SORTED { &mut by_lane[..end - first] } else { &mut ports[first..end] };
            // SAFETY: see above.
            let mut done = unsafe { now.rewrite(tables, hop_cache, to) };
            if !SORTED {
                lengths[first..end].copy_from_slice(now.frame_lengths());
            }
            now.cut_padding(done, |lane, length| {
                let place = now.place_of::<SORTED>(first, lane);
                truncate(frames, place, length);
                lengths[place] = length;
            });
            if now.plain != done && !F::IS_MBUF {
                let others = Others { chunk: now, first, lanes: now.plain & !done };
                done |= others.rewrite_as_stages::<F, SORTED>(from, frames, to, lengths);
            }
            if FILTERED {
                filters.count(now, done);
                each_bit(dropped, |lane| {
                    refused.add(now.place_of::<SORTED>(first, lane), Refusal::Drop(Reason::Filter));
                });
            }
            let rest = every(end - first) & !done & !dropped;
            if SORTED {
                now.spread(&by_lane, ports);
            }
            now.add_places::<SORTED>(first, rest, &mut left);
            std::mem::swap(&mut now, &mut next);
        }
        Mask::from_words(left)
    }

    /// The frames of the burst by family.
    #[inline(never)]
    fn forward_mixed<F: AnyFrame>(
        &mut self,
        from: &InputPort<'_>,
        vrf: &Vrf,
        burst: &mut FastBurst<'_, F>,
    ) -> Mask {
        let count = burst.frames.len();
        self.by_family.clear();
        for first in (0..count).step_by(2 * CHUNK) {
            let frames = &mut burst.frames[first..count.min(first + 2 * CHUNK)];
            frames.iter().flatten().for_each(F::prefetch);
            self.by_family.add(frames, first);
        }
        *burst.lengths = *self.by_family.frame_lengths();
        let (ipv4, ipv6) = (self.by_family.places::<u32>().len(), self.by_family.places::<u128>().len());
        let left = self.forward_family::<u32, F, true>(from, vrf, burst);
        let left = left.or(&self.forward_family::<u128, F, true>(from, vrf, burst));
        self.mixed = ipv4.min(ipv6) * MIXED >= count;
        self.pause_after::<F>(&left, count);
        self.family = if ipv4 >= ipv6 { Family::V4 } else { Family::V6 };
        left
    }
}

/// The family of an untagged frame, by its type.
#[inline(always)]
fn family_of<F: AnyFrame>(frame: Option<&F>) -> Option<Family> {
    match frame?.data().get(12..ethernet::HEADER_LEN)? {
        [0x08, 0x00] => Some(Family::V4),
        [0x86, 0xdd] => Some(Family::V6),
        _ => None,
    }
}

/// Plain frames of a chunk that three stores do not rewrite.
struct Others<'a, A> {
    chunk: &'a Chunk<A>,
    /// The number of the frame in the first lane.
    first: usize,
    lanes: u32,
}

impl<A: FastFamily> Others<'_, A> {
    /// Rewrites them as the stages do; returns the bits of those that leave, and stores their ports and lengths.
    #[cold]
    #[inline(never)]
    fn rewrite_as_stages<F: AnyFrame, const SORTED: bool>(
        &self,
        from: &InputPort<'_>,
        frames: &mut [Option<F>],
        ports: &mut [u16],
        lengths: &mut [u16; BURST],
    ) -> u32 {
        let mut done = 0;
        each_bit(self.lanes, |lane| {
            let place = self.chunk.place_of::<SORTED>(self.first, lane);
            let Some(frame) = frames[place].as_mut().and_then(F::as_frame) else { return };
            let port = self.chunk.rewrite_as_stages(from.tables, from.view.untagged, lane, frame);
            if let Ok(port) = port {
                (ports[lane], lengths[place]) = (port, frame.len() as u16);
                done |= 1 << lane;
            }
        });
        done
    }
}

fn truncate<F: AnyFrame>(frames: &mut [Option<F>], place: usize, length: u16) {
    if let Some(frame) = frames.get_mut(place).and_then(Option::as_mut) {
        frame.truncate(length);
    }
}
