//! Which addresses are on-link, by this node's own routes: those of other nodes do not count.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bm_netlink::{Error, Via, list};

use crate::prefix::first;

/// Protocols of routes that are this node's own: the kernel's, those of `ip route` and of configurations, and FRR's static
/// routes (`RTPROT_KERNEL`, `BOOT`, `STATIC`, `ZSTATIC`).
const PROTOCOLS: [u8; 4] = [2, 3, 4, 196];
/// The table of this machine's own addresses.
const LOCAL: u32 = 255;

/// Routes of this node: for each prefix the interface that it is on-link at, or `None` if it is behind a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnRoutes(BTreeMap<(IpAddr, u8), Option<u32>>);

impl OwnRoutes {
    /// Reads them.
    ///
    /// # Errors
    /// If the kernel rejects a dump.
    pub fn read() -> Result<Self, Error> {
        let mut routes = Self::default();
        for protocol in PROTOCOLS {
            let list = list::routes(protocol)?;
            let four = list.ipv4.into_iter().map(|route| {
                (route.table, (IpAddr::V4(route.prefix.first().into()), route.prefix.length()), route.body)
            });
            let six = list.ipv6.into_iter().map(|route| {
                (route.table, (IpAddr::V6(route.prefix.first().into()), route.prefix.length()), route.body)
            });
            for (_, prefix, body) in four.chain(six).filter(|(table, ..)| *table != LOCAL) {
                routes.add(prefix, &body.via);
            }
        }
        Ok(routes)
    }

    fn add(&mut self, prefix: (IpAddr, u8), via: &Via) {
        let at = match via {
            Via::One(hop) if hop.gateway.is_none() => Some(hop.ifindex),
            _ => None,
        };
        // Of several, one that is on-link: routes with other metrics or in other tables have the same prefix.
        let before = self.0.entry(prefix).or_insert(at);
        *before = before.or(at);
    }

    /// Whether there is a route to exactly this prefix.
    pub fn has(&self, prefix: (IpAddr, u8)) -> bool {
        self.0.contains_key(&prefix)
    }

    /// Whether the longest prefix of an address is on-link at an interface.
    pub fn is_on_link(&self, address: IpAddr, ifindex: u32) -> bool {
        self.interface(address) == Some(ifindex)
    }

    /// The interface at which an address is on-link.
    pub fn interface(&self, address: IpAddr) -> Option<u32> {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let route = (0..=longest).rev().find_map(|length| {
            let prefix = if length == longest { address } else { first(address, length)? };
            self.0.get(&(prefix, length))
        });
        *route?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_netlink::Hop;

    #[test]
    fn the_longest_prefix_decides() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let mut routes = OwnRoutes::default();
        routes.add((ip("10.0.0.0"), 24), &Via::One(Hop::link(3)));
        routes.add((ip("10.0.0.9"), 32), &Via::One(Hop::link(4)));
        routes.add((ip("10.0.0.16"), 28), &Via::One(Hop { gateway: Some(ip("10.0.0.1")), ..Hop::link(3) }));
        routes.add((ip("2001:db8::"), 64), &Via::One(Hop::link(3)));
        routes.add((ip("0.0.0.0"), 0), &Via::One(Hop { gateway: Some(ip("10.0.0.1")), ..Hop::link(3) }));
        let at = |text: &str| [3, 4].map(|ifindex| routes.is_on_link(ip(text), ifindex));
        assert_eq!(at("10.0.0.8"), [true, false]);
        assert_eq!(at("10.0.0.9"), [false, true], "another interface");
        assert_eq!(at("10.0.0.17"), [false, false], "behind a gateway");
        assert_eq!(at("8.8.8.8"), [false, false]);
        assert_eq!((at("2001:db8::7"), at("2001:db8:1::7")), ([true, false], [false, false]));
    }
}
