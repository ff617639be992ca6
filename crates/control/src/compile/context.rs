//! Queries to the mirror for one prefix: which of the kernel's tables has it, and where that leads.
//!
//! ```text
//! prefix ─► local? ─► main? ─► default?    in each: this prefix, else the longest that covers it
//! ```
//!
//! The kernel looks up an address in one table after the other. Here each prefix of any table gets the answer for those
//! of its addresses that have no longer prefix; then one lookup over all prefixes gives the same result.

use super::fib_info::{FibInfos, LinuxReason, Outcome, RouteFamily};
use super::stages::Stages;
use super::targets::{FixedTarget, Target, Targets};
use super::view::View;
use bm_netlink::mirror::Choice;
use bm_netlink::route::TABLE_LOCAL;
use bm_netlink::{BodyId, Family};
use bm_wire::prefix::Prefix;
use std::collections::{BTreeMap, BTreeSet};

/// State that all tables of a family share.
pub(super) struct FamilyState<A> {
    pub fib_infos: FibInfos,
    /// Neighbors that packets can be sent to, by address and link. A route of any table may lead to any link, so all tables
    /// use the same set.
    pub neighbors: BTreeSet<(A, u32)>,
    /// Prefix lengths that the kernel's tables have had, longest first, and whether they may have `throw` routes. Both only
    /// grow: they are hints where to search.
    tables: BTreeMap<u32, PrefixLengths>,
}

impl<A> Default for FamilyState<A> {
    fn default() -> Self {
        Self { fib_infos: FibInfos::default(), neighbors: BTreeSet::new(), tables: BTreeMap::new() }
    }
}

#[derive(Debug, Default)]
struct PrefixLengths {
    lengths: Vec<u8>,
    throws: bool,
}

/// What is needed to compile a route.
pub(super) struct Context<'a, A> {
    pub view: View<'a>,
    pub targets: &'a mut Targets,
    pub shared: &'a mut FamilyState<A>,
}

impl<A: RouteFamily> Context<'_, A> {
    fn outcome(&mut self, table: u32, prefix: Prefix<A>) -> Outcome {
        let routes = A::routes(self.view.mirror);
        self.outcome_of(table, prefix, routes.get(table, prefix))
    }

    /// Where the route leads that Linux uses of those of a prefix.
    fn outcome_of(&mut self, table: u32, prefix: Prefix<A>, fib_infos: &[BodyId]) -> Outcome {
        // Called for each of a million routes.
        bm_sys::heartbeat::beat();
        let mirror = self.view.mirror;
        for id in fib_infos {
            let outcome = self.outcome_of_fib_info(*id);
            // A route for only some packets, at any position, leaves the whole prefix to Linux.
            if outcome != Outcome::Inactive && self.shared.fib_infos.why(*id) == Some(LinuxReason::Selects) {
                return outcome;
            }
        }
        let choice = mirror.choose(A::routes(mirror), table, prefix, fib_infos, |id| {
            self.outcome_of_fib_info(id) != Outcome::Inactive
        });
        let local = Outcome::To(FixedTarget::Local.target());
        match choice {
            Choice::Nothing => Outcome::Inactive,
            Choice::Route(id) => match self.outcome_of_fib_info(id) {
                known if known == local => local,
                _ if is_doubtful::<A>(table) => Outcome::To(FixedTarget::Host.target()),
                known => known,
            },
            Choice::Unknown
                if fib_infos
                    .iter()
                    .all(|id| [local, Outcome::Inactive].contains(&self.outcome_of_fib_info(*id))) =>
            {
                local
            }
            Choice::Unknown => Outcome::To(FixedTarget::Host.target()),
        }
    }

    fn outcome_of_fib_info(&mut self, id: BodyId) -> Outcome {
        self.shared.fib_infos.outcome::<A>(id, self.view, self.targets)
    }

    /// Where the longest prefix of the table leads that covers `prefix` and leads anywhere.
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
                // A longer prefix of main may be used instead.
                let is_doubtful =
                    is_doubtful::<A>(table) && outcome == Outcome::To(FixedTarget::Local.target());
                return if is_doubtful { Outcome::To(FixedTarget::Host.target()) } else { outcome };
            }
        }
        Outcome::Inactive
    }

    /// Where packets go to those addresses of `prefix` that have no longer prefix in any stage. `None` if
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
        // A `throw` route: the following tables decide.
        if let Some(target) = self.before(stages.tables.get(stage + 1..).unwrap_or_default(), prefix) {
            return Some(target);
        }
        Some(if stages.else_linux { FixedTarget::Host.target() } else { FixedTarget::NoRoute.target() })
    }

    /// Our interfaces of all routes to `prefix` itself, if there are several: packets from there may arrive on any of
    /// them. `None` if it has no route.
    pub fn feasible_interfaces(&mut self, stages: &Stages, prefix: Prefix<A>) -> Option<Vec<u16>> {
        let routes = A::routes(self.view.mirror);
        let (mut any, mut interfaces) = (false, Vec::new());
        for id in stages.tables.iter().flat_map(|table| routes.get(*table, prefix)) {
            any = true;
            interfaces.extend_from_slice(self.shared.fib_infos.interfaces::<A>(*id, self.view, self.targets));
        }
        interfaces.sort_unstable();
        interfaces.dedup();
        // A single path is the best one, which is in the routing table.
        if interfaces.len() < 2 {
            interfaces.clear();
        }
        any.then_some(interfaces)
    }

    /// The values of all prefixes of the stages, in order.
    ///
    /// Called for a million routes, so each table is read once, in its own order: a route that leads somewhere only needs a
    /// lookup in the tables before its own.
    pub fn values(&mut self, stages: &Stages) -> Vec<(Prefix<A>, Target)> {
        let routes = A::routes(self.view.mirror);
        let (mut values, mut others) = (Vec::new(), vec![Prefix::default()]);
        for (stage, number) in stages.tables.iter().enumerate() {
            // A prefix in doubt may be without routes here.
            for prefix in routes.doubts_of(*number) {
                self.note(*number, prefix);
                others.push(prefix);
            }
            let Some(table) = routes.table(*number) else { continue };
            values.reserve(table.len());
            for (prefix, fib_infos) in table.iter() {
                let own = self.outcome_of(*number, prefix, fib_infos);
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
        // These may need any table, so all must be known.
        for prefix in others {
            values.extend(self.value(stages, prefix).map(|value| (prefix, value)));
        }
        // In order, so that the builder fills its memory sequentially.
        values.sort_unstable();
        values.dedup_by_key(|(prefix, _)| *prefix);
        values
    }

    /// Where the tables before the route's own send its addresses, if anywhere.
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

    /// Records prefix lengths of a change, or of a table at the first use.
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

    /// Whether a table may have `throw` routes.
    pub fn throws(&self, table: u32) -> bool {
        self.shared.tables.get(&table).is_some_and(|seen| seen.throws)
    }
}

/// Whether only Linux knows if it still has this table and main in one trie, where longer prefixes of main are preferred
/// to routes that are no addresses.
fn is_doubtful<A: RouteFamily>(table: u32) -> bool {
    A::FAMILY == Family::V4 && table == TABLE_LOCAL
}
