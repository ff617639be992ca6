//! Compiles the state of the mirror to forwarding tables, change by change.
//!
//! ```text
//! mirror ─► Change ─┬─ links, addresses, settings ─► Interfaces ─► Tables, published as a whole
//!                   ├─ neighbors, links, objects ─► Targets: one store in a next hop, no route is touched
//!                   ├─ fib_infos ─► where all routes that share one lead
//!                   └─ routes ─► Table: one entry in a FIB, and those of neighbors within it
//! ```
//!
//! [`Compiler::apply`] takes these steps. Their order keeps workers from using what they do not know yet:
//!
//! ```text
//! changes ─► 1 pending     what they concern: links, neighbors, objects, fib_infos, routes
//!            2 interfaces  VRFs, links, addresses, settings; pending: links that became ours, or are no longer
//!            3 filters     state for the filters of workers
//!            4 replaced    if everything has changed: takes out all tables
//!            5 targets     next hops get their MAC, carrier or object                      in place
//!            6 fib_infos   where they lead; pending: routes of those that lead elsewhere now
//!            7 tables      creates missing ones, and those with changed stages
//!            8 publish     if interfaces or tables have changed: workers load the new tables, as a whole
//!            9 neighbors   addresses whose own entries must be checked
//!           10 entries     pending routes and these addresses are written to FIBs          in place
//!           11 sweep       releases what no published table uses any more
//! ```
//!
//! [`Compiler`] is pure: no socket, no clock, no thread. Its output depends only on the mirror, not on the order of
//! changes; a property test compares it with a slow evaluation of the mirror. Routes that it cannot compile lead to
//! Linux and are listed with the reason.
//!
//! Absent on purpose: packets, netlink, and any second copy of the routes: they are in the mirror and, as prefix and
//! next hop, in the builder of the FIB.

mod check;
mod comparison;
mod context;
mod error;
mod family;
mod fib_info;
mod filtering;
mod interfaces;
mod ipsec;
mod linux_fib;
mod linux_only;
mod linux_routes;
mod memory;
mod neighbor_use;
mod own_gateways;
mod pending;
mod settings;
pub(crate) mod show;
mod sources;
mod stages;
mod table;
mod targets;
mod view;

pub use comparison::Comparison;
pub use error::CompileError;
pub use fib_info::{LinuxReason, RouteFamily};
pub use interfaces::Interfaces;
pub use ipsec::IpsecDevices;
pub(crate) use ipsec::IpsecFault;
pub(crate) use linux_only::{families_by_flow, leaves_by, rule_of};
pub use memory::{Anonymous, Memory};
pub use settings::{Choices, Options};
pub use show::Counts;
pub use targets::{FixedTarget, Target, Targets};
pub use view::Adjacency;

use crate::config::SourceRule;
use bm_fib::Fib;
use bm_fib::memory::Part;
use bm_fib::next_hop::NextHopWriter;
use bm_fib::published::{Published, Readers};
use bm_filter::{Filters, Flat};
use bm_forward::Lease as WorkerLease;
use bm_forward::filter::{RuleCounts, SourceRates};
use bm_forward::tables::{DoubtfulSources, Feasible, Settings, Tables, Vrf};
use bm_netlink::{Change, Family, Mirror};
use bm_wire::ReversePath;
use filtering::Filtering;
use linux_fib::LinuxFib;
use linux_only::{Enforced, FilteredInterfaces};
use own_gateways::OwnGateways;
use pending::PendingChanges;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use view::View;

/// Number of fib_infos without room that are tried again with each change.
const RETRIES: usize = 64;

/// Result of [`Compiler::apply`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Whether new [`Tables`] were published.
    pub published: bool,
    /// Number of FIB entries written.
    pub entries: usize,
}

