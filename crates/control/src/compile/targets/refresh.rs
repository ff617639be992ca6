//! Updates targets when neighbors, links or objects change.

use super::*;
use crate::compile::comparison::Comparison;
use bm_api::Area;
use bm_netlink::next_hop::Object;

impl Entry {
    /// The share of each member of this group. A single member has its own reason if packets cannot be sent there.
    ///
    /// Packets of a member that Linux skips go to the next one that it does not skip, after the last to the first; if
    /// it would skip all, to the first, whose neighbor is then asked for again. Members whose link is down have no
    /// share of the hash space at all.
    fn shares(&self, view: View<'_>) -> Vec<u32> {
        let State::Members(members) = &self.state else { return Vec::new() };
        let (Shape::Group { family, .. } | Shape::Object { family, .. }) = self.shape else {
            return Vec::new();
        };
        let mut shares = vec![0; members.len()];
        if let [only] = members.as_slice() {
            shares[0] = u32::from(only.weight);
            return shares;
        }
        let alive: Vec<bool> = members.iter().map(|member| view.alive(family, &member.hop)).collect();
        let skips = self.skips_unresolved(view);
        let good: Vec<bool> = members
            .iter()
            .zip(&alive)
            .map(|(member, alive)| *alive && !(skips && view.unresolved(&member.hop)))
            .collect();
        let first = good.iter().position(|good| *good).or_else(|| alive.iter().position(|alive| *alive));
        let Some(mut taker) = first else { return shares };
        for (at, member) in members.iter().enumerate().rev().filter(|(at, _)| alive[*at]) {
            if good[at] {
                taker = at;
            }
            shares[taker] += u32::from(member.weight);
        }
        shares
    }

    /// Whether Linux skips members whose neighbor does not answer: in groups of next-hop objects always, unless they are
    /// resilient; in IPv4 routes if a setting says so; in IPv6 routes never while it forwards.
    fn skips_unresolved(&self, view: View<'_>) -> bool {
        match self.shape {
            Shape::Object { id, .. } => {
                let object = view.mirror.next_hop(id).map(|next_hop| &next_hop.object);
                !matches!(object, Some(Object::Group { resilient: Some(_), .. }))
            }
            Shape::Group { family: Family::V4, .. } => view.mirror.sysctls().ipv4_multipath_use_neigh != 0,
            _ => false,
        }
    }

    /// Whether any member with a share leaves by a link where only Linux may send, or only Linux can choose among them.
    fn is_linux_only(&self, view: View<'_>) -> bool {
        let State::Members(members) = &self.state else { return false };
        if let Shape::Group { family, .. } | Shape::Object { family, .. } = self.shape
            && members.len() > 1
            && view.linux_chooses(family)
        {
            return true;
        }
        members
            .iter()
            .any(|member| member.share > 0 && member.hop.encap == 0 && view.is_linux_only(member.hop.ifindex))
    }
}

impl Targets {
    /// A neighbor was added, removed or changed.
    pub(in super::super) fn refresh_neighbor(&mut self, view: View<'_>, ifindex: u32, address: IpAddr) {
        let there = self.by_place.get(&ifindex).and_then(|of_link| of_link.get(&Some(address)));
        let Some(there) = there.cloned() else { return };
        for target in &there {
            self.refresh_word(view, *target);
        }
        self.revive_groups(view, &there);
    }

    /// A link, its settings, or our interface of it has changed.
    pub(in super::super) fn refresh_link(&mut self, view: View<'_>, ifindex: u32) {
        let Some(of_link) = self.by_place.get(&ifindex) else { return };
        let there: BTreeSet<Target> = of_link.values().flatten().copied().collect();
        for target in &there {
            self.refresh_word(view, *target);
        }
        self.revive_groups(view, &there);
    }

    /// Everything may have changed.
    pub(in super::super) fn refresh_all(&mut self, view: View<'_>) {
        let objects: Vec<u32> = self.by_object.keys().copied().collect();
        objects.into_iter().for_each(|id| self.refresh_object(view, id));
        let links: Vec<u32> = self.by_place.keys().copied().collect();
        links.into_iter().for_each(|ifindex| self.refresh_link(view, ifindex));
    }

    /// A nexthop object, or one that it consists of, was added, removed or changed.
    pub(in super::super) fn refresh_object(&mut self, view: View<'_>, id: u32) {
        let targets = self.by_object.get(&id).cloned().unwrap_or_default();
        targets.into_iter().for_each(|target| self.redefine(view, target));
    }

