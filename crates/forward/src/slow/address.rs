//! Which of our addresses an error comes from, as Linux chooses (`inet_select_addr`, RFC 6724).
//!
//! IPv4: an address of the interface through which the error leaves, preferably one in the next hop's network. IPv6:
//! an address of the interface on which the packet arrived, else the one most similar to the destination.
//!
//! Linux also looks at scopes, ages, labels, the order of interfaces and more. Where that could decide, it sends the
//! error itself: `bm_firewall::of_mirror` finds such addresses and routes, and here what is left is certain only if
//! the interface has an address, for IPv6 exactly one. Without that certainty the choice here is for packets that Linux
//! does not know about.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bm_fib::NextHop;
use bm_wire::ipv6;
use bm_wire::prefix::{Address, Prefix};

use crate::tables::{Interface, Tables};

/// The source of a router without any IPv4 address (RFC 7600 4.8), so that traceroute shows a hop.
pub(crate) const SOURCE_WITHOUT_ADDRESS: u32 = 0xc000_0008;

/// Whether Linux would send an IPv4 error by an interface with the address that is chosen here.
pub(super) fn is_certain_ipv4(tables: &Tables, interface: u16) -> bool {
    tables.interfaces.get(usize::from(interface)).is_some_and(|own| !own.ipv4.is_empty())
}

/// Whether Linux would send an ICMPv6 error, about a packet that arrived on an interface, with the address that is chosen
/// here.
pub(super) fn is_certain_ipv6(tables: &Tables, interface: u16) -> bool {
    let own = tables.interfaces.get(usize::from(interface));
    own.is_some_and(|own| {
        let addresses = own.ipv6.iter().map(|(address, _)| u128::from(*address));
        addresses.filter(|address| !ipv6::is_link_local(*address)).count() == 1
    })
}

/// The IPv4 address of `interface` towards `destination`: that of the network of `gateway`, or, for a neighbor, of the
/// smallest network that it is in.
pub(crate) fn ipv4(tables: &Tables, interface: u16, gateway: Option<u32>, destination: u32) -> u32 {
    let own = tables.interfaces.get(usize::from(interface));
    let near = own.and_then(|own| {
        let peer = gateway.unwrap_or(destination);
        let mut covering = own.ipv4.iter().filter(|&&(address, length)| {
            Prefix::containing(u32::from(address), length).is_some_and(|prefix| prefix.contains(peer))
        });
        let first = match gateway {
            Some(_) => covering.next(),
            // The last of equals is the first one in reverse.
            None => covering.rev().max_by_key(|(_, length)| *length),
        };
        first.or(own.ipv4.first())
    });
    let near = near.map(|&(address, _)| address);
    near.or_else(|| elsewhere_ipv4(tables, own)).map_or(SOURCE_WITHOUT_ADDRESS, u32::from)
}

/// An address of another interface of the same VRF, or any that is valid beyond its link.
fn elsewhere_ipv4(tables: &Tables, own: Option<&Interface>) -> Option<Ipv4Addr> {
    let is_wide = |address: &Ipv4Addr| !address.is_loopback() && !address.is_link_local();
    let vrf = own.map_or(0, |own| own.vrf);
    let others = tables.interfaces.iter().filter(|other| other.vrf == vrf);
    let mut others = others.flat_map(|other| other.ipv4.iter().map(|&(address, _)| address));
    others.find(is_wide).or_else(|| tables.local_ipv4.iter().copied().find(is_wide))
}

/// The IPv6 address for a packet to `destination` about one that arrived on `interface`, which may be unknown.
pub(crate) fn ipv6(tables: &Tables, interface: u16, destination: u128) -> Option<u128> {
    let own = tables.interfaces.get(usize::from(interface));
    let vrf = own.map_or(0, |own| own.vrf);
    let here = own.into_iter().flat_map(|own| &own.ipv6).map(|&(address, _)| (true, address));
    let there = tables.interfaces.iter().filter(|other| other.vrf == vrf).flat_map(|other| &other.ipv6);
    let there = there.map(|&(address, _)| (false, address));
    let rest = tables.local_ipv6.iter().map(|&address| (false, address));
    let candidates = here.chain(there).chain(rest).filter(|&(is_here, address)| {
        !address.is_loopback() && (is_here || !ipv6::is_link_local(u128::from(address)))
    });
    let rank = |&(is_here, address): &(bool, Ipv6Addr)| {
        let address = u128::from(address);
        // RFC 6724 5: rule 2 (scope), 5 (interface), 6 (label), 8 (longest match).
        let wide = ipv6::is_link_local(address) == ipv6::is_link_local(destination);
        (wide, is_here, label(address) == label(destination), address.common(destination))
    };
    // Among equals the first is used, as in Linux; `max_by_key` would take the last.
    let best = candidates.reduce(|best, next| if rank(&next) > rank(&best) { next } else { best });
    best.map(|(_, address)| u128::from(address))
}

