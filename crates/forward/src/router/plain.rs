//! The plain path through a burst, chosen once for it: no hooks from here on, one routing table.
//!
//! ```text
//! chunk n + 1:  gather ........... check, prefetch from the table ....................
//! chunk n:             look up ................................ (filter) .... rewrite
//! ```
//!
//! Filters and the reverse path filter have a form of the loop of their own, so that others do not pay for them.
//!
//! While one chunk waits for memory, the other is processed. Frames that are not plain are left unchanged for the other
//! stages. Nothing is sent before all frames have a port, so the frames of a burst leave in the order they came.
//!
//! All frames of a burst are taken for one family, that of the last burst. If many of a burst are of the other family,
//! the frames of those that follow are sorted by their type, and those of each family go through chunks of their own.

use bm_fib::{Fib, Form};
use bm_frame::{AnyFrame, BURST, Mask};
use bm_wire::{Family, ethernet};

use bm_stats::Reason;

use super::Work;
use super::family::{PlainChunks, RoutedFamily};
use crate::compiled::{NO_MAC, PortView};
use crate::filter::{PlainFilter, PortFilter};
use crate::plain::{Asked, CHUNK, Chunk, Reverse, Sorted, every};
use crate::rewrite::fast::KnownHops;
use crate::tables::{Tables, Vrf};
use crate::verdict::{Refusal, Refused};

/// The number of bursts that take the general path after one in which more than three quarters of the frames were not
/// plain: they are most likely similar, for example packets of a multipath route.
const NOT_PLAIN: u8 = 31;
/// A burst is mixed if at least one frame in this many is of the other family.
const MIXED: usize = 8;

/// What the plain path keeps between bursts.
pub(super) struct PlainPath {
    /// How many more bursts do not try it.
    pause: u8,
    /// Whether the last burst had many frames of both families.
    mixed: bool,
    pub chunks: PlainChunks,
    /// Frames of a mixed burst by family.
    sorted: Sorted,
}

impl PlainPath {
    pub fn new() -> Self {
        Self { pause: 0, mixed: false, chunks: PlainChunks::new(), sorted: Sorted::new() }
    }
}

impl Work {
    /// Rewrites the plain frames of the burst, and stores their ports; returns the places of all others.
    #[inline(always)]
    pub(super) fn plain_path(
        &mut self,
        tables: &Tables,
        view: &PortView,
        filter: Option<&PortFilter<'_>>,
    ) -> Mask {
        let Self { form, family, burst, mbufs, port, lengths, known, plain, refused, .. } = self;
        let known = known.of_port();
        if mbufs.is_empty() {
            let frames = burst.places_mut();
            let burst = PlainBurst { form: *form, family, frames, port, lengths, known, plain, refused };
            burst.forward(tables, view, filter)
        } else {
            let frames = mbufs.places_mut();
            let burst = PlainBurst { form: *form, family, frames, port, lengths, known, plain, refused };
            burst.forward(tables, view, filter)
        }
    }

    /// The same for frames that still wait on a link.
    #[inline(always)]
    pub(super) fn plain_waiting<F: AnyFrame>(
        &mut self,
        tables: &Tables,
        view: &PortView,
        filter: Option<&PortFilter<'_>>,
        frames: &mut [Option<F>],
    ) -> Mask {
        let Self { form, family, port, lengths, known, plain, refused, .. } = self;
        let known = known.of_port();
        let burst = PlainBurst { form: *form, family, frames, port, lengths, known, plain, refused };
        burst.forward(tables, view, filter)
    }
}

/// What the plain path uses of the router's state, for frames of either kind, at most [`BURST`].
pub(super) struct PlainBurst<'a, F> {
    pub form: Form,
    pub family: &'a mut Family,
    pub frames: &'a mut [Option<F>],
    pub port: &'a mut [u16; BURST],
    pub lengths: &'a mut [u16; BURST],
    pub known: &'a mut KnownHops,
    pub plain: &'a mut PlainPath,
    pub refused: &'a mut Refused,
}

/// What plain frames of a family must pass before they are rewritten, where there is such.
struct PacketFilters<'a> {
    filter: Option<PlainFilter<'a>>,
    reverse: Option<Reverse>,
}

impl<'a> PacketFilters<'a> {
    /// None if filters must look at each frame one by one.
    #[inline(always)]
    fn of<A: RoutedFamily>(
        tables: &Tables,
        view: &PortView,
        filter: Option<&'a PortFilter<'a>>,
    ) -> Option<Self> {
        let reverse = A::reverse_path(tables, view);
        match filter {
            None => Some(Self { filter: None, reverse }),
            Some(filter) => Some(Self { filter: Some(PlainFilter::of(filter)?), reverse }),
        }
    }

