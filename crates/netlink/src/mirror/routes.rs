//! The routes of a family: tables of prefixes, each with its bodies in the kernel's order.
//!
//! A prefix takes 12 bytes (IPv4) or 24 (IPv6) and its share of empty hash slots. The rest is in the
//! bodies, kept once, and in lists for the few prefixes with several routes.

use super::body::{Bodies, BodyId};
use super::change::{Change, Changes};
use super::order::{self, Fit};
use crate::hash::Map;
use crate::route::{RouteBody, RouteEvent, RouteMessage};
use bm_wire::Family;
use bm_wire::prefix::{Address, Ipv4Prefix, Ipv6Prefix, Prefix};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// Marks a number that is a list's, not a body's.
const LIST: u32 = 1 << 31;

/// A table of routes.
#[derive(Debug)]
pub struct Table<A: Address> {
    routes: Map<A::Packed, BodyId>,
    lists: Vec<Vec<BodyId>>,
    free: Vec<u32>,
}

impl<A: Address> Default for Table<A> {
    fn default() -> Self {
        Self { routes: Map::default(), lists: Vec::new(), free: Vec::new() }
    }
}

impl<A: Address> Table<A> {
    /// The number of prefixes with routes.
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// The routes to a prefix in the order in which the kernel tries them: highest TOS first, then lowest metric.
    pub fn get(&self, prefix: Prefix<A>) -> &[BodyId] {
        self.routes.get(&A::pack(prefix)).map_or(&[], |id| Self::list(&self.lists, id))
    }

    /// All prefixes and their routes, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Prefix<A>, &[BodyId])> {
        self.routes.iter().map(|(&packed, id)| (A::unpack(packed), Self::list(&self.lists, id)))
    }

    #[inline]
    fn list<'a>(lists: &'a [Vec<BodyId>], id: &'a BodyId) -> &'a [BodyId] {
        match id.0 & LIST {
            0 => std::slice::from_ref(id),
            _ => &lists[(id.0 & !LIST) as usize],
        }
    }

    /// Sets the routes of a prefix, replacing previous ones.
    fn set(&mut self, prefix: Prefix<A>, new: &[BodyId]) {
        let mut entry = self.routes.entry(A::pack(prefix));
        if let Entry::Occupied(occupied) = &mut entry
            && occupied.get().0 & LIST != 0
        {
            let at = occupied.get().0 & !LIST;
            self.lists[at as usize] = Vec::new();
            self.free.push(at);
        }
        let value = match new {
            [] => {
                if let Entry::Occupied(occupied) = entry {
                    occupied.remove();
                }
                return;
            }
            [one] => *one,
            several => {
                let at = self.free.pop().unwrap_or_else(|| {
                    self.lists.push(Vec::new());
                    self.lists.len() as u32 - 1
                });
                self.lists[at as usize] = several.to_vec();
                BodyId(at | LIST)
            }
        };
        entry.insert_entry(value);
    }

    fn memory(&self) -> usize {
        // A hash table is filled to at most seven eighths, and `capacity` counts those.
        let slots = self.routes.capacity() / 7 * 8;
        let lists: usize = self.lists.iter().map(|list| size_of_val(list.as_slice()) + 40).sum();
        slots * (size_of::<(A::Packed, BodyId)>() + 1) + lists
    }
}

/// The routes of a family.
#[derive(Debug)]
pub struct Routes<A: Address> {
    pub(super) bodies: Bodies,
    tables: BTreeMap<u32, Table<A>>,
    /// Prefixes, by table, whose routes may be others in the kernel until they are listed again.
    in_doubt: BTreeSet<(u32, Prefix<A>)>,
    /// Destinations, by table, for which the kernel has learned another path MTU or gateway.
    exceptions: BTreeSet<(u32, Prefix<A>)>,
    /// Kept to spare an allocation a message.
    list: Vec<BodyId>,
    released: Vec<BodyId>,
}

impl<A: Address> Default for Routes<A> {
    fn default() -> Self {
        Self {
            bodies: Bodies::default(),
            tables: BTreeMap::new(),
            in_doubt: BTreeSet::new(),
            exceptions: BTreeSet::new(),
            list: Vec::new(),
            released: Vec::new(),
        }
    }
}

impl<A: Address> Routes<A> {
    /// A table; none while it has no routes.
    pub fn table(&self, table: u32) -> Option<&Table<A>> {
        self.tables.get(&table)
    }

    /// All tables that have routes, by number.
    pub fn tables(&self) -> impl Iterator<Item = (u32, &Table<A>)> {
        self.tables.iter().map(|(&number, table)| (number, table))
    }

