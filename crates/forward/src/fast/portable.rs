//! The check without vectors, one frame after the other.

use bm_wire::{checksum, ethernet, ipv4, ipv6, protocol};

use super::chunk::{CheckResult, Chunk};
use super::{CHUNK, Criteria, FastFamily, LANES};
use crate::compiled::mac_key;
use crate::stages::validate::Packet;
use crate::stages::{Facts, NextHeaders};

/// As [`FastFamily::check`].
///
/// # Safety
/// The heads of these groups refer to [`FastFamily::HEAD`] bytes each, which nobody changes meanwhile.
pub(super) unsafe fn ipv4(chunk: &mut Chunk<u32>, groups: usize, criteria: Criteria<'_>) -> CheckResult {
    // SAFETY: the caller's promise.
    unsafe {
        each(chunk, groups, |head: &[u8; <u32 as FastFamily>::HEAD], room| {
            let header: &[u8; ipv4::HEADER_LEN] = head.last_chunk()?;
            let packet = plain_ipv4(header, room)?;
            let is_foreign = !criteria.local.may_hold(packet.source);
            (is_for(head, criteria, ethernet::ethertype::IPV4) && is_foreign).then_some(packet)
        })
    }
}

/// As [`FastFamily::check`].
///
/// # Safety
/// The heads of these groups refer to [`FastFamily::HEAD`] bytes each, which nobody changes meanwhile.
pub(super) unsafe fn ipv6(chunk: &mut Chunk<u128>, groups: usize, criteria: Criteria<'_>) -> CheckResult {
    // SAFETY: the caller's promise.
    unsafe {
        each(chunk, groups, |head: &[u8; <u128 as FastFamily>::HEAD], room| {
            let header: &[u8; ipv6::HEADER_LEN] = head.last_chunk()?;
            let packet = plain_ipv6(header, room, criteria.excluded)?;
            is_for(head, criteria, ethernet::ethertype::IPV6).then_some(packet)
        })
    }
}

