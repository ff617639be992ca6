//! Filters before hooks at ingress, which see only what filters let pass: plain frames in chunks, all others one by one.

use bm_frame::{AnyFrame, Mask};
use bm_graph::Io;
use bm_stats::Reason;
use bm_wire::Family;

use super::Work;
use super::family::RoutedFamily;
use super::plain::{PlainBurst, asked};
use crate::compiled::PortView;
use crate::entrance::Entrance;
use crate::filter::{PlainFilter, PortFilter, Taken};
use crate::output::Tally;
use crate::plain::{CHUNK, every};
use crate::tables::Tables;

/// What became of the plain frames of a burst; those in neither mask need a closer look.
#[derive(Clone, Copy)]
struct Filtered {
    passed: Mask,
    dropped: Mask,
}

impl Work {
    /// Removes what filters drop or leave to Linux, so that hooks do not see it; afterwards the burst has no gaps.
    #[inline(never)]
    pub(super) fn filter_before_hooks(
        &mut self,
        tables: &Tables,
        filter: &PortFilter<'_>,
        io: &mut Io<'_>,
        mut tally: Tally<'_>,
        (entrance, outputs): (&mut Entrance, &[u16]),
    ) {
        let Filtered { passed, dropped } = self.filter_plain(tables, filter);
        let left = Mask::first(self.burst.len()).without(&passed);
        for place in left.iter() {
            let taken = if dropped.has(place) {
                Some(Taken::Drop(Reason::Filter))
            } else {
                self.burst.get(place).and_then(|frame| filter.takes(frame.data()))
            };
            if let Some((taken, frame)) = taken.and_then(|taken| Some((taken, self.burst.take(place)?))) {
                tally.refuse(io, entrance, outputs, frame, taken.into());
            }
        }
        tally.close();
        if !left.is_empty() {
            self.burst.compact();
        }
    }

    fn filter_plain(&mut self, tables: &Tables, filter: &PortFilter<'_>) -> Filtered {
        let Self { form, family, burst, port, lengths, known, plain, refused, .. } = self;
        let known = known.of_port();
        let frames = burst.places_mut();
        let mut burst = PlainBurst { form: *form, family, frames, port, lengths, known, plain, refused };
        match PlainFilter::of(filter).filter(|_| burst.is_likely_plain()) {
            None => Filtered { passed: Mask::NONE, dropped: Mask::NONE },
            Some(by) => match *burst.family {
                Family::V4 => burst.filter::<u32>(tables, filter.view(), &by),
                Family::V6 => burst.filter::<u128>(tables, filter.view(), &by),
            },
        }
    }
}

impl<F: AnyFrame> PlainBurst<'_, F> {
    /// Filters those frames that are plain packets of one family.
    #[inline(never)]
    #[allow(unsafe_code)]
    fn filter<A: RoutedFamily>(
        &mut self,
        tables: &Tables,
        view: &PortView,
        filter: &PlainFilter<'_>,
    ) -> Filtered {
        let Self { form, frames, plain, .. } = self;
        let [now, next] = A::chunks(&mut plain.chunks);
        let (mut now, mut next) = (now, next);
        let (mut passed, mut dropped) = ([0; 4], [0; 4]);
        let Some(asked) = asked::<A>(tables, view) else {
            return Filtered { passed: Mask::NONE, dropped: Mask::NONE };
        };
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
                now.check(*form, asked);
                now.filter_and_count(*form, filter)
            };
            passed[first / 64] |= u64::from(pass & every(end - first)) << (first % 64);
            dropped[first / 64] |= u64::from(drop & every(end - first)) << (first % 64);
            std::mem::swap(&mut now, &mut next);
        }
        Filtered { passed: Mask::from_words(passed), dropped: Mask::from_words(dropped) }
    }
}
