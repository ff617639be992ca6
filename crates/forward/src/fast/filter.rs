//! Filters and the reverse path filter, between check and rewriting.
//!
//! ```text
//! filters:       keys of eight frames -> rules -> passed | dropped | neither: left to the stages
//! reverse path:  sources of 32 frames -> looked up together -> leads out of the right interface | left to the stages
//! ```
//!
//! Only packets that certainly pass stay plain, so the stages find the reason for all others.

use bm_fib::next_hop::NextHops;
use bm_fib::{Fib, Form, NextHop};
use bm_filter::{Header, Matches, VectorsOn};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::chunk::Chunk;
use super::{CHUNK, Criteria, FastFamily, LANES};
use crate::filter::PlainFilter;
use crate::tables::ReversePath;

/// In place of a header that is not looked at.
static NO_HEADER: Header = [0; size_of::<Header>()];

/// The reverse path filter of an interface where it is on.
#[derive(Clone, Copy)]
pub(super) struct ReverseFilter {
    pub strictness: ReversePath,
    pub interface: u16,
}

impl<A: FastFamily> Chunk<A> {
    /// Asks the filters about the plain frames: those that may not pass, or must be looked at one by one, are not plain
    /// afterwards.
    /// Returns a bit for each that is to be dropped.
    ///
    /// # Safety
    /// As for [`check`](Self::check), which was called for these frames.
    #[inline(never)]
    pub unsafe fn filter(&mut self, form: Form, filter: &PlainFilter<'_>) -> u32 {
        if let Some(vectors) = A::vectors(filter) {
            // SAFETY: the caller's promise.
            return unsafe { self.filter_by_vectors(form, filter, vectors) };
        }
        let all = std::mem::take(&mut self.plain);
        // SAFETY: the caller's promise.
        unsafe { self.filter_by_keys(filter, all) }
    }

    /// As [`filter`](Self::filter), where no other stage comes in between: counts those that pass. Returns a bit for each
    /// frame that passes, and for each that is to be dropped.
    ///
    /// # Safety
    /// As for [`check`](Self::check), which was called for these frames.
    pub unsafe fn filter_and_count(&mut self, form: Form, filter: &PlainFilter<'_>) -> (u32, u32) {
        // SAFETY: the caller's promise.
        let dropped = unsafe { self.filter(form, filter) };
        self.count_passed(filter, self.plain);
        (self.plain, dropped)
    }

    /// Compares the keys of those frames whose bit is set in `frames` with the rules. Those that pass are plain afterwards.
    ///
    /// # Safety
    /// As for [`check`](Self::check), which was called for these frames, and found them plain.
    #[inline(always)]
    unsafe fn filter_by_keys(&mut self, filter: &PlainFilter<'_>, frames: u32) -> u32 {
        let mut dropped = 0;
        for first in (0..self.lanes.count.min(CHUNK)).step_by(LANES) {
            let mut wanted = (frames >> first) as u8;
            for lane in 0..LANES {
                if wanted >> lane & 1 == 0 {
                    continue;
                }
                let place = first + lane;
                let length = usize::from(self.lanes.frame_lengths[place]);
                // SAFETY: a plain lane has a frame of that length, which is the caller's and is not written meanwhile.
                let frame = unsafe { std::slice::from_raw_parts(self.lanes.heads.0[place], length) };
                if !A::key(filter, frame, self.lengths[place], &mut self.keys[lane]) {
                    wanted &= !(1 << lane);
                }
            }
            let outcome = filter.take_each(&self.keys, wanted);
            self.plain |= u32::from(outcome.passed) << first;
            dropped |= u32::from(outcome.dropped) << first;
            for lane in 0..LANES {
                if wanted >> lane & 1 == 1 {
                    self.counters[first + lane] = outcome.counters[lane];
                }
            }
        }
        dropped
    }

    /// Compares the headers of plain frames with the rules' bit vectors, which need no keys.
    ///
    /// # Safety
    /// As for [`check`](Self::check), which was called for these frames.
    #[inline(always)]
    unsafe fn filter_by_vectors(
        &mut self,
        form: Form,
        filter: &PlainFilter<'_>,
        vectors: VectorsOn<'_>,
    ) -> u32 {
        let (mut dropped, mut short) = (0, 0);
        for first in (0..self.lanes.count.min(CHUNK)).step_by(LANES) {
            let plain = (self.plain >> first) as u8;
            // SAFETY: the caller's promise.
            let (found, wanted) = unsafe { self.find(form, &vectors, first, plain) };
            let outcome = filter.take_found(&found, wanted, |lane| {
                // SAFETY: a wanted lane is plain, so its frame is the caller's.
                let header = unsafe { self.header(first + lane) };
                filter.key_of(header.unwrap_or(&NO_HEADER))
            });
            short |= u32::from(plain & !wanted) << first;
            self.plain = self.plain & !(0xff << first) | u32::from(outcome.passed) << first;
            dropped |= u32::from(outcome.dropped) << first;
            self.counters[first..first + LANES].copy_from_slice(&outcome.counters);
        }
        if short != 0 {
            // SAFETY: as above.
            dropped |= unsafe { self.filter_by_keys(filter, short) };
        }
        dropped
    }

