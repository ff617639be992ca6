//! The frames of the bench: 60 bytes (64 with the frame check sequence) or more, as they arrive and as they leave.
//!
//! IPv4 carries a UDP datagram. IPv6 with UDP takes 62 bytes, so its payload has the protocol number for experiments
//! (RFC 3692), which makes no difference to a router. The payload behind the first 60 bytes is the same in all frames:
//! each byte is the low byte of its offset. It is written once, since the time in which a device writes costs nothing.

use bm_testbed::tables::Space;
use bm_wire::checksum;
use bm_wire::ipv4::is_single_host;
use bm_wire::prefix::Prefix;

/// Size of the smallest frame in bytes; it contains all headers.
pub(super) const FRAME: usize = 60;

/// TTL of arriving packets.
const TTL: u8 = 64;
const IPV4_AT: usize = 14;
const IPV4_HEADER: std::ops::Range<usize> = IPV4_AT..IPV4_AT + 20;
const IPV4_LENGTH: std::ops::Range<usize> = IPV4_AT + 2..IPV4_AT + 4;
const UDP_LENGTH: std::ops::Range<usize> = IPV4_AT + 24..IPV4_AT + 26;
const IPV4_TTL: usize = IPV4_AT + 8;
const IPV4_CHECKSUM: std::ops::Range<usize> = IPV4_AT + 10..IPV4_AT + 12;
const IPV4_DESTINATION: std::ops::Range<usize> = IPV4_AT + 16..IPV4_AT + 20;
const IPV6_LENGTH: std::ops::Range<usize> = 14 + 4..14 + 6;
const IPV6_HOPS: usize = 14 + 7;
const IPV6_DESTINATION: std::ops::Range<usize> = 14 + 24..14 + 40;

/// MAC of the hosts that send to us.
const SENDER: [u8; 6] = [2, 0, 0, 0, 2, 1];

/// The MAC of our port with this index.
pub(super) fn port_mac(port: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, port as u8 + 1]
}

/// A frame without its destination address, and the sum of the rest of its checksum.
#[derive(Clone, Copy)]
pub(super) struct Template {
    bytes: [u8; FRAME],
    sum: u16,
    length: usize,
}

impl Template {
    pub fn bytes(&self) -> &[u8; FRAME] {
        &self.bytes
    }

    /// The smallest frame, or a longer one that begins with it.
    pub fn whole(&self, longest: usize) -> Vec<u8> {
        let payload = (FRAME..longest.max(self.length)).map(|place| place as u8);
        self.bytes.into_iter().chain(payload).collect()
    }
}

/// An address family of the bench's packets.
pub(super) trait Packet: Space {
    /// The bytes that differ from packet to packet.
    type Arrival: Copy + Send + Sync + 'static;

    /// A frame of `length` bytes, 60 to 1514, to the router's port with this MAC.
    fn template(port: [u8; 6], length: u16) -> Template;

    /// Writes the lengths of a frame of `length` bytes into its headers, without updating checksums.
    fn set_length(bytes: &mut [u8; FRAME], length: u16);

    /// What a packet to `destination` is made of.
    fn arrival(template: &Template, destination: Self) -> Self::Arrival;

    /// Turns `bytes`, a packet of this template that a router has forwarded, into this packet. As for a device that
    /// writes a new packet, no checksum is computed.
    fn renew(template: &Template, bytes: &mut [u8; FRAME], arrival: &Self::Arrival);

    /// The destination of a frame.
    fn destination(bytes: &[u8; FRAME]) -> Self;

    /// Decrements the TTL, and computes the checksum anew.
    fn decrement_ttl(bytes: &mut [u8; FRAME]);

    /// Whether the type and the header are as expected.
    fn is_right(bytes: &[u8; FRAME]) -> bool;

    /// Decrements the TTL in place as a router does; at 2 it is set back to its first value, so that a frame can be
    /// forwarded for ever.
    fn decrement_or_restore_ttl(bytes: &mut [u8; FRAME]);

