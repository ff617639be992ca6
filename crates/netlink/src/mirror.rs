//! Our copy of the kernel's tables: messages in, changes out.
//!
//! It has no socket and no clock: the driver feeds it, the control plane reads it. An event contains the complete
//! state of its object, so a mirror that was dumped while events queued up, and is then given those events in order,
//! ends up equal to the kernel.
//!
//! The kernel removes some objects without an event (see `flush`); the same rules are applied here, and the mirror
//! then requests a comparison ([`Mirror::take_comparison_request`]), because these rules are only a copy of the kernel's.
//!
//! An object is known by all that the kernel compares. If a message can still be about several objects, or is about none,
//! what it concerns is in doubt: only Linux forwards those packets until the tables have been read again, which happens
//! at once ([`Mirror::take_reread_request`]).
//!
//! Absent on purpose: which route a packet takes. That is decided by the code that builds forwarding tables.

mod adopt;
mod body;
mod change;
mod choice;
mod doubt;
mod flush;
mod generations;
mod order;
mod read;
mod routes;

pub(crate) use adopt::Touched;
pub use adopt::{Difference, Findings, Item};
pub use body::BodyId;
pub use change::Change;
pub use choice::Choice;
pub(crate) use doubt::Lifetime;
pub use read::Paths;
pub use routes::{Routes, Table};

use crate::hash::Map;
use crate::hop::HopFlags;
use crate::message::Message;
use crate::route::RouteBody;
use crate::{Address, Link, LinkSysctls, Neighbor, Netconf, NextHop, Rule, Sysctls, Upper, netconf};
use bm_wire::Family;
use change::Changes;
use doubt::Doubts;
use generations::Generations;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The kernel's tables, according to its latest messages.
#[derive(Debug, Default)]
pub struct Mirror {
    links: BTreeMap<u32, Link>,
    generations: Generations,
    addresses: BTreeMap<u32, Vec<Address>>,
    neighbors: Map<(u32, IpAddr), Neighbor>,
    next_hops: BTreeMap<u32, NextHop>,
    rules: Vec<Rule>,
    rules_in_doubt: [bool; 2],
    /// Families that have, or had, rules: a kernel without policy routing has none.
    ruled: BTreeSet<Family>,
    netconf: BTreeMap<(Family, i32), Netconf>,
    sysctls: Sysctls,
    link_sysctls: BTreeMap<u32, LinkSysctls>,
    /// Interfaces of other namespaces, by the link below them.
    uppers: BTreeMap<u32, Vec<Upper>>,
    ipv4: Routes<u32>,
    ipv6: Routes<u128>,
    changes: Changes,
    doubt: bool,
    doubts: Doubts,
    no_router_preference: bool,
}

impl Mirror {
    /// Applies a message of the kernel.
    pub fn apply(&mut self, message: Message) {
        bm_sys::heartbeat::beat();
        match message {
            Message::Route4(mut route) => {
                self.settle(Family::V4, &mut route.body);
                let about = self.subject(&route);
                let fit = self.ipv4.apply(route, &mut self.changes);
                self.judge4(about, fit);
            }
            Message::Route6(mut route) => {
                self.settle(Family::V6, &mut route.body);
                self.note_lifetime(&route);
                let about = self.subject(&route);
                let fit = self.ipv6.apply(route, &mut self.changes);
                self.judge6(about, fit);
            }
            Message::Neighbor(neighbor) => self.put_neighbor(neighbor),
            Message::NeighborGone(neighbor) => self.drop_neighbor(neighbor.ifindex, neighbor.address),
            Message::Link(link) => self.put_link(link),
            Message::LinkGone(ifindex) => self.drop_link(ifindex),
            Message::Address(address) => self.put_address(address),
            Message::AddressGone(address) => self.drop_address(address),
            Message::NextHop(next_hop) => self.put_next_hop(next_hop),
            Message::NextHopGone(id) => self.drop_next_hop(id),
            Message::Rule(rule) => self.put_rule(rule),
            Message::RuleGone(rule) => self.drop_rule(&rule),
            Message::Netconf { family, ifindex, update } => {
                let ours = self.netconf.entry((family, ifindex)).or_default();
                let before = *ours;
                ours.take(&update);
                // Linux copies what is for new interfaces to those that have never had an address, and says nothing.
                let copied = ifindex == netconf::DEFAULT;
                self.doubts.reread |= copied;
                self.doubts.settings_copied |= copied;
                if *ours != before {
                    netconf_changed(&self.links, &mut self.changes, family, ifindex);
                }
            }
            Message::NetconfGone { family, ifindex } => {
                if self.netconf.remove(&(family, ifindex)).is_some() {
                    self.changes.push(Change::Netconf(family, ifindex));
                }
            }
        }
    }

