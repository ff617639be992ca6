//! A line: one cache line of sixteen 32-bit cells, either a fork or a leaf of ranges.
//!
//! ```text
//! cells   0 .. 5        6 7   8 .. 9     10 .. 14               15
//! fork  [ end of child 0 ..                 end of child 14   | first child ]  children lie side by side
//! leaf  [ end of range 0 ..   9        | next hop of range 0 .. 10 | ffff   ]  of two bytes each
//! wide  [ end of range 0 .. 5 | - - | word of range 0 .. 6          | 0     ]
//! ```
//!
//! A leaf is wide if a range leads deeper, or to a next hop above 65,534. The last two bytes of the line tell which.
//!
//! An *end* is the last key of a child or a range; the last one needs none, and unused cells contain the greatest
//! key, which no key exceeds. So the position of a key is the number of ends below it: one vector comparison and a
//! count, or four halvings, and never a branch.

use crate::NextHop;
use crate::memory::Zeroed;
use std::fmt;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Cells a line.
pub const CELLS: usize = 16;
/// Children that a fork may have.
pub const CHILDREN: usize = 16;
/// Ranges that a leaf may have.
pub(crate) const RANGES: usize = 11;
/// Ranges that a wide leaf may have.
pub(crate) const WIDE_RANGES: usize = 7;
/// Where a fork names its first child.
pub(crate) const FIRST_CHILD: usize = 15;
/// Where a wide leaf's words begin.
pub const WORDS: usize = 8;
/// The cell in whose halves a leaf's next hops begin.
pub const HOPS: usize = 10;
/// The cell whose high half tells a leaf from a wide one.
pub const KIND: usize = 15;
/// What it is in a leaf.
pub const NARROW: u32 = 0xffff;

/// What a line holds.
pub(crate) type Cells = [u32; CELLS];

/// The first key of a range, and what the range leads to.
pub type Range = (u32, Word);

/// What a range or a root slot leads to.
///
/// ```text
///  31     30  28 27              0
/// [ 0 |         next hop          ]
/// [ 1 | height | index of a line  ]   the top of a tree; of the next window, if a range says so
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u32);

const NODE: u32 = 1 << 31;
const HEIGHT_SHIFT: u32 = 28;

impl Word {
    /// Whether a word can represent this next hop.
    pub(crate) fn can_name(hop: NextHop) -> bool {
        hop.0 < NODE
    }

    pub fn hop(hop: NextHop) -> Self {
        debug_assert!(Self::can_name(hop));
        Self(hop.0)
    }

    /// Whether it needs a wide leaf.
    fn is_wide(self) -> bool {
        self.0 >= NARROW
    }

    /// A tree with `height` levels of forks above its leaves.
    pub fn tree(line: u32, height: u32) -> Self {
        debug_assert!(height < 8 && line < 1 << HEIGHT_SHIFT);
        Self(NODE | height << HEIGHT_SHIFT | line)
    }

    #[inline(always)]
    pub(crate) fn is_tree(self) -> bool {
        self.0 & NODE != 0
    }

    /// What this word is if `root` is a tree, else `root`: without a branch, so that many are done together.
    #[inline(always)]
    pub(crate) fn if_tree(self, root: Self) -> u32 {
        let is_tree = (root.0 as i32 >> 31) as u32;
        self.0 & is_tree | root.0 & !is_tree
    }

    /// Whether it is a tree of at least `height`.
    #[inline(always)]
    pub(crate) fn is_tree_of(self, height: u32) -> bool {
        self.0 >= NODE | height << HEIGHT_SHIFT
    }

    /// The line of a tree's top.
    #[inline(always)]
    pub fn line(self) -> u32 {
        self.0 & ((1 << HEIGHT_SHIFT) - 1)
    }

    /// Levels of forks above a tree's leaves.
    #[inline(always)]
    pub fn height(self) -> u32 {
        self.0 >> HEIGHT_SHIFT & 7
    }
}

/// Sixteen cells in shared memory.
///
/// Shared with workers and the program at any time: atomics alone.
#[repr(C, align(64))]
pub struct Line([AtomicU32; CELLS]);

// SAFETY: atomics of integers only, so zero is a value and nothing needs a drop; 64 divides a page.
unsafe impl Zeroed for Line {}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load().fmt(f)
    }
}

