//! The IP packet of a frame: where it is, and how it is encrypted and decrypted in the frame's slot.

use bm_frame::Frame;
use bm_ipsec::{Buffer, Failure};
use bm_wire::ethernet::{HEADER_LEN, TAG_LEN, ethertype};

/// The most tags in front of a packet.
const TAGS_MAX: usize = 2;
/// The longest link header.
const LINK_MAX: usize = HEADER_LEN + TAGS_MAX * TAG_LEN;

/// Where the IP packet of a frame begins; `None` if there is none.
#[inline]
pub(super) fn network(frame: &[u8]) -> Option<usize> {
    let mut at = HEADER_LEN;
    for _ in 0..=TAGS_MAX {
        match u16::from_be_bytes(*frame.get(at - 2..)?.first_chunk()?) {
            ethertype::IPV4 | ethertype::IPV6 => return Some(at),
            ethertype::VLAN | ethertype::SERVICE_VLAN if at < LINK_MAX => at += TAG_LEN,
            _ => return None,
        }
    }
    None
}

/// The packet at `network` of a frame.
#[inline]
pub(super) fn packet(frame: &Frame, network: usize) -> &[u8] {
    frame.data().get(network..).unwrap_or(&[])
}

/// Runs `change` on the packet at `network`, which may grow both ways in the slot. Afterwards the packet is at `network`
/// again, behind the same link header with the EtherType of the packet.
#[inline]
pub(super) fn change(
    frame: &mut Frame,
    network: usize,
    change: impl FnOnce(&mut Buffer<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut link = [0; LINK_MAX];
    let header = frame.data().get(..network).ok_or(Failure::Malformed)?;
    link.get_mut(..network).ok_or(Failure::Malformed)?.copy_from_slice(header);
    let (headroom, length, room) = (frame.headroom(), frame.len(), frame.tailroom());
    frame.prepend(headroom).map_err(|_| Failure::NoHeadroom)?;
    frame.set_len(headroom + length + room).map_err(|_| Failure::NoTailroom)?;
    let whole = frame.data_mut();
    let start = headroom + network;
    let mut buffer = Buffer::new(whole, start..headroom + length).ok_or(Failure::Malformed)?;
    let changed = change(&mut buffer);
    let range = buffer.range();
    // Without room for the link header nothing can be sent.
    let front = range.start.checked_sub(network).ok_or(Failure::NoHeadroom);
    let outcome = changed.and(front.as_ref().map(|_| ()).map_err(|failure| *failure));
    if let (Ok(()), Ok(front)) = (outcome, front) {
        let kind = if whole.get(range.start).is_some_and(|first| first >> 4 == 6) {
            ethertype::IPV6
        } else {
            ethertype::IPV4
        };
        whole[front..range.start].copy_from_slice(&link[..network]);
        whole[range.start - 2..range.start].copy_from_slice(&kind.to_be_bytes());
        // Both shorten, so they cannot fail.
        let _shorter = frame.set_len(range.end);
        frame.trim_front(front);
    } else {
        let _shorter = frame.set_len(headroom + length);
        frame.trim_front(headroom);
    }
    outcome
}
