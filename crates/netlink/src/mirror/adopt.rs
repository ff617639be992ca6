//! Compares a mirror with a new one, and makes it equal, reporting only the differences.

use super::choice::hides_others;
use super::order::peers;
use super::{BodyId, Change, Mirror, Routes, netconf_changed};
use crate::hop::{Hop, HopFlags, Via};
use crate::neighbor::state;
use crate::route::RouteBody;
use crate::{Address, Link, Neighbor, Netconf, NextHop, Rule, netconf};
use bm_wire::Family;
use bm_wire::prefix::{self, Ipv4Prefix, Ipv6Prefix, Prefix};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

/// Tables and prefixes, of IPv4 and of IPv6.
pub(crate) type Touched = (BTreeSet<(u32, Ipv4Prefix)>, BTreeSet<(u32, Ipv6Prefix)>);

/// A complete object, for a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    Link(Link),
    /// The addresses of a link.
    Addresses(Vec<Address>),
    Neighbor(Neighbor),
    /// A next-hop object.
    NextHop(NextHop),
    Rule(Rule),
    /// Settings of a link.
    Netconf(Family, i32, Netconf),
    /// The routes to a prefix.
    Route {
        table: u32,
        /// Destination: address and length.
        prefix: (IpAddr, u8),
        /// The routes, in the kernel's order.
        bodies: Vec<RouteBody>,
    },
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(link) => write!(f, "link {link}"),
            Self::Addresses(list) => {
                f.write_str("address")?;
                list.iter().try_for_each(|address| write!(f, " [{address}]"))
            }
            Self::Neighbor(neighbor) => write!(f, "neighbor {neighbor}"),
            Self::NextHop(next_hop) => write!(f, "nexthop {next_hop}"),
            Self::Rule(rule) => write!(f, "rule {rule}"),
            Self::Netconf(family, ifindex, netconf) => write!(f, "netconf {family} dev {ifindex} {netconf}"),
            Self::Route { table, prefix: (address, length), bodies } => {
                write!(f, "route {address}/{length} table {table}")?;
                bodies.iter().try_for_each(|body| write!(f, " [{body}]"))
            }
        }
    }
}

/// Where mirror and kernel do not agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The kernel has it, but the mirror does not.
    Missing(Item),
    /// The mirror has it, but the kernel does not.
    Extra(Item),
    /// Both have it, with different content.
    Different {
        /// The mirror's state.
        mirror: Item,
        /// The kernel's state.
        kernel: Item,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(item) => write!(f, "missing in the mirror: {item}"),
            Self::Extra(item) => write!(f, "only in the mirror: {item}"),
            Self::Different { mirror, kernel } => write!(f, "mirror: {mirror}; kernel: {kernel}"),
        }
    }
}

/// Differences, up to a maximum number; those beyond are only counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// The first of them.
    pub list: Vec<Difference>,
    /// All of them.
    pub count: usize,
    limit: usize,
}

