//! The interfaces on which packets from a source may arrive besides that of the best route: feasible paths of RFC 3704.
//!
//! ```text
//! prefix ─► all its routes, whatever their metric, state or table ─► interfaces of all their hops ─► a set
//! ```
//!
//! The best reverse path is in the routing table, which is checked first, so only prefixes with several paths have a
//! nonempty set; others have an entry, too, since they override shorter prefixes around them. The table exists only
//! while a port needs it. If there is no room, all sources pass, and this is reported.

use super::comparison::Comparison;
use super::context::Context;
use super::fib_info::RouteFamily;
use super::stages::Stages;
use bm_api::Area;
use bm_fib::memory::OutOfMemory;
use bm_fib::published::Readers;
use bm_fib::sets::{self, InterfaceSets, SetWriter};
use bm_fib::structure::Builder;
use bm_fib::{Change, Fib, NextHop, Source, Structure, TableFull};
use bm_wire::prefix::Prefix;
use std::sync::Arc;

/// Capacity of the tables.
pub(super) struct Room<'a> {
    pub readers: &'a Readers,
    pub source: &'a dyn Fn() -> Result<Source, OutOfMemory>,
    /// Number of interfaces that sets can distinguish.
    pub width: usize,
}

/// The feasible reverse paths of one routing table and family.
pub(super) struct Sources<A: RouteFamily> {
    fib: Builder<A>,
    sets: SetWriter,
    /// There was no room, so every source passes.
    lost: bool,
    /// Whether the log has reported that there are too many different sets.
    warned: bool,
}

impl<A: RouteFamily> Sources<A> {
    /// Compiles all prefixes of the mirror for these stages.
    pub fn load(
        structure: Structure<A>,
        stages: &Stages,
        context: &mut Context<'_, A>,
        room: &Room<'_>,
    ) -> Result<Self, TableFull<A>> {
        let ways: Vec<_> = stages.prefixes(context.view.mirror);
        let ways = ways
            .into_iter()
            .filter_map(|prefix| Some((prefix, context.feasible_interfaces(stages, prefix)?)));
        let ways: Vec<_> = ways.collect();
        match Self::with_sets(structure, &ways, room) {
            Ok(mut sources) => {
                sources.log_shortage();
                Ok(sources)
            }
            Err(_) => {
                let mut sources = Self::with_sets(structure, &[], room)?;
                sources.pass_all();
                Ok(sources)
            }
        }
    }

    fn with_sets(
        structure: Structure<A>,
        ways: &[(Prefix<A>, Vec<u16>)],
        room: &Room<'_>,
    ) -> Result<Self, TableFull<A>> {
        let source = (room.source)().map_err(TableFull::no_memory)?;
        // In the order that readers expect: routes, then sets.
        let mut fib = structure.build_in([], room.readers, &source)?;
        let sets = SetWriter::with_width_in(room.width, room.readers, &source);
        let mut sets = sets.map_err(TableFull::no_memory)?;
        let changes: Vec<_> =
            ways.iter().map(|(prefix, ways)| Change::Set(*prefix, sets.take(ways))).collect();
        fib.apply(&changes)?;
        Ok(Self { fib, sets, lost: false, warned: false })
    }

    /// The table that packets are checked against.
    pub fn reader(&self) -> (Arc<dyn Fib<Address = A>>, Arc<InterfaceSets>) {
        (self.fib.reader(), Arc::clone(self.sets.table()))
    }

    /// Whether every source passes because there is no room.
    pub fn passes_all(&self) -> bool {
        self.lost
    }

    /// Number of routes whose sources are not checked because there was no free set.
    pub fn without_set(&self) -> usize {
        if self.lost { 0 } else { self.sets.refused() }
    }

    /// Reports once that there are no free sets, and again if there were some in between.
    fn log_shortage(&mut self) {
        let routes = self.without_set();
        if routes > 0 && !self.warned {
            let most = sets::ROOM;
            tracing::warn!(
                routes,
                "more than {most} different sets of feasible reverse paths: the sources of these routes are not checked"
            );
        }
        self.warned = routes > 0;
    }

    /// Size of the lookup structure in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.fib.memory_bytes()
    }

    /// Updates the entries of `prefixes`.
    pub fn refresh(&mut self, stages: &Stages, prefixes: &[Prefix<A>], context: &mut Context<'_, A>) {
        if self.lost {
            return;
        }
        let (mut changes, mut left) = (Vec::new(), Vec::new());
        let mut sorted = prefixes.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        for prefix in sorted {
            let before = self.fib.rib().get(prefix);
            let now = context.feasible_interfaces(stages, prefix).map(|ways| self.sets.take(&ways));
            match (before, now) {
                (Some(before), Some(now)) if before == now => self.sets.release(now),
                (_, Some(now)) => changes.push(Change::Set(prefix, now)),
                (Some(_), None) => changes.push(Change::Remove(prefix)),
                (None, None) => {}
            }
            left.extend(before.filter(|before| Some(*before) != now));
        }
        if self.fib.apply(&changes).is_err() {
            self.pass_all();
            return;
        }
        left.into_iter().for_each(|set| self.sets.release(set));
        self.fib.reclaim();
        self.log_shortage();
    }

    /// Lets every source pass from now on, because there is no room.
    fn pass_all(&mut self) {
        tracing::error!(
            "no room for the feasible reverse paths of all sources: reverse_path = \"feasible\" lets every source pass"
        );
        self.lost = true;
        // The default entry first, so that no source is ever without an entry.
        let whole = [Change::Set(Prefix::default(), sets::ALL)];
        let early = self.fib.apply(&whole).is_ok();
        let others = self.fib.rib().iter().filter(|(prefix, _)| !early || *prefix != Prefix::default());
        let others: Vec<_> = others.map(|(prefix, _)| Change::Remove(prefix)).collect();
        let replaced = self.fib.apply(&others);
        let replaced = if early { replaced } else { replaced.and_then(|()| self.fib.apply(&whole)) };
        if let Err(error) = replaced {
            tracing::error!(%error, "no room for an entry that lets every source pass either");
        }
    }

    /// Compares every entry with its expected value.
    pub fn check(&self, stages: &Stages, context: &mut Context<'_, A>, comparison: &mut Comparison) {
        if self.lost {
            let why = "no room for feasible reverse paths: every source passes";
            return comparison.differs(Area::Refused, || why.into());
        }
        let wanted = stages.prefixes(context.view.mirror);
        for prefix in &wanted {
            comparison.compared += 1;
            let (is, should) = (self.fib.rib().get(*prefix), context.feasible_interfaces(stages, *prefix));
            if (is, should.is_some()) == (Some(sets::ALL), true) {
                comparison.differs(Area::Refused, || {
                    format!(
                        "no free set for the feasible reverse paths of {prefix}: its sources are not checked"
                    )
                });
                continue;
            }
            let differs = match (is, &should) {
                (None, None) => false,
                (Some(set), Some(should)) => self.sets.members(set) != should.as_slice(),
                _ => true,
            };
            if differs {
                let is = is.map(|set: NextHop| self.sets.members(set));
                comparison.differs(Area::Compiled, || {
                    format!("sources in {prefix} may arrive on {is:?}, expected {should:?}")
                });
            }
        }
        let entries = self.fib.rib().iter().filter(|(prefix, _)| wanted.binary_search(prefix).is_err());
        for (prefix, _) in entries {
            comparison.differs(Area::Compiled, || format!("{prefix} has a reverse path but no route"));
        }
    }
}
