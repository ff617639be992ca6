//! Which packets belong to one flow, as a key and as one number.
//!
//! ```text
//!    packet ──► Key: addresses, ports, protocol ──► hash(seed) ──► which of several next hops
//!               what counts is Policy's (Linux: fib_multipath_hash_policy)
//! ```
//!
//! All fragments of a packet have the same key, so ports are ignored for fragments: only the first one has them. Both
//! directions of a flow have the same hash, as in Linux, so two routers with the same seed choose the same link for
//! both.

use crate::bytes::be16;
use crate::icmp;
use crate::icmpv6;
use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::protocol;

/// What defines a flow: Linux's `fib_multipath_hash_policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// 0: addresses, and for IPv6 flow label and next header. An ICMP error is treated like the packet it is about,
    /// so it reaches the server that an anycast address led to.
    #[default]
    Addresses,
    /// 1: addresses, protocol and ports.
    Ports,
    /// 2: as `Addresses`, of the packet inside IPIP, 6in4 and GRE.
    Inner,
}

impl Policy {
    /// From the number in `/proc/sys/net/ipv{4,6}/.../fib_multipath_hash_policy`; 3 (custom fields) is not known.
    pub fn from_sysctl(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Addresses),
            1 => Some(Self::Ports),
            2 => Some(Self::Inner),
            _ => None,
        }
    }
}

/// What the packets of a flow have in common; zero for fields that the policy or the packet does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// An IPv4 flow.
    V4 {
        /// Source address.
        source: u32,
        /// Destination address.
        destination: u32,
        /// Source and destination port.
        ports: (u16, u16),
        protocol: u8,
    },
    /// An IPv6 flow.
    V6 {
        /// Source address.
        source: u128,
        /// Destination address.
        destination: u128,
        /// Source and destination port.
        ports: (u16, u16),
        /// Protocol, or the next header where only addresses count.
        protocol: u8,
        flow_label: u32,
    },
}

/// The most nested tunnels that `Policy::Inner` looks into.
const NESTED_MAX: u32 = 4;

/// The key of an IPv4 packet.
#[inline]
pub fn ipv4<B: AsRef<[u8]>>(ip: &Ipv4<B>, policy: Policy) -> Key {
    match policy {
        Policy::Ports => ipv4_ports(ip),
        Policy::Addresses => ipv4_addresses(ip),
        Policy::Inner => innermost(Inner::V4(ip.packet()), NESTED_MAX),
    }
}

/// The key of an IPv6 packet.
#[inline]
pub fn ipv6<B: AsRef<[u8]>>(ip: &Ipv6<B>, policy: Policy) -> Key {
    match policy {
        Policy::Ports => ipv6_ports(ip),
        Policy::Addresses => ipv6_addresses(ip),
        Policy::Inner => innermost(Inner::V6(ip.packet()), NESTED_MAX),
    }
}

#[inline]
fn ipv4_ports<B: AsRef<[u8]>>(ip: &Ipv4<B>) -> Key {
    let protocol = ip.protocol();
    let ports = if ip.is_fragment() { (0, 0) } else { ports(protocol, ip.payload()) };
    Key::V4 { source: ip.source(), destination: ip.destination(), ports, protocol }
}

#[inline]
fn ipv6_ports<B: AsRef<[u8]>>(ip: &Ipv6<B>) -> Key {
    let (protocol, ports) = match ip.upper() {
        Ok(upper) if upper.fragment.is_some() => (fragmented(ip), (0, 0)),
        Ok(upper) => (upper.protocol, ports(upper.protocol, &ip.packet()[upper.offset..])),
        // A chain that cannot be read is the same for all packets of its flow.
        Err(_) => (ip.next_header(), (0, 0)),
    };
    Key::V6 { source: ip.source(), destination: ip.destination(), ports, protocol, flow_label: 0 }
}

/// The next header in the fragment header. Further headers after it are only in the first fragment, so they do not
/// count.
fn fragmented<B: AsRef<[u8]>>(ip: &Ipv6<B>) -> u8 {
    let mut headers = ip.extensions().flatten();
    headers
        .find(|header| header.kind == protocol::FRAGMENT)
        .map_or(protocol::FRAGMENT, |header| header.next_header())
}

/// The ports of a payload, or the halves of its SPI: what distinguishes the flows between two hosts.
#[inline]
fn ports(protocol: u8, payload: &[u8]) -> (u16, u16) {
    let at = match protocol {
        protocol::ESP => 0,
        protocol::AUTHENTICATION => 4,
        protocol if protocol::has_ports(protocol) => 0,
        _ => return (0, 0),
    };
    payload.get(at..at + 4).map_or((0, 0), |bytes| (be16(bytes), be16(&bytes[2..])))
}

/// Without a protocol, as in Linux; an ICMP error as the flow it stops, in the direction it goes itself.
#[inline]
fn ipv4_addresses<B: AsRef<[u8]>>(ip: &Ipv4<B>) -> Key {
    let (source, destination) = about_v4(ip).unwrap_or((ip.source(), ip.destination()));
    Key::V4 { source, destination, ports: (0, 0), protocol: 0 }
}

fn about_v4<B: AsRef<[u8]>>(ip: &Ipv4<B>) -> Option<(u32, u32)> {
    let error = (ip.protocol() == protocol::ICMP && ip.fragment_offset() == 0).then_some(ip.payload())?;
    let error = icmp::Icmp::parse(error).ok().filter(icmp::Icmp::is_error)?;
    let original = Ipv4::parse_quoted(error.data()).ok()?;
    Some((original.destination(), original.source()))
}

#[inline]
fn ipv6_addresses<B: AsRef<[u8]>>(ip: &Ipv6<B>) -> Key {
    about_v6(ip).unwrap_or(Key::V6 {
        source: ip.source(),
        destination: ip.destination(),
        ports: (0, 0),
        protocol: ip.next_header(),
        flow_label: ip.flow_label(),
    })
}

