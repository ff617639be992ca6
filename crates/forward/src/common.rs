//! Stages one and two for packets of the common sort: one look at an untagged frame whose header is the shortest.

use bm_wire::{ethernet, ipv4, ipv6};

use crate::compiled::PortView;
use crate::input;
use crate::rewrite;
use crate::validate::{self, Packet};

/// A packet of the common sort, in a frame of the common sort. One length decides whether both are there.
#[inline(always)]
pub(crate) fn common_ipv4(view: &PortView, frame: &[u8]) -> Option<Packet<u32>> {
    let (ethernet, packet) = heads::<{ rewrite::IPV4_HEAD }, { ipv4::HEADER_LEN }>(frame)?;
    let room = frame.len() - ethernet::HEADER_LEN;
    if input::is_common_ipv4(view, ethernet) { validate::common_ipv4(packet, room) } else { None }
}

#[inline(always)]
pub(crate) fn common_ipv6(view: &PortView, frame: &[u8]) -> Option<Packet<u128>> {
    let (ethernet, packet) = heads::<{ rewrite::IPV6_HEAD }, { ipv6::HEADER_LEN }>(frame)?;
    let room = frame.len() - ethernet::HEADER_LEN;
    if input::is_common_ipv6(view, ethernet) { validate::common_ipv6(packet, room) } else { None }
}

/// Both headers of an untagged frame, if they are whole.
#[inline(always)]
fn heads<const HEAD: usize, const IP: usize>(
    frame: &[u8],
) -> Option<(&[u8; ethernet::HEADER_LEN], &[u8; IP])> {
    let head = frame.first_chunk::<HEAD>()?;
    Some((head.first_chunk()?, head.last_chunk()?))
}
