//! Filters ahead of everything else: before hooks at ingress, which see only what filters let pass, and where packets must
//! be filtered just once, since each counts for a rate.

use bm_frame::Mask;
use bm_graph::Io;
use bm_stats::Reason;
use bm_wire::Family;

use super::burst::FastPath;
use super::{CHUNK, Criteria, FastFamily, every};
use crate::burst::RoutedBurst;
use crate::compiled::PortView;
use crate::filter::{FilterVerdict, PlainFilter, PortFilter};
use crate::output::Output;
use crate::tables::Tables;

/// The frames of a burst that filters let pass, and those that they drop. Other frames must be looked at one by one.
#[derive(Clone, Copy)]
struct FilterResult {
    passed: Mask,
    dropped: Mask,
}

impl FilterResult {
    const NONE: Self = Self { passed: Mask::NONE, dropped: Mask::NONE };
}

impl FastPath {
    /// Removes what filters drop or leave to Linux; afterwards the burst has no gaps.
    #[inline(never)]
    pub fn filter_first(
        &mut self,
        tables: &Tables,
        filter: &PortFilter<'_>,
        burst: &mut RoutedBurst,
        io: &mut Io<'_>,
        output: &mut Output<'_>,
    ) {
        burst.write_headers();
        let view = filter.view();
        let result = match PlainFilter::of(filter).filter(|_| self.is_likely_plain()) {
            None => FilterResult::NONE,
            Some(filter) => match self.family {
                Family::V4 => self.filter_family::<u32>(tables, view, &filter, burst),
                Family::V6 => self.filter_family::<u128>(tables, view, &filter, burst),
            },
        };
        let left = Mask::first(burst.frames.len()).without(&result.passed);
        let mut has_gaps = false;
        for place in left.iter() {
            let taken = if result.dropped.has(place) {
                Some(FilterVerdict::Drop(Reason::Filter))
            } else {
                burst.frames.get(place).and_then(|frame| filter.takes(frame.data()))
            };
            let Some(taken) = taken else { continue };
            if let Some(frame) = burst.frames.take(place) {
                output.refuse(io, frame, taken.into());
                has_gaps = true;
            }
        }
        if has_gaps {
            burst.frames.compact();
        }
    }

    /// Filters those frames that are plain packets of one family.
    #[inline(never)]
    fn filter_family<A: FastFamily>(
        &mut self,
        tables: &Tables,
        view: &PortView,
        filter: &PlainFilter<'_>,
        burst: &mut RoutedBurst,
    ) -> FilterResult {
        let Some(criteria) = Criteria::of::<A>(tables, view) else { return FilterResult::NONE };
        let Self { form, chunks, .. } = self;
        let [now, next, ..] = A::chunks(chunks);
        let (mut now, mut next) = (now, next);
        let (mut passed, mut dropped) = ([0; 4], [0; 4]);
        let frames = burst.frames.places_mut();
        let count = frames.len();
        now.gather(&mut frames[..CHUNK.min(count)]);
        for first in (0..count).step_by(CHUNK) {
            let end = count.min(first + CHUNK);
            if end < count {
                // Which prefetches them.
                next.gather(&mut frames[end..count.min(end + CHUNK)]);
            }
            // SAFETY: nothing happens to the frames in between, since they are borrowed.
            let (pass, drop) = unsafe {
                now.check(*form, criteria);
                now.filter_and_count(*form, filter)
            };
            passed[first / 64] |= u64::from(pass & every(end - first)) << (first % 64);
            dropped[first / 64] |= u64::from(drop & every(end - first)) << (first % 64);
            std::mem::swap(&mut now, &mut next);
        }
        FilterResult { passed: Mask::from_words(passed), dropped: Mask::from_words(dropped) }
    }
}
