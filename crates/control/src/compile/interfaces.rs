//! The interfaces of brickmoon: links of our ports, and VLANs on them.
//!
//! An interface keeps its index while its link exists. The index of a removed one stays, down and without a port,
//! until another interface reuses it: workers may still hold a next hop that names it.

use super::Compiler;
use super::own_gateways::OwnGateways;
use bm_fib::next_hop::INTERFACE_MAX;
use bm_forward::tables::{Interface, PortInterfaces};
use bm_netlink::route::TABLE_MAIN;
use bm_netlink::{Family, Kind, Link, Mirror};
use bm_wire::{ReversePath, Vlan};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Hardware type of Ethernet (`ARPHRD_ETHER`).
const ETHERNET: u16 = 1;
/// At most so many links are above each other.
const STACKED_MAX: usize = 8;
/// `IFF_NOARP`.
const NO_ARP: u32 = 0x80;

/// The interfaces of all ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interfaces {
    /// By our index; removed interfaces stay in the list, without a port.
    pub list: Vec<Interface>,
    /// Indexes of the interfaces of each port.
    pub ports: Vec<PortInterfaces>,
    by_ifindex: BTreeMap<u32, u16>,
    pub(super) own_gateways: OwnGateways,
}

impl Interfaces {
    /// The interfaces as in the mirror now, with their indexes in `self`.
    ///
    /// `ports` are the links of our ports, `ipsec` those of the last port, which IPsec interfaces have; `vrf_of` maps a table
    /// of the kernel to our VRF.
    pub(super) fn now(
        &self,
        mirror: &Mirror,
        ports: &[Option<u32>],
        ipsec: Option<&[(&Link, u32)]>,
        vrf_of: impl Fn(u32) -> u16,
    ) -> Self {
        let mut next = Self { list: self.list.clone(), ..Self::default() };
        // A free index was released in an earlier round, so no next hop names it any more.
        let mut free: Vec<u16> = (0..self.list.len() as u16)
            .filter(|index| !self.by_ifindex.values().any(|at| at == index))
            .collect();
        next.list.iter_mut().for_each(retire);
        for (port, ifindex) in ports.iter().enumerate() {
            let mut of_port = PortInterfaces::default();
            for link in links_of(mirror, ports, *ifindex) {
                let vrf = vrf_of(mirror.table_of(link.ifindex));
                // Frames of the port itself are untagged, even if its link is a VLAN of another device.
                let vlan = if Some(link.ifindex) == *ifindex { None } else { vlan_of(link) };
                let interface = Interface { vlan, ..interface(mirror, link, port as u16, vrf) };
                let Some(at) = next.place(self, link.ifindex, interface, &mut free) else { continue };
                match vlan {
                    Some(vlan) => of_port.tagged.push((vlan, at)),
                    None => of_port.untagged = Some(at),
                }
            }
            next.ports.push(of_port);
        }
        if let Some(links) = ipsec {
            next.add_ipsec(self, mirror, links, &mut free, vrf_of);
        }
        next
    }

    /// Puts an interface into the list, at the index that its link has `before`, or at a free one; returns the index.
    pub(super) fn place(
        &mut self,
        before: &Self,
        ifindex: u32,
        interface: Interface,
        free: &mut Vec<u16>,
    ) -> Option<u16> {
        let at = match before.by_ifindex.get(&ifindex).copied().or_else(|| free.pop()) {
            Some(at) => at,
            None if self.list.len() > usize::from(INTERFACE_MAX) => return None,
            None => self.list.len() as u16,
        };
        match self.list.get_mut(usize::from(at)) {
            Some(place) => *place = interface,
            None => self.list.push(interface),
        }
        self.by_ifindex.insert(ifindex, at);
        Some(at)
    }

    /// Our index of a link, if it is one of our interfaces.
    pub fn index_of(&self, ifindex: u32) -> Option<u16> {
        self.by_ifindex.get(&ifindex).copied()
    }

    /// The interface of a link, if it is one of ours.
    pub fn by_ifindex(&self, ifindex: u32) -> Option<&Interface> {
        self.list.get(usize::from(self.index_of(ifindex)?))
    }

    /// Indexes in Linux of our interfaces.
    pub fn ifindices(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_ifindex.keys().copied()
    }

    /// The existing interfaces of a port, that of untagged frames first.
    pub fn of_port(&self, port: u16) -> impl Iterator<Item = (u16, &Interface)> {
        let of_port = self.ports.get(usize::from(port));
        let untagged = of_port.and_then(|of_port| of_port.untagged);
        let tagged = of_port.map_or(&[][..], |of_port| of_port.tagged.as_slice());
        let all = untagged.into_iter().chain(tagged.iter().map(|(_, index)| *index));
        all.filter_map(|index| Some((index, self.list.get(usize::from(index))?)))
    }
}

impl Compiler {
    /// The VRFs of our interfaces; `None` is the main table, which comes first.
    pub(super) fn vrfs(&self, mirror: &Mirror) -> BTreeSet<Option<u32>> {
        let of_ipsec = self.ipsec_links(mirror).unwrap_or_default();
        let of_ipsec = of_ipsec.iter().map(|(link, _)| mirror.table_of(link.ifindex));
        let tables = tables_of(mirror, &self.ports).into_iter().chain(of_ipsec);
        let vrfs = tables.filter(|table| *table != TABLE_MAIN).map(Some);
        vrfs.chain([None]).collect()
    }
}

/// Whether a link forwards IP itself, rather than as part of a bridge or a bond.
fn routes(mirror: &Mirror, link: &Link) -> bool {
    link.hardware == ETHERNET && link.mac.is_some() && is_routed(mirror, link)
}