    fn refresh_word(&mut self, view: View<'_>, target: Target) {
        let entry = self.get(target);
        if let State::Plain(place) = &entry.state {
            let (hop, action) = (entry.hop, view.action(place));
            self.put(hop, action);
        }
    }

    fn revive_groups(&mut self, view: View<'_>, members: &BTreeSet<Target>) {
        let groups: BTreeSet<Target> =
            members.iter().flat_map(|member| self.get(*member).groups.iter().copied()).collect();
        groups.into_iter().for_each(|group| self.revive(view, group));
    }

    /// Checks which members of a group get packets, and moves flows only if that has changed.
    pub(super) fn revive(&mut self, view: View<'_>, target: Target) {
        if !matches!(self.get(target).state, State::Members(_)) {
            return;
        }
        let shares = self.get(target).shares(view);
        let entry = self.get_mut(target);
        let mut changed = entry.error.is_some();
        let was = entry.linux_only;
        if let State::Members(members) = &mut entry.state {
            for (member, share) in members.iter_mut().zip(shares) {
                changed |= share != member.share;
                member.share = share;
            }
        }
        if changed || self.get(target).is_linux_only(view) != was {
            self.write(view, target);
        }
    }

    /// Updates the flags of a group's hops, which do not distinguish groups.
    pub(super) fn reflag(&mut self, target: Target, hops: &[Hop]) {
        if let State::Members(members) = &mut self.get_mut(target).state {
            members.iter_mut().zip(hops).for_each(|(member, hop)| member.hop = *hop);
        }
    }

    /// Updates the target of an object to what the object is now.
    pub(super) fn redefine(&mut self, view: View<'_>, target: Target) {
        let Shape::Object { family, id, mtu } = self.get(target).shape else { return };
        let paths = view.mirror.paths(&bm_netlink::RouteBody { via: Via::Object(id), ..Default::default() });
        let mtu = u32::from(mtu);
        match paths.hops.as_slice() {
            [] => {
                let known = paths.unknown.is_none() && paths.blackhole;
                let action = if known { Action::Blackhole } else { Action::Host };
                self.change_state(target, State::Still(action));
                self.put(self.hop(target), action);
            }
            [hop] if self.get(target).born == Some(view.adjacency(family, hop, mtu, false)) => {
                let place = view.adjacency(family, hop, mtu, false);
                self.change_state(target, State::Plain(place));
                self.put(self.hop(target), view.action(&place));
            }
            // An object that cannot become a group is left to Linux, with the reason.
            hops => drop(self.fill(view, family, target, hops, mtu)),
        }
    }

    /// Makes a target a group of these hops.
    pub(super) fn fill(
        &mut self,
        view: View<'_>,
        family: Family,
        target: Target,
        hops: &[Hop],
        mtu: u32,
    ) -> Result<(), NextHopError> {
        let mut members: Vec<Member> = Vec::with_capacity(hops.len());
        for hop in hops {
            match self.adjacency(view, view.adjacency(family, hop, mtu, hops.len() > 1)) {
                Ok(at) => members.push(Member { target: at, weight: hop.weight, share: 0, hop: *hop }),
                Err(why) => {
                    members.iter().for_each(|member| self.release(member.target));
                    self.change_state(target, State::Still(Action::Host));
                    self.put(self.hop(target), Action::Host);
                    self.note_trouble(target, Some(why));
                    return Err(why);
                }
            }
        }
        self.change_state(target, State::Members(members));
        let shares = self.get(target).shares(view);
        if let State::Members(members) = &mut self.get_mut(target).state {
            members.iter_mut().zip(shares).for_each(|(member, share)| member.share = share);
        }
        self.write(view, target);
        Ok(())
    }

    /// Stores the members of a group that get packets.
    fn write(&mut self, view: View<'_>, target: Target) {
        let entry = self.get(target);
        let State::Members(members) = &entry.state else { return };
        let (hop, linux_only) = (entry.hop, entry.is_linux_only(view));
        let living: Vec<_> = members.iter().filter(|member| member.share > 0).copied().collect();
        self.get_mut(target).linux_only = linux_only;
        let living: Result<Vec<_>, _> =
            living.iter().map(|member| self.share(view, member, linux_only)).collect();
        let living = match living {
            Ok(living) => living,
            Err(why) => {
                self.put(hop, Action::Host);
                return self.note_trouble(target, Some(why));
            }
        };
        let stored = match living.is_empty() {
            true => {
                self.put(hop, Action::Host);
                Ok(())
            }
            false => self.writer.set_group(hop, &living),
        };
        if stored.is_err() {
            self.put(hop, Action::Host);
        }
        self.note_trouble(target, stored.err());
    }

