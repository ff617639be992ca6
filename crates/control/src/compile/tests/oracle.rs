//! What Linux would do with a packet, computed slowly from the mirror each time.
//!
//! Written independently of the compiler, from the documented rules; they share only the mirror.

use super::super::own_gateways::OwnGateways;
use bm_fib::next_hop::{Action, NextHops};
use bm_fib::{Fib, NextHop};
use bm_netlink::next_hop::Object;
use bm_netlink::{Family, Hop, HopFlags, Kind, Mirror, RouteBody, RouteKind, Routes, Rule, Via};
use bm_wire::prefix::{Address, Prefix};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// What happens to a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    NoRoute,
    Host,
    /// Linux sends it on this link.
    LinuxOnly(u32),
    Blackhole,
    Unreachable,
    Prohibit,
    /// Resolve the gateway, or the destination itself, on this link.
    Resolve(u32, Option<IpAddr>),
    Forward {
        mac: [u8; 6],
        ifindex: u32,
    },
    /// Several hops with weights.
    Group(Vec<(Answer, u32)>),
}

pub struct Oracle<'a> {
    pub mirror: &'a Mirror,
    /// Links of our ports.
    pub ports: &'a [Option<u32>],
    /// Links on which only Linux may send.
    pub linux_only: &'a BTreeSet<u32>,
    /// These depend on what was before, so `cases` tests them.
    pub own_gateways: &'a OwnGateways,
}

