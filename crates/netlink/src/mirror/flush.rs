//! The kernel's rules for objects that it removes or marks without events.
//!
//! | event | what follows in the kernel, not announced |
//! |---|---|
//! | link down, IPv4 | hops on it are dead; a route without a live hop goes (`fib_sync_down_dev`), unless it is to this machine itself |
//! | link down, IPv6 | the same; single routes are announced unless `skip_notify_on_dev_down` |
//! | link without carrier | hops on it are marked, or marked alive when it is back; next-hop objects on it go (`nexthop_flush_dev`) |
//! | link gone | IPv4 routes with any hop on it go |
//! | last IPv4 address of a link gone | as if the link were down, local routes included |
//! | IPv4 address gone | routes with it as preferred source go (announced since Linux 6.6) |
//! | next-hop object gone | groups lose it, empty ones go, and so do the routes that name them |
//!
//! Applying a rule twice, or before an announcement of the same, does no harm.

use super::change::Change;
use super::{Mirror, Routes};
use crate::hop::HopFlags;
use crate::link::Kind;
use crate::next_hop::Object;
use crate::route::{RouteBody, RouteKind, SCOPE_HOST, TABLE_MAIN};
use bm_wire::Family;
use bm_wire::prefix::Address;
use std::net::IpAddr;

/// What happens to the hops on a link.
#[derive(Clone, Copy)]
struct Mark {
    ifindex: u32,
    set: u8,
    clear: u8,
}

/// Which routes go once their hops are marked.
#[derive(Clone, Copy, PartialEq)]
enum Flush {
    /// None: they stay, marked.
    Nothing,
    /// Those whose hops are all dead, but for routes to this machine.
    Dead,
    /// Routes whose hops are all dead, except those to this machine.
    DeadAndLocal,
    /// Routes whose hops are all dead.
    Any,
}

impl Mirror {
    /// Handles a message about a known link. Uses the state, not the difference: a dump may have shown the lost
    /// carrier before the kernel acted on it. Doing it twice does no harm.
    pub(super) fn link_reported(&mut self, ifindex: u32, came_up: bool) {
        let Some(link) = self.links.get(&ifindex) else { return };
        let (up, carrier, operational) = (link.up(), link.carrier(), link.operational());
        if !up || !carrier {
            self.flush_objects_on(ifindex);
        }
        let mark = Mark { ifindex, set: HopFlags::LIVENESS, clear: 0 };
        if !up {
            flush(&mut self.ipv4, &mut self.changes, mark, Flush::Dead);
            flush(&mut self.ipv6, &mut self.changes, mark, Flush::DeadAndLocal);
            return;
        }
        let down = if carrier { 0 } else { HopFlags::LINKDOWN };
        let clear = HopFlags::LINKDOWN & !down | if came_up { HopFlags::DEAD } else { 0 };
        flush(&mut self.ipv4, &mut self.changes, Mark { set: down, clear, ..mark }, Flush::Nothing);
        // IPv6 does not call its hops alive again before the link works (`addrconf_notify`).
        let clear = if operational { HopFlags::LIVENESS } else { 0 };
        flush(&mut self.ipv6, &mut self.changes, Mark { set: down, clear, ..mark }, Flush::Nothing);
    }

    pub(super) fn link_gone(&mut self, ifindex: u32) {
        let mark = Mark { ifindex, set: HopFlags::LIVENESS, clear: 0 };
        self.flush_objects_on(ifindex);
        flush(&mut self.ipv4, &mut self.changes, mark, Flush::Any);
        flush(&mut self.ipv6, &mut self.changes, mark, Flush::DeadAndLocal);
        self.doubt = true;
    }

    pub(super) fn first_address(&mut self, ifindex: u32) {
        let Some(link) = self.links.get(&ifindex).filter(|link| link.up()) else { return };
        let clear = if link.carrier() { HopFlags::LIVENESS } else { HopFlags::DEAD };
        flush(&mut self.ipv4, &mut self.changes, Mark { ifindex, set: 0, clear }, Flush::Nothing);
    }

    pub(super) fn last_address_gone(&mut self, ifindex: u32) {
        let mark = Mark { ifindex, set: HopFlags::LIVENESS, clear: 0 };
        flush(&mut self.ipv4, &mut self.changes, mark, Flush::DeadAndLocal);
        self.doubt = true;
    }

    /// Routes that would send from an address which the machine no longer has.
    pub(super) fn source_gone(&mut self, ifindex: u32, address: IpAddr) {
        let elsewhere = self.addresses.values().flatten().any(|other| other.local == address);
        if elsewhere || address.is_ipv6() {
            return;
        }
        let gone = select(&self.ipv4, |body| body.preferred_source == Some(address));
        if gone.iter().any(|&gone| gone) {
            let table = self.table_of(ifindex);
            self.ipv4.remove(&gone, Some(table), &mut self.changes);
            self.doubt = true;
        }
    }