    /// What vectors find for the packets of eight lanes from `first` on, and which of the plain ones have all that is
    /// compared.
    ///
    /// # Safety
    /// As for [`check`](Self::check), which was called for these frames.
    #[inline(always)]
    unsafe fn find(&self, form: Form, vectors: &VectorsOn<'_>, first: usize, plain: u8) -> (Matches, u8) {
        #[cfg(target_arch = "x86_64")]
        if form != Form::SCALAR
            && let (Some(heads), Some(frames), Some(packets)) = (
                self.lanes.heads.0[first..].first_chunk(),
                self.lanes.frame_lengths[first..].first_chunk(),
                self.lengths[first..].first_chunk(),
            )
            // SAFETY: heads and lengths are those of frames, which are the caller's, or the length is 0. Every form but the
            // scalar one has AVX2.
            && let Some((found, whole)) = unsafe { avx2::filter(heads, frames, packets, vectors) }
        {
            return (found, plain & whole);
        }
        let _ = form;
        let mut wanted = plain;
        let headers = std::array::from_fn(|lane| {
            // SAFETY: a plain lane has a frame, which is the caller's.
            let header = if plain >> lane & 1 == 1 { unsafe { self.header(first + lane) } } else { None };
            wanted &= !(u8::from(header.is_none()) << lane);
            header.unwrap_or(&NO_HEADER)
        });
        (vectors.find_each(headers), wanted)
    }

    /// The bytes that vectors are compared with; `None` if the packet is too short for that.
    ///
    /// # Safety
    /// The lane has a frame, which is the caller's and is not written meanwhile.
    #[inline(always)]
    unsafe fn header(&self, lane: usize) -> Option<&Header> {
        let length = usize::from(self.lanes.frame_lengths[lane]);
        // SAFETY: the frame has that length; see above.
        let frame = unsafe { std::slice::from_raw_parts(self.lanes.heads.0[lane], length) };
        PlainFilter::header(frame, self.lengths[lane])
    }

    /// Counts the frames that filters let pass and that have been rewritten.
    #[inline]
    pub fn count_passed(&self, filter: &PlainFilter<'_>, done: u32) {
        filter.count(&self.counters, done);
    }

    /// Checks the frames, and prefetches what a lookup of their sources will read, if there is a reverse path filter.
    ///
    /// # Safety
    /// As for [`check`](Self::check).
    #[inline(always)]
    pub unsafe fn check_ahead<const FILTERED: bool>(
        &mut self,
        form: Form,
        criteria: Criteria<'_>,
        fib: &dyn Fib<Address = A>,
        reverse: Option<ReverseFilter>,
    ) {
        // SAFETY: the caller's promise is that of `check`.
        unsafe { self.check(form, criteria) };
        if FILTERED && reverse.is_some() {
            // SAFETY: see above.
            fib.prefetch(unsafe { self.read_sources() });
        }
    }

    /// Reads the sources of all frames, and returns them; in whole groups, like destinations.
    ///
    /// # Safety
    /// As for [`check`](Self::check).
    #[inline(always)]
    pub unsafe fn read_sources(&mut self) -> &[A] {
        let count = self.lanes.count.next_multiple_of(LANES).min(CHUNK);
        let heads = &self.lanes.heads.0[..count];
        for (source, head) in self.sources.iter_mut().zip(heads) {
            // SAFETY: gathering has filled whole groups with frames of at least `HEAD` bytes, the caller's, or with
            // `NOTHING`, which has as many. Both addresses are the end of the header.
            let bytes =
                unsafe { std::slice::from_raw_parts(head.add(A::HEAD - 2 * size_of::<A>()), size_of::<A>()) };
            *source = A::from_bytes(bytes).unwrap_or_default();
        }
        &self.sources[..count]
    }

    /// The columns of the lookup of sources.
    #[inline(always)]
    pub fn reverse_lookup(&mut self) -> (&[A], &mut [NextHop]) {
        let count = self.lanes.count.next_multiple_of(LANES).min(CHUNK);
        (&self.sources[..count], &mut self.back[..count])
    }

    /// Only frames whose route back is an ordinary one that passes stay plain. With several next hops, or none known
    /// yet, the stages decide.
    #[inline(always)]
    pub fn check_reverse(&mut self, next_hops: &NextHops, by: ReverseFilter) {
        let mut passed = 0;
        for (lane, &hop) in self.back.iter().enumerate().take(self.lanes.count) {
            let entry = next_hops.entry(hop);
            let leads_back = by.strictness == ReversePath::Loose || entry.interface() == by.interface;
            passed |= u32::from(entry.is_forward() & leads_back) << lane;
        }
        self.plain &= passed;
    }
}
