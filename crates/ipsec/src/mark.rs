//! Marks: a policy or an SA with one is for packets whose mark equals it in the bits of a mask.

use std::fmt;

/// `struct xfrm_mark`. The default is for all packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mark {
    pub value: u32,
    pub mask: u32,
}

impl Mark {
    /// Whether packets with this mark match.
    pub fn matches(self, packet: u32) -> bool {
        packet & self.mask == self.value
    }

    /// Whether packets that workers handle match: they have the mark 0, since those that nftables or tc marks are left to
    /// Linux.
    pub fn matches_unmarked(self) -> bool {
        self.matches(0)
    }

    /// The mark that Linux looks SAs up with, for a request or a policy with this one.
    pub fn lookup(self) -> u32 {
        self.value & self.mask
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}/{:#x}", self.value, self.mask)
    }
}
