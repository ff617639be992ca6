//! Marks: of packets, which SAs and policies are compared with, and of SAs and policies, by which requests find them.
//!
//! Packets that workers handle have the mark 0. What nftables or tc marks is Linux's.

use bm_ipsec::Mark;

use crate::layout::attribute;
use crate::message::number;

/// The mark of an object, or in a request for one; of several the last one counts. Without one it is that of any packet.
pub(crate) fn mark(attributes: &[(u16, &[u8])]) -> Mark {
    let found = attributes.iter().rev().find(|(kind, _)| *kind == attribute::MARK);
    found.map_or_else(Mark::default, |(_, value)| Mark { value: number(value, 0), mask: number(value, 4) })
}

/// The attribute's value, if there is a mark.
pub(crate) fn bytes(mark: Mark) -> Option<[u8; 8]> {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&mark.value.to_ne_bytes());
    bytes[4..].copy_from_slice(&mark.mask.to_ne_bytes());
    // As in Linux, which shows none otherwise.
    (mark != Mark::default()).then_some(bytes)
}
