//! IPv6 (RFC 8200), as a router must look at it.
//!
//! `parse` checks the fixed header and the payload length. What follows is handled by `extension`, which only the
//! slow path and the flow key use: unknown next headers are forwarded unchanged.

use crate::bytes::{be16, be32, be128, put16, put32, put128};
use crate::checksum::Pseudo;
use crate::malformed::{Malformed, NoRoom, room};
use extension::{Extensions, Upper};

pub mod extension;

mod at {
    use std::ops::Range;
    pub const FIRST_WORD: Range<usize> = 0..4;
    pub(crate) const PAYLOAD_LEN: Range<usize> = 4..6;
    pub(crate) const NEXT_HEADER: usize = 6;
    pub const HOP_LIMIT: usize = 7;
    pub const SOURCE: Range<usize> = 8..24;
    pub const DESTINATION: Range<usize> = 24..40;
    pub const PAYLOAD: usize = 40;
}

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = at::PAYLOAD;
/// Bytes that every link carries unfragmented (RFC 8200 5).
pub const MIN_MTU: usize = 1280;

const FLOW_LABEL: u32 = 0x000f_ffff;

/// An IPv6 packet. Its existence proves that the fixed header and the payload are complete.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<B>(B);

impl<B: AsRef<[u8]>> Ipv6<B> {
    /// Checks length, version and payload length. A jumbogram counts as having no payload.
    #[inline]
    pub fn parse(packet: B) -> Result<Self, Malformed> {
        let quoted = Self::parse_quoted(packet)?;
        if quoted.total_len() > quoted.0.as_ref().len() { Err(Malformed::Truncated) } else { Ok(quoted) }
    }

    /// Checks a packet quoted in an ICMPv6 error, whose end may be missing.
    #[inline]
    pub fn parse_quoted(packet: B) -> Result<Self, Malformed> {
        let bytes = packet.as_ref();
        match () {
            () if bytes.len() < HEADER_LEN => Err(Malformed::Short),
            () if bytes[0] >> 4 != 6 => Err(Malformed::Version),
            () => Ok(Self(packet)),
        }
    }

    #[inline]
    fn first_word(&self) -> u32 {
        be32(&self.0.as_ref()[at::FIRST_WORD])
    }

    /// Traffic class: DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (self.first_word() >> 20) as u8
    }

    /// Flow label, 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        self.first_word() & FLOW_LABEL
    }

    /// Bytes after the fixed header, including extension headers.
    #[inline]
    pub fn payload_len(&self) -> u16 {
        be16(&self.0.as_ref()[at::PAYLOAD_LEN])
    }

    /// Bytes of the whole packet.
    #[inline]
    pub fn total_len(&self) -> usize {
        HEADER_LEN + usize::from(self.payload_len())
    }

    /// The start of the payload: an extension header or a protocol.
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.0.as_ref()[at::NEXT_HEADER]
    }

    /// Hops that are left.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.0.as_ref()[at::HOP_LIMIT]
    }

    /// Source address.
    #[inline]
    pub fn source(&self) -> u128 {
        be128(&self.0.as_ref()[at::SOURCE])
    }

    /// Destination address.
    #[inline]
    pub fn destination(&self) -> u128 {
        be128(&self.0.as_ref()[at::DESTINATION])
    }

    /// The payload without padding, including extension headers; of a quoted packet, the part that is present.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.packet()[HEADER_LEN..]
    }

    /// The whole packet without padding.
    #[inline]
    pub fn packet(&self) -> &[u8] {
        let bytes = self.0.as_ref();
        &bytes[..self.total_len().min(bytes.len())]
    }

    /// Extension headers, in order.
    #[inline]
    pub fn extensions(&self) -> Extensions<'_> {
        Extensions::new(self.packet(), self.next_header())
    }

    /// What follows the extension headers.
    #[inline]
    pub fn upper(&self) -> Result<Upper, Malformed> {
        self.extensions().upper()
    }

    /// What the payload's own checksum covers of this header, unless there is an active routing header.
    #[inline]
    pub fn pseudo(&self) -> Pseudo {
        Pseudo::V6 { source: self.source(), destination: self.destination() }
    }

    /// The header's meaning.
    pub fn repr(&self) -> Ipv6Header {
        Ipv6Header {
            traffic_class: self.traffic_class(),
            flow_label: self.flow_label(),
            payload_len: self.payload_len(),
            next_header: self.next_header(),
            hop_limit: self.hop_limit(),
            source: self.source(),
            destination: self.destination(),
        }
    }

    /// The bytes viewed.
    #[inline]
    pub fn into_inner(self) -> B {
        self.0
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Ipv6<B> {
    /// Decrements the hop limit, which the caller has checked to be above 1.
    #[inline]
    pub fn decrement_hop_limit(&mut self) {
        debug_assert!(self.hop_limit() > 1);
        self.0.as_mut()[at::HOP_LIMIT] = self.hop_limit().wrapping_sub(1);
    }

    /// Sets the hops that are left.
    pub fn set_hop_limit(&mut self, hop_limit: u8) {
        self.0.as_mut()[at::HOP_LIMIT] = hop_limit;
    }

    pub fn set_traffic_class(&mut self, traffic_class: u8) {
        let word = self.first_word() & !(0xff << 20) | u32::from(traffic_class) << 20;
        put32(&mut self.0.as_mut()[at::FIRST_WORD], word);
    }

    /// Sets the flow label, of which 20 bits count.
    pub fn set_flow_label(&mut self, flow_label: u32) {
        let word = self.first_word() & !FLOW_LABEL | flow_label & FLOW_LABEL;
        put32(&mut self.0.as_mut()[at::FIRST_WORD], word);
    }

    /// Sets the source address; the caller updates the payload's checksum.
    pub fn set_source(&mut self, address: u128) {
        put128(&mut self.0.as_mut()[at::SOURCE], address);
    }

    /// Sets the destination address; the caller updates the payload's checksum.
    pub fn set_destination(&mut self, address: u128) {
        put128(&mut self.0.as_mut()[at::DESTINATION], address);
    }

    /// Payload without padding.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let end = self.total_len();
        let bytes = self.0.as_mut();
        let end = end.min(bytes.len());
        &mut bytes[HEADER_LEN..end]
    }
}

