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
use crate::plain::{Asked, CHUNK, Chunk, Lanes, Reverse, every, sort};
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
    /// Frames that are sorted by family, IPv4 first.
    lanes: [Lanes; 2],
}

impl PlainPath {
    pub fn new() -> Self {
        Self { pause: 0, mixed: false, chunks: PlainChunks::new(), lanes: [Lanes::new(); 2] }
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
            Family::V4 => self.plain_filtered::<u32>(tables, view, vrf, filter),
            Family::V6 => self.plain_filtered::<u128>(tables, view, vrf, filter),
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

    #[inline(always)]
    fn plain_filtered<A: RoutedFamily>(
        &mut self,
        tables: &Tables,
        view: &PortView,
        vrf: &Vrf,
        filter: Option<&PortFilter<'_>>,
    ) -> Mask {
        match PacketFilters::of::<A>(tables, view, filter) {
            None => Mask::first(self.frames.len()),
            Some(filters) if filters.are_none() => self.plain_whole::<A, false>(tables, view, vrf, &filters),
            Some(filters) => self.plain_whole::<A, true>(tables, view, vrf, &filters),
        }
    }

    /// All frames of the burst as packets of one family. `FILTERED` says whether there are filters.
    #[inline(never)]
    #[allow(unsafe_code)]
    fn plain_whole<A: RoutedFamily, const FILTERED: bool>(
        &mut self,
        tables: &Tables,
        view: &PortView,
        vrf: &Vrf,
        filters: &PacketFilters<'_>,
    ) -> Mask {
        let Self { form, frames, port, lengths, known, plain, refused, .. } = self;
        let [now, next] = A::chunks(&mut plain.chunks);
        let (mut now, mut next) = (now, next);
        let Some(asked) = asked::<A>(tables, view) else { return Mask::first(frames.len()) };
        let fib = A::fib(vrf);
        let mut left = [0; 4];
        let start = CHUNK.min(frames.len());
        now.gather(&mut frames[..start]);
        // SAFETY: nothing happens to the frames in between, since they are borrowed; the same below.
        unsafe { now.check(*form, asked) };
        if FILTERED && filters.reverse.is_some() {
            // SAFETY: see above.
            fib.prefetch(unsafe { now.read_sources() });
        }
        for first in (0..frames.len()).step_by(CHUNK) {
            let end = frames.len().min(first + CHUNK);
            let ahead = end..frames.len().min(end + CHUNK);
            let more = !ahead.is_empty();
            if more {
                next.gather(&mut frames[ahead]);
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
            // SAFETY: see above.
            let done = unsafe { now.rewrite(tables, known, &mut port[first..end]) };
            if FILTERED {
                filters.count(now, done);
                each_bit(dropped, |lane| refused.add(first + lane, Refusal::Drop(Reason::Filter)));
            }
            lengths[first..end].copy_from_slice(now.frame_lengths());
            now.cut_padding(done, |lane, length| {
                truncate(frames, first + lane, length);
                lengths[first + lane] = length;
            });
            left[first / 64] |= u64::from(every(end - first) & !done & !dropped) << (first % 64);
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
        let Self { form, frames, port, lengths, known, plain, refused, .. } = self;
        let PlainPath { pause, mixed, chunks: PlainChunks { ipv4: [ipv4, _], ipv6: [ipv6, _] }, lanes } =
            plain;
        let left = Mask::NONE;
        let mut sorted =
            Sorted { tables, view, vrf, filter, form: *form, known, port, lengths, refused, left };
        let (mut from, mut fetched, mut counts) = (0, 0, [0; 2]);
        while from < frames.len() {
            // Two chunks have room for as many.
            let ahead = frames.len().min(from + 2 * CHUNK);
            frames[fetched..ahead].iter().flatten().for_each(F::prefetch);
            fetched = ahead;
            from = sort(frames, from, lanes, &mut sorted.left);
            let ends = from == frames.len();
            if ends || lanes[0].is_full() {
                counts[0] += sorted.finish(frames, ipv4, &mut lanes[0]);
            }
            if ends || lanes[1].is_full() {
                counts[1] += sorted.finish(frames, ipv6, &mut lanes[1]);
            }
        }
        let left = sorted.left;
        *mixed = counts.iter().all(|count| count * MIXED >= frames.len());
        if are_few_plain(&left, frames.len()) {
            *pause = NOT_PLAIN;
        }
        *self.family = if counts[0] >= counts[1] { Family::V4 } else { Family::V6 };
        left
    }
}

/// What frames need that were sorted by family.
struct Sorted<'a> {
    tables: &'a Tables,
    view: &'a PortView,
    vrf: &'a Vrf,
    filter: Option<&'a PortFilter<'a>>,
    form: Form,
    known: &'a mut KnownHops,
    port: &'a mut [u16; BURST],
    lengths: &'a mut [u16; BURST],
    refused: &'a mut Refused,
    left: Mask,
}

impl Sorted<'_> {
    /// Forwards those frames in the lanes that are plain, and empties these; returns how many frames there were.
    #[inline(never)]
    #[allow(unsafe_code)]
    fn finish<A: RoutedFamily, F: AnyFrame>(
        &mut self,
        frames: &mut [Option<F>],
        chunk: &mut Chunk<A>,
        lanes: &mut Lanes,
    ) -> usize {
        chunk.gather_sorted(lanes);
        let Self { tables, view, vrf, filter, form, known, port, lengths, refused, left } = self;
        let mut ports = [0; CHUNK];
        let count = chunk.places().len();
        let wanted = asked::<A>(tables, view).zip(PacketFilters::of::<A>(tables, view, *filter));
        let (done, dropped) = wanted.map_or((0, 0), |(asked, filters)| {
            let fib = A::fib(vrf);
            // SAFETY: the frames are borrowed, and nothing happened to them since they were sorted; the same below.
            unsafe { chunk.check(*form, asked) };
            if filters.reverse.is_some() {
                // SAFETY: see above.
                unsafe { chunk.read_sources() };
            }
            let (destinations, hops) = chunk.lookup();
            fib.lookup_burst(destinations, hops);
            // SAFETY: see above.
            let dropped = unsafe { filters.pass(*form, tables, fib, chunk) };
            // SAFETY: see above.
            let done = unsafe { chunk.rewrite(tables, known, &mut ports[..count]) };
            filters.count(chunk, done);
            (done, dropped)
        });
        let place_of = |lane: usize| usize::from(chunk.places()[lane]);
        each_bit(dropped, |lane| refused.add(place_of(lane), Refusal::Drop(Reason::Filter)));
        for ((&place, &to), &length) in chunk.places().iter().zip(&ports).zip(chunk.frame_lengths()) {
            port[usize::from(place)] = to;
            lengths[usize::from(place)] = length;
        }
        each_bit(every(count) & !done & !dropped, |lane| left.set(place_of(lane)));
        chunk.cut_padding(done, |lane, length| {
            let place = place_of(lane);
            truncate(frames, place, length);
            lengths[place] = length;
        });
        count
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
