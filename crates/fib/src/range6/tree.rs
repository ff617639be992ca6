//! Trees of one window: built from ranges, read back, and edited by copying.
//!
//! ```text
//!            top                       an edit packs the leaves around its keys anew ( * ), copies
//!        /    |    \                   their siblings beside them ( + ), and stores one cell: the
//!      fork  fork<-  fork              first child of the fork above ( <- ).
//!     / | \
//!    +  *  +                           What overflows is split, and the level above copied as well.
//! ```

use super::arena::Block;
use super::line::{self, CHILDREN, Cells, FIRST_CHILD, RANGES, Range, WIDE_RANGES, Word};
use super::sweep::{self, Window};
use super::{Link, Writer};
use crate::Shortage;
use crate::rib::Rib;
use std::ops::RangeInclusive;

/// A line that has no position yet: its first key, and its content.
type Piece = (u32, Cells);

/// A line on the way down: the keys it has, and which child of the line above it is.
#[derive(Clone, Copy, Debug)]
struct Step {
    line: u32,
    height: u32,
    low: u32,
    high: u32,
    place: usize,
}

/// The way down a tree to a leaf.
struct Path {
    /// The lines above the leaf, the root first.
    above: Vec<Step>,
    leaf: Step,
}

/// Merges adjacent ranges with equal words.
fn push(ranges: &mut Vec<Range>, range: Range) {
    if ranges.last().is_none_or(|(_, before)| *before != range.1) {
        ranges.push(range);
    }
}

/// `parts` nearly equal parts of `0..len`.
fn even(len: usize, parts: usize) -> impl ExactSizeIterator<Item = std::ops::Range<usize>> {
    (0..parts).map(move |i| len * i / parts..len * (i + 1) / parts)
}

impl Writer {
    /// A tree over `ranges` with at least `height_min` levels of forks; a single next hop needs none.
    pub fn tree(&mut self, ranges: &[Range], height_min: u32) -> Result<Word, Shortage> {
        match ranges {
            [(_, word)] if !word.is_tree() => Ok(*word),
            _ => {
                let pieces = self.pack(ranges);
                self.top(pieces, 0, height_min)
            }
        }
    }

    /// A tree for a whole window, according to the rib.
    pub(crate) fn window_tree(&mut self, rib: &Rib<u128>, window: Window) -> Result<Word, Shortage> {
        let ranges = self.swept(rib, window, &(0..=u32::MAX))?;
        self.tree(&ranges, window.height_min())
    }

    /// The ranges of `keys` of `window` according to the rib, with trees for deeper windows.
    pub fn swept(
        &mut self,
        rib: &Rib<u128>,
        window: Window,
        keys: &RangeInclusive<u32>,
    ) -> Result<Vec<Range>, Shortage> {
        sweep::ranges(rib, window, keys, |deeper| self.window_tree(rib, deeper))
    }

    /// All ranges of the tree, in order.
    pub fn collected(&self, tree: Word) -> Vec<Range> {
        let mut ranges = Vec::new();
        self.collect(tree.line(), tree.height(), 0, &mut ranges);
        ranges
    }

    /// The path of `key` to the cell of its range's word; `None` if the word is only a next hop of two bytes.
    pub fn find(&self, tree: Word, key: u32) -> Option<Link> {
        let mut line = tree.line();
        for _ in 0..tree.height() {
            let fork = self.arena.line(line);
            line = fork.cell(FIRST_CHILD) + fork.past::<8>(key) as u32;
        }
        self.arena.line(line).word_cell(key).map(|cell| Link::Cell { line, cell })
    }

    /// Frees the lines of a tree; with those of deeper windows if `deeper`.
    pub(crate) fn drop_tree(&mut self, tree: Word, deeper: bool) {
        if tree.is_tree() {
            self.drop_below(tree.line(), tree.height(), deeper);
            self.arena.drop_block(tree.line(), 1);
        }
    }

