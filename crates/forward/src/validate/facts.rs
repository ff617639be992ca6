//! What the rewriting of a packet depends on, in columns: values of eight packets that one instruction uses are
//! adjacent.

use bm_frame::BURST;
use bm_wire::{ipv4, ipv6};

/// What the rewriting of a packet depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Bytes of the packet.
    pub length: u16,
    /// TTL or hop limit, at most 255.
    pub ttl: u16,
    /// The word with the TTL as the packet leaves: TTL decremented, IPv4's checksum updated.
    pub spent: [u8; 4],
}

impl Facts {
    /// The facts of a complete IPv4 header.
    #[inline(always)]
    pub fn ipv4(header: &[u8; ipv4::HEADER_LEN]) -> Self {
        let [_, _, long, gth, _, _, _, _, ttl, protocol, check, sum, ..] = *header;
        // The TTL is the high byte of its word, so the word decreases by 0x0100 and the checksum increases by it; at
        // 0xffff it wraps, since that is minus zero, which a full sum never gives (RFC 1624).
        let risen = u32::from(u16::from_be_bytes([check, sum])) + 0x0100;
        let [check, sum] = ((risen + u32::from(risen >= 0xffff)) as u16).to_be_bytes();
        let length = u16::from_be_bytes([long, gth]);
        Self { length, ttl: ttl.into(), spent: [ttl.wrapping_sub(1), protocol, check, sum] }
    }

    /// The facts of a complete IPv6 header, whose packet is no longer than a frame.
    #[inline(always)]
    pub fn ipv6(header: &[u8; ipv6::HEADER_LEN]) -> Self {
        let [_, _, _, _, long, gth, next, ttl, ..] = *header;
        let length = u16::from_be_bytes([long, gth]).saturating_add(ipv6::HEADER_LEN as u16);
        Self { length, ttl: ttl.into(), spent: [long, gth, next, ttl.wrapping_sub(1)] }
    }
}

/// The facts of each packet of a burst.
pub(crate) struct FactColumns {
    pub lengths: [u16; BURST],
    pub ttl: [u16; BURST],
    pub spent: [[u8; 4]; BURST],
}

impl FactColumns {
    pub const fn new() -> Self {
        Self { lengths: [0; BURST], ttl: [0; BURST], spent: [[0; 4]; BURST] }
    }

    /// The facts of the packet in a slot.
    #[inline(always)]
    pub fn get(&self, place: usize) -> Facts {
        Facts { length: self.lengths[place], ttl: self.ttl[place], spent: self.spent[place] }
    }

    /// Sets the facts of the packet in a slot.
    #[inline(always)]
    pub fn set(&mut self, place: usize, facts: Facts) {
        (self.lengths[place], self.ttl[place], self.spent[place]) = (facts.length, facts.ttl, facts.spent);
    }
}