    /// The routes to a prefix in the order in which the kernel tries them.
    pub fn get(&self, table: u32, prefix: Prefix<A>) -> &[BodyId] {
        self.table(table).map_or(&[], |table| table.get(prefix))
    }

    /// Whether the kernel may have other routes to a prefix, or knows more than they say, so that only Linux can
    /// forward its packets.
    #[inline]
    pub fn in_doubt(&self, table: u32, prefix: Prefix<A>) -> bool {
        let sets = [&self.in_doubt, &self.exceptions];
        sets.into_iter().any(|set| !set.is_empty() && set.contains(&(table, prefix)))
    }

    /// The prefixes of a table that are in doubt, with or without routes; a prefix may come twice.
    pub fn doubts_of(&self, table: u32) -> impl Iterator<Item = Prefix<A>> + '_ {
        let of_table = (table, Prefix::default())..;
        let all = [&self.in_doubt, &self.exceptions].into_iter().map(move |set| set.range(of_table.clone()));
        all.flat_map(move |set| set.take_while(move |(of, _)| *of == table)).map(|(_, prefix)| *prefix)
    }

    /// Whether reading the tables again would resolve a doubt about this prefix.
    pub(super) fn needs_reread(&self, table: u32, prefix: Prefix<A>) -> bool {
        !self.in_doubt.is_empty() && self.in_doubt.contains(&(table, prefix))
    }

    /// Whether reading the tables again would resolve a doubt.
    pub(super) fn has_doubts(&self) -> bool {
        !self.in_doubt.is_empty()
    }

    /// Sets the destinations for which the kernel has learned another path MTU or gateway.
    pub(super) fn set_exceptions(&mut self, exceptions: BTreeSet<(u32, Prefix<A>)>, changes: &mut Changes) {
        let before = std::mem::replace(&mut self.exceptions, exceptions);
        for &(table, prefix) in before.symmetric_difference(&self.exceptions) {
            changes.push(route_change(table, prefix));
        }
    }

    /// The body of a number, unless no route has it any more.
    pub fn body(&self, id: BodyId) -> Option<&RouteBody> {
        self.bodies.get(id)
    }

    /// All bodies that routes have.
    pub fn bodies(&self) -> impl Iterator<Item = (BodyId, &RouteBody)> {
        self.bodies.iter()
    }

    /// The number of prefixes with routes, in all tables together.
    pub fn len(&self) -> usize {
        self.tables.values().map(Table::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// How many distinct bodies they share.
    pub fn body_count(&self) -> usize {
        self.bodies.len()
    }

    /// Approximate memory use in bytes.
    pub fn memory(&self) -> usize {
        self.bodies.memory() + self.tables.values().map(Table::memory).sum::<usize>()
    }

    /// Puts a prefix in doubt.
    pub(super) fn doubt(&mut self, table: u32, prefix: Prefix<A>, changes: &mut Changes) {
        if self.in_doubt.insert((table, prefix)) {
            changes.push(route_change(table, prefix));
        }
    }

    /// Puts exactly these prefixes in doubt.
    pub(super) fn doubt_only(&mut self, prefixes: BTreeSet<(u32, Prefix<A>)>, changes: &mut Changes) {
        let before = std::mem::replace(&mut self.in_doubt, prefixes);
        for &(table, prefix) in before.symmetric_difference(&self.in_doubt) {
            changes.push(route_change(table, prefix));
        }
    }

    /// The prefixes in doubt.
    pub(super) fn into_doubts(self) -> BTreeSet<(u32, Prefix<A>)> {
        self.in_doubt
    }

    /// Applies a message. A deletion of a route that is not there is unmatched only if the prefix has others.
    pub(super) fn apply(&mut self, message: RouteMessage<A>, changes: &mut Changes) -> Fit {
        match self.apply_single(message, changes) {
            None => Fit::Certain,
            Some(message) => self.apply_any(message, changes),
        }
    }

    /// Nearly all prefixes have one route, and nearly all messages add, change or delete it: one lookup in the table
    /// handles those. Otherwise the message is returned.
    #[inline]
    fn apply_single(&mut self, message: RouteMessage<A>, changes: &mut Changes) -> Option<RouteMessage<A>> {
        let (number, prefix, event) = (message.table, message.prefix, message.event);
        let deleted = event == RouteEvent::Deleted;
        if deleted && !self.tables.contains_key(&number) {
            return None;
        }
        let table = self.tables.entry(number).or_default();
        match table.routes.entry(A::pack(prefix)) {
            Entry::Vacant(_) if deleted => return None,
            Entry::Vacant(vacant) => {
                vacant.insert(self.bodies.intern(message.body));
            }
            Entry::Occupied(entry) if entry.get().0 & LIST != 0 => return Some(message),
            Entry::Occupied(mut entry) => {
                let old = *entry.get();
                let ours = self.bodies.body(old);
                let same = ours.same_route(&message.body);
                if deleted && same {
                    entry.remove();
                    if table.is_empty() {
                        self.tables.remove(&number);
                    }
                } else if event == RouteEvent::Replaced && order::peers(ours, &message.body)
                    || same && A::FAMILY == Family::V6
                {
                    let new = self.bodies.intern(message.body);
                    if new == old {
                        self.bodies.release(old);
                        return None;
                    }
                    entry.insert(new);
                } else {
                    return Some(message);
                }
                self.released.push(old);
            }
        }
        changes.push(route_change(number, prefix));
        self.settle_released(changes);
        None
    }

    fn apply_any(&mut self, message: RouteMessage<A>, changes: &mut Changes) -> Fit {
        let RouteMessage { event, table: number, prefix, body, .. } = message;
        let mut list = std::mem::take(&mut self.list);
        list.clear();
        list.extend_from_slice(self.get(number, prefix));
        let fit = match event {
            RouteEvent::Deleted => {
                order::take(A::FAMILY, &mut list, &mut self.bodies, &body, &mut self.released)
            }
            _ => {
                let new = self.bodies.intern(body);
                order::put(A::FAMILY, &mut list, &mut self.bodies, event, new, &mut self.released)
            }
        };
        let fit = if list.is_empty() && fit == Fit::Unmatched { Fit::Certain } else { fit };
        if self.get(number, prefix) != list.as_slice() {
            self.store(number, prefix, &list);
            changes.push(route_change(number, prefix));
        }
        self.list = list;
        self.settle_released(changes);
        fit
    }

    /// Sets the routes of a prefix, which are counted already.
    fn store(&mut self, number: u32, prefix: Prefix<A>, list: &[BodyId]) {
        let table = self.tables.entry(number).or_default();
        table.set(prefix, list);
        if table.is_empty() {
            self.tables.remove(&number);
        }
    }

    /// Replaces the routes of a prefix, counting both.
    pub(super) fn replace(&mut self, number: u32, prefix: Prefix<A>, list: &[BodyId], changes: &mut Changes) {
        for &id in list {
            self.bodies.retain(id);
        }
        let mut released = std::mem::take(&mut self.released);
        released.extend_from_slice(self.get(number, prefix));
        self.released = released;
        self.store(number, prefix, list);
        changes.push(route_change(number, prefix));
        self.settle_released(changes);
    }

    /// Removes a count by `intern` in addition to that of `replace`.
    pub(super) fn discount(&mut self, list: &[BodyId], changes: &mut Changes) {
        self.released.extend_from_slice(list);
        self.settle_released(changes);
    }

    fn settle_released(&mut self, changes: &mut Changes) {
        while let Some(id) = self.released.pop() {
            if self.bodies.release(id) {
                changes.push(Change::Body(A::FAMILY, id));
            }
        }
    }

    /// Removes all routes whose body is marked in `gone` (by index), from one table or from all.
    pub(super) fn remove(&mut self, gone: &[bool], only: Option<u32>, changes: &mut Changes) {
        let is_gone = |id: &BodyId| gone.get(id.index()).copied().unwrap_or(false);
        let mut hit = Vec::new();
        for (number, table) in self.tables().filter(|(number, _)| only.is_none_or(|only| only == *number)) {
            let found = table.iter().filter(|(_, list)| list.iter().any(is_gone));
            hit.extend(found.map(|(prefix, _)| (number, prefix)));
        }
        for (number, prefix) in hit {
            let left: Vec<_> = self.get(number, prefix).iter().filter(|id| !is_gone(id)).copied().collect();
            self.replace(number, prefix, &left, changes);
        }
    }
}

/// The change of the routes to a prefix.
fn route_change<A: Address>(table: u32, prefix: Prefix<A>) -> Change {
    let (first, length) = (prefix.first().show(), prefix.length());
    match (A::FAMILY, first) {
        (Family::V4, std::net::IpAddr::V4(first)) => {
            let prefix = Ipv4Prefix::containing(first.into(), length).unwrap_or_default();
            Change::Route4 { table, prefix }
        }
        (_, std::net::IpAddr::V6(first)) => {
            let prefix = Ipv6Prefix::containing(first.into(), length).unwrap_or_default();
            Change::Route6 { table, prefix }
        }
        _ => Change::Everything,
    }
}
