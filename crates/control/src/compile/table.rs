//! One routing table of one family: the kernel's tables in their order, made into one lookup.
//!
//! ```text
//! mirror: local, main, ..   for each prefix the first table that knows its addresses ──┐
//! neighbours on the link    a host entry each, where the longest route is that link ───┴─► builder
//! ```
//!
//! The builder's own list of routes is the only list there is: which prefix a change touches, what covers
//! it and what lies within is asked of that, and of the mirror. Kept beside it are only the few things
//! that are no routes: neighbours, and prefixes that found no room.
//!
//! A route that does not fit is refused aloud: it is kept with its reason and tried again, and meanwhile
//! its addresses go to Linux, by an entry for the shortest prefix around it that does fit.

use super::body::{Bodies, Outcome, Side};
use super::check::Checked;
use super::stages::Stages;
use super::targets::{Fixed, Target, Targets};
use super::view::{Adjacency, View};
use bm_api::Area;
use bm_fib::published::Readers;
use bm_fib::{BuildFib, Change, Fib, Lack, NextHop, TableFull};
use bm_netlink::{BodyId, Mirror};
use bm_wire::prefix::{Address, Prefix};
use std::collections::{BTreeMap, BTreeSet};

/// How many refused routes are tried again each time that anything changes.
const RETRIES: usize = 64;

/// What all tables of a family share.
pub(super) struct Shared<A> {
    /// The route bodies.
    pub bodies: Bodies,
    /// Neighbours that packets can be sent to, by address and link. A route of any table may lead to
    /// any link, so all tables ask the same set.
    pub neighbours: BTreeSet<(A, u32)>,
    /// Prefix lengths that the kernel's tables have had, longest first, and whether routes of theirs may
    /// throw. Both only grow: they say where to look, not what is there.
    tables: BTreeMap<u32, Seen>,
}

impl<A> Default for Shared<A> {
    fn default() -> Self {
        Self { bodies: Bodies::default(), neighbours: BTreeSet::new(), tables: BTreeMap::new() }
    }
}

#[derive(Debug, Default)]
struct Seen {
    lengths: Vec<u8>,
    throws: bool,
}

/// What is needed to compile a route.
pub(super) struct Context<'a, A> {
    pub view: View<'a>,
    pub targets: &'a mut Targets,
    pub shared: &'a mut Shared<A>,
}

