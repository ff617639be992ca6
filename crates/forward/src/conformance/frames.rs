//! Frames to send and frames to expect. Expected ones are computed in full, without incremental checksums.

use std::net::{Ipv4Addr, Ipv6Addr};

use bm_wire::checksum::{self, Pseudo};
use bm_wire::protocol;

pub const LEFT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const RIGHT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const NARROW_MAC: [u8; 6] = [2, 0, 0, 0, 0, 3];
pub const LEFT_HOST: [u8; 6] = [2, 0, 0, 0, 1, 9];
pub const RIGHT_HOST: [u8; 6] = [2, 0, 0, 0, 2, 7];
pub const NARROW_HOST: [u8; 6] = [2, 0, 0, 0, 3, 5];

/// An Ethernet frame.
pub fn frame(to: [u8; 6], from: [u8; 6], kind: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from, &kind.to_be_bytes(), payload].concat()
}

/// A frame from the left host to the router.
pub fn to_router(packet: &[u8]) -> Vec<u8> {
    let kind = if packet.first().is_some_and(|first| first >> 4 == 6) { 0x86dd } else { 0x0800 };
    frame(LEFT_MAC, LEFT_HOST, kind, packet)
}

/// An IPv4 packet to send; fields that are not set have defaults.
#[derive(Clone, Debug)]
pub struct V4 {
    pub source: &'static str,
    pub destination: &'static str,
    pub ttl: u8,
    pub tos: u8,
    pub id: u16,
    /// Flags and offset as in the header.
    pub fragment: u16,
    pub protocol: u8,
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Default for V4 {
    fn default() -> Self {
        let payload = vec![0x30, 0x39, 0, 53, 0, 12, 0, 0, b'd', b'a', b't', b'a'];
        Self {
            source: "192.0.2.9",
            destination: "8.8.8.8",
            ttl: 64,
            tos: 0,
            id: 0x1234,
            fragment: 0,
            protocol: protocol::UDP,
            options: Vec::new(),
            payload,
        }
    }
}

impl V4 {
    pub fn to(destination: &'static str) -> Self {
        Self { destination, ..Self::default() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let address = |text: &str| text.parse::<Ipv4Addr>().unwrap().octets();
        assert!(self.options.len().is_multiple_of(4));
        let header_len = 20 + self.options.len();
        let total_len = (header_len + self.payload.len()) as u16;
        let mut bytes = vec![0x40 | (header_len / 4) as u8, self.tos];
        bytes.extend(total_len.to_be_bytes());
        bytes.extend(self.id.to_be_bytes());
        bytes.extend(self.fragment.to_be_bytes());
        bytes.extend([self.ttl, self.protocol, 0, 0]);
        bytes.extend(address(self.source));
        bytes.extend(address(self.destination));
        bytes.extend(&self.options);
        sum_header(&mut bytes);
        bytes.extend(&self.payload);
        bytes
    }

    /// As a frame from the left host to the router.
    pub fn sent(&self) -> Vec<u8> {
        to_router(&self.bytes())
    }

    /// The packet as it leaves to the router on the right: TTL decremented, nothing else.
    pub fn routed(&self) -> Vec<u8> {
        frame(RIGHT_HOST, RIGHT_MAC, 0x0800, &self.one_hop_on())
    }

    pub fn one_hop_on(&self) -> Vec<u8> {
        Self { ttl: self.ttl - 1, ..self.clone() }.bytes()
    }
}

/// Computes the header checksum of the packet in full.
pub fn sum_header(packet: &mut [u8]) {
    let header_len = usize::from(packet[0] & 0xf) * 4;
    packet[10..12].fill(0);
    let sum = checksum::checksum(&packet[..header_len]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// An IPv6 packet as it is sent.
#[derive(Clone, Debug)]
pub struct V6 {
    pub source: &'static str,
    pub destination: &'static str,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub next_header: u8,
    pub payload: Vec<u8>,
}

impl Default for V6 {
    fn default() -> Self {
        let payload = vec![0x30, 0x39, 0, 53, 0, 12, 0x12, 0x34, b'd', b'a', b't', b'a'];
        Self {
            source: "2001:db8:1::9",
            destination: "2001:db8:8::8",
            hop_limit: 64,
            traffic_class: 0,
            next_header: protocol::UDP,
            payload,
        }
    }
}

impl V6 {
    pub fn to(destination: &'static str) -> Self {
        Self { destination, ..Self::default() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let address = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        let word = 6u32 << 28 | u32::from(self.traffic_class) << 20 | 0x54321;
        let mut bytes = word.to_be_bytes().to_vec();
        bytes.extend((self.payload.len() as u16).to_be_bytes());
        bytes.extend([self.next_header, self.hop_limit]);
        bytes.extend(address(self.source));
        bytes.extend(address(self.destination));
        bytes.extend(&self.payload);
        bytes
    }

    pub fn sent(&self) -> Vec<u8> {
        to_router(&self.bytes())
    }

    pub fn routed(&self) -> Vec<u8> {
        frame(RIGHT_HOST, RIGHT_MAC, 0x86dd, &self.one_hop_on())
    }

    pub fn one_hop_on(&self) -> Vec<u8> {
        Self { hop_limit: self.hop_limit - 1, ..self.clone() }.bytes()
    }
}

/// The ICMP error that the left host gets about `original`, whose identification is of no matter: pass that
/// of the error at hand.
pub fn error_ipv4(from: &str, kind: u8, code: u8, rest: u32, original: &[u8], error: &[u8]) -> Vec<u8> {
    let quote = &original[..original.len().min(548)];
    let mut message = vec![kind, code, 0, 0];
    message.extend(rest.to_be_bytes());
    message.extend(quote);
    let sum = checksum::checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut packet = vec![0x45, 0xc0 | original[1] & 0x1e];
    packet.extend((20 + message.len() as u16).to_be_bytes());
    packet.extend(error.get(18..20).unwrap_or(&[0, 0]));
    packet.extend([0, 0, 64, protocol::ICMP, 0, 0]);
    packet.extend(from.parse::<Ipv4Addr>().unwrap().octets());
    packet.extend(&original[12..16]);
    sum_header(&mut packet);
    packet.extend(message);
    frame(LEFT_HOST, LEFT_MAC, 0x0800, &packet)
}

/// The ICMPv6 error that the left host gets about `original`.
pub fn error_ipv6(from: &str, kind: u8, code: u8, rest: u32, original: &[u8]) -> Vec<u8> {
    let quote = &original[..original.len().min(1232)];
    let mut message = vec![kind, code, 0, 0];
    message.extend(rest.to_be_bytes());
    message.extend(quote);
    let source = from.parse::<Ipv6Addr>().unwrap();
    let destination: [u8; 16] = original[8..24].try_into().unwrap();
    let pseudo = Pseudo::V6 { source: source.into(), destination: u128::from_be_bytes(destination) };
    let sum = pseudo.checksum(protocol::ICMPV6, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((message.len() as u16).to_be_bytes());
    packet.extend([protocol::ICMPV6, 64]);
    packet.extend(source.octets());
    packet.extend(destination);
    packet.extend(message);
    frame(LEFT_HOST, LEFT_MAC, 0x86dd, &packet)
}
