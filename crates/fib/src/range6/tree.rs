//! Trees of one window: packed from ranges, read back, and edited by copying.
//!
//! ```text
//!            top                       an edit packs the least subtree around its keys anew ( * ),
//!        /    |    \                   copies its siblings beside it ( + ), and stores one cell:
//!      fork  fork<-  fork              the first child of the fork above ( <- ).
//!     / | \
//!    +  *  +                           What overflows is split, and the level above copied as well.
//! ```

use super::arena::Block;
use super::line::{self, CHILDREN, Cells, FIRST_CHILD, RANGES, Range, WORDS, Word};
use super::sweep::{self, Window};
use super::{Link, Writer};
use crate::Lack;
use crate::rib::Rib;

/// A line that has still to get a place: its first key, and what it holds.
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

/// Ranges of equal words in a row become one.
fn push(ranges: &mut Vec<Range>, (start, word): Range) {
    if ranges.last().is_none_or(|(_, before)| *before != word) {
        ranges.push((start, word));
    }
}

/// `parts` nearly equal parts of `0..len`.
fn even(len: usize, parts: usize) -> impl ExactSizeIterator<Item = std::ops::Range<usize>> {
    (0..parts).map(move |i| len * i / parts..len * (i + 1) / parts)
}

impl Writer {
    /// A tree over `ranges` with at least `height_min` levels of forks; one next hop needs none.
    pub fn tree(&mut self, ranges: &[Range], height_min: u32) -> Result<Word, Lack> {
        match ranges {
            [(_, word)] if !word.is_tree() => Ok(*word),
            _ => {
                let pieces = self.pack(ranges, 0)?;
                self.top(pieces, 0, height_min)
            }
        }
    }

    /// A tree for a whole window, by the rib.
    pub fn window_tree(&mut self, rib: &Rib<u128>, window: Window) -> Result<Word, Lack> {
        let ranges = self.swept(rib, window, (0, u32::MAX))?;
        self.tree(&ranges, window.height_min())
    }

    /// The ranges that `keys` of `window` have by the rib, with trees for deeper windows.
    pub fn swept(&mut self, rib: &Rib<u128>, window: Window, keys: (u32, u32)) -> Result<Vec<Range>, Lack> {
        sweep::ranges(rib, window, keys, |deeper| self.window_tree(rib, deeper))
    }

    /// All ranges of the tree, in order.
    pub fn collected(&self, tree: Word) -> Vec<Range> {
        let mut ranges = Vec::new();
        self.collect(tree.line(), tree.height(), 0, &mut ranges);
        ranges
    }

    /// The way of `key` to the cell of its range's word.
    pub fn find(&self, tree: Word, key: u32) -> Link {
        let mut line = tree.line();
        for _ in 0..tree.height() {
            let fork = self.arena.line(line);
            line = fork.cell(FIRST_CHILD) + fork.past::<8>(key) as u32;
        }
        Link::Cell { line, cell: WORDS + self.arena.line(line).past::<4>(key) }
    }

    /// Drops the lines of a tree; with those of deeper windows if `deeper`.
    pub fn drop_tree(&mut self, tree: Word, deeper: bool) {
        if tree.is_tree() {
            self.drop_below(tree.line(), tree.height(), deeper);
            self.arena.drop_block(tree.line(), 1);
        }
    }

    /// Gives the keys from `first` to `last` of the tree behind `link` the ranges `fresh`.
    pub fn edit(
        &mut self,
        link: Link,
        height_min: u32,
        (first, last): (u32, u32),
        fresh: &[Range],
    ) -> Result<(), Lack> {
        let mut path = self.path(self.load(link), first, last);
        let ranges = loop {
            let bottom = path[path.len() - 1];
            let ranges = self.spliced(bottom, (first, last), fresh);
            // What is one next hop for an only child is so for its parent: a tree may end here.
            let only = ranges.len() == 1 && path.len() > 1 && bottom.low == 0 && bottom.high == u32::MAX;
            if !only {
                break ranges;
            }
            path.pop();
        };
        let bottom = path[path.len() - 1];
        self.drop_replaced(bottom, (first, last));
        let pieces = match ranges[..] {
            [(_, word)] if path.len() == 1 && !word.is_tree() => {
                self.arena.drop_block(bottom.line, 1);
                self.stores.push((link, word.0));
                return Ok(());
            }
            _ => self.pack(&ranges, bottom.height)?,
        };
        self.put(link, height_min, path, pieces)
    }

