//! What this node announces: its external ports, their prefixes and neighbors, its own addresses.

use std::net::IpAddr;

use bm_netlink::{Address, Link, Neighbor, list};

use crate::indices::Indices;
use crate::message::Entry;
use crate::neighbor::{Candidate, LocalNeighbor};
use crate::on_link::OwnRoutes;
use crate::prefix::first;
use crate::settings::{Limits, Settings};

/// An external port whose interface exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPort {
    pub number: u8,
    /// Index of its interface in Linux.
    pub ifindex: u32,
    /// MAC of its interface.
    pub mac: [u8; 6],
    /// MTU of its interface.
    pub mtu: u32,
    /// What is announced of its neighbors.
    pub limits: Limits,
}

/// Linux's interfaces, addresses and neighbors.
#[derive(Clone, Debug, Default)]
pub struct Local {
    /// All interfaces.
    pub links: Vec<Link>,
    addresses: Vec<Address>,
    neighbors: Vec<Neighbor>,
}

impl Local {
    /// Reads them.
    ///
    /// # Errors
    /// If the kernel rejects a dump.
    pub fn read() -> Result<Self, bm_netlink::Error> {
        Ok(Self { links: Link::list()?, addresses: list::addresses()?, neighbors: list::neighbors()? })
    }

    /// The interface of this name.
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| &*link.name == name)
    }

    /// The external ports that are up.
    pub fn ports(&self, settings: &Settings) -> Vec<LocalPort> {
        let ports = settings.ports.iter().filter_map(|port| {
            let link = self.link(&port.device).filter(|link| link.running())?;
            Some(LocalPort {
                number: port.number.number(),
                ifindex: link.ifindex,
                mac: link.mac?,
                mtu: link.mtu,
                limits: port.limits,
            })
        });
        ports.collect()
    }

    /// The neighbors of external ports that are resolved and on-link there by this node's own routes, except for its own
    /// addresses. The second result says whether some are not on-link.
    pub fn candidates(&self, ports: &[LocalPort], routes: &OwnRoutes) -> (Vec<Candidate>, bool) {
        let mut has_others = false;
        let mut candidates = Vec::new();
        for neighbor in &self.neighbors {
            let Some(port) = ports.iter().find(|port| port.ifindex == neighbor.ifindex) else { continue };
            let to = neighbor.reachable_at().filter(|mac| mac[0] & 1 == 0 && *mac != [0; 6]);
            let Some(to) = to.filter(|_| is_routed(neighbor.address) && !self.is_own(neighbor.address))
            else {
                continue;
            };
            if !routes.is_on_link(neighbor.address, port.ifindex) {
                has_others = true;
                continue;
            }
            let neighbor_of_port = LocalNeighbor {
                ifindex: port.ifindex,
                port: port.number,
                address: neighbor.address,
                to,
                from: port.mac,
            };
            candidates.push(Candidate { neighbor: neighbor_of_port, is_static: neighbor.is_permanent() });
        }
        candidates.sort_unstable();
        candidates.dedup();
        (candidates, has_others)
    }

    /// An address of a port from which a host there can be asked: if possible of the same prefix.
    pub fn source(&self, ifindex: u32, target: IpAddr) -> Option<IpAddr> {
        let of_port = self.addresses.iter().filter(|address| {
            address.ifindex == ifindex && address.usable() && address.local.is_ipv4() == target.is_ipv4()
        });
        let of_prefix = of_port
            .clone()
            .find(|address| first(address.local, address.length) == first(target, address.length));
        of_prefix.or(of_port.clone().next()).map(|address| address.local)
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.local == address)
    }

    /// Whether Linux would probe a neighbor again if it were used (`STALE` or `FAILED`).
    pub fn needs_use(&self, local: &LocalNeighbor) -> bool {
        let neighbor = self
            .neighbors
            .iter()
            .find(|neighbor| neighbor.ifindex == local.ifindex && neighbor.address == local.address);
        neighbor.is_some_and(Neighbor::needs_use)
    }

    /// The announcement, sorted.
    pub fn entries(&self, ports: &[LocalPort], neighbors: &[LocalNeighbor], indices: &Indices) -> Vec<Entry> {
        let mut entries = Vec::new();
        for port in ports {
            entries.push(Entry::Port(port.number, u16::try_from(port.mtu).unwrap_or(u16::MAX)));
        }
        for address in self.addresses.iter().filter(|address| address.usable() && is_routed(address.local)) {
            let Some(port) = ports.iter().find(|port| port.ifindex == address.ifindex) else { continue };
            entries.push(Entry::Own(address.local));
            let on_link = address.peer.unwrap_or(address.local);
            if let Some(prefix) = first(on_link, address.length) {
                entries.push(Entry::Prefix(port.number, prefix, address.length));
            }
        }
        for neighbor in neighbors {
            if let Some(index) = indices.get(neighbor) {
                entries.push(Entry::Neighbor(neighbor.port, neighbor.address, index));
            }
        }
        entries.sort_unstable();
        entries.dedup();
        entries
    }

    /// Whether an address belongs to this node, or to a neighbor on one of its external ports.
    pub fn has(&self, address: IpAddr, neighbors: &[LocalNeighbor]) -> bool {
        self.is_own(address) || neighbors.iter().any(|neighbor| neighbor.address == address)
    }
}

/// Whether packets to an address are routed: not if it is link-local, multicast or loopback.
fn is_routed(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            !(address.is_loopback()
                || address.is_link_local()
                || address.is_multicast()
                || address.is_broadcast()
                || address.is_unspecified())
        }
        IpAddr::V6(address) => {
            !(address.is_loopback()
                || address.is_unicast_link_local()
                || address.is_multicast()
                || address.is_unspecified())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_and_multicast_addresses_are_not_announced() {
        for text in [
            "127.0.0.1",
            "169.254.3.4",
            "224.0.0.1",
            "255.255.255.255",
            "0.0.0.0",
            "::1",
            "fe80::1",
            "ff02::1",
            "::",
        ] {
            assert!(!is_routed(text.parse().unwrap()), "{text}");
        }
        assert!(is_routed("10.0.0.1".parse().unwrap()) && is_routed("2001:db8::1".parse().unwrap()));
    }
}