impl Oracle<'_> {
    pub fn answer<A: Address>(&self, routes: &Routes<A>, vrf: Option<u32>, address: A) -> (Answer, u32) {
        let tables = match self.tables(A::FAMILY, vrf) {
            Some(tables) => tables,
            None => return (Answer::Host, 0),
        };
        for table in tables {
            let in_doubt: Vec<_> = routes
                .doubts_of(table)
                .filter(|prefix| prefix.contains(address))
                .map(|prefix| prefix.length())
                .collect();
            let longest_doubt = in_doubt.iter().max();
            let listed = routes.table(table);
            let mut covering: Vec<(Prefix<A>, Vec<&RouteBody>)> = listed
                .iter()
                .flat_map(|table| table.iter())
                .filter(|(prefix, _)| prefix.contains(address))
                .map(|(prefix, list)| (prefix, list.iter().filter_map(|id| routes.body(*id)).collect()))
                .collect();
            covering.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.length()));
            let found = covering
                .iter()
                .find_map(|(prefix, bodies)| Some((prefix.length(), self.chosen(A::FAMILY, bodies)?)));
            if let Some(doubt) = longest_doubt
                && found.is_none_or(|(length, _)| length <= *doubt)
            {
                return (Answer::Host, 0);
            }
            let found = found.map(|(_, body)| body);
            match found {
                None => {}
                Some(None) => return (Answer::Host, 0),
                // Linux may have the tables local and main in one.
                Some(Some(_)) if table == 255 && A::FAMILY == Family::V4 => return (Answer::Host, 0),
                Some(Some(body)) if body.kind == RouteKind::Throw => {}
                Some(Some(body)) => return (self.led(A::FAMILY, body, address.show()), body.mtu),
            }
        }
        (if vrf.is_some() { Answer::Host } else { Answer::NoRoute }, 0)
    }

    /// `None` if only Linux supports the rules.
    fn tables(&self, family: Family, vrf: Option<u32>) -> Option<Vec<u32>> {
        let rules: Vec<&Rule> = self.mirror.rules().iter().filter(|rule| rule.family == family).collect();
        let odd = rules.iter().any(|rule| rule.source.is_some() || rule.mark.is_some());
        let mirror = &self.mirror;
        let unknown = mirror.rules_in_doubt(family) || mirror.may_ignore_rules(family);
        if odd || unknown || mirror.lost_all_rules(family) {
            return None;
        }
        Some(match (vrf, family) {
            (Some(_), _) if !rules.is_empty() && !rules.iter().any(|rule| rule.l3mdev) => vec![],
            (Some(table), _) => vec![255, table],
            (None, Family::V4) => vec![255, 254, 253],
            (None, Family::V6) => vec![255, 254],
        })
    }

    /// The body in effect; `Some(None)` if bodies do not treat all packets alike.
    fn chosen<'b>(&self, family: Family, bodies: &[&'b RouteBody]) -> Option<Option<&'b RouteBody>> {
        let active: Vec<_> = bodies.iter().filter(|body| self.active(family, body)).collect();
        if active.iter().any(|body| body.tos > 0 || body.source.is_some()) {
            return Some(None);
        }
        match family {
            Family::V4 => active.first().map(|body| Some(**body)),
            Family::V6 => self.chosen6(bodies, &active),
        }
    }

    /// IPv6 prefers by router preference, first among the lowest metric, then among all others at once.
    fn chosen6<'b>(
        &self,
        bodies: &[&'b RouteBody],
        active: &[&&'b RouteBody],
    ) -> Option<Option<&'b RouteBody>> {
        active.first()?;
        let drops = |body: &RouteBody| match body.via {
            Via::Object(id) => matches!(self.hops(&Via::Object(id)), Err(Answer::Blackhole)),
            _ => false,
        };
        let lowest = bodies.iter().map(|body| body.priority).min()?;
        let several = |body: &RouteBody| {
            body.via.hops().len() > 1
                && bodies.iter().filter(|other| other.priority == body.priority).count() > 1
        };
        if bodies.len() > 1 && bodies.iter().any(|body| drops(body) || several(body)) {
            return Some(None);
        }
        // High, medium, low.
        let place = |body: &&RouteBody| [1, 0, 3].iter().position(|at| *at == body.preference);
        let links = |body: &RouteBody| -> BTreeSet<u32> {
            self.hops(&body.via).unwrap_or_default().iter().map(|hop| hop.ifindex).collect()
        };
        let best = |bodies: Vec<&'b RouteBody>| {
            let highest = bodies.iter().filter_map(place).min();
            let equal: Vec<_> = bodies.into_iter().filter(|body| place(body) == highest).collect();
            let first = *equal.first()?;
            // Linux prefers one by whose link the packet has come in.
            let all: BTreeSet<u32> = equal.iter().flat_map(|body| links(body)).collect();
            let differ = equal.iter().any(|body| links(body) != links(first));
            Some((equal.len() == 1 || !differ && all.len() < 2).then_some(first))
        };
        let of_lowest = active.iter().map(|body| **body).filter(|body| body.priority == lowest).collect();
        let all = active.iter().map(|body| **body).collect();
        best(of_lowest).or_else(|| best(all))
    }

    fn active(&self, family: Family, body: &RouteBody) -> bool {
        use RouteKind::{Blackhole, Local, Prohibit, Throw, Unreachable};
        if matches!(body.kind, Blackhole | Unreachable | Prohibit | Throw | Local) {
            return true;
        }
        match self.hops(&body.via) {
            Err(_) => true,
            Ok(hops) => hops.iter().any(|hop| self.kernel_uses(family, hop)),
        }
    }

    /// The hops of a route, or what happens instead.
    fn hops(&self, via: &Via) -> Result<Vec<Hop>, Answer> {
        let object = |id: u32| self.mirror.next_hop(id).map(|next_hop| &next_hop.object);
        match via {
            Via::Nowhere => Ok(vec![]),
            Via::One(hop) => Ok(vec![*hop]),
            Via::Many(hops) => Ok(hops.to_vec()),
            Via::Object(id) => match object(*id) {
                None => Err(Answer::Host),
                Some(Object::Blackhole) => Err(Answer::Blackhole),
                Some(Object::Hop(hop)) => Ok(vec![Hop { weight: 1, ..*hop }]),
                Some(Object::Group { members, .. }) => {
                    let mut hops = vec![];
                    for member in members {
                        match object(member.id) {
                            Some(Object::Hop(hop)) => hops.push(Hop { weight: member.weight, ..*hop }),
                            _ => return Err(Answer::Host),
                        }
                    }
                    Ok(hops)
                }
            },
        }
    }

    fn kernel_uses(&self, family: Family, hop: &Hop) -> bool {
        let up = self.mirror.link(hop.ifindex).is_some_and(|link| link.flags & 1 != 0);
        let ignores = self.mirror.ignores_linkdown(family, hop.ifindex);
        up && !hop.flags.has(HopFlags::DEAD) && !(hop.flags.has(HopFlags::LINKDOWN) && ignores)
    }

    fn led(&self, family: Family, body: &RouteBody, address: IpAddr) -> Answer {
        match body.kind {
            RouteKind::Unicast => {}
            RouteKind::Blackhole => return Answer::Blackhole,
            RouteKind::Unreachable => return Answer::Unreachable,
            RouteKind::Prohibit => return Answer::Prohibit,
            _ => return Answer::Host,
        }
        let hops = match self.hops(&body.via) {
            Ok(hops) => hops,
            Err(answer) => return answer,
        };
        if let [hop] = hops.as_slice() {
            return self.over(hop, Some(address));
        }
        let alive: Vec<&Hop> = hops.iter().filter(|hop| self.kernel_uses(family, hop)).collect();
        let skips = self.skips_silent(family, &body.via);
        // The kernel walks on from the member that the hash selects, and begins again at the first.
        let receiver = |at: usize| {
            let mut order = alive[at..].iter().chain(&alive[..at]);
            *order.find(|hop| !(skips && self.is_silent(hop))).unwrap_or(&alive[0])
        };
        let receivers: Vec<&Hop> = (0..alive.len()).map(receiver).collect();
        let linux = receivers.iter().any(|hop| hop.encap == 0 && self.is_linux_only(hop.ifindex));
        let mut members: BTreeMap<Answer, u32> = BTreeMap::new();
        for (selected, hop) in alive.iter().zip(receivers) {
            let answer = match hop.gateway {
                _ if linux && self.ours(hop.ifindex) => Answer::LinuxOnly(hop.ifindex),
                Some(_) => self.over(hop, None),
                None => Answer::Host,
            };
            *members.entry(answer).or_default() += u32::from(selected.weight);
        }
        match members.len() {
            0 => Answer::Host,
            _ => Answer::Group(members.into_iter().collect()),
        }
    }

    fn is_silent(&self, hop: &Hop) -> bool {
        let neighbor = hop.gateway.and_then(|gateway| self.mirror.neighbor(hop.ifindex, gateway));
        let silent = neighbor.is_some_and(|neighbor| self.mac(neighbor).is_none());
        // For hops on other links, Linux decides.
        silent && self.ours(hop.ifindex) && hop.encap == 0
    }

    fn skips_silent(&self, family: Family, via: &Via) -> bool {
        let Via::Object(id) = via else {
            return family == Family::V4 && self.mirror.sysctls().ipv4_multipath_use_neigh != 0;
        };
        let object = self.mirror.next_hop(*id).map(|next_hop| &next_hop.object);
        matches!(object, Some(Object::Group { resilient: None, .. }))
    }

    /// The answer of a single hop; `address` is the destination if it may be a neighbor itself.
    fn over(&self, hop: &Hop, address: Option<IpAddr>) -> Answer {
        if hop.encap != 0 || !self.ours(hop.ifindex) {
            return Answer::Host;
        }
        if self.is_linux_only(hop.ifindex) {
            return Answer::LinuxOnly(hop.ifindex);
        }
        if self.mirror.link(hop.ifindex).is_none_or(|link| link.flags & 0x41 != 0x41) {
            return Answer::Host;
        }
        if hop.gateway.is_some_and(|gateway| self.own_gateways.contains(gateway)) {
            return Answer::Host;
        }
        let link_local = matches!(address, Some(IpAddr::V6(six)) if six.segments()[0] & 0xffc0 == 0xfe80);
        let asked = hop.gateway.or(address.filter(|_| !link_local));
        let neighbor = asked.and_then(|asked| self.mirror.neighbor(hop.ifindex, asked));
        match neighbor.and_then(|neighbor| self.mac(neighbor)) {
            Some(mac) if mac[0] & 1 == 1 => Answer::Host,
            Some(mac) => Answer::Forward { mac, ifindex: hop.ifindex },
            None => Answer::Resolve(hop.ifindex, hop.gateway),
        }
    }

    fn mac(&self, neighbor: &bm_netlink::Neighbor) -> Option<[u8; 6]> {
        let valid = [0x02, 0x04, 0x08, 0x10, 0x40, 0x80].contains(&neighbor.state);
        neighbor.mac.filter(|_| valid)
    }

    /// Whether only Linux may send on one of our links: it is listed, or the link below or the VRF above it is.
    fn is_linux_only(&self, ifindex: u32) -> bool {
        let Some(link) = self.mirror.link(ifindex) else { return false };
        let all = [Some(ifindex), link.lower, link.master];
        self.ours(ifindex) && all.into_iter().flatten().any(|link| self.linux_only.contains(&link))
    }

    pub fn ours(&self, ifindex: u32) -> bool {
        let Some(link) = self.mirror.link(ifindex) else { return false };
        let is_port = |ifindex: u32| self.ports.contains(&Some(ifindex));
        let vlan_of_port = matches!(link.kind, Kind::Vlan { .. }) && link.lower.is_some_and(is_port);
        let mastered = link.master.is_some_and(|master| {
            !matches!(self.mirror.link(master).map(|link| &link.kind), Some(Kind::Vrf { .. }))
        });
        (is_port(ifindex) || vlan_of_port) && !mastered
    }

    /// The VRFs of our links.
    pub fn vrfs(&self) -> Vec<Option<u32>> {
        let ours = self.mirror.links().filter(|link| self.ours(link.ifindex));
        let vrf = |link: &bm_netlink::Link| match self.mirror.link(link.master?)?.kind {
            Kind::Vrf { table } => Some(table),
            _ => None,
        };
        let mut vrfs: Vec<_> = ours.map(vrf).chain([None]).collect();
        vrfs.sort();
        vrfs.dedup();
        vrfs
    }
}

