//! IPv4 (RFC 791), as a router must look at it (RFC 1812 5.2.2).
//!
//! `Ipv4::parse` makes every check that needs no table except the checksum, which costs a pass over the header and
//! has its own accessor. Bytes after the total length are padding and never payload.

use crate::bytes::{be16, be32, put16, put32};
use crate::checksum::{self, Pseudo};
use crate::malformed::{Malformed, NoRoom, room};
use std::ops::Range;

pub mod option;

mod at {
    use std::ops::Range;
    pub(crate) const VERSION_IHL: usize = 0;
    pub const TOS: usize = 1;
    pub(crate) const TOTAL_LEN: Range<usize> = 2..4;
    pub const ID: Range<usize> = 4..6;
    pub const FRAGMENT: Range<usize> = 6..8;
    pub const TTL: usize = 8;
    pub const PROTOCOL: usize = 9;
    pub const CHECKSUM: Range<usize> = crate::checksum::IPV4_FIELD;
    pub const SOURCE: Range<usize> = 12..16;
    pub const DESTINATION: Range<usize> = 16..20;
    pub const OPTIONS: usize = 20;
}

/// Bytes of a header without options.
pub const HEADER_LEN: usize = at::OPTIONS;
/// Bytes of the longest header.
pub const HEADER_LEN_MAX: usize = 60;
/// Bytes of the longest packet.
pub(crate) const TOTAL_LEN_MAX: usize = 65_535;

const DF: u16 = 0x4000;
const MF: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

/// An IPv4 packet. Its existence proves that the header is complete, so no accessor can panic.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<B>(B);

impl<B> Ipv4<B> {
    /// Position of the header checksum.
    pub const CHECKSUM: Range<usize> = at::CHECKSUM;
}

impl<B: AsRef<[u8]>> Ipv4<B> {
    /// Checks length, version, header length and total length; the checksum is `checksum_ok`'s.
    #[inline]
    pub fn parse(packet: B) -> Result<Self, Malformed> {
        let bytes = packet.as_ref();
        if bytes.len() < HEADER_LEN {
            return Err(Malformed::Short);
        }
        let first = bytes[at::VERSION_IHL];
        let header_len = usize::from(first & 0x0f) * 4;
        let total_len = usize::from(be16(&bytes[at::TOTAL_LEN]));
        match () {
            () if first >> 4 != 4 => Err(Malformed::Version),
            () if header_len < HEADER_LEN => Err(Malformed::HeaderLen),
            () if total_len < header_len => Err(Malformed::TotalLen),
            () if total_len > bytes.len() => Err(Malformed::Truncated),
            () => Ok(Self(packet)),
        }
    }

    /// Checks a packet quoted in an ICMP error: its header must be complete, its end may be missing.
    #[inline]
    pub fn parse_quoted(packet: B) -> Result<Self, Malformed> {
        let bytes = packet.as_ref();
        let header_len = bytes.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
        match () {
            () if bytes.len() < HEADER_LEN => Err(Malformed::Short),
            () if bytes[at::VERSION_IHL] >> 4 != 4 => Err(Malformed::Version),
            () if !(HEADER_LEN..=bytes.len()).contains(&header_len) => Err(Malformed::HeaderLen),
            () => Ok(Self(packet)),
        }
    }

    /// Whether the header checksum is right.
    #[inline]
    pub fn checksum_ok(&self) -> bool {
        match self.0.as_ref().first_chunk::<HEADER_LEN>() {
            Some(header) if self.header_len() == HEADER_LEN => checksum::is_whole20(header),
            _ => checksum::sum(self.header()) == 0xffff,
        }
    }

