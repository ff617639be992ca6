//! The memory that the BPF programs share with us, field by field as in `traffic.bpf.c`, and the
//! packets that both sides create.

use std::net::Ipv4Addr;

use bm_wire::Family;

use super::Stream;
use crate::testbed::{SOURCE_IPV4, SOURCE_IPV6, mac};

/// The shortest frames that hold headers and payload; for IPv4 it is the minimum of Ethernet.
pub const IPV4_BYTES_MIN: u16 = 60;
pub const IPV6_BYTES_MIN: u16 = 14 + 40 + 8 + PAYLOAD_BYTES as u16;
/// Sequence number 4, next hop 2, padding 2, time sent 8.
pub const PAYLOAD_BYTES: usize = 16;
/// Number of sizes in one period.
pub const SIZES: usize = 12;
/// TTL with which packets are sent; behind one router it must be 63.
const HOPS_SENT: u8 = 64;
const PORT_DISCARD: u16 = 9;
const PORT_FIRST: u16 = 1024;
const PORTS: usize = 256;

/// Data that the kernel may read and write: no padding, and all bytes are a value.
///
/// # Safety
/// Any bytes must be a value of the type, which must have no padding.
pub unsafe trait Plain: Copy {}

/// `struct destination`.
///
/// Shared with BPF programs at any time: read and written as a volatile copy alone ([`super::mapped`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Destination {
    /// IPv4 in the first four bytes.
    pub address: [u8; 16],
    /// In wire order; 0 for any.
    pub next_hop: [u8; 2],
    pub reserved: [u8; 2],
}

impl Destination {
    pub fn expect(&mut self, next_hop: u16) {
        self.next_hop = next_hop.to_be_bytes();
    }
}

/// `struct generator`.
///
/// Shared with BPF programs at any time: read and written as a volatile copy alone ([`super::mapped`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GeneratorState {
    pub ifindex: u32,
    pub destinations: u32,
    pub is_ipv6: u32,
    pub sizes: u32,
    pub size: [u16; SIZES],
    pub ethernet: [u8; 12],
    pub source: [u8; 16],
    pub source_sum: u32,
    pub gap_ns: u64,
    pub next_ns: u64,
    pub sent: u64,
    pub destination: u32,
    pub turn: u32,
    pub is_bridged: u32,
    pub unused: u32,
}

/// `struct sink`.
///
/// Shared with BPF programs at any time: read and written as a volatile copy alone ([`super::mapped`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SinkState {
    pub is_tracking: u32,
    pub destinations: u32,
    pub last_ns: u64,
    pub gap_ns_max: u64,
    pub gap_end_ns: u64,
    pub delay_ns_max: u64,
    pub delay_ns_sum: u64,
    pub tracked: u64,
    pub reordered: u64,
    pub is_bridged: u32,
    pub unused: u32,
}

// SAFETY: bytes only, 20 of them with an alignment of 1.
unsafe impl Plain for Destination {}
// SAFETY: integers only; 4 x 4, 24, 12, 16 and 4 bytes make 72, so the words of eight need no padding, and
// four of four end it.
unsafe impl Plain for GeneratorState {}
// SAFETY: integers only; two of four bytes, words of eight, two of four bytes.
unsafe impl Plain for SinkState {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}

impl GeneratorState {
    pub fn for_stream(stream: &Stream, ifindex: u32) -> Self {
        let mut size = [0; SIZES];
        size[..stream.sizes.len()].copy_from_slice(&stream.sizes);
        let source = source(stream.family);
        Self {
            ifindex,
            destinations: stream.destinations.len() as u32,
            is_ipv6: (stream.family == Family::V6).into(),
            sizes: stream.sizes.len() as u32,
            size,
            ethernet: ethernet(stream.is_bridged),
            is_bridged: stream.is_bridged.into(),
            source,
            source_sum: source_sum(&source),
            gap_ns: stream.rate.map_or(0, |rate| (1e9 / rate) as u64),
            ..Self::default()
        }
    }
}

fn ethernet(is_bridged: bool) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..6].copy_from_slice(&if is_bridged { mac::next_hop(0) } else { mac::ROUTER_IN });
    bytes[6..].copy_from_slice(&mac::SOURCE);
    bytes
}