    /// The next hop for packets of a member, and its weight. If Linux chooses among the members of a group, all lead to
    /// Linux, each by its own interface, which source checks need.
    fn share(
        &mut self,
        view: View<'_>,
        member: &Member,
        linux_only: bool,
    ) -> Result<(NextHop, u32), NextHopError> {
        let interface = view.interfaces.index_of(member.hop.ifindex).filter(|_| linux_only);
        let hop = match interface {
            None => self.hop(member.target),
            Some(interface) => match self.linux_only.get(&interface) {
                Some(hop) => *hop,
                None => {
                    let gateway = Gateway { address: None, interface: u32::from(interface) };
                    let hop = self.writer.add(Action::LinuxOnly, gateway, 0)?;
                    self.linux_only.insert(interface, hop);
                    hop
                }
            },
        };
        Ok((hop, member.share))
    }

    fn note_trouble(&mut self, target: Target, trouble: Option<NextHopError>) {
        match trouble {
            Some(_) => self.waiting_for_room.insert(target),
            None => self.waiting_for_room.remove(&target),
        };
        self.get_mut(target).error = trouble;
    }

    /// Tries again what found no room.
    pub(in super::super) fn retry(&mut self, view: View<'_>) {
        let again: Vec<Target> = self.waiting_for_room.iter().take(super::super::RETRIES).copied().collect();
        for target in again {
            match self.get(target).shape {
                Shape::Object { .. } => self.redefine(view, target),
                _ => self.revive(view, target),
            }
        }
    }

    /// Stores an action only if it has changed: other stores would cost workers a cache miss.
    fn put(&mut self, hop: NextHop, action: Action) {
        if self.writer.table().action(hop) != action {
            let stored = self.writer.set(hop, action);
            debug_assert!(stored.is_ok(), "{stored:?}: hops of targets are in use");
        }
    }

    /// Compares every next hop with its expected action, and every group with its living members.
    pub(in super::super) fn check(&self, view: View<'_>, comparison: &mut Comparison) {
        for (_, entry) in self.iter() {
            comparison.compared += 1;
            let should = match &entry.state {
                State::Plain(place) => view.action(place),
                State::Still(action) => *action,
                State::Members(_) => self.writer.table().action(entry.hop),
            };
            if let State::Members(members) = &entry.state
                && let Some((member, _)) =
                    members.iter().zip(entry.shares(view)).find(|(member, share)| member.share != *share)
            {
                comparison.differs(Area::Compiled, || {
                    format!("group {} has the wrong share of member {}", entry.hop, member.hop)
                });
            }
            if entry.linux_only != entry.is_linux_only(view) {
                comparison.differs(Area::Compiled, || {
                    format!(
                        "group {} has the wrong setting for whether only Linux may choose among its members",
                        entry.hop
                    )
                });
            }
            let is = self.writer.table().action(entry.hop);
            if is != should {
                comparison.differs(Area::Compiled, || {
                    format!("next hop {} has the action {is:?}, expected {should:?}", entry.hop)
                });
            }
            if let Some(why) = entry.error {
                comparison.differs(Area::Refused, || format!("next hop {} goes to Linux: {why}", entry.hop));
            }
        }
    }

    /// Removes unused targets. To be called when no table uses their next hops.
    pub(in super::super) fn sweep(&mut self) {
        while let Some(target) = self.unused.pop() {
            let unused = self.entries[target.0 as usize].as_ref().is_some_and(|entry| entry.users == 0);
            if !unused {
                continue;
            }
            self.change_state(target, State::Still(Action::Host));
            let Some(entry) = self.entries[target.0 as usize].take() else { continue };
            self.by_shape.remove(&entry.shape);
            if let Shape::Object { id, .. } = entry.shape {
                let of_id = self.by_object.entry(id).or_default();
                of_id.remove(&target);
                if of_id.is_empty() {
                    self.by_object.remove(&id);
                }
            }
            self.by_hop[entry.hop.index()] = None;
            self.waiting_for_room.remove(&target);
            let removed = self.writer.remove(entry.hop);
            debug_assert!(removed.is_ok(), "{removed:?}: it was in use until now");
            self.free.push(target);
        }
        self.writer.reclaim();
    }
}