/// Whether a link is no part of a bridge or a bond.
pub(super) fn is_routed(mirror: &Mirror, link: &Link) -> bool {
    let master = link.master.and_then(|master| mirror.link(master));
    link.master.is_none() || master.is_some_and(|master| matches!(master.kind, Kind::Vrf { .. }))
}

/// The tables of the VRFs of a port's links, including [`bm_netlink::route::TABLE_MAIN`].
pub(super) fn tables_of(mirror: &Mirror, ports: &[Option<u32>]) -> Vec<u32> {
    let links = ports.iter().flat_map(|port| links_of(mirror, ports, *port));
    links.map(|link| mirror.table_of(link.ifindex)).collect()
}

/// Whether a link is one of our ports, or a VLAN on one.
pub(super) fn is_of_port(mirror: &Mirror, ports: &[Option<u32>], ifindex: u32) -> bool {
    ports.iter().any(|port| links_of(mirror, ports, *port).any(|link| link.ifindex == ifindex))
}

/// The links whose frames a port carries: its own, and VLANs on it that are not ports themselves.
fn links_of<'a>(
    mirror: &'a Mirror,
    ports: &'a [Option<u32>],
    port: Option<u32>,
) -> impl Iterator<Item = &'a Link> {
    let own = port.and_then(|port| mirror.link(port));
    let vlans = mirror.links().filter(move |link| {
        vlan_of(link).is_some()
            && !ports.contains(&Some(link.ifindex))
            && link.lower.is_some()
            && link.lower == port
            && link.lower_namespace.is_none()
    });
    own.into_iter().chain(vlans).filter(|link| routes(mirror, link))
}

fn vlan_of(link: &Link) -> Option<Vlan> {
    match link.kind {
        Kind::Vlan { id, protocol } => Some(Vlan { protocol, id }),
        _ => None,
    }
}

/// Below these MTUs Linux ends a family on a link (RFC 791 3.2, RFC 8200 5), whatever the settings are.
const IPV4_MTU_MIN: u32 = 68;
const IPV6_MTU_MIN: u32 = 1280;

/// The interface of a link.
pub(super) fn interface(mirror: &Mirror, link: &Link, port: u16, vrf: u16) -> Interface {
    let ipv4 = ipv4_of(mirror, link.ifindex);
    let reverse_path = match mirror.rp_filter(link.ifindex) {
        0 => ReversePath::Off,
        1 => ReversePath::Strict,
        // Where there is no address, Linux accepts only sources behind the interface itself.
        _ if ipv4.is_empty() => ReversePath::Strict,
        _ => ReversePath::Loose,
    };
    let own = mirror.link_sysctls(link.ifindex);
    Interface {
        name: link.name.as_ref().into(),
        ifindex: link.ifindex,
        port,
        if_id: 0,
        vlan: None,
        mac: link.mac.unwrap_or_default(),
        mtu: u16::try_from(link.mtu).unwrap_or(u16::MAX),
        up: link.running(),
        vrf,
        forward_ipv4: mirror.forwards(Family::V4, link.ifindex) && link.mtu >= IPV4_MTU_MIN,
        forward_ipv6: mirror.forwards(Family::V6, link.ifindex)
            && !own.disable_ipv6
            && link.mtu >= IPV6_MTU_MIN,
        linux_only_in: [false; 2],
        by_flow: [false; 2],
        linux_only_out: false,
        linux_cuts: is_on_veth(mirror, link),
        linux_only_fragments: [false; 2],
        reverse_path,
        accept_local: own.accept_local,
        // Linux has no setting for IPv6.
        redirects: [own.send_redirects, true],
        hop_limit: u8::try_from(own.hop_limit).unwrap_or(u8::MAX),
        ipv4,
        ipv6: ipv6_of(mirror, link.ifindex),
    }
}

fn ipv4_of(mirror: &Mirror, ifindex: u32) -> Vec<(Ipv4Addr, u8)> {
    let mut list: Vec<(bool, Ipv4Addr, u8)> = Vec::new();
    for address in mirror.addresses(ifindex) {
        if let IpAddr::V4(local) = address.local {
            let is_secondary = address.flags & bm_netlink::Address::SECONDARY != 0;
            list.push((is_secondary, local, address.length));
        }
    }
    // A stable sort keeps the mirror's order among primary addresses and among others.
    list.sort_by_key(|(secondary, ..)| *secondary);
    list.into_iter().map(|(_, local, length)| (local, length)).collect()
}

fn ipv6_of(mirror: &Mirror, ifindex: u32) -> Vec<(Ipv6Addr, u8)> {
    let usable = mirror.addresses(ifindex).iter().filter(|address| address.usable());
    let ipv6 = usable.filter_map(|address| match address.local {
        IpAddr::V6(local) => Some((local, address.length)),
        IpAddr::V4(_) => None,
    });
    ipv6.collect()
}

/// Clears an interface, but keeps its index.
fn retire(interface: &mut Interface) {
    interface.up = false;
    (interface.ifindex, interface.if_id) = (0, 0);
    interface.ipv4.clear();
    interface.ipv6.clear();
    interface.forward_ipv4 = false;
    interface.forward_ipv6 = false;
    interface.by_flow = [false; 2];
}

/// Whether frames that leave by a link arrive at a veth, whose other end may have a smaller MTU.
fn is_on_veth(mirror: &Mirror, link: &Link) -> bool {
    let lower_links = std::iter::successors(Some(link), |link| {
        mirror.link(link.lower.filter(|_| link.lower_namespace.is_none())?)
    });
    lower_links.take(STACKED_MAX).any(|link| link.kind == Kind::Veth)
}

/// Whether a link has no neighbors to resolve, so that the kernel reports none.
pub(super) fn without_neighbors(link: &Link) -> bool {
    link.flags & NO_ARP != 0
}
