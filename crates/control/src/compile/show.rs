//! The compiled tables as API replies.

pub(crate) mod explain;
mod routes;

use super::Compiler;
use super::fib_info::LinuxReason;
use super::stages;
use super::targets::{Entry, State, Target};
use bm_api::{Hop, Mac, Neighbor, Neighbors, NextHop, NextHops, Share};
use bm_fib::next_hop::Action;
use bm_netlink::neighbor::state;
use bm_netlink::{Family, Kind, Mirror};

/// Sizes of the compiled tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// IPv4 routes of all tables, including entries for neighbors.
    pub ipv4: usize,
    /// IPv6 routes of all tables, including entries for neighbors.
    pub ipv6: usize,
    /// Routes and neighbors that could not be compiled, so that Linux forwards their packets.
    pub refused: usize,
    /// Next hops in use.
    pub next_hops: usize,
    /// Maximum number of next hops.
    pub next_hops_max: usize,
    /// Memory of the lookup structures, in bytes.
    pub bytes: usize,
}

impl Compiler {
    /// Sizes of the tables compiled from this mirror.
    pub fn counts(&self, mirror: &Mirror) -> Counts {
        let [four, six] = [self.ipv4.size(), self.ipv6.size()];
        let faults = self.ipv4.faults(mirror.ipv4()).count() + self.ipv6.faults(mirror.ipv6()).count();
        Counts {
            ipv4: four.routes,
            ipv6: six.routes,
            refused: faults + four.refused + six.refused + four.without_next_hop + six.without_next_hop,
            next_hops: self.targets.iter().count(),
            next_hops_max: self.targets.table().capacity(),
            bytes: four.bytes + six.bytes,
        }
    }

    /// Lookup structures of the main tables, IPv4 first.
    pub fn lookup(&self) -> Vec<bm_api::Lookup> {
        self.ipv4.lookup(None).into_iter().chain(self.ipv6.lookup(None)).collect()
    }

    /// Notes for the operator on what is left to Linux.
    pub fn notes(&self, mirror: &Mirror) -> Vec<String> {
        let mut notes = Vec::new();
        for family in Family::BOTH {
            if mirror.lost_all_rules(family) {
                notes.push(format!(
                    "{family} is left to Linux: it has no routing rules, so nothing has a route"
                ));
            }
            if mirror.may_ignore_rules(family) {
                notes.push(format!(
                    "{family} is left to Linux: a default routing rule is missing, which counts for Linux only if a rule was ever added"
                ));
            }
            if let Some(rule) = stages::unsupported(mirror, family).next() {
                notes.push(format!(
                    "{family} is left to Linux: the routing rule with priority {} matches more than the destination",
                    rule.priority
                ));
            }
        }
        let without_next_hop = self.ipv4.size().without_next_hop + self.ipv6.size().without_next_hop;
        let reasons4 = self.ipv4.faults(mirror.ipv4()).map(|(.., why)| why);
        let reasons6 = self.ipv6.faults(mirror.ipv6()).map(|(.., why)| why);
        let refused = reasons4.chain(reasons6).filter(|why| matches!(why, LinuxReason::NextHop(_))).count();
        if without_next_hop + refused > 0 {
            notes.push(format!(
                "the table of {} next hops is full: {} routes and {without_next_hop} neighbors are left to Linux: increase next_hops in [fib]",
                self.targets.table().capacity(),
                refused
            ));
        }
        if self.ipv4.has_lost_sources() || self.ipv6.has_lost_sources() {
            notes.push("no room for the feasible reverse paths of all sources: every source passes".into());
        }
        notes.extend(self.ipsec_faults(mirror).iter().map(ToString::to_string));
        let without = self.ipv4.routes_without_set() + self.ipv6.routes_without_set();
        if without > 0 {
            notes.push(format!(
                "no free set for the feasible reverse paths of {without} routes: their sources are not checked"
            ));
        }
        notes
    }

    /// The interfaces of a port.
    pub fn shown_interfaces(&self, mirror: &Mirror, port: u16) -> Vec<bm_api::Interface> {
        let shown = self.interfaces().of_port(port).map(|(index, interface)| {
            let table = mirror.table_of(interface.ifindex);
            let addresses = mirror.addresses(interface.ifindex).iter();
            bm_api::Interface {
                index,
                name: interface.name.clone(),
                ifindex: interface.ifindex,
                vlan: interface.vlan,
                mac: Mac(interface.mac),
                mtu_bytes: u32::from(interface.mtu),
                up: interface.up,
                vrf: vrf_name(mirror, table),
                forward_ipv4: interface.forward_ipv4,
                forward_ipv6: interface.forward_ipv6,
                reverse_path: interface.reverse_path,
                addresses: addresses.map(|address| format!("{}/{}", address.local, address.length)).collect(),
            }
        });
        shown.collect()
    }