impl Findings {
    /// None yet, and room for `limit`.
    pub fn up_to(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    fn note(&mut self, ours: Option<Item>, theirs: Option<Item>) {
        self.count += 1;
        if self.list.len() >= self.limit {
            return;
        }
        self.list.extend(match (ours, theirs) {
            (Some(mirror), Some(kernel)) => Some(Difference::Different { mirror, kernel }),
            (Some(item), None) => Some(Difference::Extra(item)),
            (None, Some(item)) => Some(Difference::Missing(item)),
            (None, None) => None,
        });
    }
}

impl Mirror {
    /// Makes the mirror equal to `fresh`, a mirror of a new dump. Differences are reported as changes, and added to
    /// `findings`. IDs of bodies do not change.
    pub fn adopt(&mut self, fresh: Mirror, findings: &mut Findings) {
        let changes = &mut self.changes;
        adopt_map(&mut self.links, fresh.links, |&ifindex, ours, theirs| {
            changes.push(Change::Link(ifindex));
            // The kernel announces carrier up to a second after a dump shows it: no difference.
            if ours.map(Link::settled) != theirs.map(Link::settled) {
                findings.note(ours.cloned().map(Item::Link), theirs.cloned().map(Item::Link));
            }
        });
        self.generations.settle(self.links.keys());
        adopt_map(&mut self.addresses, fresh.addresses, |&ifindex, ours, theirs| {
            changes.push(Change::Addresses(ifindex));
            // The same ones in another order (one was promoted): not a difference.
            if sorted(ours) == sorted(theirs) {
                return;
            }
            findings.note(ours.cloned().map(Item::Addresses), theirs.cloned().map(Item::Addresses));
        });
        adopt_map(&mut self.next_hops, fresh.next_hops, |&id, ours, theirs| {
            changes.push(Change::NextHop(id));
            findings.note(ours.cloned().map(Item::NextHop), theirs.cloned().map(Item::NextHop));
        });
        // What came while the tables were read is also in the fresh ones.
        let copied = std::mem::replace(&mut self.doubts.settings_copied, fresh.doubts.settings_copied);
        adopt_map(&mut self.netconf, fresh.netconf, |&(family, ifindex), ours, theirs| {
            netconf_changed(&self.links, changes, family, ifindex);
            // What is for new interfaces affects none, and like some settings it changes without a message.
            let is_silent = copied || ifindex == netconf::DEFAULT;
            if !is_silent && ours.map(Netconf::announced) != theirs.map(Netconf::announced) {
                let [ours, theirs] =
                    [ours, theirs].map(|netconf| netconf.map(|&it| Item::Netconf(family, ifindex, it)));
                findings.note(ours, theirs);
            }
        });
        self.ruled.extend(fresh.ruled);
        self.adopt_rules(fresh.rules, findings);
        for family in Family::BOTH {
            self.set_rules_in_doubt(family, fresh.rules_in_doubt[family as usize]);
        }
        self.adopt_neighbors(fresh.neighbors, findings);
        let (four, six) = (self.ignoring(Family::V4), self.ignoring(Family::V6));
        adopt_routes(&mut self.ipv4, &fresh.ipv4, &four, &mut self.changes, findings);
        adopt_routes(&mut self.ipv6, &fresh.ipv6, &six, &mut self.changes, findings);
        self.ipv4.doubt_only(fresh.ipv4.into_doubts(), &mut self.changes);
        self.ipv6.doubt_only(fresh.ipv6.into_doubts(), &mut self.changes);
    }

    /// Links that are up and do not use hops without carrier.
    fn ignoring(&self, family: Family) -> Vec<u32> {
        self.links()
            .filter(|link| link.up() && self.ignores_linkdown(family, link.ifindex))
            .map(|link| link.ifindex)
            .collect()
    }

    /// Takes out the routes of a family, to list them again.
    pub(crate) fn take_routes(&mut self, six: bool) -> (Routes<u32>, Routes<u128>) {
        match six {
            false => (std::mem::take(&mut self.ipv4), Routes::default()),
            true => (Routes::default(), std::mem::take(&mut self.ipv6)),
        }
    }

    /// Adds prefixes that an earlier listing contained and a later one did not.
    pub(crate) fn fill_routes(&mut self, ipv4: &Routes<u32>, ipv6: &Routes<u128>) {
        fill(&mut self.ipv4, ipv4, &mut self.changes);
        fill(&mut self.ipv6, ipv6, &mut self.changes);
    }

    /// Takes over the routes to some prefixes as `live` has them.
    pub(crate) fn copy_routes(&mut self, live: &Mirror, touched: &Touched) {
        for &(table, prefix) in &touched.0 {
            copy(&mut self.ipv4, &live.ipv4, table, prefix, live.ipv4.get(table, prefix), &mut self.changes);
        }
        for &(table, prefix) in &touched.1 {
            copy(&mut self.ipv6, &live.ipv6, table, prefix, live.ipv6.get(table, prefix), &mut self.changes);
        }
    }

