//! ICMP and ICMPv6 messages: echo, replies, and errors that quote a packet.

use super::{Ip4, Ip6, get16, pattern, put16};
use bm_wire::{checksum, protocol};

/// Bytes of the longest ICMP error, its own header included (RFC 1812 4.3.2.3).
const ERROR4_MAX: usize = 576;
/// Bytes of the longest ICMPv6 error (RFC 4443 2.4 c).
const ERROR6_MAX: usize = 1280;
/// TTL and hop limit of packets that Linux itself sends.
const HOPS: u8 = 64;

/// How much an error quotes of the packet that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quote {
    /// As much as the RFC allows.
    Full,
    /// This many bytes.
    Bytes(usize),
}

impl Quote {
    fn of(self, packet: &[u8], room: usize) -> &[u8] {
        let length = match self {
            Self::Full => room,
            Self::Bytes(length) => length,
        };
        &packet[..length.min(packet.len())]
    }
}

/// An ICMP message with its checksum.
fn message4(kind: u8, code: u8, rest: u32, data: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, code, 0, 0], &rest.to_be_bytes()[..], data].concat();
    let sum = checksum::checksum(&message);
    put16(&mut message, 2, sum);
    message
}

/// An echo request with `length` bytes of data; identifier and sequence are the halves of `rest`.
pub fn echo4(source: &str, destination: &str, rest: u32, length: usize) -> Ip4 {
    Ip4::new(source, destination, protocol::ICMP, message4(8, 0, rest, &pattern(length)))
}

/// The reply to an echo request: the same data, from the address that the request was sent to.
pub fn reply4(request: &Ip4) -> Ip4 {
    let mut reply = Ip4 { id: 0, ttl: HOPS, flags: 0, ..request.clone() };
    (reply.source, reply.destination) = (request.destination, request.source);
    let rest = &request.payload;
    reply.payload = message4(0, 0, u32::from_be_bytes([rest[4], rest[5], rest[6], rest[7]]), &rest[8..]);
    reply
}

/// An ICMP error about `packet`, with the precedence of control traffic (RFC 1812 4.3.2.5).
pub fn error4(from: &str, kind: u8, code: u8, rest: u32, packet: &[u8], quote: Quote) -> Ip4 {
    let source = std::net::Ipv4Addr::new(packet[12], packet[13], packet[14], packet[15]).to_string();
    let whole = &packet[..usize::from(get16(packet, 2)).min(packet.len())];
    let data = quote.of(whole, ERROR4_MAX - 20 - 8);
    Ip4::new(from, &source, protocol::ICMP, message4(kind, code, rest, data))
        .tos(packet[1] & 0x1e | 0xc0)
        .ttl(HOPS)
        .id(0)
}

/// Parameter Problem, pointing at a byte of the packet.
pub fn parameter_problem4(from: &str, pointer: u8, packet: &[u8]) -> Ip4 {
    error4(from, 12, 0, u32::from(pointer) << 24, packet, Quote::Full)
}

/// An echo request with `length` bytes of data; identifier and sequence are the halves of `rest`.
pub fn echo6(source: &str, destination: &str, rest: u32, length: usize) -> Ip6 {
    Ip6::icmp(source, destination, 128, 0, &[&rest.to_be_bytes()[..], &pattern(length)].concat())
}

/// The reply to an echo request.
pub fn reply6(request: &Ip6) -> Ip6 {
    let (from, to) = (request.destination.to_string(), request.source.to_string());
    Ip6::icmp(&from, &to, 129, 0, &request.payload[4..]).hop_limit(HOPS).class(request.class)
}

/// An ICMPv6 error about `packet`.
pub fn error6(from: &str, kind: u8, code: u8, rest: u32, packet: &[u8]) -> Ip6 {
    let mut source = [0u8; 16];
    source.copy_from_slice(&packet[8..24]);
    let whole = &packet[..(40 + usize::from(get16(packet, 4))).min(packet.len())];
    let data = Quote::Full.of(whole, ERROR6_MAX - 40 - 8);
    let body = [&rest.to_be_bytes()[..], data].concat();
    Ip6::icmp(from, &std::net::Ipv6Addr::from(source).to_string(), kind, code, &body).hop_limit(HOPS)
}

/// Parameter Problem of this code, pointing at a byte of the packet.
pub fn parameter_problem6(from: &str, code: u8, pointer: u32, packet: &[u8]) -> Ip6 {
    error6(from, 4, code, pointer, packet)
}
