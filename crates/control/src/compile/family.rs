//! The routing tables of one family, for all VRFs; the same code for IPv4 and IPv6.

use super::context::{Context, FamilyState};
use super::fib_info::{LinuxReason, RouteFamily};
use super::pending::{FamilyPending, PendingChanges};
use super::sources::{Room, Sources};
use super::stages::Stages;
use super::table::Table;
use super::targets::Targets;
use super::view::View;
use super::{Memory, RETRIES};
use bm_fib::memory::{OutOfMemory, Part};
use bm_fib::published::Readers;
use bm_fib::{Source, Structure, TableFull};
use bm_netlink::{Family, Routes};
use bm_wire::prefix::Prefix;
use std::collections::{BTreeMap, BTreeSet};

/// Where tables are put, and who must have left them before their memory is used again.
pub(super) struct TableMemory<'a> {
    pub readers: &'a Readers,
    pub memory: &'a dyn Memory,
}

impl TableMemory<'_> {
    /// Where a table of a VRF is put; only those of the main VRF are in memory that others read.
    fn source(&self, vrf: Option<u32>, part: Part) -> Result<Source, OutOfMemory> {
        match vrf {
            None => self.memory.source(part),
            Some(_) => Ok(Source::anonymous()),
        }
    }
}

/// The routing tables of a family.
pub(super) struct Tables<A: RouteFamily> {
    /// The lookup structure of its tables.
    pub structure: Structure<A>,
    pub shared: FamilyState<A>,
    /// By ID of the kernel's table; `None` is the main table, and first.
    pub vrfs: BTreeMap<Option<u32>, Table<A>>,
}

impl<A: RouteFamily> Tables<A> {
    const FAMILY: Family = A::FAMILY;

    /// No tables yet; new ones use `structure`.
    pub fn new(structure: Structure<A>) -> Self {
        Self { structure, shared: FamilyState::default(), vrfs: BTreeMap::new() }
    }

    /// Empty, with the same structure.
    pub fn fresh(&self) -> Self {
        Self::new(self.structure)
    }

    /// Takes all tables out.
    pub fn take(&mut self) -> Self {
        let fresh = self.fresh();
        std::mem::replace(self, fresh)
    }

    /// Sizes of all tables together.
    pub fn size(&self) -> Size {
        let tables = self.vrfs.values();
        tables.fold(Size::default(), |size, table| Size {
            routes: size.routes + table.fib().rib().len(),
            refused: size.refused + table.refused().count(),
            without_next_hop: size.without_next_hop + table.without_next_hop(),
            bytes: size.bytes + table.fib().memory_bytes() + table.sources().map_or(0, Sources::memory_bytes),
        })
    }