fn source(family: Family) -> [u8; 16] {
    let mut source = [0; 16];
    match family {
        Family::V6 => source = SOURCE_IPV6.octets(),
        Family::V4 => source[..4].copy_from_slice(&SOURCE_IPV4.octets()),
    }
    source
}

/// The source's words, as the program sums them: in the order of memory, which a checksum allows
/// (RFC 1071 2).
fn source_sum(source: &[u8; 16]) -> u32 {
    let sum: u64 = source.as_chunks::<4>().0.iter().map(|&word| u64::from(u32::from_ne_bytes(word))).sum();
    ((sum & 0xffff_ffff) + (sum >> 32)) as u32
}

/// The frame with number `sequence` of the stream, as the generator creates it.
pub fn frame(stream: &Stream, sequence: u32, sent_ns: u64) -> Vec<u8> {
    let index = sequence as usize % stream.destinations.len();
    let to = &stream.destinations[index];
    let size = usize::from(stream.sizes[sequence as usize % stream.sizes.len()]);
    let port = PORT_FIRST + (index % PORTS) as u16;
    let ip_header = match stream.family {
        Family::V4 => 20,
        Family::V6 => 40,
    };
    let mut payload = vec![0; size - 14 - ip_header - 8];
    payload[..4].copy_from_slice(&sequence.to_be_bytes());
    payload[4..6].copy_from_slice(&to.next_hop);
    payload[8..16].copy_from_slice(&sent_ns.to_ne_bytes());
    let udp_bytes = (payload.len() + 8) as u16;
    let mut udp = [port.to_be_bytes(), PORT_DISCARD.to_be_bytes(), udp_bytes.to_be_bytes(), [0; 2]].concat();
    udp.extend(payload);
    let (ether_type, header) = match stream.family {
        Family::V4 => ([8, 0], ipv4(&SOURCE_IPV4.octets(), &to.address[..4], &mut udp)),
        Family::V6 => ([0x86, 0xdd], ipv6(to, &mut udp)),
    };
    [&ethernet(false)[..], &ether_type, &header, &udp].concat()
}

/// The answer to the frame with number `sequence` of an IPv4 stream, as the sink sends it to the router: from the frame's
/// destination to an address, with its ports exchanged.
pub fn answer(stream: &Stream, sequence: u32, to: Ipv4Addr) -> Vec<u8> {
    let index = sequence as usize % stream.destinations.len();
    let port = PORT_FIRST + (index % PORTS) as u16;
    let udp_bytes = IPV4_BYTES_MIN - 14 - 20;
    let mut udp = [PORT_DISCARD.to_be_bytes(), port.to_be_bytes(), udp_bytes.to_be_bytes(), [0; 2]].concat();
    udp.resize(udp_bytes.into(), 0);
    let header = ipv4(&stream.destinations[index].address[..4], &to.octets(), &mut udp);
    [&mac::ROUTER_OUT[..], &mac::next_hop(1), &[8, 0], &header, &udp].concat()
}

fn ipv4(source: &[u8], destination: &[u8], udp: &mut [u8]) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend((udp.len() as u16 + 20).to_be_bytes());
    header.extend([0, 0, 0, 0, HOPS_SENT, 17, 0, 0]);
    header.extend(source);
    header.extend(destination);
    let check = (!sum(&header, 0)).to_be_bytes();
    header[10..12].copy_from_slice(&check);
    write_checksum(udp, sum(&header[12..], 0));
    header
}

fn ipv6(to: &Destination, udp: &mut [u8]) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0];
    header.extend((udp.len() as u16).to_be_bytes());
    header.extend([17, HOPS_SENT]);
    header.extend(SOURCE_IPV6.octets());
    header.extend(to.address);
    write_checksum(udp, sum(&header[8..], 0));
    header
}

/// The checksum of UDP between addresses with this sum.
fn write_checksum(udp: &mut [u8], addresses: u16) {
    let check = !sum(udp, u32::from(addresses) + udp.len() as u32 + 17);
    let check = if check == 0 { 0xffff } else { check };
    udp[6..8].copy_from_slice(&check.to_be_bytes());
}

/// The one's-complement sum of 16-bit words.
fn sum(bytes: &[u8], begin: u32) -> u16 {
    let mut sum = begin;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
