//! A word of the tree: an inner node, or a leaf.
//!
//! ```text
//! inner: 0 | bits-1 (3) | shift (5) | word of the key (4) | place of the first child (18)
//! leaf:  1 | unused (13) | place of the list (18): how many, then numbers of rules in their order
//! ```

use crate::key::Key;

/// The bit of a leaf.
pub(crate) const LEAF: u32 = 1 << 31;
/// The most cuts from the root to a leaf.
pub(crate) const DEPTH: usize = 16;

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
    pub fn child(word: u32, Key(key): &Key) -> u32 {
        let field = key[(word >> 18 & 15) as usize] >> (word >> 22 & 31);
        field & ((2 << (word >> 27 & 7)) - 1)
    }
}