    /// The nearest address that a router may forward to, or `None` if this one is to be left out.
    fn routable(self) -> Option<Self>;

    /// The prefix that all destinations are in.
    fn everything() -> Prefix<Self> {
        Prefix::containing(Self::default(), 0).expect("0 is within every width")
    }
}

impl Packet for u32 {
    fn template(port: [u8; 6], length: u16) -> Template {
        let mut bytes = [0; FRAME];
        ethernet(&mut bytes, port, 0x0800);
        // 198.18.0.1 (for benches, RFC 2544), do not fragment, UDP from port 1024 to 1024.
        let header = [0x45, 0, 0, 0, 0, 1, 0x40, 0, TTL, 17, 0, 0, 198, 18, 0, 1, 0, 0, 0, 0];
        let udp = [4, 0, 4, 0, 0, 0, 0, 0];
        bytes[IPV4_HEADER].copy_from_slice(&header);
        bytes[IPV4_HEADER.end..IPV4_HEADER.end + udp.len()].copy_from_slice(&udp);
        Self::set_length(&mut bytes, length);
        Template { bytes, sum: checksum::sum(&bytes[IPV4_HEADER]), length: length.into() }
    }

    #[inline(always)]
    fn set_length(bytes: &mut [u8; FRAME], length: u16) {
        bytes[IPV4_LENGTH].copy_from_slice(&(length - 14).to_be_bytes());
        bytes[UDP_LENGTH].copy_from_slice(&(length - 34).to_be_bytes());
    }

    /// From the identification to the end of the header.
    type Arrival = [u8; 16];

    fn arrival(template: &Template, destination: Self) -> Self::Arrival {
        let sum = u32::from(template.sum) + (destination >> 16) + (destination & 0xffff);
        let mut bytes = template.bytes;
        bytes[IPV4_CHECKSUM].copy_from_slice(&(!checksum::fold(sum)).to_be_bytes());
        bytes[IPV4_DESTINATION].copy_from_slice(&destination.to_be_bytes());
        let mut arrival = [0; 16];
        arrival.copy_from_slice(&bytes[IPV4_HEADER.end - 16..IPV4_HEADER.end]);
        arrival
    }

    #[inline(always)]
    fn renew(template: &Template, bytes: &mut [u8; FRAME], arrival: &Self::Arrival) {
        bytes[..16].copy_from_slice(&template.bytes[..16]);
        bytes[IPV4_HEADER.end - 16..IPV4_HEADER.end].copy_from_slice(arrival);
    }

    fn destination(bytes: &[u8; FRAME]) -> Self {
        bytes[IPV4_DESTINATION].iter().fold(0, |number, &byte| number << 8 | Self::from(byte))
    }

    fn decrement_ttl(bytes: &mut [u8; FRAME]) {
        bytes[IPV4_TTL] -= 1;
        let sum = checksum::ipv4_header(&bytes[IPV4_HEADER]);
        bytes[IPV4_CHECKSUM].copy_from_slice(&sum.to_be_bytes());
    }

    #[inline(always)]
    fn is_right(bytes: &[u8; FRAME]) -> bool {
        let length = u16::from_be_bytes([bytes[16], bytes[17]]);
        let header = bytes[IPV4_HEADER].first_chunk::<20>();
        bytes[12..15] == [8, 0, 0x45]
            && usize::from(length) <= FRAME - 14
            && bytes[IPV4_TTL] > 1
            && header.is_some_and(checksum::is_whole20)
    }

