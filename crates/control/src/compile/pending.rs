//! A batch of changes, sorted by what they require.

use super::fib_info::RouteFamily;
use bm_netlink::{BodyId, Change, Family};
use bm_wire::prefix::Prefix;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// What must be compiled again.
#[derive(Default)]
pub(super) struct PendingChanges {
    pub everything: bool,
    /// Interfaces, addresses, settings or rules: these are published as a whole.
    pub shape: bool,
    /// Settings that affect, for example, which members of groups are skipped.
    pub settings: bool,
    /// Links that changed, or whose settings changed.
    pub links: BTreeSet<u32>,
    pub objects: BTreeSet<u32>,
    pub neighbors: Vec<(u32, IpAddr)>,
    pub ipv4: FamilyPending<u32>,
    pub ipv6: FamilyPending<u128>,
}

/// The changes of one family.
pub(super) struct FamilyPending<A> {
    pub bodies: Vec<BodyId>,
    /// Prefixes with changed routes, by table.
    pub routes: BTreeMap<u32, Vec<Prefix<A>>>,
}

impl<A> Default for FamilyPending<A> {
    fn default() -> Self {
        Self { bodies: Vec::new(), routes: BTreeMap::new() }
    }
}

impl PendingChanges {
    pub fn from_changes(changes: &[Change]) -> Self {
        let mut pending = Self::default();
        changes.iter().for_each(|change| pending.add(change));
        pending
    }

    fn add(&mut self, change: &Change) {
        match *change {
            Change::Everything => self.everything = true,
            Change::Link(ifindex) => {
                self.shape = true;
                self.links.insert(ifindex);
            }
            Change::Netconf(_, ifindex) => {
                self.shape = true;
                // Settings of all links do not belong to one link.
                self.links.extend(u32::try_from(ifindex).ok());
            }
            Change::Sysctls => {
                self.shape = true;
                self.settings = true;
            }
            Change::Addresses(_) | Change::Rules(_) => self.shape = true,
            Change::Neighbor(ifindex, address) => self.neighbors.push((ifindex, address)),
            Change::NextHop(id) => {
                self.objects.insert(id);
            }
            Change::Body(Family::V4, id) => self.ipv4.bodies.push(id),
            Change::Body(Family::V6, id) => self.ipv6.bodies.push(id),
            Change::Route4 { table, prefix } => self.ipv4.routes.entry(table).or_default().push(prefix),
            Change::Route6 { table, prefix } => self.ipv6.routes.entry(table).or_default().push(prefix),
        }
    }

    /// Whether bodies may lead elsewhere without having changed themselves.
    pub fn moves_bodies(&self) -> bool {
        !self.links.is_empty() || !self.objects.is_empty()
    }
}

impl<A: RouteFamily> FamilyPending<A> {
    /// Adds the routes that have one of these bodies.
    pub fn add_routes_of(&mut self, bodies: &BTreeSet<BodyId>, routes: &bm_netlink::Routes<A>) {
        let Some(last) = bodies.last() else { return };
        // Called for millions of routes: an array lookup costs one load each.
        let mut wanted = vec![false; last.index() + 1];
        bodies.iter().for_each(|id| wanted[id.index()] = true);
        for (number, table) in routes.tables() {
            let prefixes = self.routes.entry(number).or_default();
            for (prefix, list) in table.iter() {
                bm_sys::heartbeat::beat();
                if list.iter().any(|id| wanted.get(id.index()).copied().unwrap_or(false)) {
                    prefixes.push(prefix);
                }
            }
        }
    }
}
