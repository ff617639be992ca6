//! Cutting an IPv6 packet of this router into fragments (RFC 8200 4.5). Routers do not fragment others' packets.
//!
//! Only packets without extension headers that must precede the fragment header are cut, such as ESP.

use bm_wire::ipv6::{HEADER_LEN, Ipv6};
use bm_wire::protocol;

/// Bytes of a fragment header.
const FRAGMENT_HEADER: usize = 8;
/// Next header of a fragment header.
const FRAGMENT: u8 = 44;
/// Extension headers that every router reads, so they would have to be in each fragment.
const HOP_BY_HOP: u8 = 0;

/// The fragments of a packet, in order: write each with [`Plan::write`].
pub(crate) struct Plan<'a> {
    header: &'a [u8],
    payload: &'a [u8],
    /// Payload bytes of each fragment but the last.
    step: usize,
    id: u32,
}

impl<'a> Plan<'a> {
    /// How to fragment a packet for `mtu`; `None` if it is no such packet, not even eight bytes fit, or all of it fits.
    pub fn new(packet: &'a [u8], mtu: usize, id: u32) -> Option<Self> {
        let ip = Ipv6::parse(packet).ok()?;
        let whole = packet.get(..ip.total_len())?;
        let (header, payload) = whole.split_at_checked(HEADER_LEN)?;
        let step = mtu.checked_sub(HEADER_LEN + FRAGMENT_HEADER)? & !7;
        let is_cut = step > 0 && whole.len() > mtu;
        (is_cut && ![HOP_BY_HOP, FRAGMENT, protocol::ROUTING].contains(&ip.next_header())).then_some(Self {
            header,
            payload,
            step,
            id,
        })
    }

    /// How many fragments there are.
    pub fn count(&self) -> usize {
        self.payload.len().div_ceil(self.step)
    }

    /// Writes fragment `index` to the start of `buffer`; returns its length. `None` if it does not fit.
    pub fn write(&self, index: usize, buffer: &mut [u8]) -> Option<usize> {
        let start = index * self.step;
        let part = &self.payload[start..self.payload.len().min(start + self.step)];
        let length = FRAGMENT_HEADER + part.len();
        let out = buffer.get_mut(..HEADER_LEN + length)?;
        let (header, rest) = out.split_at_mut(HEADER_LEN);
        header.copy_from_slice(self.header);
        header[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        header[6] = FRAGMENT;
        let more = u16::from(start + part.len() < self.payload.len());
        rest[0] = self.header[6];
        rest[1] = 0;
        // The offset is in units of eight bytes, above three flags.
        rest[2..4].copy_from_slice(&(start as u16 | more).to_be_bytes());
        rest[4..8].copy_from_slice(&self.id.to_be_bytes());
        rest[FRAGMENT_HEADER..].copy_from_slice(part);
        Some(out.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(payload: usize, next_header: u8) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, (payload >> 8) as u8, payload as u8, next_header, 64];
        packet.extend([7; 32]);
        packet.extend((0..payload).map(|index| index as u8));
        packet
    }

    #[test]
    fn pieces_join_to_the_same_bytes() {
        let whole = packet(1400, protocol::ESP);
        let plan = Plan::new(&whole, 1280, 0x1234_5678).unwrap();
        let mut joined = Vec::new();
        for index in 0..plan.count() {
            let mut buffer = [0xee; 1280];
            let length = plan.write(index, &mut buffer).unwrap();
            let piece = &buffer[..length];
            let ip = Ipv6::parse(piece).unwrap();
            assert_eq!((ip.total_len(), ip.next_header(), ip.hop_limit()), (length, FRAGMENT, 64));
            assert_eq!((piece[40], &piece[44..48]), (protocol::ESP, &[0x12, 0x34, 0x56, 0x78][..]));
            let word = u16::from_be_bytes([piece[42], piece[43]]);
            assert_eq!((usize::from(word & !7), word & 1), (joined.len(), u16::from(index == 0)));
            joined.extend_from_slice(&piece[48..]);
        }
        assert_eq!((plan.count(), &joined[..]), (2, &whole[40..]));
    }

    #[test]
    fn packets_that_need_not_or_cannot_be_fragmented_are_left() {
        let whole = packet(1240, protocol::ESP);
        assert!(Plan::new(&whole, 1280, 0).is_none(), "it fits");
        assert!(Plan::new(&whole, 55, 0).is_none() && Plan::new(&whole, 0, 0).is_none());
        assert_eq!(Plan::new(&whole, 1279, 0).unwrap().count(), 2);
        for next_header in [HOP_BY_HOP, FRAGMENT, protocol::ROUTING] {
            assert!(Plan::new(&packet(1400, next_header), 1280, 0).is_none());
        }
        assert!(Plan::new(&whole[..30], 1280, 0).is_none());
    }
}