/// What an IPv4 packet without anything special contains. `room` is the number of bytes from the header on, including
/// any padding after the packet.
#[inline(always)]
pub(super) fn plain_ipv4(header: &[u8; ipv4::HEADER_LEN], room: usize) -> Option<Packet<u32>> {
    let [first, _, _, _, _, _, flags, offset, ..] = *header;
    let facts = Facts::ipv4(header);
    let source = word(header, 12);
    let destination = word(header, 16);
    let is_plain = first == 0x45
        && (ipv4::HEADER_LEN..=room).contains(&usize::from(facts.length))
        && checksum::is_whole20(header)
        && (flags & 0x3f | offset) == 0
        && MAY_BE_ONE[usize::from(header[12])] & MAY_BE_ONE[usize::from(header[16])];
    is_plain.then_some(Packet { source, destination, facts })
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

/// What an IPv6 packet without anything special contains.
#[inline(always)]
pub(super) fn plain_ipv6(
    header: &[u8; ipv6::HEADER_LEN],
    room: usize,
    excluded: NextHeaders,
) -> Option<Packet<u128>> {
    let [first, _, _, _, _, _, next, _, addresses @ ..] = *header;
    let facts = Facts::ipv6(header);
    let [source, destination] = halves(&addresses);
    let is_plain = first >> 4 == 6
        && usize::from(facts.length) <= room
        && next != protocol::HOP_BY_HOP
        && !excluded.has(next)
        && is_unicast(source)
        && is_unicast(destination);
    is_plain.then_some(Packet { source, destination, facts })
}

#[inline(always)]
fn halves(addresses: &[u8; 32]) -> [u128; 2] {
    let (halves, _) = addresses.as_chunks::<16>();
    [u128::from_be_bytes(halves[0]), u128::from_be_bytes(halves[1])]
}

/// Whether an address is of 2000::/3 or fc00::/7, where nothing is special.
#[inline(always)]
fn is_unicast(address: u128) -> bool {
    let first = (address >> 120) as u8;
    first >> 5 == 0b001 || first >> 1 == 0b111_1110
}

/// Stores what `read` finds in the frames that have a hop left.
///
/// # Safety
/// The heads of these groups refer to as many bytes, which nobody changes meanwhile.
unsafe fn each<A: FastFamily, const HEAD: usize>(
    chunk: &mut Chunk<A>,
    groups: usize,
    read: impl Fn(&[u8; HEAD], usize) -> Option<Packet<A>>,
) -> CheckResult {
    let mut checked = CheckResult { plain: 0, longest: 0, padded: false };
    for lane in 0..(groups * LANES).min(CHUNK) {
        // SAFETY: the caller's promise.
        let head = unsafe { &*chunk.lanes.heads.0[lane].cast::<[u8; HEAD]>() };
        let room = usize::from(chunk.lanes.frame_lengths[lane]).saturating_sub(ethernet::HEADER_LEN);
        let Some(packet) = read(head, room).filter(|packet| packet.facts.ttl > 1) else { continue };
        checked.plain |= 1 << lane;
        checked.longest = checked.longest.max(packet.facts.length);
        checked.padded |= room > usize::from(packet.facts.length);
        chunk.lengths[lane] = packet.facts.length;
        chunk.destinations[lane] = packet.destination;
        chunk.ttl_words[lane] = u32::from_le_bytes(packet.facts.ttl_word);
    }
    checked
}

/// Whether a frame is for the port's MAC address, and of this type.
fn is_for<const HEAD: usize>(head: &[u8; HEAD], criteria: Criteria<'_>, ethertype: u16) -> bool {
    head.first_chunk().is_some_and(|start| mac_key(start) == criteria.mac)
        && head[12..ethernet::HEADER_LEN] == ethertype.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::validate;
    use proptest::prelude::*;

    /// 192.0.2.1 > 198.51.100.7, UDP without payload, a TTL of 2.
    const IPV4: [u8; 20] = [0x45, 0, 0, 20, 0, 1, 0, 0, 2, 17, 0xcc, 0x9c, 192, 0, 2, 1, 198, 51, 100, 7];
    /// 2001:db8::1 > 2001:db8::2, nothing behind.
    const IPV6: [u8; 40] = [
        0x60, 0, 0, 0, 0, 0, 59, 64, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x20, 1, 0xd,
        0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
    ];

    #[test]
    fn reads_what_rewriting_needs() {
        let facts = Facts { length: 20, ttl: 2, ttl_word: [1, 17, 0xcd, 0x9c] };
        let expected = Packet { source: 0xc000_0201, destination: 0xc633_6407, facts };
        assert_eq!(plain_ipv4(&IPV4, 20), Some(expected));
        assert_eq!(validate::ipv4(&IPV4), Ok(expected));
        let facts = Facts { length: 40, ttl: 64, ttl_word: [0, 0, 59, 63] };
        let address = |last| 0x2001_0db8u128 << 96 | last;
        let expected = Packet { source: address(1), destination: address(2), facts };
        assert_eq!(
            (plain_ipv6(&IPV6, 40, NextHeaders::NONE), validate::ipv6(&IPV6)),
            (Some(expected), Ok(expected))
        );
    }

    #[test]
    fn a_hop_limit_is_no_matter_here() {
        for ttl in [0, 1] {
            let mut packet = IPV6;
            packet[7] = ttl;
            assert!(plain_ipv6(&packet, 40, NextHeaders::NONE).is_some());
        }
    }

    proptest! {
        /// Whatever is plain, the stages accept with the same result; they may accept more.
        #[test]
        fn the_stages_agree(
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
                if let Some(packet_of) = plain_ipv4(&header, packet.len()) {
                    prop_assert_eq!(validate::ipv4(&packet), Ok(packet_of));
                }
            }
        }

        #[test]
        fn the_stages_agree_ipv6(
            changed in prop::collection::vec((0..40usize, any::<u8>()), 0..4),
            room in 0..300usize,
        ) {
            let mut header = IPV6;
            changed.iter().for_each(|&(at, byte)| header[at] = byte);
            let mut packet = header.to_vec();
            packet.resize(40 + room, 0);
            if let Some(packet_of) = plain_ipv6(&header, packet.len(), NextHeaders::NONE) {
                prop_assert_eq!(validate::ipv6(&packet), Ok(packet_of));
            }
        }
    }
}
