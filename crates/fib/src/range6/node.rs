//! A node: sixteen range starts and what they lead to. Two cache lines.
//!
//! Starts are stored with their highest bit flipped, two to a word, because the vectors of the oldest
//! x86-64 compare signed numbers only. Unused places at the end hold the greatest start and the last
//! value, so that a search never asks how full a node is.

use crate::NextHop;
use crate::memory::{Zeroed, prefetch};
use std::fmt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Ranges a node.
pub const WIDTH: usize = 16;

/// A start and what it leads to.
pub type Range = (u32, Word);

/// What a start leads to.
///
/// ```text
///  31     30      29   27 26                   0
/// [ 0 |               next hop                  ]
/// [ 1 | enters | height  |  index of a node     ]
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u32);

const NODE: u32 = 1 << 31;
const ENTERS: u32 = 1 << 30;
const HEIGHT_SHIFT: u32 = 27;

/// Greatest height that a word can tell.
pub const HEIGHT_MAX: u32 = 7;

impl Word {
    /// Whether a word can tell this next hop.
    pub fn can_name(hop: NextHop) -> bool {
        hop.0 < NODE
    }

    pub fn hop(hop: NextHop) -> Self {
        debug_assert!(Self::can_name(hop));
        Self(hop.0)
    }

    pub fn node(index: u32, height: u32) -> Self {
        debug_assert!(height <= HEIGHT_MAX && index < 1 << HEIGHT_SHIFT);
        Self(NODE | height << HEIGHT_SHIFT | index)
    }

    /// The same, but the search goes on with the next window of the address.
    pub fn entering(self) -> Self {
        if self.is_node() { Self(self.0 | ENTERS) } else { self }
    }

    #[inline(always)]
    pub fn is_node(self) -> bool {
        self.0 & NODE != 0
    }

    /// Whether it is a node of the next window.
    #[inline(always)]
    pub fn enters(self) -> bool {
        self.0 >= NODE | ENTERS
    }

    #[inline(always)]
    pub fn index(self) -> usize {
        self.0 as usize & (super::NODES - 1)
    }

    /// Levels of nodes of the same window below this one.
    pub fn height(self) -> u32 {
        self.0 >> HEIGHT_SHIFT & HEIGHT_MAX
    }
}

#[repr(C, align(128))]
pub struct Node {
    starts: [AtomicU64; WIDTH / 2],
    values: [AtomicU32; WIDTH],
}

// SAFETY: atomics of integers only, so zero is a value and nothing needs a drop; 128 divides a page.
unsafe impl Zeroed for Node {}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries((0..WIDTH).map(|i| (self.start(i), self.value(i)))).finish()
    }
}

impl Node {
    /// Fills a node that nobody can find yet.
    pub fn fill(&self, ranges: &[Range]) {
        let (_, last) = *ranges.last().expect("a node has a range");
        let start = |i: usize| u64::from(ranges.get(i).map_or(u32::MAX, |(start, _)| *start) ^ 1 << 31);
        for (i, pair) in self.starts.iter().enumerate() {
            pair.store(start(2 * i) | start(2 * i + 1) << 32, Relaxed);
        }
        for (i, value) in self.values.iter().enumerate() {
            value.store(ranges.get(i).map_or(last, |(_, word)| *word).0, Relaxed);
        }
    }

    pub fn start(&self, i: usize) -> u32 {
        (self.starts[i / 2].load(Relaxed) >> (i % 2 * 32)) as u32 ^ 1 << 31
    }

    pub fn value(&self, i: usize) -> Word {
        Word(self.values[i].load(Acquire))
    }

    /// One store; see [`Nodes::link`](super::tree::Nodes::link).
    pub fn set_value(&self, i: usize, word: Word) {
        self.values[i].store(word.0, Release);
    }

    #[inline(always)]
    pub fn prefetch(&self) {
        prefetch(&self.starts);
        prefetch(&self.values);
    }

