//! Stage two: is it a packet that a router may pass on? (RFC 1812 5.2.2 and 5.3, RFC 8200, RFC 4291)
//!
//! Both families have one branch-free check for the common packet and a thorough one for the rest. These checks need
//! no table: whom a packet is for, and whether its TTL allows forwarding, is checked after the lookup, so that a
//! packet for this machine reaches it whatever its TTL.

mod facts;
mod fragment;
pub(crate) mod vectors;

use bm_stats::Reason;
use bm_wire::ipv4::{self, Ipv4};
use bm_wire::ipv6::{self, Ipv6};
use bm_wire::{Malformed, checksum, protocol};

pub(crate) use facts::{FactColumns, Facts};
pub(crate) use fragment::{AheadOfFragment, is_fragment};

use crate::hop_by_hop::{self, HopByHop};
use crate::verdict::{Refusal, Verdict};

/// What later stages need of a packet. It is read here once, so that they need not read its bytes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet<A> {
    pub source: A,
    pub destination: A,
    pub facts: Facts,
}

const HOST: Refusal = Refusal::Slow(Verdict::Host);

/// What later stages need of a common IPv4 packet; `None` if it needs the thorough check.
///
/// `room` is the number of bytes from the header on, including any padding after the packet.
#[inline(always)]
pub(crate) fn common_ipv4(header: &[u8; ipv4::HEADER_LEN], room: usize) -> Option<Packet<u32>> {
    let [first, _, _, _, _, _, flags, offset, ..] = *header;
    let facts = Facts::ipv4(header);
    let source = word(header, 12);
    let destination = word(header, 16);
    let common = first == 0x45
        && (ipv4::HEADER_LEN..=room).contains(&usize::from(facts.length))
        && checksum::is_whole20(header)
        && (flags & 0x3f | offset) == 0
        && MAY_BE_ONE[usize::from(header[12])] & MAY_BE_ONE[usize::from(header[16])];
    common.then_some(Packet { source, destination, facts })
}

/// By an address's first byte: whether it may belong to one host ([`ipv4::is_single_host`]).
static MAY_BE_ONE: [bool; 256] = {
    let mut may_be = [false; 256];
    let mut first = 0;
    while first < may_be.len() {
        may_be[first] = ipv4::is_single_host((first as u32) << 24);
        first += 1;
    }
    may_be
};