/// The small parts of [`Tables`]; new tables are published when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PublishedState {
    interfaces: Arc<Interfaces>,
    local: (Vec<Ipv4Addr>, Vec<Ipv6Addr>),
    settings: Settings,
    /// Whether only Linux supports the routing rules of IPv4, and of IPv6.
    linux_only: [bool; 2],
    filters: Option<Arc<Filters>>,
    /// Packets that only Linux may handle, as far as rules describe them.
    linux_only_rules: Vec<Flat>,
    /// Families about whose packets Linux sends ICMP errors instead of us.
    linux_tells: [bool; 2],
    /// Sources besides the machine's addresses that Linux may refuse.
    doubtful: DoubtfulSources,
    /// Source checks, by our index of the interface.
    rules: Vec<SourceRule>,
    /// By port, whether workers filter its packets.
    worker_ports: Vec<bool>,
}

/// Compiles and publishes the tables for workers. There is one per process.
pub struct Compiler {
    readers: Readers,
    choices: Choices,
    /// Where tables are published.
    memory: Arc<dyn Memory>,
    /// The links of our ports.
    ports: Vec<Option<u32>>,
    /// Which links are IPsec interfaces, whose port comes after these.
    ipsec: Option<IpsecDevices>,
    /// A setting outside the mirror has changed.
    reshape: bool,
    state: PublishedState,
    filtering: Filtering,
    /// Packets that only Linux may handle: as set, and as far as there is room.
    enforced: Enforced,
    has_too_many_rules: bool,
    /// Whether there is a table of flows.
    flows: bool,
    /// Renewed by the watchdog; other threads end it while all packets are left to Linux.
    lease: Arc<WorkerLease>,
    /// Ports whose packets workers filter.
    worker_ports: Vec<bool>,
    /// State of workers' filters, once there are any.
    counts: Option<Arc<RuleCounts>>,
    rates: Option<Arc<SourceRates>>,
    targets: Targets,
    ipv4: family::Tables<u32>,
    ipv6: family::Tables<u128>,
    /// Neighbors that packets were sent to, as of the last query.
    used: BTreeSet<(u32, IpAddr)>,
    published: Arc<Published<Tables>>,
}

