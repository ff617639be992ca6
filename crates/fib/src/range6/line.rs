//! A line: one cache line of sixteen 32-bit cells, either a fork or a leaf of ranges.
//!
//! ```text
//! cells   0 .. 6         7        8 .. 14        15
//! fork  [ end of child 0 .. end of child 14    | first child ]   children lie side by side
//! leaf  [ end of range 0 .. 6 | - | word of range 0 .. 7     ]   cell 7 is unused
//! ```
//!
//! An *end* is the last key of a child or a range; the last one needs none, and unused cells hold the
//! greatest key, which no key is past. So the place of a key is how many ends it is past: one vector
//! comparison and a count, or four halvings, and never a branch.

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
pub const RANGES: usize = 8;
/// Where a fork names its first child.
pub const FIRST_CHILD: usize = 15;
/// Where a leaf's words begin.
pub const WORDS: usize = 8;
/// The cells of a fork that are ends, as a mask.
#[cfg(target_arch = "x86_64")]
pub const FORK_ENDS: u32 = 0x7fff;

/// What a line holds.
pub type Cells = [u32; CELLS];

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
    /// Whether a word can tell this next hop.
    pub fn can_name(hop: NextHop) -> bool {
        hop.0 < NODE
    }

    pub fn hop(hop: NextHop) -> Self {
        debug_assert!(Self::can_name(hop));
        Self(hop.0)
    }

    /// A tree with `height` levels of forks above its leaves.
    pub fn tree(line: u32, height: u32) -> Self {
        debug_assert!(height < 8 && line < 1 << HEIGHT_SHIFT);
        Self(NODE | height << HEIGHT_SHIFT | line)
    }

    #[inline(always)]
    pub fn is_tree(self) -> bool {
        self.0 & NODE != 0
    }

    /// Whether it is a tree of at least `height`.
    #[inline(always)]
    pub fn is_tree_of(self, height: u32) -> bool {
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
    /// Fills a line that nobody can find yet.
    pub fn fill(&self, cells: &Cells) {
        self.0.iter().zip(cells).for_each(|(cell, value)| cell.store(*value, Relaxed));
    }

    pub fn load(&self) -> Cells {
        std::array::from_fn(|i| self.0[i].load(Relaxed))
    }

    /// One cell, and all that was written before it was linked.
    #[inline(always)]
    pub fn cell(&self, i: usize) -> u32 {
        self.0[i].load(Acquire)
    }

    /// One store, which links what was filled before.
    pub fn set_cell(&self, i: usize, value: u32) {
        self.0[i].store(value, Release);
    }

    /// How many of the first `2 * HALF - 1` ends `key` is past.
    #[inline(always)]
    pub fn past<const HALF: usize>(&self, key: u32) -> usize {
        let (mut place, mut step) = (0, HALF);
        while step > 0 {
            place += if self.0[(place + step - 1) & 15].load(Relaxed) < key { step } else { 0 };
            step /= 2;
        }
        place
    }
}

/// The cells of a leaf.
///
/// # Panics
/// If there are no ranges, or more than [`RANGES`].
pub fn leaf(ranges: &[Range]) -> Cells {
    let mut cells = ends(ranges.iter().map(|(start, _)| *start), RANGES);
    cells[WORDS..].fill(0);
    for (cell, (_, word)) in cells[WORDS..].iter_mut().zip(ranges) {
        *cell = word.0;
    }
    cells
}

/// The cells of a fork of children with these first keys, which lie at `first_child` and behind.
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

/// The first key of what stands at `place`, in a line that starts at `low`.
pub fn start(cells: &Cells, place: usize, low: u32) -> u32 {
    if place == 0 { low } else { cells[place - 1] + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [u32; 12] =
        [0, 1, 2, 8, 9, 10, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0x9000_0000, u32::MAX - 1, u32::MAX];

    fn line(cells: Cells) -> Line {
        Line(cells.map(AtomicU32::new))
    }

    #[test]
    fn finds_the_range_of_a_key() {
        let all = [0, 1, 2, 9, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX];
        for n in 1..=all.len() {
            let ranges: Vec<Range> =
                all[..n].iter().zip(1..).map(|(start, hop)| (*start, Word(hop))).collect();
            let cells = leaf(&ranges);
            assert_eq!(count(&cells, RANGES), n);
            assert!((0..n).all(|i| start(&cells, i, 0) == all[i]));
            for key in KEYS {
                let expected = all[..n].iter().filter(|start| **start <= key).count();
                let place = line(cells).past::<4>(key);
                assert_eq!((place + 1, cells[WORDS + place]), (expected, expected as u32), "{key:#x} of {n}");
            }
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
        assert!(!Word::hop(NextHop(3)).is_tree());
    }
}