    /// The table of a link's own routes: its VRF's, or the main one.
    pub fn table_of(&self, ifindex: u32) -> u32 {
        let master = self.links.get(&ifindex).and_then(|link| link.master);
        self.vrf_table(ifindex).or_else(|| self.vrf_table(master?)).unwrap_or(TABLE_MAIN)
    }

    fn vrf_table(&self, ifindex: u32) -> Option<u32> {
        match self.links.get(&ifindex)?.kind {
            Kind::Vrf { table } => Some(table),
            _ => None,
        }
    }

    /// Marks an object as changed, and with it its groups.
    pub(super) fn next_hop_changed(&mut self, id: u32) {
        self.changes.push(Change::NextHop(id));
        for group in self.groups_with(id) {
            self.changes.push(Change::NextHop(group));
        }
    }

    pub(super) fn drop_next_hop(&mut self, id: u32) {
        let mut gone = Vec::new();
        self.remove_object(id, &mut gone);
        if gone.is_empty() {
            return;
        }
        let named = |body: &RouteBody| match body.via {
            crate::Via::Object(object) => gone.contains(&object),
            _ => false,
        };
        let (four, six) = (select(&self.ipv4, named), select(&self.ipv6, named));
        if four.iter().chain(&six).any(|&gone| gone) {
            self.ipv4.remove(&four, None, &mut self.changes);
            self.ipv6.remove(&six, None, &mut self.changes);
            self.doubt = true;
        }
    }

    /// Removes an object, also from its groups, and removes groups that are empty then.
    fn remove_object(&mut self, id: u32, gone: &mut Vec<u32>) {
        if self.next_hops.remove(&id).is_none() {
            return;
        }
        gone.push(id);
        self.changes.push(Change::NextHop(id));
        for group in self.groups_with(id) {
            let Some(object) = self.next_hops.get_mut(&group).map(|group| &mut group.object) else {
                continue;
            };
            let Object::Group { members, .. } = object else { continue };
            *members = members.iter().filter(|member| member.id != id).copied().collect();
            self.changes.push(Change::NextHop(group));
            if members.is_empty() {
                self.remove_object(group, gone);
            }
        }
    }

    fn groups_with(&self, id: u32) -> Vec<u32> {
        let groups = self.next_hops.values().filter(|next_hop| match &next_hop.object {
            Object::Group { members, .. } => members.iter().any(|member| member.id == id),
            _ => false,
        });
        groups.map(|group| group.id).collect()
    }

    fn flush_objects_on(&mut self, ifindex: u32) {
        let ids: Vec<u32> = self
            .next_hops
            .values()
            .filter(|next_hop| matches!(&next_hop.object, Object::Hop(hop) if hop.ifindex == ifindex))
            .map(|next_hop| next_hop.id)
            .collect();
        for id in ids {
            self.drop_next_hop(id);
        }
    }
}

/// The bodies selected by `wanted`, by index.
fn select<A: Address>(routes: &Routes<A>, wanted: impl Fn(&RouteBody) -> bool) -> Vec<bool> {
    let mut picked = vec![false; routes.bodies.bound()];
    for (id, body) in routes.bodies() {
        picked[id.index()] = wanted(body);
    }
    picked
}

/// Marks the hops on a link in every body, and removes the routes that go with that.
fn flush<A: Address>(routes: &mut Routes<A>, changes: &mut super::Changes, mark: Mark, flush: Flush) {
    let on_link =
        routes.bodies().filter(|(_, body)| body.via.hops().iter().any(|hop| hop.ifindex == mark.ifindex));
    let touched: Vec<_> = on_link.map(|(id, _)| id).collect();
    let mut gone = vec![false; routes.bodies.bound()];
    let mut any_gone = false;
    for id in touched {
        let before = routes.bodies.body(id);
        if exempt::<A>(before, mark, flush) {
            continue;
        }
        let mut body = before.clone();
        for hop in body.via.hops_mut().iter_mut().filter(|hop| hop.ifindex == mark.ifindex) {
            hop.flags.0 = hop.flags.0 & !mark.clear | mark.set;
        }
        let dead = body.via.hops().iter().all(|hop| hop.flags.has(HopFlags::DEAD));
        if flush == Flush::Any || flush != Flush::Nothing && dead {
            gone[id.index()] = true;
            any_gone = true;
        } else if body != *before {
            routes.bodies.change(id, body);
            changes.push(Change::Body(A::FAMILY, id));
        }
    }
    if any_gone {
        routes.remove(&gone, None, changes);
    }
}

/// Whether the kernel leaves a route alone: IPv4 routes to this machine's own addresses survive their link being
/// down, and IPv6 ones are not marked when the carrier is lost.
fn exempt<A: Address>(body: &RouteBody, mark: Mark, flush: Flush) -> bool {
    match A::FAMILY {
        Family::V4 => body.scope >= SCOPE_HOST && flush != Flush::DeadAndLocal && flush != Flush::Any,
        Family::V6 => {
            mark.set == HopFlags::LINKDOWN && matches!(body.kind, RouteKind::Local | RouteKind::Anycast)
        }
    }
}