/// The fields of an IPv6 header, for building one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv6Header {
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header.
    pub payload_len: u16,
    /// The start of the payload.
    pub next_header: u8,
    /// Hops that are left.
    pub hop_limit: u8,
    /// Source address.
    pub source: u128,
    /// Destination address.
    pub destination: u128,
}

impl Ipv6Header {
    /// Writes the 40 bytes of the header; returns the length.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let header = room(buffer, HEADER_LEN)?;
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & FLOW_LABEL;
        put32(&mut header[at::FIRST_WORD], word);
        put16(&mut header[at::PAYLOAD_LEN], self.payload_len);
        header[at::NEXT_HEADER] = self.next_header;
        header[at::HOP_LIMIT] = self.hop_limit;
        put128(&mut header[at::SOURCE], self.source);
        put128(&mut header[at::DESTINATION], self.destination);
        Ok(HEADER_LEN)
    }
}

/// Whether it is a multicast address (ff00::/8).
#[inline]
pub fn is_multicast(address: u128) -> bool {
    address >> 120 == 0xff
}

/// Whether it is a link-local address (fe80::/10).
#[inline]
pub fn is_link_local(address: u128) -> bool {
    address >> 118 == 0xfe80 >> 6
}

/// Whether an address is `::`.
#[inline]
pub fn is_unspecified(address: u128) -> bool {
    address == 0
}

/// Whether an address is `::1`.
#[inline]
pub fn is_loopback(address: u128) -> bool {
    address == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2001:db8::1 > 2001:db8::2, class 0xb8, label 0x12345, UDP with hop limit 64, four bytes.
    pub(super) const UDP: [u8; 44] = [
        0x6b, 0x81, 0x23, 0x45, 0, 4, 17, 64, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0x20,
        1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 2, 3, 4,
    ];

    #[test]
    fn rejects_what_rfc_8200_forbids() {
        let fault = |bytes: &[u8]| Ipv6::parse(bytes).err();
        assert_eq!(fault(&UDP[..39]), Some(Malformed::Short));
        assert_eq!(fault(&UDP[..43]), Some(Malformed::Truncated));
        assert_eq!(fault(&[0x45; 44]), Some(Malformed::Version));
        assert_eq!(fault(&UDP), None);
        assert_eq!(Ipv6::parse_quoted(&UDP[..41]).unwrap().payload(), [1]);
    }

    #[test]
    fn reads_and_emits_every_field() {
        let packet = Ipv6::parse(UDP).unwrap();
        let read = Ipv6Header {
            traffic_class: 0xb8,
            flow_label: 0x12345,
            payload_len: 4,
            next_header: 17,
            hop_limit: 64,
            source: 0x2001_0db8_0000_0000_0000_0000_0000_0001,
            destination: 0x2001_0db8_0000_0000_0000_0000_0000_0002,
        };
        assert_eq!(packet.repr(), read);
        let mut buffer = [0xff; 44];
        assert_eq!(read.emit(&mut buffer), Ok(40));
        assert_eq!(buffer[..40], UDP[..40]);
        assert_eq!(read.emit(&mut buffer[..39]), Err(NoRoom { needed: 40, room: 39 }));
    }

    #[test]
    fn setters_write_only_their_own_field() {
        let mut packet = Ipv6::parse(UDP).unwrap();
        packet.decrement_hop_limit();
        packet.set_traffic_class(0x01);
        packet.set_flow_label(0xfff_abcde);
        packet.set_source(3);
        packet.set_destination(4);
        packet.payload_mut()[0] = 9;
        let expected = Ipv6Header {
            hop_limit: 63,
            traffic_class: 1,
            flow_label: 0xabcde,
            source: 3,
            destination: 4,
            ..Ipv6::parse(UDP).unwrap().repr()
        };
        assert_eq!((packet.repr(), packet.payload()), (expected, &[9, 2, 3, 4][..]));
    }

    #[test]
    fn padding_is_not_payload() {
        let mut padded = [0xaa; 60];
        padded[..44].copy_from_slice(&UDP);
        assert_eq!(Ipv6::parse(padded).unwrap().packet(), UDP);
    }

    #[test]
    fn classifies_addresses() {
        let kinds = |text: &str| {
            let address = u128::from(text.parse::<std::net::Ipv6Addr>().unwrap());
            (is_multicast(address), is_link_local(address), is_unspecified(address), is_loopback(address))
        };
        assert_eq!(kinds("ff02::1"), (true, false, false, false));
        assert_eq!(kinds("fe80::1"), (false, true, false, false));
        assert_eq!(kinds("febf::1"), (false, true, false, false));
        assert_eq!(kinds("fec0::1"), (false, false, false, false));
        assert_eq!(kinds("::"), (false, false, true, false));
        assert_eq!(kinds("::1"), (false, false, false, true));
    }
}
