//! What the mirror says about one hop: its adjacency, whether it is alive, and what happens to packets there.

use super::interfaces::{Interfaces, without_neighbors};
use bm_fib::next_hop::{Action, Gateway};
use bm_netlink::{Family, Hop, Mirror};
use std::net::IpAddr;

/// Placeholder for the interface if a gateway is on none of brickmoon's.
const NOT_OURS: u32 = u32::MAX;
/// The greatest `fib_multipath_hash_policy` that is known here; 3 is for fields of the administrator's choice.
const POLICY_MAX: u32 = 2;

/// A neighbor, or all destinations on a link, as in routes. Equal ones share a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Adjacency {
    /// Index of the link in Linux.
    pub ifindex: u32,
    /// Address of the neighbor; `None` if the destinations are on the link.
    pub gateway: Option<IpAddr>,
    /// Index of our interface of this link.
    pub interface: Option<u16>,
    /// MTU of the routes in bytes; 0 for that of the interface.
    pub mtu: u16,
    /// Linux sends there, not brickmoon.
    pub linux: bool,
}

impl Adjacency {
    /// The adjacency in the form for the slow path.
    pub(super) fn as_gateway(&self) -> Gateway {
        Gateway { address: self.gateway, interface: self.interface.map_or(NOT_OURS, u32::from) }
    }

    /// Whether packets are sent directly to their destinations, on this link.
    pub(super) fn on_link(&self) -> bool {
        self.gateway.is_none() && !self.linux && self.interface.is_some()
    }
}

/// The mirror and our interfaces at one moment.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub mirror: &'a Mirror,
    pub interfaces: &'a Interfaces,
}

impl View<'_> {
    /// The adjacency of a hop for routes of a family, whose MTU is `mtu` or, if 0, that of the interface. All hops of a
    /// link that we cannot send on share one, which leads to Linux.
    pub fn adjacency(&self, family: Family, hop: &Hop, mtu: u32, among_others: bool) -> Adjacency {
        let interface = self.interfaces.index_of(hop.ifindex);
        // A link among several hops: only Linux knows which of them a destination is on.
        let is_on_link = hop.gateway.is_none() && !self.is_ipsec(interface);
        let linux = hop.encap != 0 || interface.is_none() || among_others && is_on_link;
        let limit = self.mtu_limit(family, hop.ifindex);
        let mtu = if mtu == 0 || limit == 0 { mtu.max(limit) } else { mtu.min(limit) };
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        match linux {
            true => Adjacency { ifindex: hop.ifindex, gateway: None, interface, mtu: 0, linux },
            false => Adjacency { ifindex: hop.ifindex, gateway: hop.gateway, interface, mtu, linux },
        }
    }

    /// The largest packet of a family on a link; 0 if the link's MTU holds.
    pub fn mtu_limit(&self, family: Family, ifindex: u32) -> u32 {
        if family == Family::V6 { self.mirror.link_sysctls(ifindex).mtu_ipv6 } else { 0 }
    }

    /// Whether Linux chooses among the next hops of routes, since only it has these settings of the flow hash.
    pub fn linux_chooses(&self, family: Family) -> bool {
        let sysctls = self.mirror.sysctls();
        let policy = match family {
            Family::V4 => sysctls.ipv4_multipath_hash_policy,
            Family::V6 => sysctls.ipv6_multipath_hash_policy,
        };
        policy > POLICY_MAX || sysctls.ipv4_multipath_hash_seed != 0
    }

    /// Whether packets can leave by a member of a group, whether its neighbor answers or not.
    pub fn alive(&self, family: Family, hop: &Hop) -> bool {
        self.mirror.usable(family, hop)
    }

    /// Whether the neighbor of a hop is known not to answer. For hops that are left to Linux, Linux decides.
    pub fn unresolved(&self, hop: &Hop) -> bool {
        let interface = self.interfaces.index_of(hop.ifindex);
        let ours = interface.is_some() && hop.encap == 0 && !self.is_ipsec(interface);
        let neighbor = hop.gateway.and_then(|gateway| self.mirror.neighbor(hop.ifindex, gateway));
        ours && neighbor.is_some_and(|neighbor| neighbor.unresolved())
    }

    /// Whether one of our interfaces is an IPsec interface, which has no neighbors.
    fn is_ipsec(&self, interface: Option<u16>) -> bool {
        let own = interface.and_then(|at| self.interfaces.list.get(usize::from(at)));
        own.is_some_and(|own| own.if_id != 0)
    }

    /// What happens to packets for an adjacency.
    pub fn action(&self, adjacency: &Adjacency) -> Action {
        let interface = self.interfaces.index_of(adjacency.ifindex);
        let (false, true, Some(interface)) = (adjacency.linux, interface == adjacency.interface, interface)
        else {
            return Action::Host;
        };
        if self.is_linux_only(adjacency.ifindex) {
            return Action::LinuxOnly;
        }
        let is_ipsec = self.is_ipsec(Some(interface));
        match self.mirror.link(adjacency.ifindex) {
            None => return Action::Host,
            Some(link) if is_ipsec && link.running() => {
                let mac = self.interfaces.list[usize::from(interface)].mac;
                return Action::Forward { mac, interface };
            }
            Some(_) if is_ipsec => return Action::Unreachable,
            // Without carrier Linux drops packets to neighbors that it knows, and tells the sources of others.
            Some(link) if without_neighbors(link) || !link.running() => return Action::Host,
            Some(_) => {}
        }
        let Some(gateway) = adjacency.gateway else { return Action::Resolve };
        if self.interfaces.own_gateways.contains(gateway) {
            return Action::Host;
        }
        match self.mac(adjacency.ifindex, gateway) {
            // A group MAC where a unicast one is expected (RFC 1812 3.3.2): left to Linux.
            Some(mac) if mac[0] & 1 == 1 => Action::Host,
            Some(mac) => Action::Forward { mac, interface },
            None => Action::Resolve,
        }
    }

    /// The MAC of a neighbor, if packets can be sent to it.
    pub fn mac(&self, ifindex: u32, address: IpAddr) -> Option<[u8; 6]> {
        self.mirror.neighbor(ifindex, address)?.reachable_at()
    }

    /// Whether a neighbor is on one of our interfaces, and packets can be sent to it.
    pub fn is_usable(&self, ifindex: u32, address: IpAddr) -> bool {
        self.interfaces.index_of(ifindex).is_some() && self.mac(ifindex, address).is_some()
    }

    /// Whether only Linux may send on a link.
    pub fn is_linux_only(&self, ifindex: u32) -> bool {
        self.interfaces.by_ifindex(ifindex).is_some_and(|interface| interface.linux_only_out)
    }
}
