//! ICMP errors about packets that came out of a tunnel, of this router and of routers behind it.
//!
//! An error quotes the packet that it is about. Unprotected, it would show a part of what was encrypted. If no policy
//! protects it, because its source is in none, the policy for replies to the quoted packet is applied to it (RFC 4301
//! 6.2). The other end accepts only sources that its policy has, so an error of this router gets such an address.
//!
//! Of an error in fragments only the first quotes enough to tell. The later ones show the rest of the quoted packet, so they
//! are treated like the first one (RFC 4301 7.3), which is remembered. One that comes before its first is sent in clear.

use std::net::{IpAddr, Ipv4Addr};

use bm_ipsec::{Action, Direction, Policies, Policy, key, key_of_quoted_reply};
use bm_wire::checksum;
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::{self, Ipv6};
use bm_wire::prefix::Address as _;
use bm_wire::protocol;

use crate::slow;
use crate::tables::Tables;

/// Where the source address is in headers.
const SOURCE_IPV4: usize = 12;
const SOURCE_IPV6: usize = 8;
/// Where the checksum is, in the IPv4 header and in the ICMPv6 message.
const CHECKSUM_IPV4: usize = 10;
const CHECKSUM_ICMPV6: usize = 2;
/// Where the protocol is.
const PROTOCOL_IPV4: usize = 9;
const PROTOCOL_IPV6: usize = 6;

/// Whether a packet may be an ICMP message; one with IPv6 extension headers is not taken for one.
#[inline]
pub(super) fn may_be_icmp(packet: &[u8]) -> bool {
    match packet.first().map(|first| first >> 4) {
        Some(4) => packet.get(PROTOCOL_IPV4) == Some(&protocol::ICMP),
        _ => packet.get(PROTOCOL_IPV6) == Some(&protocol::ICMPV6),
    }
}

/// First fragments that are remembered, and for how long: hosts wait no longer for the later ones.
const FIRSTS: usize = 16;
const FIRST_NS: u64 = 30_000_000_000;

/// Which datagram an IPv4 fragment is a part of: source, destination, identification.
type Datagram = (u32, u32, u16);

/// The first fragment of an ICMP error that did not leave as it was.
#[derive(Clone, Copy)]
struct First {
    datagram: Datagram,
    action: Action,
    /// The source that it has got.
    source: Ipv4Addr,
    until_ns: u64,
}

/// ICMP errors in fragments, the last few of a worker.
#[derive(Default)]
pub(super) struct Fragmented {
    firsts: [Option<First>; FIRSTS],
    next: usize,
}

impl Fragmented {
    /// [`protect`], for fragments as well.
    pub fn protect(
        &mut self,
        policies: &Policies,
        tables: &Tables,
        packet: &mut [u8],
        found: Option<&Policy>,
        interface: u16,
        now_ns: u64,
    ) -> Option<Action> {
        if !may_be_icmp(packet) {
            return None;
        }
        let Some((datagram, offset)) = fragment(packet) else {
            return protect(policies, tables, packet, found, interface);
        };
        if offset > 0 {
            let mut firsts = self.firsts.iter().flatten();
            let first = firsts.find(|first| first.datagram == datagram && first.until_ns > now_ns)?;
            set_source(packet, first.source.into());
            return Some(first.action);
        }
        let action = protect(policies, tables, packet, found, interface)?;
        let source = Ipv4::parse(&packet[..]).ok()?.source().into();
        self.firsts[self.next] = Some(First { datagram, action, source, until_ns: now_ns + FIRST_NS });
        self.next = (self.next + 1) % FIRSTS;
        Some(action)
    }
}

/// For an IPv4 fragment, its datagram and offset. Errors in IPv6 are short enough not to be fragmented (RFC 4443 2.4).
fn fragment(packet: &[u8]) -> Option<(Datagram, u16)> {
    let ip = Ipv4::parse(packet).ok().filter(Ipv4::is_fragment)?;
    Some(((ip.source(), ip.destination(), ip.id()), ip.fragment_offset()))
}

