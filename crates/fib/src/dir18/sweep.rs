//! From routes to entries: one pass over the rib with a stack of the routes that contain the current address.
//!
//! ```text
//! rib, in order -> runs (start, next hop) -> slots -> values of a block -> entry
//!                                              `- a /24 with more than one run: a fork
//! ```

use super::blocks::{Blocks, Values};
use super::{BLOCK, ROOT_LENGTH};
use crate::rib::Rib;
use crate::{NextHop, Shortage};
use bm_wire::prefix::Prefix;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Addresses of a slot of the root.
const SLOT: u32 = 1 << (32 - ROOT_LENGTH);
/// Addresses of a /24.
const MIDDLE: u32 = 256;
/// Addresses of a quarter of a /24.
const QUARTER: u32 = 64;

/// A run of addresses that starts here, by its offset in the slot, and its next hop.
type Run = (u32, u32);

/// The result of a sweep: slots whose entry changes.
pub type Entries = Vec<(u32, u32)>;

/// Splits the addresses from `first` to `last` into runs of one next hop each, according to the rib, and calls `run`
/// with each run's start, in order.
pub fn runs(
    rib: &Rib<u32>,
    first: u32,
    last: u32,
    mut run: impl FnMut(u32, u32) -> Result<(), Shortage>,
) -> Result<(), Shortage> {
    let (holding, behind) = rib.around(first);
    let mut open: Vec<(u32, u32)> = vec![(u32::MAX, NextHop::NONE.0)];
    open.extend(holding.into_iter().map(|(prefix, hop)| (prefix.last(), hop.0)));
    // The run that starts at `next.0`, unless another starts there as well; and the value of the last one.
    let (mut next, mut before) = ((first, top(&open)), u32::MAX);
    let mut begin = |start: u32, hop: u32| {
        if start > next.0 {
            if next.1 != before {
                run(next.0, next.1)?;
                before = next.1;
            }
            next.0 = start;
        }
        next.1 = hop;
        Ok(())
    };
    for (prefix, hop) in behind.take_while(|(prefix, _)| prefix.first() <= last) {
        while let Some((end, _)) = open.pop_if(|(end, _)| *end < prefix.first()) {
            begin(end + 1, top(&open))?;
        }
        open.push((prefix.last(), hop.0));
        begin(prefix.first(), hop.0)?;
    }
    while let Some((end, _)) = open.pop_if(|(end, _)| *end < last) {
        begin(end + 1, top(&open))?;
    }
    if next.1 != before { run(next.0, next.1) } else { Ok(()) }
}

fn top(open: &[(u32, u32)]) -> u32 {
    open.last().map_or(NextHop::NONE.0, |(_, hop)| *hop)
}

/// Turns runs into entries.
pub struct Slots<'a> {
    pub blocks: &'a mut Blocks,
    /// The entries of all slots as they are now.
    root: &'a [AtomicU32],
    pub changed: &'a mut Entries,
    slot: u32,
    runs: Vec<Run>,
}

impl<'a> Slots<'a> {
    /// From slot `first` on.
    pub fn new(first: u32, blocks: &'a mut Blocks, root: &'a [AtomicU32], changed: &'a mut Entries) -> Self {
        Self { blocks, root, changed, slot: first, runs: Vec::new() }
    }

    /// The next run begins.
    pub fn run(&mut self, start: u32, hop: u32) -> Result<(), Shortage> {
        if start / SLOT > self.slot {
            self.fill_to(start / SLOT)?;
            if start.is_multiple_of(SLOT) {
                self.runs.clear();
            }
        }
        self.runs.push((start % SLOT, hop));
        Ok(())
    }

    /// Completes all slots before `end`; the last run continues into `end`.
    pub(crate) fn fill_to(&mut self, end: u32) -> Result<(), Shortage> {
        let hop = self.runs.last().map_or(NextHop::NONE.0, |(_, hop)| *hop);
        let entry = match self.runs[..] {
            [_] => hop,
            _ => slot_entry(self.blocks, &self.runs, self.old_entry(self.slot))?,
        };
        self.record(self.slot, entry);
        for slot in self.slot + 1..end {
            self.record(slot, hop);
        }
        self.slot = end;
        self.runs.clear();
        self.runs.push((0, hop));
        Ok(())
    }

    fn old_entry(&self, slot: u32) -> u32 {
        self.root[slot as usize].load(Relaxed)
    }

    fn record(&mut self, slot: u32, entry: u32) {
        if entry != self.old_entry(slot) {
            self.changed.push((slot, entry));
        }
    }

    /// The first address of the slot at work: where it is when there was no room.
    pub fn at(&self) -> Prefix<u32> {
        Prefix::containing(self.slot * SLOT, ROOT_LENGTH).expect("18 is within 32")
    }
}

/// The entry of a slot with these runs, the first of which starts at 0.
fn slot_entry(blocks: &mut Blocks, runs: &[Run], old: u32) -> Result<u32, Shortage> {
    let mut values = Values::new();
    let (mut rest, mut hop) = (runs, runs[0].1);
    while let [(start, first_hop), ..] = *rest {
        let middle = start / MIDDLE;
        let here = rest.iter().take_while(|(start, _)| start / MIDDLE == middle).count();
        let (within, behind) = rest.split_at(here);
        if start.is_multiple_of(MIDDLE) && here == 1 {
            values.push(middle, first_hop);
            hop = first_hop;
        } else {
            values.push(middle, fork(blocks, hop, within)?);
            hop = within[here - 1].1;
            let goes_on = behind.first().is_none_or(|(start, _)| start / MIDDLE != middle + 1);
            if goes_on && middle < SLOT / MIDDLE - 1 {
                values.push(middle + 1, hop);
            }
        }
        rest = behind;
    }
    blocks.entry(&values, old)
}

/// A fork for a /24 with these runs; `hop` applies before the first of them.
fn fork(blocks: &mut Blocks, mut hop: u32, runs: &[Run]) -> Result<u32, Shortage> {
    let mut quarters = [0; 4];
    for (quarter, entry) in (0u32..).zip(&mut quarters) {
        let mut values = Values::new();
        let mut within = runs.iter().filter(|(start, _)| start % MIDDLE / QUARTER == quarter).peekable();
        if within.peek().is_none_or(|(start, _)| start % QUARTER != 0) {
            values.push(0, hop);
        }
        for (start, next) in within {
            values.push(start % QUARTER, *next);
            hop = *next;
        }
        *entry = blocks.entry(&values, 0)?;
    }
    debug_assert!(hop < BLOCK);
    blocks.fork(quarters)
}
