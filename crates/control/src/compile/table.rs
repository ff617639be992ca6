//! One routing table of one family: several tables of the kernel, in order, combined into one lookup.
//!
//! ```text
//! mirror: local, main, ..   for each prefix the first table that has its addresses ────┐
//! neighbors on the link     a neighbor entry for each whose longest route is that link ────┴─► builder
//! ```
//!
//! The list of routes in the builder is the only one: which prefixes a change affects, and what covers them or is within
//! them, comes from that list and the mirror. In addition this keeps only neighbors, and prefixes that found no
//! room.
//!
//! A route that does not fit is reported: it is kept with the reason and tried again; until then its addresses go to
//! Linux, by an entry for the longest prefix around it that does fit.

mod check;

use super::context::Context;
use super::fib_info::RouteFamily;
use super::sources::{Room, Sources};
use super::stages::Stages;
use super::targets::{FixedTarget, Target, Targets};
use super::view::Adjacency;
use bm_fib::memory::OutOfMemory;
use bm_fib::published::Readers;
use bm_fib::structure::Builder;
use bm_fib::{BuildFib, Change, NextHop, Shortage, Source, Structure, TableFull};
use bm_wire::prefix::Prefix;
use std::collections::{BTreeMap, BTreeSet};

/// Number of refused routes that are tried again with each change.
const RETRIES: usize = 64;

/// A route without room.
#[derive(Clone, Copy)]
struct RefusedRoute<A> {
    /// What was exhausted.
    shortage: Shortage,
    /// The prefix that leads to Linux instead: that of the route, or one around it.
    covering: Option<Prefix<A>>,
}

/// A routing table of one family.
pub(super) struct Table<A: RouteFamily> {
    fib: Builder<A>,
    stages: Stages,
    /// Addresses with an entry because they are neighbors on the link.
    neighbors: BTreeMap<A, Target>,
    /// The addresses of these that lead to Linux, because there was no room for their next hop.
    without_next_hop: BTreeSet<A>,
    refused: BTreeMap<Prefix<A>, RefusedRoute<A>>,
    /// Prefixes that lead to Linux instead of refused ones, with the number of these.
    covering: BTreeMap<Prefix<A>, usize>,
    /// Feasible reverse paths, if they are needed.
    sources: Option<Sources<A>>,
    /// They are needed, but there is not even memory for an empty table of them.
    lacks_sources: bool,
}

impl<A: RouteFamily> Table<A> {
    /// Creates a table of all routes in the mirror for these stages, without neighbors.
    pub fn load(
        structure: Structure<A>,
        stages: Stages,
        context: &mut Context<'_, A>,
        readers: &Readers,
        source: &dyn Fn() -> Result<Source, OutOfMemory>,
    ) -> Result<Self, TableFull<A>> {
        let routes = context.values(&stages);
        let routes = routes.into_iter().map(|(prefix, target)| (prefix, context.targets.hop(target)));
        let memory = source().map_err(TableFull::no_memory)?;
        if let Ok(fib) = structure.build_in(routes.clone(), readers, &memory) {
            return Ok(Self::new(fib, stages));
        }
        // Some do not fit: add the others one by one.
        let sets: Vec<_> = routes.map(|(prefix, hop)| Change::Set(prefix, hop)).collect();
        let memory = source().map_err(TableFull::no_memory)?;
        let mut table = Self::new(structure.build_in([], readers, &memory)?, stages);
        table.carry_out(&sets, context);
        Ok(table)
    }

    fn new(fib: Builder<A>, stages: Stages) -> Self {
        Self {
            fib,
            stages,
            neighbors: BTreeMap::new(),
            without_next_hop: BTreeSet::new(),
            refused: BTreeMap::new(),
            covering: BTreeMap::new(),
            sources: None,
            lacks_sources: false,
        }
    }

    /// Starts or stops keeping feasible reverse paths; returns whether that changed. Without memory for them every source
    /// passes, until the table is created again or they are requested again.
    pub fn keep_sources(
        &mut self,
        keep: bool,
        structure: Structure<A>,
        context: &mut Context<'_, A>,
        room: &Room<'_>,
    ) -> bool {
        if keep == (self.sources.is_some() || self.lacks_sources) {
            return false;
        }
        (self.sources, self.lacks_sources) = (None, false);
        if keep {
            match Sources::load(structure, &self.stages, context, room) {
                Ok(sources) => self.sources = Some(sources),
                Err(error) => {
                    tracing::error!(%error, "cannot compile feasible reverse paths: reverse_path = \"feasible\" lets every source pass");
                    self.lacks_sources = true;
                }
            }
        }
        true
    }

