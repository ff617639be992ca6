//! Packets to send and packets to expect, byte by byte, valid or deliberately broken.
//!
//! The builders fill in lengths and checksums; `with` breaks what a case wants broken. Expected results are computed
//! here according to the RFCs, separately from the router's own code except for the checksum.

mod expect;
mod icmp;
mod ipv4;
mod ipv6;
mod neighbor;

pub use expect::{
    fragments4, routed, time_exceeded4, time_exceeded6, too_big4, too_big6, unreachable4, unreachable6,
};
pub use icmp::{Quote, echo4, echo6, error4, error6, parameter_problem4, parameter_problem6, reply4, reply6};
pub use ipv4::Ip4;
pub use ipv6::Ip6;
pub use neighbor::{
    arp_reply, arp_request, neighbor_advertisement, neighbor_solicitation, option_link_address,
};

use bm_wire::Mac;
use bm_wire::checksum::Pseudo;
use bm_wire::ethernet::{Tag, ethertype};
use bm_wire::protocol;

/// An untagged frame.
pub fn frame(destination: Mac, source: Mac, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&destination.0[..], &source.0, &ethertype.to_be_bytes(), payload].concat()
}

/// A frame for an IP packet; the type follows its version.
pub fn ip_frame(destination: Mac, source: Mac, packet: &[u8]) -> Vec<u8> {
    let kind =
        if packet.first().is_some_and(|first| first >> 4 == 6) { ethertype::IPV6 } else { ethertype::IPV4 };
    frame(destination, source, kind, packet)
}

/// Gives a TCP segment another sequence number.
fn set_sequence(segment: &mut [u8], number: u32, pseudo: Pseudo) {
    segment[4..8].copy_from_slice(&number.to_be_bytes());
    put16(segment, 16, 0);
    let sum = pseudo.checksum(protocol::TCP, segment);
    put16(segment, 16, sum);
}

/// The frame with another outer tag.
pub fn tagged(frame: &[u8], tag: Tag) -> Vec<u8> {
    let tag_bytes = [tag.protocol.to_be_bytes(), tag.control().to_be_bytes()].concat();
    [&frame[..12], &tag_bytes, &frame[12..]].concat()
}

/// The bytes after a change.
pub fn with(mut bytes: Vec<u8>, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    change(&mut bytes);
    bytes
}

/// `length` bytes that differ from their neighbors, so that a shift is noticed.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 251) as u8).collect()
}

/// Writes 16 bits in network order.
pub fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Reads 16 bits in network order; zero where the bytes end earlier.
pub fn get16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |word| u16::from_be_bytes([word[0], word[1]]))
}