    /// Replaces the ranges of `keys` in the tree at `link` by `fresh`.
    pub fn edit(
        &mut self,
        link: Link,
        height_min: u32,
        keys: &RangeInclusive<u32>,
        fresh: &[Range],
    ) -> Result<(), Shortage> {
        let tree = self.load(link);
        let (left, right) = (self.path(tree, *keys.start()), self.path(tree, *keys.end()));
        let ranges = self.spliced(left.leaf, right.leaf, keys, fresh);
        match ranges[..] {
            [(_, word)] if left.leaf.low == 0 && right.leaf.high == u32::MAX && !word.is_tree() => {
                self.drop_tree(tree, true);
                self.stores.push((link, word.0));
                return Ok(());
            }
            _ => {}
        }
        self.drop_deeper(left.leaf, right.leaf, keys);
        let pieces = self.pack(&ranges);
        self.put(link, height_min, left, right, pieces)
    }

    /// Replaces the lines from the leaf of `left` to that of `right` by `pieces`, and copies as many levels above as
    /// that takes.
    fn put(
        &mut self,
        link: Link,
        height_min: u32,
        mut left: Path,
        mut right: Path,
        mut pieces: Vec<Piece>,
    ) -> Result<(), Shortage> {
        let (mut from, mut to) = (left.leaf, right.leaf);
        while let (Some(above_from), Some(above_to)) = (left.above.pop(), right.above.pop()) {
            let before = self.children(above_from);
            if above_from.line == above_to.line {
                self.drop_between(before, from.place + 1, to.place, from.height);
                self.arena.drop_block(before.start, before.lines);
                if let ([(_, piece)], true) = (&pieces[..], from.place == to.place) {
                    let copy = self.arena.copy(before, from.place, piece)?;
                    self.stores.push((Link::Cell { line: above_from.line, cell: FIRST_CHILD }, copy));
                    return Ok(());
                }
            } else {
                let behind = self.children(above_to);
                self.drop_between(before, from.place + 1, before.lines, from.height);
                self.drop_between(behind, 0, to.place, from.height);
                self.arena.drop_block(before.start, before.lines);
                self.arena.drop_block(behind.start, behind.lines);
            }
            let mut all = self.pieces(above_from, 0..from.place);
            all.append(&mut pieces);
            all.append(&mut self.pieces(above_to, to.place + 1..self.children(above_to).lines));
            pieces = self.raise(&all)?;
            (from, to) = (above_from, above_to);
        }
        self.arena.drop_block(from.line, 1);
        let word = self.top(pieces, from.height, height_min)?;
        self.stores.push((link, word.0));
        Ok(())
    }

    /// The way from the root of `tree` down to the leaf that has `key`.
    fn path(&self, tree: Word, key: u32) -> Path {
        let mut step = Step { line: tree.line(), height: tree.height(), low: 0, high: u32::MAX, place: 0 };
        let mut above = Vec::with_capacity(8);
        while step.height > 0 {
            above.push(step);
            let cells = self.arena.cells(step.line);
            let place = self.arena.line(step.line).past::<8>(key);
            // An unused end is the greatest key.
            let high = if place < FIRST_CHILD { step.high.min(cells[place]) } else { step.high };
            let low = line::start(&cells, place, step.low);
            step =
                Step { line: cells[FIRST_CHILD] + place as u32, height: step.height - 1, low, high, place };
        }
        Path { above, leaf: step }
    }

    /// The block with the children of a fork.
    fn children(&self, fork: Step) -> Block {
        let cells = self.arena.cells(fork.line);
        Block { start: cells[FIRST_CHILD], lines: line::count(&cells, CHILDREN) }
    }

    /// Some children of a fork.
    fn pieces(&self, fork: Step, places: std::ops::Range<usize>) -> Vec<Piece> {
        let cells = self.arena.cells(fork.line);
        places
            .map(|i| {
                let child = self.arena.cells(cells[FIRST_CHILD] + i as u32);
                (line::start(&cells, i, fork.low), child)
            })
            .collect()
    }