    fn adopt_rules(&mut self, fresh: Vec<Rule>, findings: &mut Findings) {
        if self.rules == fresh {
            return;
        }
        Family::BOTH.into_iter().for_each(|family| self.changes.push(Change::Rules(family)));
        let before = std::mem::replace(&mut self.rules, fresh);
        let (mut ours, mut theirs): (Vec<_>, Vec<_>) = (before.iter().collect(), self.rules.iter().collect());
        if self.rules_in_doubt.contains(&true) {
            return;
        }
        // Rules may be equal, so each is paired with one of the other side.
        ours.retain(|rule| match theirs.iter().position(|their| their == rule) {
            Some(at) => {
                theirs.remove(at);
                false
            }
            None => true,
        });
        if ours.is_empty() && theirs.is_empty() {
            let moved = before.iter().zip(&self.rules).find(|(ours, theirs)| ours != theirs);
            if let Some((ours, theirs)) = moved {
                findings.note(Some(Item::Rule(ours.clone())), Some(Item::Rule(theirs.clone())));
            }
        }
        ours.into_iter().for_each(|rule| findings.note(Some(Item::Rule(rule.clone())), None));
        theirs.into_iter().for_each(|rule| findings.note(None, Some(Item::Rule(rule.clone()))));
    }

    /// There are not events for each step of a resolution. What matters is where packets can be sent; a missed step
    /// is applied but not reported. On a link without ARP and neighbor discovery Linux makes an entry for whatever it sends
    /// to, and announces none.
    fn adopt_neighbors(&mut self, fresh: crate::hash::Map<(u32, IpAddr), Neighbor>, findings: &mut Findings) {
        let ours = std::mem::take(&mut self.neighbors);
        let gone = ours.keys().filter(|key| !fresh.contains_key(key));
        for key in fresh.keys().chain(gone) {
            let (our, their) = (ours.get(key), fresh.get(key));
            if our != their {
                self.changes.push(Change::Neighbor(key.0, key.1));
            }
            let link = self.links.get(&key.0);
            let is_announced = link.is_none_or(|link| link.flags & libc::IFF_NOARP as u32 == 0);
            if is_announced && valid_mac(our) != valid_mac(their) {
                findings.note(our.copied().map(Item::Neighbor), their.copied().map(Item::Neighbor));
            }
        }
        self.neighbors = fresh;
    }
}

/// Replaces a map, and passes each difference to `tell`.
fn adopt_map<K: Ord, V: PartialEq>(
    ours: &mut BTreeMap<K, V>,
    fresh: BTreeMap<K, V>,
    mut tell: impl FnMut(&K, Option<&V>, Option<&V>),
) {
    for (key, value) in ours.iter().filter(|(key, _)| !fresh.contains_key(key)) {
        tell(key, Some(value), None);
    }
    for (key, value) in &fresh {
        let our = ours.get(key);
        if our != Some(value) {
            tell(key, our, Some(value));
        }
    }
    *ours = fresh;
}

/// Addresses in an order that does not depend on which of them were promoted.
fn sorted(list: Option<&Vec<Address>>) -> Vec<Address> {
    let mut list = list.cloned().unwrap_or_default();
    list.sort_unstable();
    list
}

fn valid_mac(neighbor: Option<&Neighbor>) -> Option<Option<[u8; 6]>> {
    neighbor.filter(|neighbor| neighbor.state & state::VALID != 0).map(|neighbor| neighbor.mac)
}

fn adopt_routes<A: prefix::Address>(
    ours: &mut Routes<A>,
    fresh: &Routes<A>,
    ignoring: &[u32],
    changes: &mut super::Changes,
    findings: &mut Findings,
) {
    let mut extra = Vec::new();
    for (number, table) in ours.tables() {
        let theirs = fresh.table(number);
        let gone =
            table.iter().filter(|(prefix, _)| theirs.is_none_or(|table| table.get(*prefix).is_empty()));
        extra.extend(gone.map(|(prefix, _)| (number, prefix)));
    }
    for (number, prefix) in extra {
        // What was in doubt was left to Linux, and is resolved by this.
        if !ours.needs_reread(number, prefix) {
            findings.note(route_item(ours, number, prefix, ours.get(number, prefix)), None);
        }
        ours.replace(number, prefix, &[], changes);
    }
    let mut different = Vec::new();
    let known = vec![None; fresh.bodies.bound()];
    let mut same = Same { ours, fresh, ignoring, known };
    for (number, table) in fresh.tables() {
        let differs = table.iter().filter(|(prefix, list)| !same.lists(ours.get(number, *prefix), list));
        different.extend(differs.map(|(prefix, list)| (number, prefix, list)));
    }
    for (number, prefix, list) in different {
        let our = ours.get(number, prefix);
        let renewed = silently_changed(ours, fresh, our, list);
        if renewed.is_none() && !ours.needs_reread(number, prefix) {
            findings.note(route_item(ours, number, prefix, our), route_item(fresh, number, prefix, list));
        }
        match renewed {
            Some(renewed) => set(ours, number, prefix, renewed, changes),
            None => copy(ours, fresh, number, prefix, list, changes),
        }
    }
}

/// Our routes to a prefix with what Linux has changed in them without a message: preference and MTU of IPv6 routes, and
/// what its messages about several hops say of one of them only. `None` if they differ in anything else.
fn silently_changed<A: prefix::Address>(
    ours: &Routes<A>,
    fresh: &Routes<A>,
    our: &[BodyId],
    their: &[BodyId],
) -> Option<Vec<RouteBody>> {
    if A::FAMILY == Family::V4 {
        return None;
    }
    let pairs = pair(ours, our, their, |one, two| {
        without_advertised(ours.bodies.body(one)).same_route(&without_advertised(fresh.bodies.body(two)))
    })?;
    let renewed = pairs.into_iter().map(|(our, their)| {
        let our = ours.bodies.body(our);
        match their {
            Some(their) => with_weight(fresh.bodies.body(their).clone(), our),
            None => our.clone(),
        }
    });
    Some(renewed.collect())
}

/// A route as Linux lists it, with the known weight of its only hop. Linux does not list that weight, but uses it again
/// when other hops join.
fn with_weight(mut listed: RouteBody, known: &RouteBody) -> RouteBody {
    if let (Via::One(hop), Via::One(Hop { weight, .. })) = (&mut listed.via, &known.via) {
        hop.weight = *weight;
    }
    listed
}

/// A route without what router advertisements change silently, and without the weight of an only hop, which Linux does
/// not list.
fn without_advertised(body: &RouteBody) -> RouteBody {
    let mut body = RouteBody { preference: 0, mtu: 0, mtu_locked: false, hop_limit: 0, ..body.clone() };
    match &mut body.via {
        Via::Many(_) => RouteBody { protocol: 0, preferred_source: None, ..body },
        Via::One(hop) => {
            hop.weight = 1;
            body
        }
        _ => body,
    }
}

fn route_item<A: prefix::Address>(
    routes: &Routes<A>,
    table: u32,
    prefix: Prefix<A>,
    list: &[BodyId],
) -> Option<Item> {
    let bodies: Vec<_> = list.iter().map(|&id| routes.bodies.body(id).clone()).collect();
    let prefix = (prefix.first().show(), prefix.length());
    (!bodies.is_empty()).then_some(Item::Route { table, prefix, bodies })
}

/// Which listed route each of ours is, or `None` where a list of the kernel does not show one that is still there.
/// `None` altogether if one of the two lists has a route that the other lacks.
fn pair<A: prefix::Address>(
    ours: &Routes<A>,
    our: &[BodyId],
    listed: &[BodyId],
    mut is_same: impl FnMut(BodyId, BodyId) -> bool,
) -> Option<Vec<(BodyId, Option<BodyId>)>> {
    let mut listed = listed.iter().copied().peekable();
    let mut pairs = Vec::new();
    for &id in our {
        let same = listed.next_if(|&other| is_same(id, other));
        if same.is_none() && !may_be_hidden(ours, our, id) {
            return None;
        }
        pairs.push((id, same));
    }
    listed.next().is_none().then_some(pairs)
}

/// Whether an IPv6 route has the metric of another one with several hops.
fn may_be_hidden<A: prefix::Address>(routes: &Routes<A>, list: &[BodyId], id: BodyId) -> bool {
    A::FAMILY == Family::V6
        && list.iter().any(|&other| {
            other != id
                && hides_others(routes, list, other)
                && peers(routes.bodies.body(other), routes.bodies.body(id))
        })
}

/// Copies the routes of a prefix from `fresh`.
fn copy<A: prefix::Address>(
    ours: &mut Routes<A>,
    fresh: &Routes<A>,
    table: u32,
    prefix: Prefix<A>,
    list: &[BodyId],
    changes: &mut super::Changes,
) {
    let new = list.iter().map(|&id| fresh.bodies.body(id).clone()).collect();
    set(ours, table, prefix, new, changes);
}

/// Sets the routes of a prefix.
fn set<A: prefix::Address>(
    ours: &mut Routes<A>,
    table: u32,
    prefix: Prefix<A>,
    new: Vec<RouteBody>,
    changes: &mut super::Changes,
) {
    let new: Vec<_> = new.into_iter().map(|body| ours.bodies.intern(body)).collect();
    ours.replace(table, prefix, &new, changes);
    // `replace` has counted them again.
    ours.discount(&new, changes);
}

/// Adds the routes to prefixes that have none here.
fn fill<A: prefix::Address>(ours: &mut Routes<A>, earlier: &Routes<A>, changes: &mut super::Changes) {
    for (number, table) in earlier.tables() {
        for (prefix, list) in table.iter() {
            if ours.get(number, prefix).is_empty() {
                copy(ours, earlier, number, prefix, list, changes);
            }
        }
    }
}

/// Compares lists of two mirrors.
struct Same<'a, A: prefix::Address> {
    ours: &'a Routes<A>,
    fresh: &'a Routes<A>,
    /// Links whose hops without carrier are not used: there the kernel calls such a hop dead as well, which hides its
    /// actual state.
    ignoring: &'a [u32],
    /// Which of this mirror's IDs was last found equal to each ID of the new one, so that comparing a million equal
    /// routes means a million comparisons of IDs.
    known: Vec<Option<BodyId>>,
}

