//! What the control plane reads from the mirror.

use super::{BodyId, Choice, Mirror, Routes};
use crate::hop::{Hop, HopFlags, Via};
use crate::next_hop::{Object, Resilient};
use crate::route::{RouteBody, RouteKind, TABLE_LOCAL, TABLE_MAIN};
use crate::{Address, Link, LinkSysctls, Neighbor, NextHop, Rule, Sysctls, Upper};
use bm_wire::Family;
use bm_wire::prefix::{self, Prefix};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

/// Where a route leads once its next-hop objects are followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// The hops, with their shares; none where packets are not sent on.
    pub hops: Vec<Hop>,
    /// Packets are dropped in silence.
    pub blackhole: bool,
    /// How flows are kept when the hops change, if they are.
    pub resilient: Option<Resilient>,
    /// A referenced object that the mirror does not have.
    pub unknown: Option<u32>,
}

impl Mirror {
    /// A link by its number.
    pub fn link(&self, ifindex: u32) -> Option<&Link> {
        self.links.get(&ifindex)
    }

    /// Whether Linux takes an address for a broadcast address while it adds a neighbor: it then sends to that neighbor with the
    /// broadcast MAC, and never asks for another one, also after its tables have changed (`arp_constructor`).
    pub fn is_broadcast(&self, ifindex: u32, address: Ipv4Addr) -> bool {
        // All local addresses are in one table, or in that of a VRF.
        let table = Some(self.table_of(ifindex)).filter(|table| *table != TABLE_MAIN).unwrap_or(TABLE_LOCAL);
        let mut prefixes = (0..=32).rev().filter_map(|length| Prefix::containing(u32::from(address), length));
        let best = prefixes.find_map(|prefix| self.ipv4.get(table, prefix).first());
        best.and_then(|id| self.ipv4.body(*id)).is_some_and(|body| body.kind == RouteKind::Broadcast)
    }

    /// A link by its name.
    pub fn link_named(&self, name: &str) -> Option<&Link> {
        self.links().find(|link| &*link.name == name)
    }

    /// Which appearance of a link this is: the number changes each time that a link with this index is created, or
    /// returns from another namespace. A link that disappears and reappears between two reads of the mirror shows
    /// only by this.
    pub fn generation(&self, ifindex: u32) -> Option<u64> {
        self.generations.get(ifindex)
    }