    /// Bytes of the header, options included: 20 to 60.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.0.as_ref()[at::VERSION_IHL] & 0x0f) * 4
    }

    /// Type of service: DSCP and ECN.
    #[inline]
    pub fn tos(&self) -> u8 {
        self.0.as_ref()[at::TOS]
    }

    /// Bytes of header and payload.
    #[inline]
    pub fn total_len(&self) -> u16 {
        be16(&self.0.as_ref()[at::TOTAL_LEN])
    }

    /// Identification, which fragments of one packet share.
    #[inline]
    pub fn id(&self) -> u16 {
        be16(&self.0.as_ref()[at::ID])
    }

    /// DF: may not be fragmented.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        self.fragment() & DF != 0
    }

    /// MF: further fragments follow.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.fragment() & MF != 0
    }

    /// Position of the payload in the unfragmented packet, in bytes.
    #[inline]
    pub fn fragment_offset(&self) -> u16 {
        (self.fragment() & OFFSET) << 3
    }

    /// Whether this is a part of a packet, first or later.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.fragment() & (MF | OFFSET) != 0
    }

    /// Whether the fragment ends beyond the largest packet, as only in an attack.
    pub fn overruns(&self) -> bool {
        usize::from(self.fragment_offset()) + usize::from(self.total_len()) > TOTAL_LEN_MAX
    }

    #[inline]
    fn fragment(&self) -> u16 {
        be16(&self.0.as_ref()[at::FRAGMENT])
    }

    /// Hops that are left.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.0.as_ref()[at::TTL]
    }

    /// Protocol of the payload.
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.0.as_ref()[at::PROTOCOL]
    }

    /// The header checksum field.
    #[inline]
    pub fn checksum(&self) -> u16 {
        be16(&self.0.as_ref()[at::CHECKSUM])
    }

    /// Source address.
    #[inline]
    pub fn source(&self) -> u32 {
        be32(&self.0.as_ref()[at::SOURCE])
    }

    /// Destination address.
    #[inline]
    pub fn destination(&self) -> u32 {
        be32(&self.0.as_ref()[at::DESTINATION])
    }

    /// Header with its options.
    #[inline]
    pub fn header(&self) -> &[u8] {
        &self.0.as_ref()[..self.header_len()]
    }

    /// Options, up to 40 bytes. `option::Options` walks them.
    #[inline]
    pub fn options(&self) -> &[u8] {
        &self.0.as_ref()[HEADER_LEN..self.header_len()]
    }

    /// The payload without padding; of a quoted packet, the part that is present.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let bytes = self.0.as_ref();
        let end = usize::from(self.total_len()).clamp(self.header_len(), bytes.len());
        &bytes[self.header_len()..end]
    }

    /// The whole packet without padding.
    #[inline]
    pub fn packet(&self) -> &[u8] {
        let bytes = self.0.as_ref();
        &bytes[..usize::from(self.total_len()).clamp(self.header_len(), bytes.len())]
    }

    /// What the payload's own checksum covers of this header.
    #[inline]
    pub fn pseudo(&self) -> Pseudo {
        Pseudo::V4 { source: self.source(), destination: self.destination() }
    }

    /// The header's meaning, options left out.
    pub fn repr(&self) -> Ipv4Header {
        Ipv4Header {
            tos: self.tos(),
            total_len: self.total_len(),
            id: self.id(),
            dont_fragment: self.dont_fragment(),
            more_fragments: self.more_fragments(),
            fragment_offset: self.fragment_offset(),
            ttl: self.ttl(),
            protocol: self.protocol(),
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

impl<B: AsRef<[u8]> + AsMut<[u8]>> Ipv4<B> {
    /// Decrements the TTL, which the caller has checked to be above 1.
    #[inline]
    pub fn decrement_ttl(&mut self) {
        debug_assert!(self.ttl() > 1);
        // The TTL is the high byte of its word, so the word decreases by 0x0100 and the sum increases by it. `>=`,
        // not `>`: 0xffff is one's-complement minus zero, which a full sum never gives.
        let sum = u32::from(self.checksum()) + 0x0100;
        let sum = (sum + u32::from(sum >= 0xffff)) as u16;
        self.0.as_mut()[at::TTL] = self.ttl().wrapping_sub(1);
        put16(&mut self.0.as_mut()[at::CHECKSUM], sum);
    }

    /// Sets the type of service and updates the checksum.
    pub fn set_tos(&mut self, tos: u8) {
        let version_ihl = self.0.as_ref()[at::VERSION_IHL];
        let [old, new] = [self.tos(), tos].map(|tos| u16::from_be_bytes([version_ihl, tos]));
        let sum = checksum::update16(self.checksum(), old, new);
        self.0.as_mut()[at::TOS] = tos;
        put16(&mut self.0.as_mut()[at::CHECKSUM], sum);
    }

    /// Sets the hops that are left; the checksum is for `fill_checksum`.
    pub fn set_ttl(&mut self, ttl: u8) {
        self.0.as_mut()[at::TTL] = ttl;
    }

    /// Sets the source address; the caller updates the checksums, also the payload's (`checksum::update32`).
    pub fn set_source(&mut self, address: u32) {
        put32(&mut self.0.as_mut()[at::SOURCE], address);
    }

    /// Sets the destination address; the caller updates the checksums, also the payload's (`checksum::update32`).
    pub fn set_destination(&mut self, address: u32) {
        put32(&mut self.0.as_mut()[at::DESTINATION], address);
    }

    /// Sets the header checksum.
    pub(crate) fn set_checksum(&mut self, checksum: u16) {
        put16(&mut self.0.as_mut()[at::CHECKSUM], checksum);
    }

    /// Computes and sets the header checksum.
    pub fn fill_checksum(&mut self) {
        let checksum = checksum::ipv4_header(self.header());
        self.set_checksum(checksum);
    }

    /// Options, up to 40 bytes; after a change the checksum is for `fill_checksum`.
    pub fn options_mut(&mut self) -> &mut [u8] {
        let end = self.header_len();
        &mut self.0.as_mut()[HEADER_LEN..end]
    }

    /// Payload without padding.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let (start, end) = (self.header_len(), usize::from(self.total_len()));
        let bytes = self.0.as_mut();
        let end = end.clamp(start, bytes.len());
        &mut bytes[start..end]
    }
}

/// The fields of an IPv4 header, for building one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4Header {
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Bytes of header, options and payload.
    pub total_len: u16,
    /// Identification.
    pub id: u16,
    /// DF: may not be fragmented.
    pub dont_fragment: bool,
    /// MF: further fragments follow.
    pub more_fragments: bool,
    /// Position of the payload in the unfragmented packet, in bytes: a multiple of 8.
    pub fragment_offset: u16,
    /// Hops that are left.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Source address.
    pub source: u32,
    /// Destination address.
    pub destination: u32,
}

