//! IPv4 packets (RFC 791).

use super::{pattern, put16, set_sequence};
use bm_wire::checksum::{self, Pseudo};
use bm_wire::protocol;
use std::net::Ipv4Addr;

/// An IPv4 packet by its fields; lengths and header checksum are filled in.
#[derive(Clone, Debug)]
pub struct Ip4 {
    /// Type of service.
    pub tos: u8,
    /// Identification.
    pub id: u16,
    /// The 16-bit field: reserved bit, DF, MF and the offset in units of 8 bytes.
    pub flags: u16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Options, a multiple of four bytes.
    pub options: Vec<u8>,
    /// What follows the header.
    pub payload: Vec<u8>,
}

impl Ip4 {
    /// Don't fragment.
    pub const DF: u16 = 0x4000;
    /// More fragments.
    pub const MF: u16 = 0x2000;

    /// A packet with a TTL of 64. Addresses are given as text.
    pub fn new(source: &str, destination: &str, protocol: u8, payload: Vec<u8>) -> Self {
        let address = |text: &str| text.parse().unwrap_or_else(|_| panic!("{text} is no IPv4 address"));
        Self {
            tos: 0,
            id: 0x1234,
            flags: 0,
            ttl: 64,
            protocol,
            source: address(source),
            destination: address(destination),
            options: Vec::new(),
            payload,
        }
    }

    /// UDP from port 4000 to 5000 with `length` bytes of data.
    pub fn udp(source: &str, destination: &str, length: usize) -> Self {
        Self::udp_ports(source, destination, 4000, 5000, &pattern(length))
    }

    /// UDP with these ports and data.
    pub fn udp_ports(source: &str, destination: &str, from: u16, to: u16, data: &[u8]) -> Self {
        let mut packet = Self::new(source, destination, protocol::UDP, Vec::new());
        let length = (8 + data.len()) as u16;
        let header = [from, to, length, 0].map(u16::to_be_bytes).concat();
        packet.payload = [&header, data].concat();
        let sum = packet.pseudo().checksum(protocol::UDP, &packet.payload);
        put16(&mut packet.payload, 6, checksum::udp_field(sum));
        packet
    }

    /// A TCP SYN.
    pub fn tcp_syn(source: &str, destination: &str, from: u16, to: u16) -> Self {
        let mut packet = Self::new(source, destination, protocol::TCP, Vec::new());
        packet.payload =
            [from, to, 0x1122, 0x3344, 0, 0, 0x5002, 0x2000, 0, 0].map(u16::to_be_bytes).concat();
        let sum = packet.pseudo().checksum(protocol::TCP, &packet.payload);
        put16(&mut packet.payload, 16, sum);
        packet
    }

    /// A segment with another sequence number.
    pub fn sequence(mut self, number: u32) -> Self {
        let pseudo = self.pseudo();
        set_sequence(&mut self.payload, number, pseudo);
        self
    }

    fn pseudo(&self) -> Pseudo {
        Pseudo::V4 { source: self.source.into(), destination: self.destination.into() }
    }

    /// With another TTL.
    pub fn ttl(self, ttl: u8) -> Self {
        Self { ttl, ..self }
    }

    /// With another type of service.
    pub fn tos(self, tos: u8) -> Self {
        Self { tos, ..self }
    }

    /// With another identification.
    pub fn id(self, id: u16) -> Self {
        Self { id, ..self }
    }

    /// With these flags and fragment offset.
    pub fn flags(self, flags: u16) -> Self {
        Self { flags, ..self }
    }

    /// With options, padded by end-of-list to four bytes.
    pub fn options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self.options.resize(options.len().next_multiple_of(4), 0);
        self
    }

    /// The packet's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let header_len = 20 + self.options.len();
        let mut bytes = vec![0x40 | (header_len / 4) as u8, self.tos];
        bytes.extend(((header_len + self.payload.len()) as u16).to_be_bytes());
        bytes.extend(self.id.to_be_bytes());
        bytes.extend(self.flags.to_be_bytes());
        bytes.extend([self.ttl, self.protocol, 0, 0]);
        bytes.extend(self.source.octets());
        bytes.extend(self.destination.octets());
        bytes.extend(&self.options);
        summed(&mut bytes);
        bytes.extend(&self.payload);
        bytes
    }

    /// The bytes after a change, with a correct header checksum over the header length that they then claim.
    pub fn broken(&self, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = self.bytes();
        change(&mut bytes);
        summed(&mut bytes);
        bytes
    }
}

/// Writes the header checksum of the packet at the start of `bytes`.
pub(super) fn summed(bytes: &mut [u8]) {
    let header_len = (usize::from(bytes[0] & 15) * 4).clamp(20, bytes.len().max(20));
    let sum = checksum::ipv4_header(&bytes[..header_len]);
    put16(bytes, 10, sum);
}
