//! What the mirror says of one hop: the adjacency that it is, whether it is alive, what is done there.

use super::interfaces::{Interfaces, without_neighbours};
use bm_fib::next_hop::{Action, Gateway};
use bm_netlink::{Family, Hop, Link, Mirror};
use std::net::IpAddr;

/// In the place of an interface of ours, where a gateway is on none.
const NOT_OURS: u32 = u32::MAX;

/// A neighbour, or all of a link, as routes name it. Equal ones share a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Adjacency {
    /// The link.
    pub ifindex: u32,
    /// The neighbour; `None` where destinations are neighbours themselves.
    pub gateway: Option<IpAddr>,
    /// Our interface of that link.
    pub interface: Option<u16>,
    /// The routes' MTU; 0 where the interface's holds.
    pub mtu: u16,
    /// Linux sends there, not we.
    pub linux: bool,
}

impl Adjacency {
    /// As the slow path is told of it.
    pub(super) fn as_gateway(&self) -> Gateway {
        Gateway { address: self.gateway, interface: self.interface.map_or(NOT_OURS, u32::from) }
    }

    /// Whether packets go to whoever has their destination, on this link.
    pub(super) fn on_link(&self) -> bool {
        self.gateway.is_none() && !self.linux && self.interface.is_some()
    }
}

/// The mirror and our interfaces, as of one moment.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub mirror: &'a Mirror,
    pub interfaces: &'a Interfaces,
}

impl View<'_> {
    /// The adjacency of a hop. What we cannot send over is one for each link: it is Linux's.
    pub fn adjacency(&self, hop: &Hop, mtu: u32, among_others: bool) -> Adjacency {
        let interface = self.interfaces.index_of(hop.ifindex);
        // A link among several hops: which of them a destination is on, only Linux finds out.
        let linux = hop.encap != 0 || interface.is_none() || among_others && hop.gateway.is_none();
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        match linux {
            true => Adjacency { ifindex: hop.ifindex, gateway: None, interface, mtu: 0, linux },
            false => Adjacency { ifindex: hop.ifindex, gateway: hop.gateway, interface, mtu, linux },
        }
    }

    /// Whether a member of a group takes packets.
    pub fn alive(&self, family: Family, hop: &Hop) -> bool {
        let ours = self.interfaces.index_of(hop.ifindex).is_some();
        self.mirror.usable(family, hop)
            // Linux may send over a link without carrier, where they are lost. We do not.
            && (!ours || self.running(hop.ifindex))
            // Of hops that are Linux's, Linux itself finds out who answers.
            && !(family == Family::V4 && ours && hop.encap == 0 && self.passed_over(hop))
    }

    /// What is done with packets for an adjacency.
    pub fn action(&self, adjacency: &Adjacency) -> Action {
        let interface = self.interfaces.index_of(adjacency.ifindex);
        let (false, true, Some(interface)) = (adjacency.linux, interface == adjacency.interface, interface)
        else {
            return Action::Host;
        };
        if self.is_linux_only(adjacency.ifindex) {
            return Action::LinuxOnly;
        }
        match self.mirror.link(adjacency.ifindex) {
            None => return Action::Host,
            Some(link) if without_neighbours(link) => return Action::Host,
            Some(link) if !link.running() => return Action::Unreachable,
            Some(_) => {}
        }
        let Some(gateway) = adjacency.gateway else { return Action::Resolve };
        match self.mac(adjacency.ifindex, gateway) {
            // A group's address where a single station's belongs (RFC 1812 3.3.2): Linux may know better.
            Some(mac) if mac[0] & 1 == 1 => Action::Host,
            Some(mac) => Action::Forward { mac, interface },
            None => Action::Resolve,
        }
    }

    /// The Ethernet address of a neighbour, if packets can be sent to it.
    pub fn mac(&self, ifindex: u32, address: IpAddr) -> Option<[u8; 6]> {
        self.mirror.neighbour(ifindex, address)?.reachable_at()
    }

    /// Whether only Linux may send on a link.
    pub fn is_linux_only(&self, ifindex: u32) -> bool {
        self.interfaces.of(ifindex).is_some_and(|interface| interface.linux_only_out)
    }

    fn running(&self, ifindex: u32) -> bool {
        self.mirror.link(ifindex).is_some_and(Link::running)
    }

    /// Whether Linux skips a hop since its neighbour does not answer (`fib_multipath_use_neigh`).
    fn passed_over(&self, hop: &Hop) -> bool {
        let asked = self.mirror.sysctls().ipv4_multipath_use_neigh != 0;
        let neighbour = || self.mirror.neighbour(hop.ifindex, hop.gateway?);
        asked && neighbour().is_some_and(|neighbour| neighbour.reachable_at().is_none())
    }
}