impl Ipv4Header {
    /// Writes the 20 bytes of a header without options, with its checksum; returns the length.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        self.emit_with_options(&[], buffer)
    }

    /// Writes a header with options, padded with "end of list" to four bytes; returns the length.
    ///
    /// The caller must set `total_len` correctly. At most 40 bytes of options are written.
    pub fn emit_with_options(&self, options: &[u8], buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let options = &options[..options.len().min(HEADER_LEN_MAX - HEADER_LEN)];
        let header_len = HEADER_LEN + options.len().next_multiple_of(4);
        let header = room(buffer, header_len)?;
        header[at::OPTIONS..].fill(0);
        header[at::OPTIONS..][..options.len()].copy_from_slice(options);
        header[at::VERSION_IHL] = 0x40 | (header_len / 4) as u8;
        header[at::TOS] = self.tos;
        put16(&mut header[at::TOTAL_LEN], self.total_len);
        put16(&mut header[at::ID], self.id);
        put16(&mut header[at::FRAGMENT], self.fragment());
        header[at::TTL] = self.ttl;
        header[at::PROTOCOL] = self.protocol;
        put32(&mut header[at::SOURCE], self.source);
        put32(&mut header[at::DESTINATION], self.destination);
        let checksum = checksum::ipv4_header(header);
        put16(&mut header[at::CHECKSUM], checksum);
        Ok(header_len)
    }

    fn fragment(&self) -> u16 {
        debug_assert!(self.fragment_offset.is_multiple_of(8));
        let dont_fragment = if self.dont_fragment { DF } else { 0 };
        let more_fragments = if self.more_fragments { MF } else { 0 };
        dont_fragment | more_fragments | self.fragment_offset >> 3
    }
}

