//! What a router must make of a packet, computed byte by byte according to the RFCs.

use super::icmp::{Quote, error4, error6};
use super::ipv4::summed;
use super::{Ip4, Ip6, get16, put16};

/// The packet after one hop: TTL or hop limit decremented, padding removed.
pub fn routed(packet: &[u8]) -> Vec<u8> {
    if packet[0] >> 4 == 6 {
        let mut out = packet[..40 + usize::from(get16(packet, 4))].to_vec();
        out[7] -= 1;
        return out;
    }
    let mut out = packet[..usize::from(get16(packet, 2))].to_vec();
    out[8] -= 1;
    summed(&mut out);
    out
}

/// The fragments of an IPv4 packet for a link of `mtu` bytes (RFC 791 3.2), as they leave after one hop.
///
/// The reserved flag "must be zero", so it is zero in a new header.
pub fn fragments4(packet: &[u8], mtu: usize) -> Vec<Vec<u8>> {
    let packet = routed(packet);
    let header_len = usize::from(packet[0] & 15) * 4;
    let (header, data) = packet.split_at(header_len);
    let step = (mtu - header_len) / 8 * 8;
    let field = get16(&packet, 6);
    let count = data.len().div_ceil(step);
    let fragment = |(index, part): (usize, &[u8])| {
        let mut out = if index == 0 { header.to_vec() } else { later_header(header) };
        let more = if index + 1 < count { Ip4::MF } else { field & Ip4::MF };
        let offset = (field & 0x1fff) + (index * step / 8) as u16;
        put16(&mut out, 2, (header_len + part.len()) as u16);
        put16(&mut out, 6, more | offset);
        summed(&mut out);
        out.extend(part);
        out
    };
    data.chunks(step).enumerate().map(fragment).collect()
}

/// The header of fragments after the first: options without the copy bit become no-operations.
fn later_header(header: &[u8]) -> Vec<u8> {
    let mut out = header.to_vec();
    let mut at = 20;
    while at < out.len() && out[at] != 0 {
        let length = if out[at] == 1 { 1 } else { usize::from(out[at + 1]) };
        if out[at] & 0x80 == 0 {
            out[at..at + length].fill(1);
        }
        at += length;
    }
    out
}

/// Time Exceeded in transit.
pub fn time_exceeded4(from: &str, packet: &[u8]) -> Ip4 {
    error4(from, 11, 0, 0, packet, Quote::Full)
}

/// Destination Unreachable of this code.
pub fn unreachable4(from: &str, code: u8, packet: &[u8]) -> Ip4 {
    error4(from, 3, code, 0, packet, Quote::Full)
}

/// Fragmentation Needed, with the MTU of the next hop (RFC 1191 4).
pub fn too_big4(from: &str, mtu: u16, packet: &[u8]) -> Ip4 {
    error4(from, 3, 4, u32::from(mtu), packet, Quote::Full)
}

/// Time Exceeded in transit.
pub fn time_exceeded6(from: &str, packet: &[u8]) -> Ip6 {
    error6(from, 3, 0, 0, packet)
}

/// Destination Unreachable of this code.
pub fn unreachable6(from: &str, code: u8, packet: &[u8]) -> Ip6 {
    error6(from, 1, code, 0, packet)
}

/// Packet Too Big.
pub fn too_big6(from: &str, mtu: u32, packet: &[u8]) -> Ip6 {
    error6(from, 2, 0, mtu, packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_hold_the_same_bytes() {
        let options = [0x9e, 4, 1, 2, 0x1e, 4, 3, 4];
        let packet = Ip4::udp("192.0.2.2", "10.2.0.1", 2972).options(&options).bytes();
        let parts = fragments4(&packet, 1300);
        assert_eq!(parts.len(), 3);
        let data: Vec<u8> = parts.iter().flat_map(|part| &part[28..]).copied().collect();
        assert_eq!(data, packet[28..]);
        assert_eq!(parts[0][20..28], options);
        assert_eq!(parts[1][20..28], [0x9e, 4, 1, 2, 1, 1, 1, 1]);
        let fields: Vec<u16> = parts.iter().map(|part| get16(part, 6)).collect();
        assert_eq!(fields, [0x2000, 0x2000 + 159, 318]);
    }

    #[test]
    fn a_hop_decrements_the_ttl_and_removes_padding() {
        let packet = Ip4::udp("192.0.2.2", "10.2.0.1", 4).ttl(9);
        let padded = [packet.bytes(), vec![0xaa; 20]].concat();
        assert_eq!(routed(&padded), packet.ttl(8).bytes());
        let packet = Ip6::udp("2001:db8::1", "2001:db8::2", 4).hop_limit(9);
        let padded = [packet.bytes(), vec![0xaa; 20]].concat();
        assert_eq!(routed(&padded), packet.hop_limit(8).bytes());
    }
}