#[inline(always)]
fn word(header: &[u8; ipv4::HEADER_LEN], at: usize) -> u32 {
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

/// Checks any IPv4 packet; `packet` may include padding.
pub(crate) fn ipv4(packet: &[u8]) -> Result<Packet<u32>, Refusal> {
    let ip = Ipv4::parse(packet).map_err(|malformed| {
        Refusal::Drop(match malformed {
            Malformed::Short => Reason::Ipv4Short,
            Malformed::Version => Reason::Ipv4Version,
            Malformed::HeaderLen => Reason::Ipv4HeaderLength,
            _ => Reason::Ipv4TotalLength,
        })
    })?;
    if !ip.checksum_ok() {
        return Err(Refusal::Drop(Reason::Ipv4Checksum));
    }
    let (source, destination) = (ip.source(), ip.destination());
    addresses_ipv4(source, destination)?;
    if ip.overruns() {
        return Err(Refusal::Drop(Reason::FragmentOverrun));
    }
    if ip.header_len() > ipv4::HEADER_LEN {
        return Err(Refusal::Slow(Verdict::Options));
    }
    let header = packet.first_chunk().ok_or(Refusal::Drop(Reason::Ipv4Short))?;
    Ok(Packet { source, destination, facts: Facts::ipv4(header) })
}

/// Which addresses may be routed, as in Linux: 240/4 and 169.254/16 like any other, also 0/8 except 0.0.0.0.
fn addresses_ipv4(source: u32, destination: u32) -> Result<(), Refusal> {
    let is_loopback = |address: u32| address >> 24 == 127;
    // Multicast and broadcast go to Linux whatever their source: DHCP clients send from 0.0.0.0.
    if ipv4::is_multicast(destination) || destination == u32::MAX || (source, destination) == (0, 0) {
        return Err(HOST);
    }
    if ipv4::is_multicast(source) || source == u32::MAX || source == 0 || is_loopback(source) {
        return Err(Refusal::Drop(Reason::Ipv4Source));
    }
    if destination == 0 || is_loopback(destination) {
        return Err(Refusal::Drop(Reason::Ipv4Destination));
    }
    Ok(())
}

/// What later stages need of a common IPv6 packet; `None` if it needs the thorough check, also if its next header is
/// one of `closer`.
#[inline(always)]
pub(crate) fn common_ipv6(
    header: &[u8; ipv6::HEADER_LEN],
    room: usize,
    closer: AheadOfFragment,
) -> Option<Packet<u128>> {
    let [first, _, _, _, _, _, next, _, addresses @ ..] = *header;
    let facts = Facts::ipv6(header);
    let [source, destination] = halves(&addresses);
    let common = first >> 4 == 6
        && usize::from(facts.length) <= room
        && next != protocol::HOP_BY_HOP
        && !closer.has(next)
        && is_plain(source)
        && is_plain(destination);
    common.then_some(Packet { source, destination, facts })
}

#[inline(always)]
fn halves(addresses: &[u8; 32]) -> [u128; 2] {
    let (halves, _) = addresses.as_chunks::<16>();
    [u128::from_be_bytes(halves[0]), u128::from_be_bytes(halves[1])]
}

/// Whether an address is of 2000::/3 or fc00::/7, where nothing is special.
#[inline(always)]
fn is_plain(address: u128) -> bool {
    let first = (address >> 120) as u8;
    first >> 5 == 0b001 || first >> 1 == 0b111_1110
}

/// Checks any IPv6 packet; `packet` may include padding.
pub(crate) fn ipv6(packet: &[u8]) -> Result<Packet<u128>, Refusal> {
    let ip = Ipv6::parse(packet).map_err(|malformed| {
        Refusal::Drop(match malformed {
            Malformed::Short => Reason::Ipv6Short,
            Malformed::Version => Reason::Ipv6Version,
            _ => Reason::Ipv6PayloadLength,
        })
    })?;
    let (source, destination) = (ip.source(), ip.destination());
    addresses_ipv6(source, destination)?;
    // Padding and options that may be skipped need no slow path (RFC 8200 4.3, RFC 9673).
    if ip.next_header() == protocol::HOP_BY_HOP && hop_by_hop::examine(&ip) != HopByHop::Skip {
        return Err(Refusal::Slow(Verdict::HopByHop));
    }
    let header = packet.first_chunk().ok_or(Refusal::Drop(Reason::Ipv6Short))?;
    Ok(Packet { source, destination, facts: Facts::ipv6(header) })
}

/// Multicast scopes that never are on a wire: 0 is reserved, 1 is this interface (RFC 4291 2.7, errata 3480).
fn is_off_wire(group: u128) -> bool {
    ipv6::is_multicast(group) && (group >> 112) & 0xf <= 1
}

fn addresses_ipv6(source: u128, destination: u128) -> Result<(), Refusal> {
    if ipv6::is_multicast(source) || ipv6::is_loopback(source) {
        return Err(Refusal::Drop(Reason::Ipv6Source));
    }
    if is_off_wire(destination) || ipv6::is_loopback(destination) || ipv6::is_unspecified(destination) {
        return Err(Refusal::Drop(Reason::Ipv6Destination));
    }
    if ipv6::is_multicast(destination) || ipv6::is_link_local(destination) {
        return Err(HOST);
    }
    if ipv6::is_unspecified(source) || ipv6::is_link_local(source) {
        return Err(Refusal::Slow(Verdict::SourceScope));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 192.0.2.1 > 198.51.100.7, UDP without payload, a TTL of 2.
    const IPV4: [u8; 20] = [0x45, 0, 0, 20, 0, 1, 0, 0, 2, 17, 0xcc, 0x9c, 192, 0, 2, 1, 198, 51, 100, 7];
    /// 2001:db8::1 > 2001:db8::2, nothing behind.
    const IPV6: [u8; 40] = [
        0x60, 0, 0, 0, 0, 0, 59, 64, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x20, 1, 0xd,
        0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
    ];

    #[test]
    fn reads_what_later_stages_want() {
        let facts = Facts { length: 20, ttl: 2, spent: [1, 17, 0xcd, 0x9c] };
        let expected = Packet { source: 0xc000_0201, destination: 0xc633_6407, facts };
        assert_eq!(common_ipv4(&IPV4, 20), Some(expected));
        assert_eq!(ipv4(&IPV4), Ok(expected));
        let facts = Facts { length: 40, ttl: 64, spent: [0, 0, 59, 63] };
        let address = |last| 0x2001_0db8u128 << 96 | last;
        let expected = Packet { source: address(1), destination: address(2), facts };
        assert_eq!(
            (common_ipv6(&IPV6, 40, AheadOfFragment::NONE), ipv6(&IPV6)),
            (Some(expected), Ok(expected))
        );
    }

    #[test]
    fn a_hop_limit_is_no_matter_here() {
        for ttl in [0, 1] {
            let mut packet = IPV6;
            packet[7] = ttl;
            assert!(common_ipv6(&packet, 40, AheadOfFragment::NONE).is_some());
        }
    }

    #[test]
    fn the_longest_payload_does_not_wrap() {
        let mut packet = IPV6;
        packet[4..6].fill(0xff);
        assert_eq!(common_ipv6(&packet, 1500, AheadOfFragment::NONE), None);
        assert_eq!(ipv6(&packet), Err(Refusal::Drop(Reason::Ipv6PayloadLength)));
    }

    proptest! {
        /// Whatever the quick check accepts, the thorough one accepts with the same result; it may accept more.
        #[test]
        fn both_looks_agree(
            bytes in prop::array::uniform20(any::<u8>()),
            changed in prop::collection::vec((0..20usize, any::<u8>()), 0..3),
            mend in any::<bool>(),
            room in 0..40usize,
        ) {
            for start in [IPV4, bytes] {
                let mut header = start;
                changed.iter().for_each(|&(at, byte)| header[at] = byte);
                if mend {
                    let sum = checksum::ipv4_header(&header);
                    header[10..12].copy_from_slice(&sum.to_be_bytes());
                }
                let mut packet = header.to_vec();
                packet.resize(20 + room, 0);
                if let Some(common) = common_ipv4(&header, packet.len()) {
                    prop_assert_eq!(ipv4(&packet), Ok(common));
                }
            }
        }

        #[test]
        fn both_looks_agree_ipv6(
            changed in prop::collection::vec((0..40usize, any::<u8>()), 0..4),
            room in 0..300usize,
        ) {
            let mut header = IPV6;
            changed.iter().for_each(|&(at, byte)| header[at] = byte);
            let mut packet = header.to_vec();
            packet.resize(40 + room, 0);
            if let Some(common) = common_ipv6(&header, packet.len(), AheadOfFragment::NONE) {
                prop_assert_eq!(ipv6(&packet), Ok(common));
            }
        }
    }
}
