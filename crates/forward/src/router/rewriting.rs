//! Stage four over a burst: the fast case if all frames are alike, a check of each if they are not.

use bm_fib::NextHop;
use bm_frame::{BURST, Frame};
use bm_wire::ethernet;

use super::Work;
use super::family::RoutedFamily;
use crate::lookup::FamilyBatch;
use crate::rewrite::fast::{self, Eight, KnownHops, LANES};
use crate::tables::Tables;
use crate::validate::Facts;
use crate::verdict::{Refusal, Refused};

impl Work {
    #[inline(never)]
    pub(super) fn rewrite<A: RoutedFamily>(&mut self, tables: &Tables) {
        let Self { burst, refused, batches, arrivals, port, known, .. } = self;
        let known = known.of_port();
        let batch = &*A::batch(batches);
        let fast = self.untagged && batch.mask == self.all;
        let rewrite = Rewrite { tables, known, batch, frames: burst.places_mut(), arrivals, port };
        A::rewrite(rewrite, fast, refused);
    }
}

/// One family's frames, at the stage where they become what leaves.
pub(super) struct Rewrite<'a, A> {
    tables: &'a Tables,
    known: &'a mut KnownHops,
    batch: &'a FamilyBatch<A>,
    frames: &'a mut [Option<Frame>],
    arrivals: &'a [(u16, u16); BURST],
    port: &'a mut [u16; BURST],
}

impl<A> Rewrite<'_, A> {
    /// Rewrites all frames of the batch, and stores the ports of those without an objection. `fast` says that
    /// these are all of the burst, and that none has a tag.
    #[inline(always)]
    pub fn all<const HEAD: usize, const SPENT: usize>(
        mut self,
        fast: bool,
        careful: CarefulRewrite,
        refused: &mut Refused,
    ) {
        if fast {
            let eights = self.frames.len() / LANES;
            for first in (0..eights).map(|eight| eight * LANES) {
                // Written frames have left the first-level cache since they were read, and so have their headers.
                if let Some(next) = self.frames[first..].as_chunks::<LANES>().0.get(1) {
                    next.iter().flatten().for_each(Frame::prefetch_header);
                }
                let done = self.eight::<HEAD, SPENT>(first);
                for place in first + done..first + LANES {
                    self.one::<HEAD, SPENT>(place, careful, refused);
                }
            }
            for place in eights * LANES..self.frames.len() {
                self.one::<HEAD, SPENT>(place, careful, refused);
            }
            return;
        }
        for place in self.batch.mask.iter() {
            if self.arrivals[place].1 == ethernet::HEADER_LEN as u16 {
                self.one::<HEAD, SPENT>(place, careful, refused);
            } else {
                self.carefully(place, careful, refused);
            }
        }
    }

    /// Eight at a time, from `first` on; returns how many of them are done.
    #[inline(always)]
    fn eight<const HEAD: usize, const SPENT: usize>(&mut self, first: usize) -> usize {
        let FamilyBatch { hops, facts, .. } = self.batch;
        let columns = (hops[first..].first_chunk(), facts.lengths[first..].first_chunk());
        let more = (facts.ttl[first..].first_chunk(), facts.spent[first..].first_chunk());
        let to = (self.frames[first..].first_chunk_mut(), self.port[first..].first_chunk_mut());
        let ((Some(hops), Some(lengths)), (Some(left), Some(spent)), (Some(frames), Some(ports))) =
            (columns, more, to)
        else {
            return 0;
        };
        let eight = Eight { hops, lengths, left, spent };
        fast::rewrite_eight::<HEAD, SPENT>(self.known, &eight, frames, ports)
    }

    #[inline(always)]
    fn one<const HEAD: usize, const SPENT: usize>(
        &mut self,
        place: usize,
        careful: CarefulRewrite,
        refused: &mut Refused,
    ) {
        let Some(frame) = &mut self.frames[place] else { return };
        let (hop, facts) = (self.batch.hops[place], self.batch.facts.get(place));
        let to = fast::rewrite::<HEAD, SPENT>(self.tables, self.known, hop, facts, frame);
        self.port[place] = to;
        if to == fast::NOT_FAST {
            self.carefully(place, careful, refused);
        }
    }

    #[cold]
    #[inline(never)]
    fn carefully(&mut self, place: usize, careful: CarefulRewrite, refused: &mut Refused) {
        let Some(frame) = &mut self.frames[place] else { return };
        let (hop, facts) = (self.batch.hops[place], self.batch.facts.get(place));
        match careful(self.tables, hop, facts, self.arrivals[place], frame) {
            Ok(to) => self.port[place] = to,
            Err(why) => refused.add(place, why),
        }
    }
}

/// What a family does with a frame that is not plain.
type CarefulRewrite = fn(&Tables, NextHop, Facts, (u16, u16), &mut Frame) -> Result<u16, Refusal>;