impl<A: Side> Context<'_, A> {
    fn outcome(&mut self, table: u32, prefix: Prefix<A>) -> Outcome {
        let routes = A::routes(self.view.mirror);
        self.outcome_of(routes.get(table, prefix))
    }

    /// Where the first of a prefix's bodies leads that leads anywhere.
    fn outcome_of(&mut self, bodies: &[BodyId]) -> Outcome {
        let mut first = Outcome::Inactive;
        for id in bodies {
            let outcome = self.shared.bodies.outcome::<A>(*id, self.view, self.targets);
            if outcome == Outcome::Inactive {
                continue;
            }
            // One that is for some packets only, wherever it stands, makes the whole prefix Linux's.
            if self.shared.bodies.why(*id) == Some(super::body::Why::Selects) {
                return outcome;
            }
            if first == Outcome::Inactive {
                first = outcome;
            }
        }
        first
    }

    /// The same for the longest prefix of the table that covers `prefix` and leads anywhere.
    fn covering(&mut self, table: u32, prefix: Prefix<A>) -> Outcome {
        let mut at = 0;
        while let Some(length) = self.shared.tables.get(&table).and_then(|seen| seen.lengths.get(at)) {
            at += 1;
            if *length >= prefix.length() {
                continue;
            }
            let Some(cover) = Prefix::containing(prefix.first(), *length) else { continue };
            let outcome = self.outcome(table, cover);
            if outcome != Outcome::Inactive {
                return outcome;
            }
        }
        Outcome::Inactive
    }

    /// Where packets to the addresses of `prefix` go that no longer prefix of any stage has. None if
    /// `prefix` needs no entry.
    pub fn value(&mut self, stages: &Stages, prefix: Prefix<A>) -> Option<Target> {
        let mut found = None;
        for (stage, table) in stages.tables.iter().enumerate() {
            let outcome = self.outcome(*table, prefix);
            if outcome != Outcome::Inactive {
                found = Some((stage, outcome));
                break;
            }
        }
        let root = prefix.length() == 0 && stages.else_linux;
        if found.is_none() && !root {
            return None;
        }
        let stage = found.map_or(stages.tables.len(), |(stage, _)| stage);
        if let Some(target) = self.before(&stages.tables[..stage], prefix) {
            return Some(target);
        }
        if let Some((_, Outcome::To(target))) = found {
            return Some(target);
        }
        // It throws: the tables behind its own decide.
        if let Some(target) = self.before(stages.tables.get(stage + 1..).unwrap_or_default(), prefix) {
            return Some(target);
        }
        Some(if stages.else_linux { Fixed::Host.target() } else { Fixed::NoRoute.target() })
    }

    /// The values of all prefixes of the stages, in order.
    ///
    /// A million routes are asked here, so each table is read once, in its own order: a route that leads
    /// somewhere needs no more than a look into the tables before its own.
    fn values(&mut self, stages: &Stages) -> Vec<(Prefix<A>, Target)> {
        let routes = A::routes(self.view.mirror);
        let (mut values, mut others) = (Vec::new(), vec![Prefix::default()]);
        for (stage, number) in stages.tables.iter().enumerate() {
            let Some(table) = routes.table(*number) else { continue };
            values.reserve(table.len());
            for (prefix, bodies) in table.iter() {
                let own = self.outcome_of(bodies);
                self.note_outcome(*number, prefix, own);
                match own {
                    Outcome::To(target) => {
                        let before = self.before(&stages.tables[..stage], prefix);
                        values.push((prefix, before.unwrap_or(target)));
                    }
                    Outcome::Throw | Outcome::Inactive => others.push(prefix),
                }
            }
        }
        // These may need any table, so all have to be known.
        for prefix in others {
            values.extend(self.value(stages, prefix).map(|value| (prefix, value)));
        }
        // In order, the builder walks its memory from one end to the other.
        values.sort_unstable();
        values.dedup_by_key(|(prefix, _)| *prefix);
        values
    }

    /// Where the tables before a route's own send its addresses, if they do.
    fn before(&mut self, tables: &[u32], prefix: Prefix<A>) -> Option<Target> {
        for table in tables {
            let outcome = match self.outcome(*table, prefix) {
                Outcome::Inactive => self.covering(*table, prefix),
                exact => exact,
            };
            if let Outcome::To(target) = outcome {
                return Some(target);
            }
        }
        None
    }

    /// Notes what a change, or the first look at a table, brings.
    pub fn note(&mut self, table: u32, prefix: Prefix<A>) {
        let outcome = self.outcome(table, prefix);
        self.note_outcome(table, prefix, outcome);
    }

    fn note_outcome(&mut self, table: u32, prefix: Prefix<A>, outcome: Outcome) {
        let throws = outcome == Outcome::Throw;
        let seen = self.shared.tables.entry(table).or_default();
        seen.throws |= throws;
        if let Err(at) = seen.lengths.binary_search_by(|length| prefix.length().cmp(length)) {
            seen.lengths.insert(at, prefix.length());
        }
    }

    fn throws(&self, table: u32) -> bool {
        self.shared.tables.get(&table).is_some_and(|seen| seen.throws)
    }
}

/// A route without room.
#[derive(Clone, Copy)]
struct Refused<A> {
    /// What ran out.
    lack: Lack,
    /// The prefix that goes to Linux meanwhile: the route's own, or one around it.
    blanket: Option<Prefix<A>>,
}

/// A routing table of one family.
pub(super) struct Table<B: BuildFib> {
    fib: B,
    stages: Stages,
    /// Addresses with an entry of their own since they are neighbours on the link.
    hosts: BTreeMap<B::Address, Target>,
    refused: BTreeMap<Prefix<B::Address>, Refused<B::Address>>,
    /// Prefixes that go to Linux in the place of refused ones, and of how many.
    blankets: BTreeMap<Prefix<B::Address>, usize>,
}