/// What workers would do, as an answer of the oracle. `ifindex_of` maps our interfaces to links.
pub fn compiled<A: Address>(
    fib: &dyn Fib<Address = A>,
    next_hops: &NextHops,
    address: A,
    ifindex_of: impl Fn(u16) -> u32,
) -> (Answer, u32) {
    let hop = fib.lookup(address);
    let one = |hop: NextHop| match next_hops.action(hop) {
        Action::Host => Answer::Host,
        Action::LinuxOnly => Answer::LinuxOnly(ifindex_of(next_hops.gateway(hop).interface as u16)),
        Action::Blackhole => Answer::Blackhole,
        Action::Unreachable => Answer::Unreachable,
        Action::Prohibit => Answer::Prohibit,
        Action::None => Answer::NoRoute,
        Action::Forward { mac, interface } => Answer::Forward { mac, ifindex: ifindex_of(interface) },
        Action::Resolve => {
            let gateway = next_hops.gateway(hop);
            Answer::Resolve(ifindex_of(gateway.interface as u16), gateway.address)
        }
        Action::Group { .. } => panic!("a group within a group"),
    };
    let Action::Group { count, .. } = next_hops.action(hop) else {
        return (one(hop), u32::from(next_hops.mtu(hop)));
    };
    let entry = next_hops.entry(hop);
    let mut members: BTreeMap<Answer, u32> = BTreeMap::new();
    let mut mtu = 0;
    for hash in 0..count {
        let member = next_hops.select(entry, hash);
        mtu = mtu.max(next_hops.mtu(member));
        *members.entry(one(member)).or_default() += 1;
    }
    (Answer::Group(members.into_iter().collect()), u32::from(mtu))
}

/// Whether two answers are the same: shares of a group to the nearest per cent or bucket.
pub fn same(oracle: &Answer, compiled: &Answer) -> bool {
    match (oracle, compiled) {
        (Answer::Group(wanted), Answer::Group(got)) => {
            let (all, buckets): (u32, u32) = (weights(wanted), weights(got));
            wanted.len() == got.len()
                && wanted.iter().zip(got).all(|((one, weight), (two, share))| {
                    let due = f64::from(*weight) / f64::from(all);
                    let is = f64::from(*share) / f64::from(buckets);
                    one == two && (due - is).abs() <= 0.01
                })
        }
        // A group of one equals its member.
        (one, Answer::Group(members)) if members.len() == 1 => *one == members[0].0,
        (Answer::Group(members), one) if members.len() == 1 => *one == members[0].0,
        (one, two) => one == two,
    }
}

fn weights(members: &[(Answer, u32)]) -> u32 {
    members.iter().map(|(_, weight)| weight).sum()
}
