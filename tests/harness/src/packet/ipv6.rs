//! IPv6 packets (RFC 8200).

use super::{pattern, put16, set_sequence};
use bm_wire::checksum::{self, Pseudo};
use bm_wire::protocol;
use std::net::Ipv6Addr;

/// An IPv6 packet by its fields; the payload length is filled in.
#[derive(Clone, Debug)]
pub struct Ip6 {
    /// Traffic class.
    pub class: u8,
    /// Flow label, 20 bits.
    pub label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// Extension headers, each its type and its bytes; their next-header bytes are filled in.
    pub extensions: Vec<(u8, Vec<u8>)>,
    /// Next-header value of the last header.
    pub protocol: u8,
    /// What follows all headers.
    pub payload: Vec<u8>,
}

impl Ip6 {
    /// A packet with a hop limit of 64. Addresses are given as text.
    pub fn new(source: &str, destination: &str, protocol: u8, payload: Vec<u8>) -> Self {
        let address = |text: &str| text.parse().unwrap_or_else(|_| panic!("{text} is no IPv6 address"));
        Self {
            class: 0,
            label: 0,
            hop_limit: 64,
            source: address(source),
            destination: address(destination),
            extensions: Vec::new(),
            protocol,
            payload,
        }
    }

    /// UDP from port 4000 to 5000 with `length` bytes of data.
    pub fn udp(source: &str, destination: &str, length: usize) -> Self {
        Self::udp_ports(source, destination, 4000, 5000, &pattern(length))
    }

    /// UDP with these ports and data.
    pub fn udp_ports(source: &str, destination: &str, from: u16, to: u16, data: &[u8]) -> Self {
        let header = [from, to, (8 + data.len()) as u16, 0].map(u16::to_be_bytes).concat();
        let mut packet = Self::new(source, destination, protocol::UDP, [&header, data].concat());
        let sum = packet.pseudo().checksum(protocol::UDP, &packet.payload);
        put16(&mut packet.payload, 6, checksum::udp_field(sum));
        packet
    }

    /// A TCP SYN.
    pub fn tcp_syn(source: &str, destination: &str, from: u16, to: u16) -> Self {
        let words = [from, to, 0x1122, 0x3344, 0, 0, 0x5002, 0x2000, 0, 0].map(u16::to_be_bytes);
        let mut packet = Self::new(source, destination, protocol::TCP, words.concat());
        let sum = packet.pseudo().checksum(protocol::TCP, &packet.payload);
        put16(&mut packet.payload, 16, sum);
        packet
    }

    /// ICMPv6 of this type and code, with what follows its checksum.
    pub fn icmp(source: &str, destination: &str, kind: u8, code: u8, rest: &[u8]) -> Self {
        let message = [&[kind, code, 0, 0], rest].concat();
        let mut packet = Self::new(source, destination, protocol::ICMPV6, message);
        let sum = packet.pseudo().checksum(protocol::ICMPV6, &packet.payload);
        put16(&mut packet.payload, 2, sum);
        packet
    }

    /// A segment with another sequence number.
    pub fn sequence(mut self, number: u32) -> Self {
        let pseudo = self.pseudo();
        set_sequence(&mut self.payload, number, pseudo);
        self
    }

    fn pseudo(&self) -> Pseudo {
        Pseudo::V6 { source: self.source.into(), destination: self.destination.into() }
    }

    /// With another hop limit.
    pub fn hop_limit(self, hop_limit: u8) -> Self {
        Self { hop_limit, ..self }
    }

    /// With another traffic class.
    pub fn class(self, class: u8) -> Self {
        Self { class, ..self }
    }

    /// With another flow label.
    pub fn label(self, label: u32) -> Self {
        Self { label, ..self }
    }

    /// With another extension header after the existing ones; `body` is what follows its first byte.
    pub fn extension(mut self, kind: u8, body: &[u8]) -> Self {
        self.extensions.push((kind, [&[0], body].concat()));
        self
    }

    /// With a fragment header: offset in bytes, whether more follow, identification.
    pub fn fragment(self, offset: u16, more: bool, id: u32) -> Self {
        let field = (offset & 0xfff8) | u16::from(more);
        self.extension(protocol::FRAGMENT, &[&[0][..], &field.to_be_bytes(), &id.to_be_bytes()].concat())
    }

    /// The packet's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let follows = |index: usize| self.extensions.get(index).map_or(self.protocol, |(kind, _)| *kind);
        let mut rest = Vec::new();
        for (index, (_, body)) in self.extensions.iter().enumerate() {
            rest.push(follows(index + 1));
            rest.extend(&body[1..]);
        }
        rest.extend(&self.payload);
        let first = 6 << 28 | u32::from(self.class) << 20 | self.label & 0xf_ffff;
        let mut bytes = first.to_be_bytes().to_vec();
        bytes.extend((rest.len() as u16).to_be_bytes());
        bytes.extend([follows(0), self.hop_limit]);
        bytes.extend(self.source.octets());
        bytes.extend(self.destination.octets());
        bytes.extend(rest);
        bytes
    }
}