/// Whether it is a multicast address (224.0.0.0/4).
#[inline]
pub fn is_multicast(address: u32) -> bool {
    address >> 28 == 0xe
}

/// Whether an address can belong to one host: not "this network" (0/8), loopback (127/8), multicast, class E or the
/// limited broadcast. Only tables know directed broadcasts.
#[inline]
pub const fn is_single_host(address: u32) -> bool {
    let first = address >> 24;
    first != 0 && first != 127 && first < 224
}

/// Whether it is a link-local address (169.254.0.0/16, RFC 3927).
#[inline]
pub fn is_link_local(address: u32) -> bool {
    address >> 16 == 0xa9fe
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 192.0.2.1 > 198.51.100.7, UDP without payload, two hops left; and the same packet one hop on.
    const TTL_2: [u8; 20] = [0x45, 0, 0, 20, 0, 1, 0, 0, 2, 17, 0xcc, 0x9c, 192, 0, 2, 1, 198, 51, 100, 7];
    const TTL_1: [u8; 20] = [0x45, 0, 0, 20, 0, 1, 0, 0, 1, 17, 0xcd, 0x9c, 192, 0, 2, 1, 198, 51, 100, 7];
    /// The second fragment of a packet with a Router Alert, MF set, at 1480 bytes, payload "abcdefgh".
    const FRAGMENT: [u8; 32] = [
        0x46, 0xb8, 0, 32, 0x12, 0x34, 0x20, 0xb9, 64, 6, 0x9e, 0x2c, 10, 0, 0, 1, 10, 0, 0, 2, 0x94, 4, 0,
        0, b'a', b'b', b'c', b'd', b'e', b'f', b'g', b'h',
    ];

    fn with(mut bytes: [u8; 20], at: usize, byte: u8) -> [u8; 20] {
        bytes[at] = byte;
        bytes
    }

    fn fault(bytes: &[u8]) -> Option<Malformed> {
        Ipv4::parse(bytes).err()
    }

    #[test]
    fn rejects_what_rfc_1812_5_2_2_forbids() {
        assert_eq!(fault(&[]), Some(Malformed::Short));
        assert_eq!(fault(&TTL_2[..19]), Some(Malformed::Short));
        assert_eq!(fault(&with(TTL_2, 0, 0x65)), Some(Malformed::Version));
        assert_eq!(fault(&with(TTL_2, 0, 0x44)), Some(Malformed::HeaderLen));
        assert_eq!(fault(&with(TTL_2, 3, 19)), Some(Malformed::TotalLen));
        assert_eq!(fault(&with(TTL_2, 0, 0x46)), Some(Malformed::TotalLen));
        assert_eq!(fault(&with(TTL_2, 3, 21)), Some(Malformed::Truncated));
        assert!(Ipv4::parse(&TTL_2).unwrap().checksum_ok());
        assert!(!Ipv4::parse(with(TTL_2, 5, 0)).unwrap().checksum_ok());
    }

    #[test]
    fn reads_every_field() {
        let packet = Ipv4::parse(FRAGMENT).unwrap();
        assert!(packet.checksum_ok());
        let read = Ipv4Header {
            tos: 0xb8,
            total_len: 32,
            id: 0x1234,
            dont_fragment: false,
            more_fragments: true,
            fragment_offset: 1480,
            ttl: 64,
            protocol: 6,
            source: 0x0a00_0001,
            destination: 0x0a00_0002,
        };
        assert_eq!(packet.repr(), read);
        assert_eq!((packet.header_len(), packet.options()), (24, &FRAGMENT[20..24]));
        assert!(packet.is_fragment() && !packet.overruns());
        assert_eq!(packet.payload(), b"abcdefgh");
    }

    #[test]
    fn padding_is_not_payload() {
        let mut padded = [0xaa; 46];
        padded[..32].copy_from_slice(&FRAGMENT);
        let mut packet = Ipv4::parse(&mut padded[..]).unwrap();
        assert_eq!((packet.payload(), packet.packet()), (&b"abcdefgh"[..], &FRAGMENT[..]));
        assert_eq!(packet.payload_mut(), b"abcdefgh");
    }

    #[test]
    fn setters_write_only_their_own_bytes() {
        let mut bytes = FRAGMENT;
        let mut packet = Ipv4::parse(&mut bytes).unwrap();
        packet.set_source(0xc000_0201);
        packet.options_mut().copy_from_slice(&[1, 1, 1, 0]);
        let mut expected = FRAGMENT;
        expected[12..16].copy_from_slice(&[192, 0, 2, 1]);
        expected[20..24].copy_from_slice(&[1, 1, 1, 0]);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn reads_what_an_error_quotes() {
        let packet = Ipv4::parse_quoted(&FRAGMENT[..28]).unwrap();
        assert_eq!((packet.payload(), packet.packet().len()), (&b"abcd"[..], 28));
        assert_eq!(Ipv4::parse_quoted(&FRAGMENT[..23]).err(), Some(Malformed::HeaderLen));
        assert_eq!(Ipv4::parse_quoted(with(TTL_2, 0, 0x65)).err(), Some(Malformed::Version));
    }

    #[test]
    fn emits_what_it_reads() {
        let mut buffer = [0xff; 32];
        let packet = Ipv4::parse(FRAGMENT).unwrap();
        assert_eq!(packet.repr().emit_with_options(packet.options(), &mut buffer), Ok(24));
        assert_eq!(buffer[..24], FRAGMENT[..24]);
        assert_eq!(Ipv4::parse(TTL_2).unwrap().repr().emit(&mut buffer), Ok(20));
        assert_eq!(buffer[..20], TTL_2);
        assert_eq!(
            packet.repr().emit_with_options(&[0x94, 4, 0, 0, 1], &mut buffer[..27]),
            Err(NoRoom { needed: 28, room: 27 })
        );
    }

    #[test]
    fn decrements_the_ttl_and_updates_the_checksum() {
        let mut packet = Ipv4::parse(TTL_2).unwrap();
        packet.decrement_ttl();
        assert_eq!(packet.into_inner(), TTL_1);
    }

    #[test]
    fn shortcut_agrees_with_the_full_sum() {
        for id in 0..=u16::MAX {
            let mut bytes = TTL_2;
            put16(&mut bytes[at::ID], id);
            let mut packet = Ipv4::parse(bytes).unwrap();
            packet.fill_checksum();
            packet.decrement_ttl();
            let short = packet;
            packet.fill_checksum();
            assert_eq!(short.into_inner(), packet.into_inner(), "id {id}");
        }
    }

    #[test]
    fn marking_updates_the_checksum() {
        for tos in 0..=u8::MAX {
            let mut packet = Ipv4::parse(TTL_2).unwrap();
            packet.set_tos(tos);
            assert!(packet.tos() == tos && packet.checksum_ok(), "tos {tos}");
        }
    }

    #[test]
    fn computes_the_end_of_the_longest_packet() {
        let ends = |fragment: u16, payload: u8| {
            let mut bytes = [0; 40];
            bytes[..20].copy_from_slice(&TTL_2);
            bytes[3] = 20 + payload;
            put16(&mut bytes[6..], fragment);
            Ipv4::parse(bytes).unwrap().overruns()
        };
        // 65,535 is 20 of header, 65,512 of offset, and 3.
        assert!(!ends(8189, 3) && ends(8189, 4) && ends(8191, 8));
    }

    #[test]
    fn classifies_addresses() {
        let kinds = |text: &str| {
            let address = u32::from(text.parse::<std::net::Ipv4Addr>().unwrap());
            (is_single_host(address), is_multicast(address), is_link_local(address))
        };
        assert_eq!(kinds("192.0.2.1"), (true, false, false));
        assert_eq!(kinds("169.254.0.1"), (true, false, true));
        assert_eq!(kinds("224.0.0.1"), (false, true, false));
        for none in ["0.0.0.0", "0.1.2.3", "127.0.0.1", "240.0.0.1", "255.255.255.255"] {
            assert_eq!(kinds(none), (false, false, false), "{none}");
        }
    }
}