    /// Puts `pieces` in the place of the last line of `path`, and copies as far up as it takes.
    fn put(
        &mut self,
        link: Link,
        height_min: u32,
        mut path: Vec<Step>,
        mut pieces: Vec<Piece>,
    ) -> Result<(), Lack> {
        while let Some(step) = path.pop() {
            let Some(parent) = path.last() else {
                self.arena.drop_block(step.line, 1);
                let word = self.top(pieces, step.height, height_min)?;
                self.stores.push((link, word.0));
                break;
            };
            let cells = self.arena.cells(parent.line);
            let siblings = Block { start: cells[FIRST_CHILD], lines: line::count(&cells, CHILDREN) };
            self.arena.drop_block(siblings.start, siblings.lines);
            if let [(_, piece)] = &pieces[..] {
                let copy = self.arena.copy(siblings, step.place, piece)?;
                self.stores.push((Link::Cell { line: parent.line, cell: FIRST_CHILD }, copy));
                break;
            }
            let sibling =
                |i: usize| (line::start(&cells, i, parent.low), self.arena.cells(siblings.start + i as u32));
            let all: Vec<Piece> = (0..step.place)
                .map(sibling)
                .chain(pieces)
                .chain((step.place + 1..siblings.lines).map(sibling))
                .collect();
            pieces = self.raise(&all)?;
        }
        Ok(())
    }

    /// The lines from the top of `tree` down to the least that has all keys from `first` to `last`.
    fn path(&self, tree: Word, first: u32, last: u32) -> Vec<Step> {
        let mut step = Step { line: tree.line(), height: tree.height(), low: 0, high: u32::MAX, place: 0 };
        let mut path = vec![step];
        while step.height > 0 {
            let cells = self.arena.cells(step.line);
            let place = self.arena.line(step.line).past::<8>(first);
            // An unused end is the greatest key.
            let high = if place < FIRST_CHILD { step.high.min(cells[place]) } else { step.high };
            if last > high {
                break;
            }
            let low = line::start(&cells, place, step.low);
            step =
                Step { line: cells[FIRST_CHILD] + place as u32, height: step.height - 1, low, high, place };
            path.push(step);
        }
        path
    }

    /// The ranges of a subtree, with `fresh` in the place of what `first` to `last` had.
    fn spliced(&self, part: Step, (first, last): (u32, u32), fresh: &[Range]) -> Vec<Range> {
        let mut old = Vec::with_capacity(RANGES);
        self.collect(part.line, part.height, part.low, &mut old);
        let mut ranges = Vec::with_capacity(old.len() + fresh.len() + 1);
        let before = old.partition_point(|(start, _)| *start < first);
        old[..before].iter().for_each(|range| push(&mut ranges, *range));
        fresh.iter().for_each(|range| push(&mut ranges, *range));
        if last < part.high {
            let behind = old.partition_point(|(start, _)| *start <= last + 1);
            push(&mut ranges, (last + 1, old[behind - 1].1));
            old[behind..].iter().for_each(|range| push(&mut ranges, *range));
        }
        ranges
    }

    /// Drops what lies below a subtree's top, and deeper trees that keys from `first` to `last` led to.
    fn drop_replaced(&mut self, part: Step, (first, last): (u32, u32)) {
        let mut old = Vec::with_capacity(RANGES);
        self.collect(part.line, part.height, part.low, &mut old);
        // A range that leads deeper has one key.
        for (_, word) in old.into_iter().filter(|(key, _)| (first..=last).contains(key)) {
            self.drop_tree(word, true);
        }
        self.drop_below(part.line, part.height, false);
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
            let words = cells[WORDS..].iter().take(line::count(&cells, RANGES));
            words.for_each(|word| self.drop_tree(Word(*word), true));
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
            let count = line::count(&cells, RANGES);
            ranges.extend((0..count).map(|i| (line::start(&cells, i, low), Word(cells[WORDS + i]))));
        }
    }

    /// The tops of subtrees of `height` over `ranges`.
    fn pack(&mut self, ranges: &[Range], height: u32) -> Result<Vec<Piece>, Lack> {
        let parts = even(ranges.len(), ranges.len().div_ceil(RANGES));
        let mut pieces: Vec<Piece> =
            parts.map(|part| (ranges[part.start].0, line::leaf(&ranges[part]))).collect();
        for _ in 0..height {
            pieces = self.raise(&pieces)?;
        }
        Ok(pieces)
    }

    /// Forks over `pieces`, which get their places.
    fn raise(&mut self, pieces: &[Piece]) -> Result<Vec<Piece>, Lack> {
        let parts = even(pieces.len(), pieces.len().div_ceil(CHILDREN));
        parts
            .map(|part| {
                let children = &pieces[part];
                let first_child = self.arena.place(children.iter().map(|(_, cells)| *cells))?;
                Ok((children[0].0, line::fork(children.iter().map(|(start, _)| *start), first_child)))
            })
            .collect()
    }

    /// Forks above `pieces` until there is one top, at least `height_min` high.
    fn top(&mut self, mut pieces: Vec<Piece>, mut height: u32, height_min: u32) -> Result<Word, Lack> {
        while pieces.len() > 1 || height < height_min {
            pieces = self.raise(&pieces)?;
            height += 1;
        }
        let line = self.arena.place(pieces.iter().map(|(_, cells)| *cells))?;
        Ok(Word::tree(line, height))
    }
}