impl Compiler {
    /// Creates a compiler and publishes tables without interfaces and routes.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(readers: &Readers, options: Options) -> Result<Self, CompileError> {
        Self::new_in(readers, options, Arc::new(Anonymous))
    }

    /// Creates a compiler with next hops and tables of the main VRF in memory that others may read, too, and publishes
    /// tables without interfaces and routes.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new_in(
        readers: &Readers,
        options: Options,
        memory: Arc<dyn Memory>,
    ) -> Result<Self, CompileError> {
        let source = memory.source(Part::NextHops).map_err(CompileError::Memory)?;
        let (hops, buckets) = (options.next_hops, options.group_buckets.ilog2());
        let writer = NextHopWriter::with_room_in(hops, buckets, readers, &source);
        let targets = Targets::new(writer.map_err(CompileError::Memory)?).map_err(CompileError::NextHops)?;
        let state = PublishedState::default();
        let empty = tables(&state, Vec::new(), &targets);
        Ok(Self {
            readers: readers.clone(),
            choices: options.choices,
            memory,
            ports: Vec::new(),
            ipsec: None,
            reshape: false,
            state,
            filtering: Filtering::default(),
            enforced: Enforced::default(),
            has_too_many_rules: false,
            flows: false,
            lease: Arc::default(),
            worker_ports: Vec::new(),
            counts: None,
            rates: None,
            targets,
            ipv4: family::Tables::new(options.ipv4),
            ipv6: family::Tables::new(options.ipv6),
            used: BTreeSet::new(),
            published: Arc::new(Published::new(empty, readers)),
        })
    }

    /// The tables that workers and the slow path load.
    pub fn published(&self) -> &Arc<Published<Tables>> {
        &self.published
    }

    /// Sets the links of our ports, by port index; `None` for a port without one. Takes effect with the next
    /// [`Self::apply`].
    pub fn set_ports(&mut self, ports: Vec<Option<u32>>) {
        self.reshape |= self.ports != ports;
        self.ports = ports;
    }

    /// Sets the choices of the configuration. Takes effect with the next [`Self::apply`].
    pub fn set_choices(&mut self, choices: Choices) {
        self.reshape |= self.choices != choices;
        self.choices = choices;
    }

    /// The choices of the configuration.
    pub fn choices(&self) -> &Choices {
        &self.choices
    }

    /// Our interfaces.
    pub fn interfaces(&self) -> &Arc<Interfaces> {
        &self.state.interfaces
    }

    /// Addresses of this machine.
    pub fn local(&self) -> (&[Ipv4Addr], &[Ipv6Addr]) {
        (&self.state.local.0, &self.state.local.1)
    }

    /// The settings of the kernel.
    pub fn settings(&self) -> &Settings {
        &self.state.settings
    }

    /// Whether only Linux supports the routing rules of IPv4, and of IPv6.
    pub fn linux_only(&self) -> [bool; 2] {
        self.state.linux_only
    }

    /// Number of entries left to Linux because there is no room; some are tried again with each [`Self::apply`].
    pub fn without_room(&self) -> usize {
        let [four, six] = [self.ipv4.size(), self.ipv6.size()];
        let fib_infos = self.ipv4.shared.fib_infos.without_room() + self.ipv6.shared.fib_infos.without_room();
        four.refused + six.refused + four.without_next_hop + six.without_next_hop + fib_infos
    }

    /// Next hops and groups.
    pub fn targets(&mut self) -> &mut Targets {
        &mut self.targets
    }

    /// Updates everything for `changes` of `mirror`.
    ///
    /// # Errors
    /// If there is no memory for a table. The published tables stay; the next call must be given
    /// [`Change::Everything`].
    pub fn apply(&mut self, mirror: &Mirror, changes: &[Change]) -> Result<Report, CompileError> {
        // 1
        let mut pending = PendingChanges::from_changes(changes);
        // Routes to this machine may cover more than its addresses, sources as well as gateways.
        pending.shape |= !pending.ipv4.routes.is_empty()
            && (settings::doubtful(mirror) != self.state.doubtful
                || self.state.interfaces.own_gateways.are_outdated(mirror));
        // 2
        let vrfs = self.vrfs(mirror);
        let reshaped = self.update_interfaces(mirror, &vrfs, &mut pending);
        // 3, 4
        self.prepare_filters().map_err(CompileError::Filters)?;
        let mut replaced = self.replaced(pending.everything);
        // 5, 6
        let interfaces = Arc::clone(&self.state.interfaces);
        let view = View { mirror, interfaces: &interfaces };
        self.refresh_targets(view, &pending, reshaped.moved);
        self.ipv4.update_fib_infos(view, &mut self.targets, pending.moves_bodies(), &mut pending.ipv4);
        self.ipv6.update_fib_infos(view, &mut self.targets, pending.moves_bodies(), &mut pending.ipv6);
        // 7
        let remade = match self.rebuild(view, &vrfs, &mut replaced) {
            Ok(remade) => remade,
            Err(why) => {
                // The published tables still use these: they are swept once others are published.
                replaced.release(&mut self.targets);
                return Err(why);
            }
        };
        // 8: before any route or next hop can use an interface that workers do not know yet.
        let published = reshaped.state || remade;
        if published {
            self.published.publish(self.tables(&vrfs));
        }
        // 9, 10
        let all = reshaped.moved || remade;
        let neighbors4 = self.ipv4.note_neighbors(view, &pending, all);
        let neighbors6 = self.ipv6.note_neighbors(view, &pending, all);
        let entries = self.ipv4.refresh(view, &mut self.targets, &pending.ipv4, &neighbors4)
            + self.ipv6.refresh(view, &mut self.targets, &pending.ipv6, &neighbors6);
        // 11: no published table uses these any more.
        replaced.release(&mut self.targets);
        self.targets.sweep();
        self.published.reclaim();
        Ok(Report { published, entries })
    }

    /// Takes out all tables to create them again; empty if there are none.
    fn replaced(&mut self, everything: bool) -> ReplacedTables {
        let (ipv4, ipv6) = match everything {
            true => (self.ipv4.take(), self.ipv6.take()),
            false => (self.ipv4.fresh(), self.ipv6.fresh()),
        };
        ReplacedTables { all: (ipv4, ipv6), ipv4: Vec::new(), ipv6: Vec::new() }
    }

    /// Creates missing tables and those with changed stages; returns whether there were any. The tables that they replace
    /// are in `replaced`, also on errors.
    fn rebuild(
        &mut self,
        view: View<'_>,
        vrfs: &BTreeSet<Option<u32>>,
        replaced: &mut ReplacedTables,
    ) -> Result<bool, CompileError> {
        let tables = family::TableMemory { readers: &self.readers, memory: &*self.memory };
        let feasible = self.choices.feasible;
        let ipv4 = self.ipv4.rebuild(view, &mut self.targets, vrfs, &tables, feasible, &mut replaced.ipv4);
        let ipv4 = ipv4.map_err(CompileError::Ipv4)?;
        let ipv6 = self.ipv6.rebuild(view, &mut self.targets, vrfs, &tables, feasible, &mut replaced.ipv6);
        Ok(ipv6.map_err(CompileError::Ipv6)? || ipv4)
    }

    /// Whether only Linux supports the routing rules of a family.
    fn is_left_to_linux<A: RouteFamily>(&self) -> bool {
        let [ipv4, ipv6] = self.state.linux_only;
        if A::FAMILY == Family::V4 { ipv4 } else { ipv6 }
    }

    /// Updates interfaces, addresses and settings. Links that became ours, or are no longer, are
    /// added to `pending`.
    fn update_interfaces(
        &mut self,
        mirror: &Mirror,
        vrfs: &BTreeSet<Option<u32>>,
        pending: &mut PendingChanges,
    ) -> InterfaceChanges {
        if !(pending.everything || pending.shape || std::mem::take(&mut self.reshape)) {
            return InterfaceChanges::default();
        }
        let FilteredInterfaces { mut interfaces, rules: linux_only_rules, filters } =
            self.interfaces_and_filters(mirror, vrfs);
        let local = settings::local(mirror);
        let before = &self.state.interfaces.own_gateways;
        interfaces.own_gateways = OwnGateways::now(mirror, &local.0, before, self.targets.gateways());
        pending.neighbors.extend(interfaces.own_gateways.new_since(before, self.targets.gateways()));
        let now = PublishedState {
            filters,
            linux_only_rules,
            linux_tells: self.enforced.errors(),
            doubtful: settings::doubtful(mirror),
            rules: interfaces.list.iter().map(|own| self.filtering.source_rule(own.port)).collect(),
            worker_ports: self.worker_ports.clone(),
            local,
            settings: settings::settings(mirror, &self.choices),
            linux_only: Family::BOTH.map(|family| stages::is_left_to_linux(mirror, family)),
            interfaces: Arc::new(interfaces),
        };
        let (before, after) = (&self.state.interfaces, &now.interfaces);
        let mut moved = false;
        for ifindex in before.ifindices().chain(after.ifindices()) {
            let has_moved = before.index_of(ifindex) != after.index_of(ifindex);
            let [was, is] = [before, after].map(|interfaces| interfaces.by_ifindex(ifindex));
            let sends_otherwise = was.map(|own| (own.linux_only_out, own.if_id))
                != is.map(|own| (own.linux_only_out, own.if_id));
            if has_moved || sends_otherwise {
                pending.links.insert(ifindex);
            }
            moved |= has_moved || was.map(|own| own.vrf) != is.map(|own| own.vrf);
        }
        for (index, family) in Family::BOTH.iter().enumerate() {
            match (self.state.linux_only[index], now.linux_only[index]) {
                (false, true) => tracing::warn!(
                    "{family} is left to Linux: its routing rules match more than the destination, or there are none"
                ),
                (true, false) => tracing::info!("{family} is forwarded by brickmoon again: rules allow it"),
                _ => {}
            }
        }
        let state = now != self.state;
        self.state = now;
        InterfaceChanges { state, moved }
    }

    fn refresh_targets(&mut self, view: View<'_>, pending: &PendingChanges, moved: bool) {
        if pending.everything || pending.settings || moved {
            self.targets.refresh_all(view);
            return;
        }
        pending.links.iter().for_each(|ifindex| self.targets.refresh_link(view, *ifindex));
        pending.objects.iter().for_each(|id| self.targets.refresh_object(view, *id));
        for (ifindex, address) in &pending.neighbors {
            self.targets.refresh_neighbor(view, *ifindex, *address);
        }
        self.targets.retry(view);
    }

    fn tables(&self, vrfs: &BTreeSet<Option<u32>>) -> Tables {
        // Without such tables for one VRF there are none for those after it.
        let feasible = vrfs.iter().map_while(|vrf| {
            let (ipv4, ipv6) = (self.ipv4.vrfs.get(vrf)?.sources()?, self.ipv6.vrfs.get(vrf)?.sources()?);
            Some(Feasible { ipv4: ipv4.reader(), ipv6: ipv6.reader() })
        });
        let vrf_tables = vrfs.iter().map(|vrf| self.vrf_tables(*vrf)).collect();
        let mut tables = tables(&self.state, vrf_tables, &self.targets);
        tables.lease = Arc::clone(&self.lease);
        tables.with_feasible(feasible.collect()).with_filters(self.filter_set())
    }

    fn vrf_tables(&self, vrf: Option<u32>) -> Vrf {
        let [host, local] =
            [FixedTarget::Host, FixedTarget::Local].map(|fixed| self.targets.hop(fixed.target()));
        let [linux4, linux6] = self.state.linux_only;
        let ipv4: Arc<dyn Fib<Address = u32>> = match self.ipv4.vrfs.get(&vrf) {
            Some(table) if !linux4 => table.fib().reader(),
            table => LinuxFib::over(table.map(|table| table.fib().reader()), [host, local]),
        };
        let ipv6: Arc<dyn Fib<Address = u128>> = match self.ipv6.vrfs.get(&vrf) {
            Some(table) if !linux6 => table.fib().reader(),
            table => LinuxFib::over(table.map(|table| table.fib().reader()), [host, local]),
        };
        Vrf { ipv4, ipv6 }
    }
}