    #[inline(always)]
    fn decrement_or_restore_ttl(bytes: &mut [u8; FRAME]) {
        let spent: u16 =
            if bytes[IPV4_TTL] > 2 { 1 } else { u16::from(bytes[IPV4_TTL]).wrapping_sub(TTL.into()) };
        bytes[IPV4_TTL] = bytes[IPV4_TTL].wrapping_sub(spent as u8);
        // The word decreases by this many hops, so the checksum increases by them (RFC 1624), or the reverse.
        let sum = u32::from(u16::from_be_bytes([bytes[IPV4_CHECKSUM.start], bytes[IPV4_CHECKSUM.start + 1]]));
        let risen = if spent == 1 { sum + 0x0100 } else { sum + u32::from(!(spent.wrapping_neg() << 8)) };
        let folded = (risen & 0xffff) + (risen >> 16);
        let folded = if folded == 0xffff { 0 } else { folded as u16 };
        bytes[IPV4_CHECKSUM].copy_from_slice(&folded.to_be_bytes());
    }

    fn routable(self) -> Option<Self> {
        is_single_host(self).then_some(self)
    }
}

impl Packet for u128 {
    fn template(port: [u8; 6], length: u16) -> Template {
        let mut bytes = [0; FRAME];
        ethernet(&mut bytes, port, 0x86dd);
        // Protocol 253 from 2001:2::1 (for benches, RFC 5180).
        let header = [0x60, 0, 0, 0, 0, 0, 253, TTL, 0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        bytes[14..14 + header.len()].copy_from_slice(&header);
        Self::set_length(&mut bytes, length);
        Template { bytes, sum: 0, length: length.into() }
    }

    #[inline(always)]
    fn set_length(bytes: &mut [u8; FRAME], length: u16) {
        bytes[IPV6_LENGTH].copy_from_slice(&(length - 54).to_be_bytes());
    }

    /// The destination.
    type Arrival = [u8; 16];

    fn arrival(_template: &Template, destination: Self) -> Self::Arrival {
        destination.to_be_bytes()
    }

    #[inline(always)]
    fn renew(template: &Template, bytes: &mut [u8; FRAME], arrival: &Self::Arrival) {
        bytes[..24].copy_from_slice(&template.bytes[..24]);
        bytes[IPV6_DESTINATION].copy_from_slice(arrival);
    }

    fn destination(bytes: &[u8; FRAME]) -> Self {
        bytes[IPV6_DESTINATION].iter().fold(0, |number, &byte| number << 8 | Self::from(byte))
    }

    fn decrement_ttl(bytes: &mut [u8; FRAME]) {
        bytes[IPV6_HOPS] -= 1;
    }

    #[inline(always)]
    fn is_right(bytes: &[u8; FRAME]) -> bool {
        let length = u16::from_be_bytes([bytes[18], bytes[19]]);
        bytes[12..14] == [0x86, 0xdd]
            && bytes[14] >> 4 == 6
            && usize::from(length) <= FRAME - 54
            && bytes[IPV6_HOPS] > 1
            && bytes[22] >> 5 == 1
            && bytes[IPV6_DESTINATION.start] >> 5 == 1
    }

    #[inline(always)]
    fn decrement_or_restore_ttl(bytes: &mut [u8; FRAME]) {
        bytes[IPV6_HOPS] = if bytes[IPV6_HOPS] > 2 { bytes[IPV6_HOPS] - 1 } else { TTL };
    }

    /// Global unicast is 2000::/3 so far; addresses drawn from the whole space are moved there.
    fn routable(self) -> Option<Self> {
        Some(self & Self::MAX >> 3 | 1 << 125)
    }
}

fn ethernet(bytes: &mut [u8; FRAME], port: [u8; 6], kind: u16) {
    bytes[..6].copy_from_slice(&port);
    bytes[6..12].copy_from_slice(&SENDER);
    bytes[12..14].copy_from_slice(&kind.to_be_bytes());
}

/// The frame of `length` bytes to `destination` as it arrives at the port with this MAC.
pub(super) fn arriving<A: Packet>(destination: A, port: [u8; 6], length: u16) -> Vec<u8> {
    let template = A::template(port, length);
    let mut bytes = template.whole(template.length);
    if let Some(headers) = bytes.first_chunk_mut() {
        A::renew(&template, headers, &A::arrival(&template, destination));
    }
    bytes
}

/// The frame of `length` bytes to `destination` as it must leave: between these MACs, with its TTL decremented.
pub(super) fn leaving<A: Packet>(destination: A, to: [u8; 6], from: [u8; 6], length: u16) -> Vec<u8> {
    let mut bytes = arriving(destination, to, length);
    bytes[6..12].copy_from_slice(&from);
    if let Some(headers) = bytes.first_chunk_mut() {
        A::decrement_ttl(headers);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_wire::ipv4::Ipv4;
    use bm_wire::ipv6::Ipv6;
    use bm_wire::udp::Udp;

    const PORT: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const HOP: [u8; 6] = [2, 0, 0, 0, 1, 9];

    #[test]
    fn an_ipv4_frame_is_valid_whatever_its_destination() {
        for destination in (0..=u32::MAX).step_by(0x1_0007) {
            let bytes = arriving(destination, PORT, 60);
            let packet = Ipv4::parse(&bytes[14..]).unwrap();
            assert!(packet.checksum_ok() && packet.ttl() == 64);
            let read = u32::destination(bytes.first_chunk().unwrap());
            assert_eq!((packet.destination(), read), (destination, destination));
        }
        let bytes = arriving(0x0808_0808u32, PORT, 60);
        assert!(Udp::parse(&bytes[34..]).is_ok());
        assert_eq!(bytes[..14], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 2, 1, 8, 0]);
    }

    #[test]
    fn an_ipv6_frame_is_valid() {
        let destination = "2a00:1450:4001::5".parse::<std::net::Ipv6Addr>().unwrap().into();
        let bytes = arriving::<u128>(destination, PORT, 60);
        let packet = Ipv6::parse(&bytes[14..]).unwrap();
        assert_eq!((packet.destination(), packet.hop_limit()), (destination, 64));
        assert_eq!(u128::destination(bytes.first_chunk().unwrap()), destination);
    }

    #[test]
    fn a_frame_of_any_size_is_whole() {
        for length in [60, 61, 124, 590, 1514u16] {
            let (ipv4, ipv6) =
                (arriving::<u32>(0x0808_0808, PORT, length), arriving::<u128>(1 << 125, PORT, length));
            assert_eq!((ipv4.len(), ipv6.len()), (length.into(), length.into()));
            let packet = Ipv4::parse(&ipv4[14..]).unwrap();
            assert!(packet.checksum_ok() && packet.total_len() == length - 14);
            assert_eq!(ipv4[38..40], (length - 34).to_be_bytes());
            assert_eq!(ipv6[18..20], (length - 54).to_be_bytes());
            assert!(ipv4[60..] == ipv6[60..] && (60..length).all(|at| ipv4[usize::from(at)] == at as u8));
        }
    }

    #[test]
    fn forwarded_frames_have_a_decremented_ttl() {
        let bytes = leaving::<u32>(0x0808_0808, HOP, PORT, 60);
        let packet = Ipv4::parse(&bytes[14..]).unwrap();
        assert!(packet.checksum_ok() && packet.ttl() == 63);
        assert_eq!(bytes[..12], [2, 0, 0, 0, 1, 9, 2, 0, 0, 0, 0, 1]);
        assert_eq!(leaving::<u128>(1 << 125, HOP, PORT, 60)[21], 63);
    }

    #[test]
    fn skips_addresses_that_are_never_forwarded() {
        assert_eq!([0xe000_0001u32, 0x7f00_0001, 5].map(Packet::routable), [None; 3]);
        assert_eq!(0x0808_0808u32.routable(), Some(0x0808_0808));
        assert_eq!((0xff02u128 << 112).routable().map(|address| address >> 112), Some(0x3f02));
    }
}