    /// A neighbor without an entry is being resolved. On links without neighbors it needs no resolution.
    pub(crate) fn note_resolving(&mut self, ifindex: u32, address: IpAddr) {
        let has_neighbors = self.link(ifindex).is_some_and(|link| link.flags & libc::IFF_NOARP as u32 == 0);
        if has_neighbors && self.neighbor(ifindex, address).is_none() {
            let state = crate::neighbor::state::INCOMPLETE;
            self.put_neighbor(Neighbor { ifindex, address, state, mac: None, router: false });
        }
    }

    /// Sets the settings that have to be read, because there are no events for them.
    pub fn set_sysctls(&mut self, sysctls: Sysctls) {
        if self.sysctls != sysctls {
            self.sysctls = sysctls;
            self.changes.push(Change::Sysctls);
        }
    }

    /// Sets the settings of links that have to be read. Links without an entry have the defaults.
    pub fn set_link_sysctls(&mut self, mut sysctls: BTreeMap<u32, LinkSysctls>) {
        for (ifindex, of_link) in &mut sysctls {
            // With the link's own there is no limit to remember, in case the link's is raised.
            if self.links.get(ifindex).is_some_and(|link| of_link.mtu_ipv6 >= link.mtu) {
                of_link.mtu_ipv6 = 0;
            }
        }
        for ifindex in self.link_sysctls.keys().chain(sysctls.keys()) {
            let limit_in =
                |all: &BTreeMap<u32, LinkSysctls>| all.get(ifindex).map_or(0, |of_link| of_link.mtu_ipv6);
            if limit_in(&self.link_sysctls) != limit_in(&sysctls) {
                self.changes.push(Change::Netconf(Family::V6, *ifindex as i32));
            }
        }
        if self.link_sysctls != sysctls {
            self.link_sysctls = sysctls;
            self.changes.push(Change::Sysctls);
        }
    }

    /// Sets the interfaces in other namespaces on top of links, which no message tells.
    pub fn set_uppers(&mut self, uppers: BTreeMap<u32, Vec<Upper>>) {
        let before = std::mem::replace(&mut self.uppers, uppers);
        for ifindex in before.keys().chain(self.uppers.keys()) {
            if before.get(ifindex) != self.uppers.get(ifindex) {
                self.changes.push(Change::Link(*ifindex));
            }
        }
    }