    /// All links, by number.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.values()
    }

    /// The addresses of a link, in the order in which they came: of IPv4's, the kernel prefers the first.
    pub fn addresses(&self, ifindex: u32) -> &[Address] {
        self.addresses.get(&ifindex).map_or(&[], Vec::as_slice)
    }

    pub fn all_addresses(&self) -> impl Iterator<Item = &Address> {
        self.addresses.values().flatten()
    }

    /// `None` if the kernel's neighbor table has no entry for this address on this interface.
    pub fn neighbor(&self, ifindex: u32, address: IpAddr) -> Option<&Neighbor> {
        self.neighbors.get(&(ifindex, address))
    }

    /// All neighbors, in any order.
    pub fn neighbors(&self) -> impl Iterator<Item = &Neighbor> {
        self.neighbors.values()
    }

    /// A next-hop object or group.
    pub fn next_hop(&self, id: u32) -> Option<&NextHop> {
        self.next_hops.get(&id)
    }

    /// All next-hop objects and groups, by number.
    pub fn next_hops(&self) -> impl Iterator<Item = &NextHop> {
        self.next_hops.values()
    }

    /// All rules: IPv4, then IPv6, each in the kernel's order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether a family has no rules although the kernel supports them, so that nothing has a route.
    pub fn lost_all_rules(&self, family: Family) -> bool {
        self.ruled.contains(&family) && !self.rules.iter().any(|rule| rule.family == family)
    }

    /// Whether Linux may route by other tables than the rules say. It searches the tables local and main for IPv6 packets
    /// until a rule is added for the first time (`fib6_has_custom_rules`): a deletion alone changes nothing. Nobody can
    /// ask whether one was ever added, which matters where one of the two default rules is missing.
    pub fn may_ignore_rules(&self, family: Family) -> bool {
        let mut rules = self.rules.iter().filter(|rule| rule.family == family).peekable();
        let has_both = [TABLE_LOCAL, TABLE_MAIN]
            .iter()
            .all(|table| self.rules.iter().any(|rule| rule.family == family && rule.table == *table));
        family == Family::V6
            && rules.peek().is_some()
            && rules.all(|rule| rule.standard() && !rule.l3mdev)
            && !has_both
    }

    /// Whether a family has rules beyond the default ones and that of VRFs, so that the destination alone does not
    /// decide.
    pub fn policy_routing(&self, family: Family) -> bool {
        self.rules.iter().any(|rule| rule.family == family && !rule.standard())
    }

    /// Settings that are the same for all links.
    pub fn sysctls(&self) -> &Sysctls {
        &self.sysctls
    }

    /// Settings of a link that have to be read.
    pub fn link_sysctls(&self, ifindex: u32) -> LinkSysctls {
        self.link_sysctls.get(&ifindex).copied().unwrap_or_default()
    }

    /// The interfaces in other namespaces on top of links, by the link.
    pub fn uppers(&self) -> &BTreeMap<u32, Vec<Upper>> {
        &self.uppers
    }

    /// IPv4 routes.
    pub fn ipv4(&self) -> &Routes<u32> {
        &self.ipv4
    }

    /// IPv6 routes.
    pub fn ipv6(&self) -> &Routes<u128> {
        &self.ipv6
    }

    /// Whether the kernel would send over a hop: its link is up, it is not dead, and its link has
    /// carrier or does not mind.
    pub fn usable(&self, family: Family, hop: &Hop) -> bool {
        self.link(hop.ifindex).is_some_and(Link::up)
            && !hop.flags.has(HopFlags::DEAD)
            && !(hop.flags.has(HopFlags::LINKDOWN) && self.ignores_linkdown(family, hop.ifindex))
    }

    /// The next hops of a route: its own, those of its object, or those of its group's objects.
    pub fn paths(&self, body: &RouteBody) -> Paths {
        let mut paths = Paths::default();
        match &body.via {
            Via::Object(id) => self.follow(*id, 1, &mut paths),
            via => paths.hops.extend_from_slice(via.hops()),
        }
        paths
    }

    fn follow(&self, id: u32, weight: u16, paths: &mut Paths) {
        match self.next_hops.get(&id).map(|next_hop| &next_hop.object) {
            None => paths.unknown = Some(id),
            Some(Object::Blackhole) => paths.blackhole = true,
            Some(Object::Hop(hop)) => paths.hops.push(Hop { weight, ..*hop }),
            Some(Object::Group { members, resilient }) => {
                paths.resilient = *resilient;
                for member in members {
                    // The kernel allows no group within a group, so one level is enough.
                    match self.next_hops.get(&member.id).map(|next_hop| &next_hop.object) {
                        Some(Object::Group { .. }) => {}
                        _ => self.follow(member.id, member.weight, paths),
                    }
                }
            }
        }
    }

    /// The route to a prefix that packets take, of those for any TOS and any source. `None` if the kernel would
    /// continue with a shorter prefix, or only the kernel knows.
    pub fn active<'a, A: prefix::Address>(
        &'a self,
        routes: &'a Routes<A>,
        table: u32,
        prefix: Prefix<A>,
    ) -> Option<(BodyId, &'a RouteBody)> {
        let for_all_packets = routes.get(table, prefix).iter().copied().filter(|&id| {
            let body = routes.bodies.body(id);
            body.tos == 0 && body.source.is_none()
        });
        let list: Vec<BodyId> = for_all_packets.collect();
        let choice = self.choose(routes, table, prefix, &list, |id| {
            let body = routes.bodies.body(id);
            body.kind.refuses() || self.leads_on(A::FAMILY, body)
        });
        match choice {
            Choice::Route(id) => Some((id, routes.bodies.body(id))),
            Choice::Nothing | Choice::Unknown => None,
        }
    }

    fn leads_on(&self, family: Family, body: &RouteBody) -> bool {
        let paths = self.paths(body);
        // A local route may name no device that is up: the loopback serves it.
        paths.blackhole
            || body.kind == crate::RouteKind::Local
            || paths.hops.iter().any(|hop| self.usable(family, hop))
    }
}
