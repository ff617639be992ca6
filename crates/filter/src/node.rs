//! A word of the tree: an inner node, a leaf, or a root that stands for several trees.
//!
//! ```text
//! inner: 0 | bits-1 (3) | shift (5) | word of the key (4) | place of the first child (18)
//! leaf:  1 | 0 | unused (12) | place of the list (18): how many, then numbers of rules in their order
//! fork:  1 | 1 | unused (12) | place of the list (18): how many, then the roots; the rule with the least number counts
//! ```

use crate::key::Key;

/// The bit of a leaf.
pub(crate) const LEAF: u32 = 1 << 31;
/// The bits of a fork.
pub(crate) const FORK: u32 = LEAF | 1 << 30;
/// The most trees of a fork.
pub(crate) const TREES: usize = 4;
/// The most cuts from the root to a leaf.
pub(crate) const DEPTH: usize = 16;

/// The maximum number of words.
pub const ROOM_WORDS: usize = 1 << 18;
const PLACE: u32 = ROOM_WORDS as u32 - 1;

/// Where a word refers to.
#[inline(always)]
pub(crate) fn place(word: u32) -> usize {
    (word & PLACE) as usize
}

/// The list of a leaf or a fork.
#[inline(always)]
pub(crate) fn list(words: &[u32], word: u32) -> &[u32] {
    let place = place(word);
    let count = words.get(place).map_or(0, |count| *count as usize);
    words.get(place + 1..place + 1 + count).unwrap_or_default()
}

/// The roots that a root stands for.
#[inline(always)]
pub(crate) fn roots<'a>(words: &'a [u32], root: &'a u32) -> &'a [u32] {
    if root & FORK == FORK { list(words, *root) } else { std::slice::from_ref(root) }
}

/// Cuts above the deepest leaf, and rules in the longest list; added up over the trees of a fork.
pub(crate) fn worst(words: &[u32], root: u32) -> (usize, usize) {
    let worst = roots(words, &root).iter().map(|root| worst_below(words, *root));
    worst.fold((0, 0), |(deep, long), (d, l)| (deep + d, long + l))
}

fn worst_below(words: &[u32], word: u32) -> (usize, usize) {
    if word & LEAF != 0 {
        return (0, list(words, word).len());
    }
    let (first, children) = (place(word), 2usize << (word >> 27 & 7));
    let below = words.get(first..first + children).unwrap_or_default();
    let worst = below.iter().map(|child| worst_below(words, *child));
    let (deep, long) = worst.fold((0, 0), |(deep, long), (d, l)| (deep.max(d), long.max(l)));
    (deep + 1, long)
}

/// The bits that an inner node uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub word: usize,
    pub shift: u32,
    pub bits: u32,
}

impl Cut {
    pub fn children(self) -> usize {
        1 << self.bits
    }

    pub fn encode(self, place: usize) -> u32 {
        (self.bits - 1) << 27 | self.shift << 22 | (self.word as u32) << 18 | place as u32
    }

    /// The number of the child of the inner node `word` that a packet goes to.
    #[inline(always)]
    pub fn child(word: u32, Key(key): &Key) -> u32 {
        let field = key[(word >> 18 & 15) as usize] >> (word >> 22 & 31);
        field & ((2 << (word >> 27 & 7)) - 1)
    }
}