impl<B: BuildFib> Table<B>
where
    B::Address: Side,
{
    /// A table of everything that the mirror has for these stages, neighbours excepted.
    pub fn load(
        stages: Stages,
        context: &mut Context<'_, B::Address>,
        readers: &Readers,
    ) -> Result<Self, TableFull<B::Address>> {
        let routes = context.values(&stages);
        let routes = routes.into_iter().map(|(prefix, target)| (prefix, context.targets.hop(target)));
        let (hosts, refused, blankets) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let new = |fib| Self { fib, stages, hosts, refused, blankets };
        if let Ok(fib) = B::build(routes.clone(), readers) {
            return Ok(new(fib));
        }
        // Some do not fit: the others go in one by one.
        let sets: Vec<_> = routes.map(|(prefix, hop)| Change::Set(prefix, hop)).collect();
        let mut table = new(B::build([], readers)?);
        table.carry_out(&sets, context);
        Ok(table)
    }

    /// The builder.
    pub fn fib(&self) -> &B {
        &self.fib
    }

    /// The tables that are asked.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    /// Routes without room, and what each lacks.
    pub fn refused(&self) -> impl Iterator<Item = (Prefix<B::Address>, Lack)> + '_ {
        self.refused.iter().map(|(prefix, refused)| (*prefix, refused.lack))
    }

    /// The target of an address that has an entry since it is a neighbour.
    pub fn host_entry(&self, address: B::Address) -> Option<Target> {
        self.hosts.get(&address).copied()
    }

    /// Gives back what the table holds.
    pub fn release(&mut self, targets: &mut Targets) {
        for (_, target) in std::mem::take(&mut self.hosts) {
            targets.release(target);
        }
    }

    /// Takes memory back that readers have moved past.
    pub fn reclaim(&mut self) {
        self.fib.reclaim();
    }

    /// Adds to `prefixes`, which changed in `table`, those within them whose way may have changed too:
    /// where a table that is asked later is overruled, or one that was asked before throws.
    pub fn widen(
        &self,
        table: u32,
        prefixes: &mut Vec<Prefix<B::Address>>,
        context: &Context<'_, B::Address>,
    ) {
        let Some(stage) = self.stages.position(table) else { return };
        let (before, behind) = self.stages.tables.split_at(stage);
        let routes = B::Address::routes(context.view.mirror);
        let overrules = behind.iter().skip(1).any(|later| routes.table(*later).is_some());
        if !overrules && !before.iter().any(|earlier| context.throws(*earlier)) {
            return;
        }
        let short: Vec<_> =
            prefixes.iter().filter(|prefix| prefix.length() < B::Address::WIDTH).copied().collect();
        for prefix in short {
            prefixes.extend(self.fib.rib().within(prefix).map(|(within, _)| within));
        }
    }

    /// All addresses that have an entry as a neighbour.
    pub fn host_entries(&self) -> impl Iterator<Item = B::Address> + '_ {
        self.hosts.keys().copied()
    }

    /// Brings the entries of `prefixes`, of the neighbours within them, and of `addresses` up to date.
    /// Returns how many entries changed.
    pub fn refresh(
        &mut self,
        mut prefixes: Vec<Prefix<B::Address>>,
        mut addresses: Vec<B::Address>,
        context: &mut Context<'_, B::Address>,
    ) -> usize {
        prefixes.extend(self.take_refused());
        prefixes.sort_unstable();
        prefixes.dedup();
        let mut changes = Vec::new();
        for prefix in prefixes {
            if prefix.length() == B::Address::WIDTH {
                addresses.push(prefix.first());
                continue;
            }
            let value = context.value(&self.stages, prefix);
            changes.extend(self.change(prefix, value, context));
            self.neighbours_within(prefix, &mut addresses, context);
        }
        self.carry_out(&changes, context);
        addresses.sort_unstable();
        addresses.dedup();
        changes.len() + self.refresh_hosts(&addresses, context)
    }

    /// Holds every entry against what it should be, and the lookup against the list of entries.
    pub fn check(&self, context: &mut Context<'_, B::Address>, checked: &mut Checked) {
        let wanted = all_prefixes(&self.stages, context.view.mirror);
        for prefix in &wanted {
            checked.compared += 1;
            if prefix.length() == B::Address::WIDTH && self.hosts.contains_key(&prefix.first()) {
                continue;
            }
            let value = context.value(&self.stages, *prefix);
            if let Some(change) = self.change(*prefix, value, context) {
                checked.differs(Area::Compiled, || format!("{prefix} should be {change:?} in the table"));
            }
        }
        let reader = self.fib.reader();
        for (prefix, _) in self.fib.rib().iter() {
            let host = prefix.length() == B::Address::WIDTH && self.hosts.contains_key(&prefix.first());
            if wanted.binary_search(&prefix).is_err() && !host && !self.blankets.contains_key(&prefix) {
                checked.differs(Area::Compiled, || {
                    format!("{prefix} is in the table and in none of the kernel's")
                });
            }
            let address = prefix.first();
            let listed = self.fib.rib().longest_match(address).map_or(NextHop::NONE, |(_, hop)| hop);
            if reader.lookup(address) != listed {
                let found = reader.lookup(address);
                checked.differs(Area::Compiled, || {
                    format!("{} is looked up as next hop {found} and listed with {listed}", address.show())
                });
            }
        }
    }

    fn neighbours_within(
        &self,
        prefix: Prefix<B::Address>,
        addresses: &mut Vec<B::Address>,
        context: &Context<'_, B::Address>,
    ) {
        let near = context.shared.neighbours.range((prefix.first(), 0)..=(prefix.last(), u32::MAX));
        addresses.extend(near.map(|(address, _)| *address));
        addresses.extend(self.hosts.range(prefix.first()..=prefix.last()).map(|(address, _)| *address));
    }

    /// Brings the entries of single addresses up to date. The routes around them are right already.
    fn refresh_hosts(&mut self, addresses: &[B::Address], context: &mut Context<'_, B::Address>) -> usize {
        let mut changes = Vec::new();
        for address in addresses {
            let prefix = Prefix::host(*address);
            let own = context.value(&self.stages, prefix);
            let neighbour = self.neighbour_entry(*address, own, context);
            let value = neighbour.or(own);
            changes.extend(self.change(prefix, value, context));
            let before = match neighbour {
                Some(target) => self.hosts.insert(*address, target),
                None => self.hosts.remove(address),
            };
            if let Some(target) = before {
                context.targets.release(target);
            }
        }
        self.carry_out(&changes, context);
        changes.len()
    }

    /// The target of a neighbour's own entry, with one more user: if the longest route to it, which is
    /// `own` where it is that of the address alone, is the link that it is on.
    fn neighbour_entry(
        &self,
        address: B::Address,
        own: Option<Target>,
        context: &mut Context<'_, B::Address>,
    ) -> Option<Target> {
        let mut near = context.shared.neighbours.range((address, 0)..=(address, u32::MAX));
        if near.next().is_none() || address.link_local() {
            return None;
        }
        let base = own.or_else(|| {
            let (_, hop) = self.fib.rib().covering(Prefix::host(address))?;
            context.targets.of_hop(hop)
        })?;
        let link = context.targets.on_link(base)?;
        if !context.shared.neighbours.contains(&(address, link.ifindex)) {
            return None;
        }
        let adjacency = Adjacency { gateway: Some(address.show()), ..link };
        Some(context.targets.adjacency(context.view, adjacency).unwrap_or_else(|_| {
            // No room for its next hop: without an entry its packets would wait for an answer for ever.
            context.targets.retain(Fixed::Host.target());
            Fixed::Host.target()
        }))
    }

    /// The change that gives `prefix` this value; none if it has it.
    fn change(
        &self,
        prefix: Prefix<B::Address>,
        value: Option<Target>,
        context: &Context<'_, B::Address>,
    ) -> Option<Change<B::Address>> {
        let value = if self.blankets.contains_key(&prefix) { Some(Fixed::Host.target()) } else { value };
        let hop = value.map(|target| context.targets.hop(target));
        if self.fib.rib().get(prefix) == hop {
            return None;
        }
        Some(hop.map_or(Change::Remove(prefix), |hop| Change::Set(prefix, hop)))
    }

    fn carry_out(&mut self, changes: &[Change<B::Address>], context: &mut Context<'_, B::Address>) {
        let host = context.targets.hop(Fixed::Host.target());
        let mut left = changes;
        while let Err(full) = self.fib.apply(left) {
            self.refuse(left[full.applied].prefix(), full.lack, host);
            left = &left[full.applied + 1..];
        }
    }

    /// Sends to Linux what found no room, and remembers it.
    fn refuse(&mut self, prefix: Prefix<B::Address>, lack: Lack, host: NextHop) {
        let around = (0..=prefix.length()).rev();
        let blanket =
            around.filter_map(|length| Prefix::containing(prefix.first(), length)).find(|blanket| {
                self.fib.rib().get(*blanket) == Some(host)
                    || self.fib.apply(&[Change::Set(*blanket, host)]).is_ok()
            });
        tracing::warn!(%prefix, ?lack, "no room for a route: Linux forwards its packets");
        self.refused.insert(prefix, Refused { lack, blanket });
        if let Some(blanket) = blanket {
            *self.blankets.entry(blanket).or_default() += 1;
        }
    }

    /// Refused routes to try again, and the prefixes that went to Linux in their place.
    fn take_refused(&mut self) -> Vec<Prefix<B::Address>> {
        let again: Vec<_> = self.refused.keys().take(RETRIES).copied().collect();
        let mut prefixes = Vec::with_capacity(2 * again.len());
        for prefix in again {
            prefixes.push(prefix);
            let Some(blanket) = self.refused.remove(&prefix).and_then(|refused| refused.blanket) else {
                continue;
            };
            prefixes.push(blanket);
            let count = self.blankets.entry(blanket).or_default();
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.blankets.remove(&blanket);
            }
        }
        prefixes
    }
}

/// Every prefix that any of the stages has, in order, each once.
fn all_prefixes<A: Side>(stages: &Stages, mirror: &Mirror) -> Vec<Prefix<A>> {
    let routes = A::routes(mirror);
    let mut prefixes: Vec<Prefix<A>> = vec![Prefix::default()];
    for table in stages.tables.iter().filter_map(|stage| routes.table(*stage)) {
        prefixes.extend(table.iter().map(|(prefix, _)| prefix));
    }
    prefixes.sort_unstable();
    prefixes.dedup();
    prefixes
}