    /// The ranges of the leaves from `from` to `to`, with `fresh` in place of those of `keys`.
    fn spliced(&self, from: Step, to: Step, keys: &RangeInclusive<u32>, fresh: &[Range]) -> Vec<Range> {
        let (first, last) = (*keys.start(), *keys.end());
        let mut ranges = Vec::with_capacity(2 * RANGES + fresh.len());
        self.ranges(from).filter(|(start, _)| *start < first).for_each(|range| push(&mut ranges, range));
        fresh.iter().for_each(|range| push(&mut ranges, *range));
        if last < to.high {
            let next = last + 1;
            let old: Vec<Range> = self.ranges(to).collect();
            let behind = old.partition_point(|(start, _)| *start <= next);
            push(&mut ranges, (next, old[behind - 1].1));
            old[behind..].iter().for_each(|range| push(&mut ranges, *range));
        }
        ranges
    }

    /// The ranges of a leaf.
    fn ranges(&self, leaf: Step) -> impl Iterator<Item = Range> + use<> {
        line::ranges(self.arena.cells(leaf.line), leaf.low)
    }

    /// Drops deeper trees to which `keys` led in the outermost leaves.
    fn drop_deeper(&mut self, from: Step, to: Step, keys: &RangeInclusive<u32>) {
        let behind = self.ranges(to).filter(|_| from.line != to.line);
        for (key, word) in self.ranges(from).chain(behind) {
            // A range that leads deeper has one key.
            if keys.contains(&key) {
                self.drop_tree(word, true);
            }
        }
    }

    /// Frees everything below some lines of a block.
    fn drop_between(&mut self, block: Block, first: usize, end: usize, height: u32) {
        for place in first..end {
            self.drop_below(block.start + place as u32, height, true);
        }
    }

    fn drop_below(&mut self, line: u32, height: u32, deeper: bool) {
        let cells = self.arena.cells(line);
        if height > 0 {
            let (start, lines) = (cells[FIRST_CHILD], line::count(&cells, CHILDREN));
            for child in (start..).take(lines).take_while(|_| height > 1 || deeper) {
                self.drop_below(child, height - 1, deeper);
            }
            self.arena.drop_block(start, lines);
        } else if deeper {
            line::ranges(cells, 0).for_each(|(_, word)| self.drop_tree(word, true));
        }
    }

    fn collect(&self, line: u32, height: u32, low: u32, ranges: &mut Vec<Range>) {
        let cells = self.arena.cells(line);
        if height > 0 {
            for i in 0..line::count(&cells, CHILDREN) {
                let child = cells[FIRST_CHILD] + i as u32;
                self.collect(child, height - 1, line::start(&cells, i, low), ranges);
            }
        } else {
            line::ranges(cells, low).for_each(|range| push(ranges, range));
        }
    }

    /// Leaves over `ranges`, evenly filled; one that has to be wide may become two.
    fn pack(&self, ranges: &[Range]) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity(ranges.len().div_ceil(RANGES));
        for part in even(ranges.len(), ranges.len().div_ceil(RANGES)) {
            let part = &ranges[part];
            let leaves = if line::are_wide(part) { part.len().div_ceil(WIDE_RANGES) } else { 1 };
            let leaves = even(part.len(), leaves).map(|leaf| &part[leaf]);
            pieces.extend(leaves.map(|leaf| (leaf[0].0, line::leaf(leaf))));
        }
        pieces
    }

    /// Forks over `pieces`, which get their places.
    fn raise(&mut self, pieces: &[Piece]) -> Result<Vec<Piece>, Shortage> {
        let parts = even(pieces.len(), pieces.len().div_ceil(CHILDREN));
        parts
            .map(|part| {
                let children = &pieces[part];
                let first_child = self.arena.place(children.iter().map(|(_, cells)| *cells))?;
                Ok((children[0].0, line::fork(children.iter().map(|(start, _)| *start), first_child)))
            })
            .collect()
    }

    /// Forks above `pieces` until there is one root, at least `height_min` high.
    fn top(&mut self, mut pieces: Vec<Piece>, mut height: u32, height_min: u32) -> Result<Word, Shortage> {
        while pieces.len() > 1 || height < height_min {
            pieces = self.raise(&pieces)?;
            height += 1;
        }
        let line = self.arena.place(pieces.iter().map(|(_, cells)| *cells))?;
        Ok(Word::tree(line, height))
    }
}