    /// What has changed since the last call, each object once, in the order of [`Change`]'s variants.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.changes.take()
    }

    /// Whether something has happened since the last call after which the mirror should be compared with the kernel:
    /// the kernel has removed objects silently, or an event was about an object that the mirror did not have.
    pub fn take_comparison_request(&mut self) -> bool {
        std::mem::take(&mut self.doubt)
    }

    /// From now on, [`Change::Everything`] is the only change until changes are taken.
    pub(crate) fn everything_changed(&mut self) {
        self.changes.everything();
    }

    /// The kernel also calls a hop without carrier dead if its interface ignores such hops. The mirror keeps the
    /// state of the hop itself, and derives what follows from it; otherwise every change of that setting would have
    /// to update the routes.
    #[inline]
    fn settle(&self, family: Family, body: &mut RouteBody) {
        for hop in body.via.hops_mut() {
            if hop.flags.has(HopFlags::LIVENESS)
                && self.link(hop.ifindex).is_some_and(Link::up)
                && self.ignores_linkdown(family, hop.ifindex)
            {
                hop.flags.0 &= !HopFlags::DEAD;
            }
        }
    }

    fn put_neighbor(&mut self, neighbor: Neighbor) {
        let key = (neighbor.ifindex, neighbor.address);
        if neighbor.state == 0 {
            self.drop_neighbor(key.0, key.1);
            return;
        }
        let is_new = self.neighbors.insert(key, neighbor) != Some(neighbor);
        // Whoever waits for a neighbor has to know that it has failed once more, although its entry is as before: the
        // kernel does not announce that it asks again.
        if is_new || neighbor.state & crate::neighbor::state::FAILED != 0 {
            self.changes.push(Change::Neighbor(key.0, key.1));
        }
    }

    fn drop_neighbor(&mut self, ifindex: u32, address: IpAddr) {
        if self.neighbors.remove(&(ifindex, address)).is_some() {
            self.changes.push(Change::Neighbor(ifindex, address));
        }
    }

    fn put_link(&mut self, link: Link) {
        let ifindex = link.ifindex;
        let (up, carrier) = (link.up(), link.carrier());
        // Linux changes the MTU of IPv6 routes on a link with that of the link, and says nothing.
        self.doubts.reread |= self.links.get(&ifindex).is_some_and(|before| before.mtu != link.mtu);
        let before = self.links.get(&ifindex).map(|link| (link.up(), link.carrier()));
        if self.links.get(&ifindex).is_some_and(|before| before.mtu != link.mtu)
            && let Some(of_link) = self.link_sysctls.get_mut(&ifindex).filter(|of_link| of_link.mtu_ipv6 != 0)
        {
            // The kernel gives both the same value.
            of_link.mtu_ipv6 = 0;
            self.changes.push(Change::Sysctls);
        }
        if self.links.get(&ifindex) != Some(&link) {
            self.links.insert(ifindex, link);
            self.changes.push(Change::Link(ifindex));
        }
        self.generations.appeared(ifindex);
        let Some((was_up, had_carrier)) = before else { return };
        self.doubt |= was_up && !up || had_carrier && !carrier;
        self.link_reported(ifindex, !was_up && up);
    }

    fn drop_link(&mut self, ifindex: u32) {
        if self.links.remove(&ifindex).is_none() {
            return;
        }
        self.generations.gone(ifindex);
        self.changes.push(Change::Link(ifindex));
        self.link_gone(ifindex);
        if self.addresses.remove(&ifindex).is_some() {
            self.changes.push(Change::Addresses(ifindex));
        }
        for family in Family::BOTH {
            if self.netconf.remove(&(family, ifindex as i32)).is_some() {
                self.changes.push(Change::Netconf(family, ifindex as i32));
            }
        }
        let changes = &mut self.changes;
        self.neighbors.retain(|&(link, address), _| {
            let gone = link == ifindex;
            if gone {
                changes.push(Change::Neighbor(link, address));
            }
            !gone
        });
    }

    /// An IPv6 address that is still being checked for duplicates is left out: it cannot be used, and the kernel
    /// lists it but does not announce it until it can.
    fn put_address(&mut self, address: Address) {
        if !address.usable() {
            return self.drop_address(address);
        }
        let list = self.addresses.entry(address.ifindex).or_default();
        let first = address.local.is_ipv4() && !list.iter().any(|other| other.local.is_ipv4());
        match list.iter_mut().find(|other| other.identity() == address.identity()) {
            Some(other) => {
                // With its lifetime Linux also renews that of its prefix, which it does not announce.
                self.doubts.reread |= address.local.is_ipv6();
                if *other == address {
                    return;
                }
                *other = address;
            }
            // As they come: IPv4's oldest is the source where several would do, as in Linux.
            None => list.push(address),
        }
        self.changes.push(Change::Addresses(address.ifindex));
        if first {
            self.first_address(address.ifindex);
        }
    }

    fn drop_address(&mut self, address: Address) {
        let Some(list) = self.addresses.get_mut(&address.ifindex) else { return };
        let before = list.len();
        list.retain(|other| other.identity() != address.identity());
        if list.len() == before {
            return;
        }
        let last = address.local.is_ipv4() && !list.iter().any(|other| other.local.is_ipv4());
        // The prefix stays for the sake of another address, but then ends with that.
        self.doubts.reread |= address.local.is_ipv6() && list.iter().any(|other| other.local.is_ipv6());
        if list.is_empty() {
            self.addresses.remove(&address.ifindex);
        }
        self.changes.push(Change::Addresses(address.ifindex));
        self.source_gone(address.ifindex, address.local);
        if last {
            self.last_address_gone(address.ifindex);
        }
    }

    fn put_next_hop(&mut self, next_hop: NextHop) {
        let id = next_hop.id;
        if self.next_hops.get(&id) == Some(&next_hop) {
            return;
        }
        self.next_hops.insert(id, next_hop);
        self.next_hop_changed(id);
    }

    /// The kernel has listed the rules of a family, however many there are.
    pub(crate) fn rules_listed(&mut self, family: Family) {
        self.ruled.insert(family);
    }

    /// Behind those of its priority, as in the kernel. It allows two rules that are equal in everything.
    fn put_rule(&mut self, rule: Rule) {
        let family = rule.family;
        self.ruled.insert(family);
        if self.rules.contains(&rule) {
            self.doubt_rules(family);
        }
        let at =
            self.rules.partition_point(|other| (other.family, other.priority) <= (family, rule.priority));
        self.rules.insert(at, rule);
        self.changes.push(Change::Rules(family));
    }

    fn drop_rule(&mut self, rule: &Rule) {
        let mut found = self.rules.iter().enumerate().filter_map(|(at, other)| (other == rule).then_some(at));
        let (first, second) = (found.next(), found.next());
        if let Some(at) = first {
            self.rules.remove(at);
            self.changes.push(Change::Rules(rule.family));
        }
        if first.is_none() || second.is_some() {
            self.doubt_rules(rule.family);
        }
    }

    /// Settings of an interface, or of [`netconf::ALL`] or [`netconf::DEFAULT`]; all off where unknown.
    pub fn netconf_of(&self, family: Family, ifindex: i32) -> Netconf {
        self.netconf.get(&(family, ifindex)).copied().unwrap_or_default()
    }

    /// Settings of an interface.
    pub fn netconf(&self, family: Family, ifindex: u32) -> Netconf {
        self.netconf_of(family, ifindex as i32)
    }

    /// Whether packets that arrive on an interface may be forwarded. For IPv6 the interface alone does
    /// not decide (Linux, `ip6_forward`).
    pub fn forwards(&self, family: Family, ifindex: u32) -> bool {
        let own = self.netconf(family, ifindex);
        match family {
            Family::V4 => own.forwarding,
            Family::V6 => self.netconf_of(family, netconf::ALL).forwarding || own.force_forwarding,
        }
    }

    /// Whether hops on an interface without carrier are not used. For IPv4 the setting of all interfaces counts as well;
    /// for IPv6 Linux copies it to each.
    pub fn ignores_linkdown(&self, family: Family, ifindex: u32) -> bool {
        let of_all =
            family == Family::V4 && self.netconf_of(family, netconf::ALL).ignore_routes_with_linkdown;
        of_all || self.netconf(family, ifindex).ignore_routes_with_linkdown
    }

    /// The check of source addresses in force on an interface: 0 none, 1 strict, 2 loose.
    pub fn rp_filter(&self, ifindex: u32) -> u8 {
        let all = self.netconf_of(Family::V4, netconf::ALL).rp_filter;
        self.netconf(Family::V4, ifindex).rp_filter.max(all)
    }
}

/// Adds a change of settings. Those of all interfaces decide whether hops without carrier are used, and for IPv6, by
/// forwarding, which of several routes is taken.
fn netconf_changed(links: &BTreeMap<u32, Link>, changes: &mut Changes, family: Family, ifindex: i32) {
    changes.push(Change::Netconf(family, ifindex));
    if family == Family::V6 && ifindex == netconf::ALL {
        changes.everything();
    }
    if ifindex == netconf::ALL {
        let without_carrier = links.values().filter(|link| !link.carrier());
        without_carrier.for_each(|link| changes.push(Change::Netconf(family, link.ifindex as i32)));
    }
}