/// The action for a packet that no policy protects (`found` is none, or a bypass), if it is an ICMP error about a packet
/// whose replies are protected or discarded; `None` for other packets. If it is to be encrypted and comes from this router,
/// its source has been replaced. `interface` is the one on which the packet or the quoted one came in.
fn protect(
    policies: &Policies,
    tables: &Tables,
    packet: &mut [u8],
    found: Option<&Policy>,
    interface: u16,
) -> Option<Action> {
    let policy = policies.find(Direction::Out, &key_of_quoted_reply(packet)?)?;
    // A bypass that was put in front of the policy is meant to be an exception from it.
    if policy.action == Action::Bypass || found.is_some_and(|found| found.priority < policy.priority) {
        return None;
    }
    let source = source(packet)?;
    if policy.action == Action::Discard || !is_own(tables, source) {
        return Some(policy.action);
    }
    for address in own_addresses(tables, interface).filter(|address| address.is_ipv4() == source.is_ipv4()) {
        set_source(packet, address);
        let found = key(packet).and_then(|key| policies.find(Direction::Out, &key));
        if found.is_some_and(|found| found == policy) {
            return Some(policy.action);
        }
    }
    Some(Action::Discard)
}

fn is_own(tables: &Tables, source: IpAddr) -> bool {
    match source {
        IpAddr::V4(address) => {
            u32::from(address) == slow::SOURCE_WITHOUT_ADDRESS || tables.local_ipv4.contains(&address)
        }
        IpAddr::V6(address) => tables.local_ipv6.contains(&address),
    }
}

/// Addresses of this machine that are valid beyond their link: first those of the VRF of `interface`, which may be unknown.
fn own_addresses(tables: &Tables, interface: u16) -> impl Iterator<Item = IpAddr> + '_ {
    let vrf = tables.interfaces.get(usize::from(interface)).map_or(0, |on| on.vrf);
    let near = tables.interfaces.iter().filter(move |other| other.vrf == vrf);
    let near = near.flat_map(|other| {
        let ipv4 = other.ipv4.iter().map(|&(address, _)| IpAddr::V4(address));
        ipv4.chain(other.ipv6.iter().map(|&(address, _)| IpAddr::V6(address)))
    });
    let ipv4 = tables.local_ipv4.iter().copied().map(IpAddr::V4);
    let all = near.chain(ipv4).chain(tables.local_ipv6.iter().copied().map(IpAddr::V6));
    all.filter(|address| match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !ipv6::is_link_local(u128::from(*address)),
    })
}

fn source(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Ipv4::parse(packet).ok().map(|ip| ip.source().show()),
        _ => Ipv6::parse(packet).ok().map(|ip| ip.source().show()),
    }
}

/// Sets the source of an ICMP error without extension headers, and the checksum that contains it.
fn set_source(packet: &mut [u8], source: IpAddr) {
    match source {
        IpAddr::V4(source) => {
            packet[SOURCE_IPV4..SOURCE_IPV4 + 4].copy_from_slice(&source.octets());
            let header = usize::from(packet[0] & 0x0f) * 4;
            packet[CHECKSUM_IPV4..CHECKSUM_IPV4 + 2].fill(0);
            let sum = checksum::checksum(&packet[..header]);
            packet[CHECKSUM_IPV4..CHECKSUM_IPV4 + 2].copy_from_slice(&sum.to_be_bytes());
        }
        IpAddr::V6(source) => {
            packet[SOURCE_IPV6..SOURCE_IPV6 + 16].copy_from_slice(&source.octets());
            let Ok(ip) = Ipv6::parse(&packet[..]) else { return };
            let (pseudo, end) = (ip.pseudo(), ip.total_len());
            let message = &mut packet[ipv6::HEADER_LEN..end];
            message[CHECKSUM_ICMPV6..CHECKSUM_ICMPV6 + 2].fill(0);
            let sum = pseudo.checksum(protocol::ICMPV6, message);
            message[CHECKSUM_ICMPV6..CHECKSUM_ICMPV6 + 2].copy_from_slice(&sum.to_be_bytes());
        }
    }
}