impl Line {
    /// Fills a line that no reader can find yet.
    pub fn fill(&self, cells: &Cells) {
        self.0.iter().zip(cells).for_each(|(cell, value)| cell.store(*value, Relaxed));
    }

    pub fn load(&self) -> Cells {
        std::array::from_fn(|i| self.0[i].load(Relaxed))
    }

    /// One cell, and everything that was written before it was linked.
    #[inline(always)]
    pub fn cell(&self, i: usize) -> u32 {
        self.0[i].load(Acquire)
    }

    /// One store, which links what was filled before.
    pub(crate) fn set_cell(&self, i: usize, value: u32) {
        self.0[i].store(value, Release);
    }

    /// How many of the first `2 * HALF - 1` ends are below `key`.
    #[inline(always)]
    pub fn past<const HALF: usize>(&self, key: u32) -> usize {
        let (mut place, mut step) = (0, HALF);
        while step > 0 {
            place += if self.0[(place + step - 1) & 15].load(Relaxed) < key { step } else { 0 };
            step /= 2;
        }
        place
    }

    /// How many of a leaf's ten ends are below `key`.
    #[inline(always)]
    fn past_leaf(&self, key: u32) -> usize {
        let (mut place, mut left) = (0, RANGES);
        while left > 1 {
            let half = left / 2;
            place += if self.0[(place + half - 1) & 15].load(Relaxed) < key { half } else { 0 };
            left -= half;
        }
        place
    }

    /// The word for `key` in a leaf, wide or not.
    #[inline(always)]
    pub fn word(&self, key: u32) -> Word {
        if self.0[KIND].load(Relaxed) >> 16 != NARROW {
            return self.wide_word(key);
        }
        let place = self.past_leaf(key);
        Word(self.0[(HOPS + place / 2) & 15].load(Relaxed) >> (place % 2 * 16) & 0xffff)
    }

    /// Of a wide leaf.
    #[inline]
    pub(crate) fn wide_word(&self, key: u32) -> Word {
        Word(self.cell(self.wide_cell(key)))
    }

    /// The cell of a wide leaf with the word of `key`.
    #[inline(always)]
    fn wide_cell(&self, key: u32) -> usize {
        (WORDS + self.past::<4>(key)) & 15
    }

    /// The cell of the word for `key`, to which a change may store: only a wide leaf has one.
    pub(crate) fn word_cell(&self, key: u32) -> Option<usize> {
        (self.0[KIND].load(Relaxed) >> 16 != NARROW).then(|| self.wide_cell(key))
    }
}

/// Whether these ranges need a wide leaf.
pub(crate) fn are_wide(ranges: &[Range]) -> bool {
    ranges.iter().any(|(_, word)| word.is_wide())
}

/// The cells of a leaf, which is wide if necessary.
///
/// # Panics
/// If there are no ranges, or more than [`RANGES`], or than [`WIDE_RANGES`] in a wide one.
pub fn leaf(ranges: &[Range]) -> Cells {
    let is_wide = are_wide(ranges);
    let mut cells = ends(ranges.iter().map(|(start, _)| *start), if is_wide { WIDE_RANGES } else { RANGES });
    if is_wide {
        cells[WORDS..].fill(0);
        for (cell, (_, word)) in cells[WORDS..].iter_mut().zip(ranges) {
            *cell = word.0;
        }
    } else {
        cells[HOPS..].fill(0);
        for (i, (_, word)) in ranges.iter().enumerate() {
            cells[HOPS + i / 2] |= word.0 << (i % 2 * 16);
        }
        cells[KIND] |= NARROW << 16;
    }
    cells
}

/// The ranges of a leaf, wide or not, that starts at `low`.
pub fn ranges(cells: Cells, low: u32) -> impl Iterator<Item = Range> {
    let is_wide = cells[KIND] >> 16 != NARROW;
    let count = count(&cells, if is_wide { WIDE_RANGES } else { RANGES });
    (0..count).map(move |i| {
        let word = match is_wide {
            true => cells[WORDS + i],
            false => cells[HOPS + i / 2] >> (i % 2 * 16) & 0xffff,
        };
        (start(&cells, i, low), Word(word))
    })
}