    /// The kernel's neighbors on our interfaces.
    pub fn shown_neighbors(&self, mirror: &Mirror) -> Neighbors {
        let ours =
            mirror.neighbors().filter(|neighbor| self.interfaces().index_of(neighbor.ifindex).is_some());
        let shown = ours.map(|neighbor| {
            let link = mirror.link(neighbor.ifindex);
            Neighbor {
                address: neighbor.address,
                interface: link.map_or_else(String::new, |link| link.name.to_string()),
                ifindex: neighbor.ifindex,
                mac: neighbor.mac.map(Mac),
                state: state_name(neighbor.state).into(),
                usable: neighbor.reachable_at().is_some(),
                router: neighbor.router,
                used: self.used.contains(&(neighbor.ifindex, neighbor.address)),
                next_hop: self
                    .targets
                    .of_neighbor(neighbor.ifindex, neighbor.address)
                    .map(|target| self.targets.hop(target).0),
            }
        });
        let mut neighbors: Vec<_> = shown.collect();
        neighbors.sort_by_key(|neighbor| (neighbor.address, neighbor.ifindex));
        Neighbors { neighbors }
    }

    /// Next hops and groups in use.
    pub fn shown_next_hops(&self, mirror: &Mirror) -> NextHops {
        let mut next_hops: Vec<_> =
            self.targets.iter().map(|(target, entry)| self.next_hop(mirror, target, entry)).collect();
        next_hops.sort_by_key(|next_hop| next_hop.index);
        NextHops { next_hops, capacity: self.targets.table().capacity() }
    }

    fn next_hop(&self, mirror: &Mirror, target: Target, entry: &Entry) -> NextHop {
        let members = match &entry.state {
            State::Members(members) => &members[..],
            _ => &[],
        };
        let members = members.iter().filter(|member| member.share > 0).map(|member| Share {
            index: self.targets.hop(member.target).0,
            weight: member.share,
            hop: self.hop(mirror, member.target),
        });
        NextHop {
            index: entry.hop.0,
            action: shown(self.targets.table().action(entry.hop)),
            hop: self.hop(mirror, target),
            object: entry.shape.object(),
            members: members.collect(),
            mtu_bytes: u32::from(self.targets.table().mtu(entry.hop)),
            users: u64::from(entry.users),
        }
    }

    /// Where a target sends packets, if it is a single adjacency.
    fn hop(&self, mirror: &Mirror, target: Target) -> Option<Hop> {
        let entry = self.targets.get(target);
        let State::Plain(adjacency) = &entry.state else { return None };
        let mac = match self.targets.table().action(entry.hop) {
            // An IPsec interface has no neighbors.
            Action::Forward { mac, interface } => {
                let own = self.interfaces().list.get(usize::from(interface));
                own.is_none_or(|own| own.if_id == 0).then_some(Mac(mac))
            }
            _ => None,
        };
        let link = mirror.link(adjacency.ifindex);
        Some(Hop {
            gateway: adjacency.gateway,
            interface: link.map_or_else(String::new, |link| link.name.to_string()),
            ifindex: adjacency.ifindex,
            mac,
        })
    }

    /// All hops that a target sends packets to.
    fn hops(&self, mirror: &Mirror, target: Target) -> Vec<Hop> {
        match &self.targets.get(target).state {
            State::Members(members) => {
                let alive = members.iter().filter(|member| member.share > 0);
                alive.filter_map(|member| self.hop(mirror, member.target)).collect()
            }
            _ => self.hop(mirror, target).into_iter().collect(),
        }
    }
}

pub(crate) fn vrf_name(mirror: &Mirror, table: u32) -> Option<String> {
    let vrf = mirror.links().find(|link| matches!(link.kind, Kind::Vrf { table: of } if of == table));
    vrf.map(|link| link.name.to_string())
}

fn shown(action: Action) -> bm_api::Action {
    match action {
        Action::Forward { .. } => bm_api::Action::Forward,
        Action::Host | Action::LinuxOnly => bm_api::Action::Host,
        Action::Resolve => bm_api::Action::Resolve,
        Action::Blackhole => bm_api::Action::Blackhole,
        Action::Unreachable => bm_api::Action::Unreachable,
        Action::Prohibit => bm_api::Action::Prohibit,
        Action::Group { .. } => bm_api::Action::Group,
        Action::None => bm_api::Action::NoRoute,
    }
}

/// State names of `ip neigh`.
pub(super) fn state_name(number: u16) -> &'static str {
    match number {
        state::INCOMPLETE => "incomplete",
        state::REACHABLE => "reachable",
        state::STALE => "stale",
        state::DELAY => "delay",
        state::PROBE => "probe",
        state::FAILED => "failed",
        state::NOARP => "noarp",
        state::PERMANENT => "permanent",
        _ => "none",
    }
}