/// Replaced tables. Workers read them until new ones are published.
struct ReplacedTables {
    all: (family::Tables<u32>, family::Tables<u128>),
    ipv4: Vec<table::Table<u32>>,
    ipv6: Vec<table::Table<u128>>,
}

impl ReplacedTables {
    /// Releases what they hold.
    fn release(&mut self, targets: &mut Targets) {
        self.all.0.release(targets);
        self.all.1.release(targets);
        self.ipv4.iter_mut().for_each(|table| table.release(targets));
        self.ipv6.iter_mut().for_each(|table| table.release(targets));
    }
}

/// Result of [`Compiler::update_interfaces`].
#[derive(Clone, Copy, Default)]
struct InterfaceChanges {
    /// The published state must change.
    state: bool,
    /// Interfaces were added or removed, or changed their VRF.
    moved: bool,
}

fn tables(state: &PublishedState, vrfs: Vec<Vrf>, targets: &Targets) -> Tables {
    let PublishedState { interfaces, local, settings, .. } = state.clone();
    let (mut list, ports) = (interfaces.list.clone(), interfaces.ports.clone());
    for (interface, rule) in list.iter_mut().zip(&state.rules) {
        if *rule != SourceRule::Kernel {
            interface.reverse_path = ReversePath::Off;
        }
    }
    let mut tables = Tables::new(vrfs, list, ports, Arc::clone(targets.table()), local, settings);
    tables.linux_tells = state.linux_tells;
    tables.with_doubtful_sources(&state.doubtful)
}

#[cfg(test)]
mod tests;