    #[inline(always)]
    fn are_none(&self) -> bool {
        self.filter.is_none() && self.reverse.is_none()
    }
}

impl PacketFilters<'_> {
    /// Removes the bits of frames that do not pass; returns a bit for each that is to be dropped.
    ///
    /// # Safety
    /// As for [`Chunk::check`], which was called for these frames, and [`Chunk::read_sources`] if there is a reverse path
    /// filter.
    #[inline(always)]
    #[allow(unsafe_code)]
    unsafe fn pass<A: RoutedFamily>(
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
    fn count<A: RoutedFamily>(&self, chunk: &Chunk<A>, done: u32) {
        if let Some(filter) = &self.filter {
            chunk.count_passed(filter, done);
        }
    }
}

impl<F: AnyFrame> PlainBurst<'_, F> {
    /// Frames that filters drop are refused.
    #[inline(always)]
    fn forward(mut self, tables: &Tables, view: &PortView, filter: Option<&PortFilter<'_>>) -> Mask {
        let count = self.frames.len();
        let vrf = view.vrf.and_then(|vrf| tables.vrfs.get(usize::from(vrf)));
        let Some(vrf) = vrf.filter(|_| count != 0) else { return Mask::first(count) };
        if self.plain.pause > 0 {
            self.plain.pause -= 1;
            return Mask::first(count);
        }
        if self.plain.mixed {
            return self.plain_mixed(tables, view, vrf, filter);
        }
        let left = match *self.family {
            Family::V4 => self.plain_family::<u32, false>(tables, view, vrf, filter),
            Family::V6 => self.plain_family::<u128, false>(tables, view, vrf, filter),
        };
        if !left.is_empty() && left.count() * MIXED >= count {
            self.learn_from(&left);
        }
        left
    }

    /// Whether most frames are plain, and of the family that is assumed, as far as is known from the bursts before.
    pub fn is_likely_plain(&self) -> bool {
        !self.frames.is_empty() && self.plain.pause == 0 && !self.plain.mixed
    }

    /// Finds out what many frames are that were not plain.
    #[cold]
    fn learn_from(&mut self, left: &Mask) {
        let (count, places, other) = (self.frames.len(), &*self.frames, self.family.other());
        let others = left.iter().filter(|&place| family_of(places[place].as_ref()) == Some(other)).count();
        if others == count {
            *self.family = other;
        } else if others * MIXED >= count {
            self.plain.mixed = true;
        } else if are_few_plain(left, count) {
            self.plain.pause = NOT_PLAIN;
        }
    }

    /// The frames of one family, or all frames as packets of one: `SORTED` says which. Returns those of them that are not
    /// plain.
    #[inline(always)]
    fn plain_family<A: RoutedFamily, const SORTED: bool>(
        &mut self,
        tables: &Tables,
        view: &PortView,
        vrf: &Vrf,
        filter: Option<&PortFilter<'_>>,
    ) -> Mask {
        let Some(asked) = asked::<A>(tables, view) else { return self.all::<A, SORTED>() };
        match PacketFilters::of::<A>(tables, view, filter) {
            None => self.all::<A, SORTED>(),
            Some(filters) if filters.are_none() => {
                self.plain_chunks::<A, false, SORTED>(tables, asked, vrf, &filters)
            }
            Some(filters) => self.plain_chunks::<A, true, SORTED>(tables, asked, vrf, &filters),
        }
    }

    /// The frames of a family if they are sorted, and all if they are not.
    #[cold]
    fn all<A: RoutedFamily, const SORTED: bool>(&self) -> Mask {
        if !SORTED {
            return Mask::first(self.frames.len());
        }
        let mut all = Mask::NONE;
        self.plain.sorted.places::<A>().iter().for_each(|&place| all.set(usize::from(place)));
        all
    }

    /// Chunk by chunk. `FILTERED` says whether there are filters.
    #[inline(never)]
    #[allow(unsafe_code)]
    fn plain_chunks<A: RoutedFamily, const FILTERED: bool, const SORTED: bool>(
        &mut self,
        tables: &Tables,
        asked: Asked<'_>,
        vrf: &Vrf,
        filters: &PacketFilters<'_>,
    ) -> Mask {
        let Self { form, frames, port, lengths, known, plain, refused, .. } = self;
        let PlainPath { chunks, sorted, .. } = &mut **plain;
        let [mut now, mut next] = A::chunks(chunks).each_mut();
        let fib = A::fib(vrf);
        let count = if SORTED { sorted.places::<A>().len() } else { frames.len() };
        let gather = |chunk: &mut Chunk<A>, frames: &mut [Option<F>], first: usize| {
            let end = count.min(first + CHUNK);
            if SORTED { chunk.gather_sorted(sorted, first) } else { chunk.gather(&mut frames[first..end]) }
        };
        let mut left = [0; 4];
        if count != 0 {
            gather(now, frames, 0);
            // SAFETY: nothing happens to the frames in between, since they are borrowed; the same below.
            unsafe { now.check(*form, asked) };
            if FILTERED && filters.reverse.is_some() {
                // SAFETY: see above.
                fib.prefetch(unsafe { now.read_sources() });
            }
        }
        for first in (0..count).step_by(CHUNK) {
            let end = count.min(first + CHUNK);
            let more = end < count;
            if more {
                gather(next, frames, end);
            }
            let (destinations, hops) = now.lookup();
            fib.lookup_burst(destinations, hops);
            if more {
                // SAFETY: see above.
                unsafe { next.check(*form, asked) };
                fib.prefetch(next.lookup().0);
                if FILTERED && filters.reverse.is_some() {
                    // SAFETY: see above.
                    fib.prefetch(unsafe { next.read_sources() });
                }
            }
            // SAFETY: see above.
            let dropped = if FILTERED { unsafe { filters.pass(*form, tables, fib, now) } } else { 0 };
            let mut by_lane = [0; CHUNK];
            let ports = if SORTED { &mut by_lane[..end - first] } else { &mut port[first..end] };
            // SAFETY: see above.
            let done = unsafe { now.rewrite(tables, known, ports) };
            let place_of = |lane: usize| if SORTED { now.place(lane) } else { first + lane };
            if FILTERED {
                filters.count(now, done);
                each_bit(dropped, |lane| refused.add(place_of(lane), Refusal::Drop(Reason::Filter)));
            }
            let rest = every(end - first) & !done & !dropped;
            if SORTED {
                now.spread(&by_lane, port);
                each_bit(rest, |lane| left[place_of(lane) / 64] |= 1 << (place_of(lane) % 64));
            } else {
                lengths[first..end].copy_from_slice(now.frame_lengths());
                left[first / 64] |= u64::from(rest) << (first % 64);
            }
            now.cut_padding(done, |lane, length| {
                truncate(frames, place_of(lane), length);
                lengths[place_of(lane)] = length;
            });
            std::mem::swap(&mut now, &mut next);
        }
        Mask::from_words(left)
    }

    /// The frames of the burst by family.
    #[inline(never)]
    fn plain_mixed(
        &mut self,
        tables: &Tables,
        view: &PortView,
        vrf: &Vrf,
        filter: Option<&PortFilter<'_>>,
    ) -> Mask {
        let sorted = &mut self.plain.sorted;
        sorted.clear();
        for first in (0..self.frames.len()).step_by(2 * CHUNK) {
            let end = self.frames.len().min(first + 2 * CHUNK);
            let frames = &mut self.frames[first..end];
            frames.iter().flatten().for_each(F::prefetch);
            sorted.add(frames, first);
        }
        *self.lengths = *sorted.frame_lengths();
        let (ipv4, ipv6) = (sorted.places::<u32>().len(), sorted.places::<u128>().len());
        let left = self.plain_family::<u32, true>(tables, view, vrf, filter);
        let left = left.or(&self.plain_family::<u128, true>(tables, view, vrf, filter));
        self.plain.mixed = ipv4.min(ipv6) * MIXED >= self.frames.len();
        if are_few_plain(&left, self.frames.len()) {
            self.plain.pause = NOT_PLAIN;
        }
        *self.family = if ipv4 >= ipv6 { Family::V4 } else { Family::V6 };
        left
    }
}

/// Calls a function with the number of each bit that is set.
#[inline(always)]
fn each_bit(mut bits: u32, mut with: impl FnMut(usize)) {
    while bits != 0 {
        with(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

/// Whether too many frames of a burst were not plain, so that the next bursts should not try.
fn are_few_plain(left: &Mask, count: usize) -> bool {
    !left.is_empty() && left.count() * 4 > count * 3
}

/// What plain frames of a family are compared with; `None` if the port has none.
#[inline(always)]
pub(super) fn asked<'a, A: RoutedFamily>(tables: &'a Tables, view: &PortView) -> Option<Asked<'a>> {
    let mac = A::plain_mac(view);
    (mac != NO_MAC).then_some(Asked { mac, local: &tables.compiled.local, closer: view.closer })
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

fn truncate<F: AnyFrame>(frames: &mut [Option<F>], place: usize, length: u16) {
    if let Some(frame) = frames.get_mut(place).and_then(Option::as_mut) {
        frame.truncate(length);
    }
}
