//! Lines: which are free, and in blocks of which size.
//!
//! The children of a fork are adjacent, so lines are allocated in blocks of one to sixteen. A change allocates
//! blocks, fills them, and then either commits (they are linked, and what they replace waits for the readers) or
//! frees them, so that a full table stays unchanged.

use super::Range6Fib;
use super::line::{CHILDREN, Cells, Line};
use crate::Shortage;
use crate::published::{Readers, Retired};
use std::sync::Arc;

/// Lines side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub start: u32,
    pub lines: usize,
}

/// The writer's account of all lines.
#[derive(Debug)]
pub(crate) struct Arena {
    fib: Arc<Range6Fib>,
    /// All lines that were ever used are below this.
    used: usize,
    /// Free blocks by size.
    free: [Vec<u32>; CHILDREN + 1],
    retired: Retired<Block>,
    /// By the change in progress: what it allocated, and what it replaces.
    taken: Vec<Block>,
    dropped: Vec<Block>,
}

impl Arena {
    pub fn new(fib: Arc<Range6Fib>, readers: &Readers) -> Self {
        let (free, retired) = (Default::default(), Retired::new(readers));
        Self { fib, used: 0, free, retired, taken: Vec::new(), dropped: Vec::new() }
    }

    /// How many lines were ever in use at once, gaps between blocks included.
    pub(crate) fn ever_used(&self) -> usize {
        self.used
    }

    #[inline]
    pub fn line(&self, index: u32) -> &Line {
        &self.fib.lines[index as usize]
    }

    /// The content of a line.
    pub fn cells(&self, index: u32) -> Cells {
        self.line(index).load()
    }

    /// A block of as many lines as there are `contents`, filled with them.
    pub fn place(&mut self, contents: impl ExactSizeIterator<Item = Cells>) -> Result<u32, Shortage> {
        let start = self.take(contents.len())?;
        for (index, cells) in (start..).zip(contents) {
            self.line(index).fill(&cells);
        }
        Ok(start)
    }

    /// A copy of a block, with another line at `place`.
    pub fn copy(&mut self, block: Block, place: usize, cells: &Cells) -> Result<u32, Shortage> {
        let start = self.take(block.lines)?;
        for i in (0..block.lines as u32).filter(|i| *i as usize != place) {
            self.line(start + i).fill(&self.cells(block.start + i));
        }
        self.line(start + place as u32).fill(cells);
        Ok(start)
    }

    /// The change under way puts this out of reach.
    pub(crate) fn drop_block(&mut self, start: u32, lines: usize) {
        self.dropped.push(Block { start, lines });
    }

    /// The change under way is linked.
    pub fn commit(&mut self) {
        self.taken.clear();
        self.retired.extend(self.dropped.drain(..));
    }

    /// The change under way was for nothing.
    pub fn give_back(&mut self) {
        self.dropped.clear();
        while let Some(block) = self.taken.pop() {
            self.free[block.lines].push(block.start);
        }
    }

    /// Reverts changes that readers may have seen: nothing was replaced, and what was allocated waits for the
    /// readers.
    pub fn withdraw(&mut self) {
        self.dropped.clear();
        self.retired.extend(self.taken.drain(..));
    }

    pub fn reclaim(&mut self) {
        for block in self.retired.take_passed() {
            self.free[block.lines].push(block.start);
        }
    }

    fn take(&mut self, lines: usize) -> Result<u32, Shortage> {
        if self.free[lines].is_empty() && !self.retired.is_empty() {
            self.reclaim();
        }
        let start = match self.free[lines].pop() {
            Some(start) => start,
            None => self.split(lines).or_else(|| self.fresh(lines)).ok_or(Shortage::Blocks)?,
        };
        self.taken.push(Block { start, lines });
        Ok(start)
    }

    /// A part of the least free block that is larger.
    fn split(&mut self, lines: usize) -> Option<u32> {
        let larger = (lines + 1..=CHILDREN).find(|larger| !self.free[*larger].is_empty())?;
        let start = self.free[larger].pop()?;
        self.free[larger - lines].push(start + lines as u32);
        Some(start)
    }

    fn fresh(&mut self, lines: usize) -> Option<u32> {
        let start = self.used;
        (start + lines <= self.fib.lines.writable().len()).then(|| {
            self.used += lines;
            start as u32
        })
    }

    /// As if every line were in use, except for this many.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub fn leave(&mut self, lines: usize) {
        self.free = Default::default();
        self.used = self.fib.lines.len() - lines;
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::Source;

    fn arena() -> Arena {
        Arena::new(Arc::new(Range6Fib::new(&Source::anonymous()).unwrap()), &Readers::new())
    }

    #[test]
    fn gives_back_what_no_change_needs() {
        let mut arena = arena();
        let first = arena.take(16).unwrap();
        arena.drop_block(first, 16);
        arena.give_back();
        assert_eq!(arena.take(16), Ok(first));
        arena.commit();
        assert_eq!(arena.ever_used(), 16);
    }

    #[test]
    fn cuts_larger_blocks_before_it_grows() {
        let mut arena = arena();
        let first = arena.take(16).unwrap();
        arena.drop_block(first, 16);
        arena.commit();
        assert_eq!([arena.take(5), arena.take(11), arena.take(1)], [Ok(first), Ok(first + 5), Ok(16)]);
    }

    #[test]
    fn copies_all_lines_but_one() {
        let mut arena = arena();
        let start = arena.place((0..3).map(|i| [i; 16])).unwrap();
        let copy = arena.copy(Block { start, lines: 3 }, 1, &[9; 16]).unwrap();
        assert_eq!([0, 1, 2].map(|i| arena.cells(copy + i)[5]), [0, 9, 2]);
        arena.leave(0);
        assert_eq!(arena.place([[0; 16]].into_iter()), Err(Shortage::Blocks));
    }
}