impl<A: prefix::Address> Same<'_, A> {
    fn lists(&mut self, ours: &[BodyId], theirs: &[BodyId]) -> bool {
        bm_sys::heartbeat::beat();
        if ours.len() == theirs.len() {
            return ours.iter().zip(theirs).all(|(&our, &their)| self.bodies(our, their));
        }
        // A list of the kernel does not show all, but those that it hides are still there.
        pair(self.ours, ours, theirs, |our, their| self.bodies(our, their)).is_some()
    }

    fn bodies(&mut self, our: BodyId, their: BodyId) -> bool {
        if self.known[their.index()] == Some(our) {
            return true;
        }
        let (one, two) = (self.ours.bodies.body(our), self.fresh.bodies.body(their));
        let flags =
            |hop: &Hop| match self.ignoring.contains(&hop.ifindex) && hop.flags.has(HopFlags::LINKDOWN) {
                true => hop.flags.0 & !HopFlags::DEAD,
                false => hop.flags.0,
            };
        let hops = one.via.hops().iter().zip(two.via.hops());
        let equal = one.same_route(two) && hops.into_iter().all(|(one, two)| flags(one) == flags(two));
        if equal {
            self.known[their.index()] = Some(our);
        }
        equal
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message;
    use crate::mirror::Touched;
    use crate::netconf::{DEFAULT, NetconfUpdate};

    /// A mirror of a dump in which interface 5 has this setting.
    fn listed(proxy_neigh: bool) -> Mirror {
        let mut mirror = Mirror::default();
        mirror.netconf.insert((Family::V4, 5), Netconf { proxy_neigh, ..Netconf::default() });
        mirror
    }

    /// Linux copies a setting to an interface after the first dump: the second one corrects the mirror without a finding.
    #[test]
    fn what_was_copied_while_a_list_was_read_is_no_difference() {
        let mut mirror = listed(false);
        let mut first = listed(true);
        for mirror in [&mut mirror, &mut first] {
            let update = NetconfUpdate::default();
            mirror.apply(Message::Netconf { family: Family::V4, ifindex: DEFAULT, update });
        }
        first.keep_doubts(&mirror, &Touched::default(), [false; 2]);
        for (list, differences) in [(first, 0), (listed(false), 0), (listed(true), 1)] {
            let mut findings = Findings::up_to(9);
            mirror.adopt(list, &mut findings);
            assert_eq!(findings.list.len(), differences, "{findings:?}");
        }
    }
}
