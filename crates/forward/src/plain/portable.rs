//! The check without vectors, one frame after the other, as [`crate::validate::common_ipv4`] does it.

use bm_wire::{ethernet, ipv4};

use super::{CHUNK, Checked, Chunk, HEAD, LANES};
use crate::compiled::{LocalFilter, MacKey, mac_key};
use crate::validate;

/// As [`Chunk::check`], for so many groups of lanes.
///
/// # Safety
/// The heads of these groups refer to [`HEAD`] bytes each, which nobody changes meanwhile.
pub(super) unsafe fn check(chunk: &mut Chunk, groups: usize, mac: MacKey, local: &LocalFilter) -> Checked {
    let mut checked = Checked { plain: 0, padded: false };
    for lane in 0..(groups * LANES).min(CHUNK) {
        // SAFETY: the caller's promise.
        let head = unsafe { &*chunk.heads.0[lane].cast::<[u8; HEAD]>() };
        let room = usize::from(chunk.frame_lengths[lane]).saturating_sub(ethernet::HEADER_LEN);
        let Some(packet) = packet(head, room, mac, local) else { continue };
        checked.plain |= 1 << lane;
        checked.padded |= room > usize::from(packet.facts.length);
        chunk.lengths[lane] = packet.facts.length;
        chunk.destinations[lane] = packet.destination;
        chunk.spent[lane] = u32::from_le_bytes(packet.facts.spent);
    }
    checked
}

/// What a plain frame contains.
fn packet(head: &[u8; HEAD], room: usize, mac: MacKey, local: &LocalFilter) -> Option<validate::Packet<u32>> {
    let header: &[u8; ipv4::HEADER_LEN] = head.last_chunk()?;
    let is_ours = mac_key(head.first_chunk()?) == mac;
    let is_ipv4 = head[12..14] == ethernet::ethertype::IPV4.to_be_bytes();
    let packet = validate::common_ipv4(header, room).filter(|_| is_ours && is_ipv4)?;
    (packet.facts.ttl > 1 && !local.may_hold(packet.source)).then_some(packet)
}