fn about_v6<B: AsRef<[u8]>>(ip: &Ipv6<B>) -> Option<Key> {
    // Linux looks no further than the fixed header here, and this path is for each packet of the policy.
    let error = (ip.next_header() == protocol::ICMPV6).then_some(ip.payload())?;
    let error = icmpv6::Icmpv6::parse(error).ok().filter(|error| matches!(error.kind(), 1..=4))?;
    let original = Ipv6::parse_quoted(error.data()).ok()?;
    Some(Key::V6 {
        source: original.destination(),
        destination: original.source(),
        ports: (0, 0),
        protocol: original.next_header(),
        flow_label: original.flow_label(),
    })
}

/// A packet by its version.
#[derive(Clone, Copy)]
enum Inner<'a> {
    V4(&'a [u8]),
    V6(&'a [u8]),
}

fn innermost(packet: Inner<'_>, nested: u32) -> Key {
    // The outer packet has been parsed or is checked here; a malformed inner one does not count.
    let next =
        |protocol, payload| nested.checked_sub(1).and_then(|left| Some((inside(protocol, payload)?, left)));
    let (key, next) = match packet {
        Inner::V4(bytes) => match Ipv4::parse_quoted(bytes) {
            Ok(ip) if ip.is_fragment() => (ipv4_addresses(&ip), None),
            Ok(ip) => (ipv4_addresses(&ip), next(ip.protocol(), &bytes[ip.header_len()..])),
            Err(_) => (Key::V4 { source: 0, destination: 0, ports: (0, 0), protocol: 0 }, None),
        },
        Inner::V6(bytes) => match Ipv6::parse_quoted(bytes) {
            Ok(ip) => {
                let upper = ip.upper().ok().filter(|upper| upper.fragment.is_none());
                (ipv6_addresses(&ip), upper.and_then(|upper| next(upper.protocol, &bytes[upper.offset..])))
            }
            Err(_) => {
                (Key::V6 { source: 0, destination: 0, ports: (0, 0), protocol: 0, flow_label: 0 }, None)
            }
        },
    };
    next.map_or(key, |(inner, left)| innermost(inner, left))
}

/// The packet inside `protocol`, if there is one with a complete header.
fn inside(protocol: u8, payload: &[u8]) -> Option<Inner<'_>> {
    let packet = match protocol {
        protocol::IPV4 | protocol::IPV6 => payload,
        protocol::GRE => behind_gre(payload)?,
        _ => return None,
    };
    match packet.first()? >> 4 {
        4 => Ipv4::parse_quoted(packet).ok().map(|_| Inner::V4(packet)),
        6 => Ipv6::parse_quoted(packet).ok().map(|_| Inner::V6(packet)),
        _ => None,
    }
}

/// The IP packet after a GRE header of version 0 (RFC 2784, RFC 2890).
fn behind_gre(gre: &[u8]) -> Option<&[u8]> {
    const CHECKSUM: u16 = 0x8000;
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    const ROUTING_AND_VERSION: u16 = 0x4007;
    let head = gre.first_chunk::<4>()?;
    let (flags, carried) = (be16(head), be16(&head[2..]));
    if flags & ROUTING_AND_VERSION != 0 || !matches!(carried, 0x0800 | 0x86dd) {
        return None;
    }
    let optional = [CHECKSUM, KEY, SEQUENCE].iter().filter(|flag| flags & **flag != 0).count();
    gre.get(4 + 4 * optional..)
}

/// Odd numbers without pattern, so that no field or seed meets a multiplier with few bits: from the fractional parts
/// of the square roots of 2, 3, 5, 7, 11 and 13.
const SALT: [u64; 6] = [
    0x6a09_e667_f3bc_c909,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
];

/// The product of both, with its high half folded onto the low one: each bit of the result depends on all bits.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl Key {
    /// One number for the flow, the same in both directions, evenly distributed over 32 bits.
    ///
    /// Routers with different seeds choose independently, so that the second does not send everything it gets over
    /// one link (polarisation); routers with the same seed choose alike.
    #[inline]
    pub fn hash(&self, seed: u64) -> u32 {
        let seed = seed.wrapping_mul(SALT[5]);
        let (a, b, rest) = match *self {
            Self::V4 { source, destination, ports, protocol } => {
                let end = |address: u32, port: u16| u64::from(address) << 16 | u64::from(port);
                (end(source, ports.0), end(destination, ports.1), u64::from(protocol) << 48)
            }
            Self::V6 { source, destination, ports, protocol, flow_label } => {
                // Ports are spread first: XORed into an address as they are, they would cancel its subnets.
                let end = |address: u128, port: u16| {
                    mix((address >> 64) as u64 ^ SALT[2], address as u64 ^ SALT[3] ^ seed)
                        .wrapping_add(u64::from(port).wrapping_mul(SALT[4]))
                };
                let rest = u64::from(flow_label) << 44 | u64::from(protocol) << 36;
                (end(source, ports.0), end(destination, ports.1), rest)
            }
        };
        // Sorting the ends makes both directions equal. The rest is in bits that the ends of IPv4 leave free.
        let key = mix(a.min(b) ^ rest ^ SALT[0] ^ seed, a.max(b) ^ SALT[1] ^ seed.rotate_left(32));
        (mix(key, SALT[4] ^ seed) >> 32) as u32
    }
}

/// Maps a hash evenly to one of `count` choices: by its high bits, since a division is expensive.
#[inline]
pub fn choose(hash: u32, count: u32) -> u32 {
    ((u64::from(hash) * u64::from(count)) >> 32) as u32
}

#[cfg(test)]
mod tests;