/// Which addresses belong together (RFC 6724 2.1, as in Linux's table).
fn label(address: u128) -> u8 {
    match address {
        _ if address == 1 => 0,
        _ if address >> 121 == 0xfc >> 1 => 5,
        _ if address >> 112 == 0x2002 => 2,
        _ if address >> 96 == 0x2001_0000 => 6,
        _ if address >> 100 == 0x200_1001 => 7,
        _ if address >> 32 == 0xffff => 4,
        _ if address >> 32 == 0 => 3,
        _ => 1,
    }
}

/// The IPv4 address of the router at a next hop, if there is one.
pub(super) fn gateway_ipv4(tables: &Tables, hop: NextHop) -> Option<u32> {
    match tables.next_hops.gateway(hop).address {
        Some(IpAddr::V4(address)) => Some(address.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Lab;

    const LINES: &str = "
        interface left 0 02:00:00:00:00:01 10.1.0.1/16 10.2.0.1/16 2001:db8:1::1/64 fd00:1::1/64 fe80::1/64
        interface right 1 02:00:00:00:00:02 2001:db8:2::1/64 fe80::2/64
        interface other 2 02:00:00:00:00:03 vrf 1 192.0.2.1/24 2001:db8:3::1/64";

    fn four(interface: u16, peer: &str) -> String {
        let lab = Lab::new(LINES);
        let peer: Ipv4Addr = peer.parse().unwrap();
        Ipv4Addr::from(ipv4(&lab.tables(), interface, Some(peer.into()), peer.into())).to_string()
    }

    fn six(interface: u16, destination: &str) -> String {
        let lab = Lab::new(LINES);
        let destination: Ipv6Addr = destination.parse().unwrap();
        Ipv6Addr::from(ipv6(&lab.tables(), interface, destination.into()).unwrap()).to_string()
    }

    #[test]
    fn ipv4_prefers_the_next_hops_network() {
        assert_eq!(four(0, "10.2.0.9"), "10.2.0.1");
        assert_eq!(four(0, "10.1.0.9"), "10.1.0.1");
        assert_eq!(four(0, "8.8.8.8"), "10.1.0.1");
        // None here: another interface of the VRF, not of another.
        assert_eq!(four(1, "8.8.8.8"), "10.1.0.1");
        assert_eq!(four(2, "8.8.8.8"), "192.0.2.1");
    }

    /// RFC 6724 2.1, with ORCHIDs (RFC 4843) as 7, as in Linux's table (`ip addrlabel`).
    #[test]
    fn labels_are_linux_s() {
        let labels = [
            ("::1", 0),
            ("::", 3),
            ("::192.0.2.1", 3),
            ("::ffff:192.0.2.1", 4),
            ("fc00::1", 5),
            ("fdff:ffff::1", 5),
            ("fbff::1", 1),
            ("fe80::1", 1),
            ("2002::1", 2),
            ("2003::1", 1),
            ("2001::1", 6),
            ("2001:1::1", 1),
            ("2001:10::1", 7),
            ("2001:1f:ffff::1", 7),
            ("2001:20::1", 1),
            ("2001:db8::1", 1),
        ];
        for (text, expected) in labels {
            let address: Ipv6Addr = text.parse().unwrap();
            assert_eq!(label(address.into()), expected, "{text}");
        }
    }

    #[test]
    fn ipv6_prefers_scope_then_interface_then_likeness() {
        assert_eq!(six(0, "2001:db8:2::9"), "2001:db8:1::1");
        assert_eq!(six(0, "fd00:1::9"), "fd00:1::1");
        assert_eq!(six(0, "fe80::9"), "fe80::1");
        assert_eq!(six(1, "2001:db8:1::9"), "2001:db8:2::1");
        assert_eq!(six(2, "2001:db8:1::9"), "2001:db8:3::1");
    }
}