    /// What the last start that is not past `key` leads to.
    #[inline(always)]
    pub fn find(&self, key: u32) -> Word {
        // The first start is never past the key. Should a reader outside the registry find a node in
        // the making, the mask keeps it within.
        self.value(self.not_past(key).wrapping_sub(1) & (WIDTH - 1))
    }

    /// How many starts are not past `key`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn not_past(&self, key: u32) -> usize {
        use std::arch::x86_64::*;
        // SAFETY: SSE2 is part of x86-64, and these work on registers only.
        unsafe {
            let key = _mm_set1_epi32((key ^ 1 << 31) as i32);
            let low = _mm_packs_epi32(self.past::<0>(key), self.past::<1>(key));
            let high = _mm_packs_epi32(self.past::<2>(key), self.past::<3>(key));
            let mask = _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32;
            (mask | 1 << WIDTH).trailing_zeros() as usize
        }
    }

    /// All ones for each of a quarter's four starts that is past `key`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn past<const QUARTER: usize>(&self, key: std::arch::x86_64::__m128i) -> std::arch::x86_64::__m128i {
        let past;
        // SAFETY: the node is aligned to 128 bytes and a quarter is a fourth of its first 64. This
        // loads two words that others may store to, so it must be atomic for each of them; x86 is for
        // any aligned 8 bytes, and assembly keeps the compiler from loading otherwise. The same with
        // `AtomicU64::load` goes through general registers and takes half as long again.
        unsafe {
            std::arch::asm!(
                "movdqa {past}, [{node} + {at}]",
                "pcmpgtd {past}, {key}",
                past = out(xmm_reg) past,
                node = in(reg) self,
                at = const QUARTER * 16,
                key = in(xmm_reg) key,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        past
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    fn not_past(&self, key: u32) -> usize {
        self.not_past_plain(key)
    }

    /// The same, on any processor.
    #[cfg(any(test, not(target_arch = "x86_64")))]
    fn not_past_plain(&self, key: u32) -> usize {
        let not_past = |start: u64| usize::from((start as u32 ^ 1 << 31) <= key);
        let pairs = self.starts.iter().map(|pair| pair.load(Relaxed));
        pairs.map(|pair| not_past(pair) + not_past(pair >> 32)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(starts: &[u32]) -> Node {
        let node = Node { starts: Default::default(), values: Default::default() };
        let ranges: Vec<Range> = starts.iter().zip(1..).map(|(s, hop)| (*s, Word(hop))).collect();
        node.fill(&ranges);
        node
    }

    #[test]
    fn finds_the_last_start_that_is_not_past() {
        let all = [0, 1, 2, 9, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0xffff_fffe, u32::MAX];
        for n in 1..=all.len() {
            let node = node(&all[..n]);
            for key in [0, 1, 2, 3, 8, 9, 10, 0x7fff_fffe, 0x7fff_ffff, 0x8000_0000, 0x9000_0000, !1, !0] {
                let expected = all[..n].iter().filter(|start| **start <= key).count() as u32;
                assert_eq!(node.find(key), Word(expected), "{key:#x} among {n}");
                assert_eq!(node.not_past(key), node.not_past_plain(key), "{key:#x} among {n}");
            }
            assert!((0..n).all(|i| node.start(i) == all[i]));
        }
    }

    #[test]
    fn a_full_node_ends_with_its_sixteenth() {
        let starts: Vec<u32> = (0..16).map(|i| i << 28).collect();
        let node = node(&starts);
        assert_eq!(node.find(u32::MAX), Word(16));
        assert_eq!(node.find(0xefff_ffff), Word(15));
    }

    #[test]
    fn words_tell_next_hops_and_nodes_apart() {
        assert!(Word::can_name(NextHop(0x7fff_ffff)) && !Word::can_name(NextHop(1 << 31)));
        let word = Word::node(5, 7);
        assert!(word.is_node() && !word.enters());
        assert!(word.entering().enters());
        assert_eq!((word.entering().index(), word.entering().height()), (5, 7));
        assert_eq!(Word::hop(NextHop(3)).entering(), Word(3));
    }
}
