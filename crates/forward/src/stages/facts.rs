//! What the rewriting of a packet depends on.

use bm_wire::{ipv4, ipv6};

/// What the rewriting of a packet depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Bytes of the packet.
    pub length: u16,
    /// TTL or hop limit, at most 255.
    pub ttl: u16,
    /// The word with the TTL as the packet leaves: TTL decremented, IPv4's checksum updated.
    pub ttl_word: [u8; 4],
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
        Self { length, ttl: ttl.into(), ttl_word: [ttl.wrapping_sub(1), protocol, check, sum] }
    }

    /// The facts of a complete IPv6 header, whose packet is no longer than a frame.
    #[inline(always)]
    pub fn ipv6(header: &[u8; ipv6::HEADER_LEN]) -> Self {
        let [_, _, _, _, long, gth, next, ttl, ..] = *header;
        let length = u16::from_be_bytes([long, gth]).saturating_add(ipv6::HEADER_LEN as u16);
        Self { length, ttl: ttl.into(), ttl_word: [long, gth, next, ttl.wrapping_sub(1)] }
    }
}