    /// Whether there was no memory for feasible reverse paths.
    pub fn lacks_sources(&self) -> bool {
        self.lacks_sources
    }

    /// Feasible reverse paths, if they are kept.
    pub fn sources(&self) -> Option<&Sources<A>> {
        self.sources.as_ref()
    }

    /// The builder of the lookup structure.
    pub fn fib(&self) -> &dyn BuildFib<Address = A> {
        &*self.fib
    }

    /// The kernel's tables, in order of lookup.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// Routes without room, and what was exhausted for each.
    pub fn refused(&self) -> impl Iterator<Item = (Prefix<A>, Shortage)> + '_ {
        self.refused.iter().map(|(prefix, refused)| (*prefix, refused.shortage))
    }

    /// Neighbors that Linux sends to, because there was no room for their next hops.
    pub fn without_next_hop(&self) -> usize {
        self.without_next_hop.len()
    }

    /// Whether anything is left to try again.
    pub fn lacks_room(&self) -> bool {
        !self.refused.is_empty() || !self.without_next_hop.is_empty()
    }

    /// Whether an address has an entry as a neighbor.
    pub fn is_neighbor_entry(&self, address: A) -> bool {
        self.neighbors.contains_key(&address)
    }

    /// The targets of all neighbor entries.
    pub fn neighbor_targets(&self) -> impl Iterator<Item = Target> + '_ {
        self.neighbors.values().copied()
    }

    /// Releases everything that the table holds.
    pub fn release(&mut self, targets: &mut Targets) {
        for (_, target) in std::mem::take(&mut self.neighbors) {
            targets.release(target);
        }
    }

    /// Frees memory that readers no longer use.
    pub fn reclaim(&mut self) {
        self.fib.reclaim();
    }

    /// Adds to `prefixes`, which changed in `table`, those within them whose result may have changed, too: where a later
    /// table is overridden, or an earlier one has a `throw` route.
    pub fn add_dependents(&self, table: u32, prefixes: &mut Vec<Prefix<A>>, context: &Context<'_, A>) {
        let Some(stage) = self.stages.position(table) else { return };
        let (before, after) = self.stages.tables.split_at(stage);
        let routes = A::routes(context.view.mirror);
        let overrules = after
            .iter()
            .skip(1)
            .any(|later| routes.table(*later).is_some() || routes.doubts_of(*later).next().is_some());
        if !overrules && !before.iter().any(|earlier| context.throws(*earlier)) {
            return;
        }
        let short: Vec<_> = prefixes.iter().filter(|prefix| prefix.length() < A::WIDTH).copied().collect();
        for prefix in short {
            prefixes.extend(self.fib.rib().within(prefix).map(|(within, _)| within));
        }
    }

    /// All addresses with an entry as a neighbor.
    pub fn neighbor_entries(&self) -> impl Iterator<Item = A> + '_ {
        self.neighbors.keys().copied()
    }

    /// Updates the entries of `prefixes`, of the neighbors within them, and of `addresses`.
    /// Returns the number of changed entries.
    pub fn refresh(
        &mut self,
        mut prefixes: Vec<Prefix<A>>,
        mut addresses: Vec<A>,
        context: &mut Context<'_, A>,
    ) -> usize {
        if let Some(sources) = &mut self.sources {
            sources.refresh(&self.stages, &prefixes, context);
        }
        prefixes.extend(self.take_refused());
        addresses.extend(self.without_next_hop.iter().take(RETRIES));
        prefixes.sort_unstable();
        prefixes.dedup();
        let mut changes = Vec::new();
        for prefix in prefixes {
            if prefix.length() == A::WIDTH {
                addresses.push(prefix.first());
                continue;
            }
            let value = context.value(&self.stages, prefix);
            changes.extend(self.change(prefix, value, context));
            self.neighbors_within(prefix, &mut addresses, context);
        }
        self.carry_out(&changes, context);
        addresses.sort_unstable();
        addresses.dedup();
        changes.len() + self.refresh_hosts(&addresses, context)
    }

    fn neighbors_within(&self, prefix: Prefix<A>, addresses: &mut Vec<A>, context: &Context<'_, A>) {
        let near = context.shared.neighbors.range((prefix.first(), 0)..=(prefix.last(), u32::MAX));
        addresses.extend(near.map(|(address, _)| *address));
        addresses.extend(self.neighbors.range(prefix.first()..=prefix.last()).map(|(address, _)| *address));
    }

    /// Updates the entries of single addresses. The routes around them are already correct.
    fn refresh_hosts(&mut self, addresses: &[A], context: &mut Context<'_, A>) -> usize {
        let mut changes = Vec::new();
        for address in addresses {
            let prefix = Prefix::host(*address);
            let own = context.value(&self.stages, prefix);
            let neighbor = self.neighbor_entry(*address, own, context);
            let value = neighbor.or(own);
            changes.extend(self.change(prefix, value, context));
            match neighbor == Some(FixedTarget::Host.target()) {
                true => self.without_next_hop.insert(*address),
                false => self.without_next_hop.remove(address),
            };
            let before = match neighbor {
                Some(target) => self.neighbors.insert(*address, target),
                None => self.neighbors.remove(address),
            };
            if let Some(target) = before {
                context.targets.release(target);
            }
        }
        self.carry_out(&changes, context);
        changes.len()
    }

    /// The target of a neighbor's own entry; adds a user. There is one if the longest route to it (`own`, if that is for the
    /// address alone) is the link that it is on. It leads to Linux if there is no room.
    fn neighbor_entry(
        &self,
        address: A,
        own: Option<Target>,
        context: &mut Context<'_, A>,
    ) -> Option<Target> {
        let mut near = context.shared.neighbors.range((address, 0)..=(address, u32::MAX));
        if near.next().is_none() || address.link_local() {
            return None;
        }
        let base = own.or_else(|| {
            let (_, hop) = self.fib.rib().covering(Prefix::host(address))?;
            context.targets.of_hop(hop)
        })?;
        let link = context.targets.on_link(base)?;
        if !context.shared.neighbors.contains(&(address, link.ifindex)) {
            return None;
        }
        let adjacency = Adjacency { gateway: Some(address.show()), ..link };
        Some(context.targets.adjacency(context.view, adjacency).unwrap_or_else(|_| {
            // No room for its next hop: without an entry its packets would wait forever to be resolved.
            context.targets.retain_fixed(FixedTarget::Host)
        }))
    }

    /// The change that sets `prefix` to this value; `None` if it already has it.
    fn change(
        &self,
        prefix: Prefix<A>,
        value: Option<Target>,
        context: &Context<'_, A>,
    ) -> Option<Change<A>> {
        let value =
            if self.covering.contains_key(&prefix) { Some(FixedTarget::Host.target()) } else { value };
        let hop = value.map(|target| context.targets.hop(target));
        if self.fib.rib().get(prefix) == hop {
            return None;
        }
        Some(hop.map_or(Change::Remove(prefix), |hop| Change::Set(prefix, hop)))
    }

    fn carry_out(&mut self, changes: &[Change<A>], context: &mut Context<'_, A>) {
        let host = context.targets.hop(FixedTarget::Host.target());
        let mut left = changes;
        while let Err(full) = self.fib.apply(left) {
            self.refuse(left[full.applied].prefix(), full.shortage, host);
            left = &left[full.applied + 1..];
        }
    }

    /// Makes entries that found no room lead to Linux, and records them.
    fn refuse(&mut self, prefix: Prefix<A>, shortage: Shortage, host: NextHop) {
        let around = (0..=prefix.length()).rev();
        let covering =
            around.filter_map(|length| Prefix::containing(prefix.first(), length)).find(|covering| {
                self.fib.rib().get(*covering) == Some(host)
                    || self.fib.apply(&[Change::Set(*covering, host)]).is_ok()
            });
        tracing::warn!(%prefix, ?shortage, "no room for a route: Linux forwards its packets");
        self.refused.insert(prefix, RefusedRoute { shortage, covering });
        if let Some(covering) = covering {
            *self.covering.entry(covering).or_default() += 1;
        }
    }

    /// Refused routes to try again, and the prefixes that lead to Linux instead.
    fn take_refused(&mut self) -> Vec<Prefix<A>> {
        let again: Vec<_> = self.refused.keys().take(RETRIES).copied().collect();
        let mut prefixes = Vec::with_capacity(2 * again.len());
        for prefix in again {
            prefixes.push(prefix);
            let Some(covering) = self.refused.remove(&prefix).and_then(|refused| refused.covering) else {
                continue;
            };
            prefixes.push(covering);
            let count = self.covering.entry(covering).or_default();
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.covering.remove(&covering);
            }
        }
        prefixes
    }
}
