//! The check without vectors, one frame after the other, as [`crate::validate`] does it.

use bm_wire::{ethernet, ipv4, ipv6};

use super::{Asked, CHUNK, Checked, Chunk, LANES, PlainFamily};
use crate::compiled::mac_key;
use crate::rewrite::{IPV4_HEAD, IPV6_HEAD};
use crate::validate::{self, Packet};

/// As [`PlainFamily::check`].
///
/// # Safety
/// The heads of these groups refer to [`IPV4_HEAD`] bytes each, which nobody changes meanwhile.
pub(super) unsafe fn ipv4(chunk: &mut Chunk<u32>, groups: usize, asked: Asked<'_>) -> Checked {
    let packet = |head: &[u8; IPV4_HEAD], room| {
        let header: &[u8; ipv4::HEADER_LEN] = head.last_chunk()?;
        let packet = validate::common_ipv4(header, room)?;
        (is_for(head, asked, ethernet::ethertype::IPV4) && !asked.local.may_hold(packet.source))
            .then_some(packet)
    };
    // SAFETY: the caller's promise.
    unsafe { each(chunk, groups, packet) }
}

/// The same for IPv6.
///
/// # Safety
/// The heads of these groups refer to [`IPV6_HEAD`] bytes each, which nobody changes meanwhile.
pub(super) unsafe fn ipv6(chunk: &mut Chunk<u128>, groups: usize, asked: Asked<'_>) -> Checked {
    let packet = |head: &[u8; IPV6_HEAD], room| {
        let header: &[u8; ipv6::HEADER_LEN] = head.last_chunk()?;
        let packet = validate::common_ipv6(header, room, asked.closer)?;
        is_for(head, asked, ethernet::ethertype::IPV6).then_some(packet)
    };
    // SAFETY: the caller's promise.
    unsafe { each(chunk, groups, packet) }
}

/// Stores what `packet` finds in the frames that have a hop left.
///
/// # Safety
/// The heads of these groups refer to as many bytes, which nobody changes meanwhile.
unsafe fn each<A: PlainFamily, const HEAD: usize>(
    chunk: &mut Chunk<A>,
    groups: usize,
    packet: impl Fn(&[u8; HEAD], usize) -> Option<Packet<A>>,
) -> Checked {
    let mut checked = Checked { plain: 0, longest: 0, padded: false };
    for lane in 0..(groups * LANES).min(CHUNK) {
        // SAFETY: the caller's promise.
        let head = unsafe { &*chunk.lanes.heads.0[lane].cast::<[u8; HEAD]>() };
        let room = usize::from(chunk.lanes.frame_lengths[lane]).saturating_sub(ethernet::HEADER_LEN);
        let Some(packet) = packet(head, room).filter(|packet| packet.facts.ttl > 1) else { continue };
        checked.plain |= 1 << lane;
        checked.longest = checked.longest.max(packet.facts.length);
        checked.padded |= room > usize::from(packet.facts.length);
        chunk.lengths[lane] = packet.facts.length;
        chunk.destinations[lane] = packet.destination;
        chunk.spent[lane] = u32::from_le_bytes(packet.facts.spent);
    }
    checked
}

/// Whether a frame is for the MAC address asked for, and of this type.
fn is_for<const HEAD: usize>(head: &[u8; HEAD], asked: Asked<'_>, ethertype: u16) -> bool {
    head.first_chunk().is_some_and(|start| mac_key(start) == asked.mac)
        && head[12..ethernet::HEADER_LEN] == ethertype.to_be_bytes()
}