    /// Routes of the kernel's tables that cannot be compiled, so that Linux forwards their packets, and why.
    pub fn faults<'a>(
        &self,
        routes: &'a Routes<A>,
    ) -> impl Iterator<Item = (u32, Prefix<A>, LinuxReason)> + 'a {
        let mut faults = BTreeMap::new();
        for (id, _) in routes.bodies() {
            if let Some(why) = self.shared.fib_infos.why(id).filter(LinuxReason::is_fault) {
                faults.insert(id, why);
            }
        }
        // Usually there are none among millions of routes.
        let tables = (!faults.is_empty()).then(|| routes.tables()).into_iter().flatten();
        tables.flat_map(move |(number, table)| {
            let faults = faults.clone();
            table.iter().filter_map(move |(prefix, fib_infos)| {
                bm_sys::heartbeat::beat();
                let why = fib_infos.iter().find_map(|id| faults.get(id))?;
                Some((number, prefix, *why))
            })
        })
    }

    /// Whether there was no room for feasible reverse paths.
    pub fn has_lost_sources(&self) -> bool {
        self.lacks_sources() || self.vrfs.values().filter_map(Table::sources).any(Sources::passes_all)
    }

    /// Whether there was not even memory for an empty table of feasible reverse paths.
    pub fn lacks_sources(&self) -> bool {
        self.vrfs.values().any(Table::lacks_sources)
    }

    /// Number of routes with feasible reverse paths but no free set.
    pub fn routes_without_set(&self) -> usize {
        self.vrfs.values().filter_map(Table::sources).map(Sources::without_set).sum()
    }

    /// The lookup structure of a VRF's table; `None` if there is no such table.
    pub fn lookup(&self, vrf: Option<u32>) -> Option<bm_api::Lookup> {
        let table = self.vrfs.get(&vrf)?;
        let fib = table.fib().reader();
        Some(bm_api::Lookup {
            family: if Self::FAMILY == Family::V4 { "ipv4" } else { "ipv6" }.into(),
            structure: self.structure.name.into(),
            version: fib.form().to_string(),
            pages: fib.pages().to_string(),
            memory_bytes: table.fib().memory_bytes() as u64,
        })
    }

    /// Computes again where fib_infos lead, and adds affected routes to `pending`.
    pub fn update_fib_infos(
        &mut self,
        view: View<'_>,
        targets: &mut Targets,
        moved: bool,
        pending: &mut FamilyPending<A>,
    ) {
        let routes = A::routes(view.mirror);
        let mut elsewhere = BTreeSet::new();
        let fib_infos = &mut self.shared.fib_infos;
        let changed = std::mem::take(&mut pending.bodies);
        fib_infos.update::<A>(changed, view, targets, &mut elsewhere);
        if moved {
            let all = routes.bodies().map(|(id, _)| id);
            fib_infos.update::<A>(all, view, targets, &mut elsewhere);
        } else {
            fib_infos.update::<A>(fib_infos.waiting_for_room(RETRIES), view, targets, &mut elsewhere);
        }
        pending.add_routes_of(&elsewhere, routes);
    }

    /// Creates missing tables and those with changed stages, and removes those without a VRF; returns whether any table has
    /// changed. Removed tables are moved to `old`, also on errors: workers read them until new ones are
    /// published.
    pub fn rebuild(
        &mut self,
        view: View<'_>,
        targets: &mut Targets,
        wanted: &BTreeSet<Option<u32>>,
        tables: &TableMemory<'_>,
        feasible: bool,
        old: &mut Vec<Table<A>>,
    ) -> Result<bool, TableFull<A>> {
        let gone: Vec<_> = self.vrfs.keys().filter(|vrf| !wanted.contains(vrf)).copied().collect();
        let mut changed = !gone.is_empty();
        old.extend(gone.iter().filter_map(|vrf| self.vrfs.remove(vrf)));
        for vrf in wanted {
            let stages = Stages::from_rules(view.mirror, Self::FAMILY, *vrf);
            let mut context = Context { view, targets, shared: &mut self.shared };
            if self.vrfs.get(vrf).is_none_or(|table| *table.stages() != stages) {
                let table = Table::load(self.structure, stages, &mut context, tables.readers, &|| {
                    tables.source(*vrf, A::PART)
                })?;
                old.extend(self.vrfs.insert(*vrf, table));
                changed = true;
            }
            let Some(table) = self.vrfs.get_mut(vrf) else { continue };
            let (readers, width) = (tables.readers, tables.memory.interfaces());
            let room = Room { readers, source: &|| tables.source(*vrf, A::SOURCES), width };
            changed |= table.keep_sources(feasible, self.structure, &mut context, &room);
        }
        Ok(changed)
    }

    /// Releases everything: these tables are no longer read.
    pub fn release(&mut self, targets: &mut Targets) {
        self.shared.fib_infos.clear(targets);
        self.vrfs.values_mut().for_each(|table| table.release(targets));
    }

    /// Updates the neighbors from `pending`, or all of them if interfaces have been added or removed.
    /// Returns the addresses whose entries must be comparison.
    pub fn note_neighbors(&mut self, view: View<'_>, pending: &PendingChanges, all: bool) -> Vec<A> {
        let known = &mut self.shared.neighbors;
        let mut addresses: Vec<A> = Vec::new();
        if all {
            addresses.extend(known.iter().map(|(address, _)| *address));
            addresses.extend(self.vrfs.values().flat_map(Table::neighbor_entries));
            known.clear();
            for neighbor in view.mirror.neighbors() {
                if let Some(number) = A::number(neighbor.address)
                    && view.is_usable(neighbor.ifindex, neighbor.address)
                {
                    known.insert((number, neighbor.ifindex));
                    addresses.push(number);
                }
            }
            return addresses;
        }
        for (ifindex, address) in &pending.neighbors {
            let Some(number) = A::number(*address) else { continue };
            let changed = match view.is_usable(*ifindex, *address) {
                true => known.insert((number, *ifindex)),
                false => known.remove(&(number, *ifindex)),
            };
            if changed {
                addresses.push(number);
            }
        }
        addresses
    }

    /// Applies changed routes in `pending`, and checks the entries of `addresses`. Returns the number of
    /// entries written.
    pub fn refresh(
        &mut self,
        view: View<'_>,
        targets: &mut Targets,
        pending: &FamilyPending<A>,
        addresses: &[A],
    ) -> usize {
        let mut context = Context { view, targets, shared: &mut self.shared };
        for (number, prefixes) in &pending.routes {
            prefixes.iter().for_each(|prefix| context.note(*number, *prefix));
        }
        let mut entries = 0;
        for table in self.vrfs.values_mut() {
            let mut prefixes = Vec::new();
            for (number, changed) in &pending.routes {
                if table.stages().position(*number).is_some() {
                    let mut changed = changed.clone();
                    table.add_dependents(*number, &mut changed, &context);
                    prefixes.append(&mut changed);
                }
            }
            if !prefixes.is_empty() || !addresses.is_empty() || table.lacks_room() {
                entries += table.refresh(prefixes, addresses.to_vec(), &mut context);
            }
            table.reclaim();
        }
        entries
    }
}

/// Sizes of [`Tables`].
#[derive(Clone, Copy, Default)]
pub(super) struct Size {
    pub routes: usize,
    pub refused: usize,
    pub without_next_hop: usize,
    pub bytes: usize,
}