/// The cells of a fork of children with these first keys, which start at `first_child`.
///
/// # Panics
/// If there are no children, or more than [`CHILDREN`].
pub fn fork(starts: impl ExactSizeIterator<Item = u32>, first_child: u32) -> Cells {
    let mut cells = ends(starts, CHILDREN);
    cells[FIRST_CHILD] = first_child;
    cells
}

fn ends(starts: impl ExactSizeIterator<Item = u32>, most: usize) -> Cells {
    assert!((1..=most).contains(&starts.len()));
    let mut cells = [u32::MAX; CELLS];
    for (cell, start) in cells.iter_mut().zip(starts.skip(1)) {
        *cell = start - 1;
    }
    cells
}

/// How many children or ranges a line with room for `most` has.
pub fn count(cells: &Cells, most: usize) -> usize {
    1 + cells[..most - 1].iter().take_while(|end| **end != u32::MAX).count()
}

/// The first key of the item at `place`, in a line that starts at `low`.
pub fn start(cells: &Cells, place: usize, low: u32) -> u32 {
    if place == 0 { low } else { cells[place - 1] + 1 }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const KEYS: [u32; 12] =
        [0, 1, 2, 8, 9, 10, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0x9000_0000, u32::MAX - 1, u32::MAX];

    fn line(cells: Cells) -> Line {
        Line(cells.map(AtomicU32::new))
    }

    const STARTS: [u32; RANGES] =
        [0, 1, 2, 9, 10, 11, 0x7fff_ffff, 0x8000_0000, 0x8fff_ffff, u32::MAX - 1, u32::MAX];

    /// Whether a leaf of these ranges finds each key's, and gives them back.
    fn check(ranges: &[Range]) {
        let cells = leaf(ranges);
        assert!(super::ranges(cells, 0).eq(ranges.iter().copied()));
        let line = line(cells);
        assert_eq!(line.word_cell(0).is_some(), are_wide(ranges));
        for key in KEYS.into_iter().chain(STARTS) {
            let expected = ranges.iter().rfind(|(start, _)| *start <= key).unwrap().1;
            assert_eq!(line.word(key), expected, "{key:#x} of {}", ranges.len());
            if let Some(cell) = line.word_cell(key) {
                assert_eq!((Word(cells[cell]), line.wide_word(key)), (expected, expected));
            }
        }
    }

    #[test]
    fn finds_the_range_of_a_key() {
        let ranges = |n: usize, words: [u32; 3]| {
            STARTS[..n].iter().enumerate().map(|(i, start)| (*start, Word(words[i % 3]))).collect::<Vec<_>>()
        };
        (1..=RANGES).for_each(|n| check(&ranges(n, [0, 0xfffe, 7])));
        for wide in [0xffff, 0x10_000, 0x7fff_ffff, Word::tree(1 << 20, 3).0] {
            (1..=WIDE_RANGES).for_each(|n| check(&ranges(n, [wide, 0, 0xfffe])));
            (3..=WIDE_RANGES).for_each(|n| check(&ranges(n, [1, 2, wide])));
        }
    }

    #[test]
    fn finds_the_child_of_a_key() {
        let mut all: Vec<u32> = (0..14).map(|i| i << 27).collect();
        all.extend([u32::MAX - 1, u32::MAX]);
        for n in 1..=all.len() {
            let cells = fork(all[..n].iter().copied(), 77);
            assert_eq!((count(&cells, CHILDREN), cells[FIRST_CHILD]), (n, 77));
            for key in KEYS.into_iter().chain(all.iter().map(|start| start.saturating_sub(1))) {
                let expected = all[..n].iter().filter(|start| **start <= key).count();
                assert_eq!(line(cells).past::<8>(key) + 1, expected, "{key:#x} of {n}");
            }
        }
    }

    #[test]
    fn words_tell_next_hops_and_trees_apart() {
        assert!(Word::can_name(NextHop(0x7fff_ffff)) && !Word::can_name(NextHop(1 << 31)));
        let word = Word::tree(5, 7);
        assert!(word.is_tree() && word.is_tree_of(7) && !Word::tree(5, 6).is_tree_of(7));
        assert_eq!((word.line(), word.height()), (5, 7));
        let hop = Word::hop(NextHop(3));
        assert!(!hop.is_tree());
        assert_eq!((Word(9).if_tree(word), Word(9).if_tree(hop)), (9, 3));
    }
}
