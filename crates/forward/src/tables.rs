//! What workers and the slow path read: everything that control knows, published as a whole.
//!
//! Control makes a new [`Tables`] when an interface, an address, a VRF or a setting changes; that is small. Routes
//! and next hops are behind `Arc`s in it and change in place (see `bm-fib`), so a table of a million routes is never
//! copied.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use bm_fib::Fib;
use bm_fib::memory::OutOfMemory;
use bm_fib::next_hop::NextHops;
use bm_fib::published::{Published, ReaderHandle, Readers};
use bm_fib::sets::InterfaceSets;
use bm_wire::Family;

use crate::compiled::WorkerTables;
use crate::filter::FilterSet;
use crate::lease::Lease;

pub use crate::interface::{
    DoubtfulSources, Interface, PortInterfaces, ReversePath, Settings, Vlan, ipsec_mac,
};

/// The current tables, for apps that read them: each registers as a reader.
#[derive(Clone)]
pub struct PublishedTables {
    pub published: Arc<Published<Tables>>,
    pub readers: Readers,
}

impl PublishedTables {
    /// The tables, and one more reader of them.
    pub fn register(&self) -> (Arc<Published<Tables>>, ReaderHandle) {
        (self.published.clone(), self.readers.register())
    }
}

/// Everything that the route of a packet depends on. Made by [`Tables::new`] and never changed.
pub struct Tables {
    /// Routing tables; 0 is the main one.
    pub vrfs: Vec<Vrf>,
    /// Logical interfaces, by the index that next hops use. An index does not change while the interface exists.
    pub interfaces: Vec<Interface>,
    /// Ports by index: which logical interfaces their frames belong to.
    pub ports: Vec<PortInterfaces>,
    /// The actions of next hops, for all VRFs. [`Gateway::interface`](bm_fib::next_hop::Gateway) is an index into
    /// [`Tables::interfaces`], and the destination of an on-link next hop (no address) gets a route of its own once
    /// its address is resolved.
    pub next_hops: Arc<NextHops>,
    /// Addresses of this machine: a packet with such a source is spoofed.
    pub local_ipv4: Vec<Ipv4Addr>,
    /// IPv6 addresses of this machine.
    pub local_ipv6: Vec<Ipv6Addr>,
    /// The kernel's settings.
    pub settings: Settings,
    /// Feasible reverse paths, by routing table; empty if they are not needed.
    pub feasible: Vec<Feasible>,
    /// The filters; `None` costs nothing.
    pub filters: Option<Arc<FilterSet>>,
    /// Until when packets may be forwarded with these tables; all are left to Linux afterwards.
    pub lease: Arc<Lease>,
    /// Linux sends ICMP errors about packets that cannot be forwarded, since it may have to change or drop the
    /// errors.
    ///
    /// By family, IPv4 first.
    pub linux_tells: [bool; 2],
    /// Sources besides this machine's addresses of which only Linux knows whether it refuses them.
    pub doubtful: DoubtfulSources,
    /// These tables, laid out for workers.
    pub(crate) compiled: WorkerTables,
}

impl Tables {
    /// Makes the tables in the form for workers, so that no worker ever has to.
    pub fn new(
        vrfs: Vec<Vrf>,
        interfaces: Vec<Interface>,
        ports: Vec<PortInterfaces>,
        next_hops: Arc<NextHops>,
        local: (Vec<Ipv4Addr>, Vec<Ipv6Addr>),
        settings: Settings,
    ) -> Self {
        let (local_ipv4, local_ipv6) = local;
        let compiled = WorkerTables::of(&interfaces, &ports, &local_ipv4, &settings);
        let (feasible, filters, linux_tells, lease) = (Vec::new(), None, [false; 2], Arc::default());
        Self {
            vrfs,
            interfaces,
            ports,
            next_hops,
            local_ipv4,
            local_ipv6,
            settings,
            feasible,
            filters,
            lease,
            linux_tells,
            doubtful: DoubtfulSources::default(),
            compiled,
        }
    }

    /// A copy with next hops of its own and other filters: whoever uses them leaves no trace in these.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn isolated(&self, filters: Option<FilterSet>) -> Result<Self, OutOfMemory> {
        let next_hops = Arc::new(self.next_hops.copied()?);
        let (vrfs, interfaces, ports) = (self.vrfs.clone(), self.interfaces.clone(), self.ports.clone());
        let local = (self.local_ipv4.clone(), self.local_ipv6.clone());
        let mut isolated = Self::new(vrfs, interfaces, ports, next_hops, local, self.settings.clone());
        isolated.lease = Arc::clone(&self.lease);
        isolated.linux_tells = self.linux_tells;
        let isolated = isolated.with_doubtful_sources(&self.doubtful);
        Ok(isolated.with_feasible(self.feasible.clone()).with_filters(filters.map(Arc::new)))
    }

    /// Whether all packets are left to Linux for now.
    #[inline(always)]
    pub(crate) fn stand_aside(&self, now_ns: u64) -> bool {
        !self.lease.is_valid(now_ns)
    }

    /// Whether Linux sends the ICMP errors about packets of a family.
    pub(crate) fn linux_tells(&self, family: Family) -> bool {
        let [ipv4, ipv6] = self.linux_tells;
        if family == Family::V4 { ipv4 } else { ipv6 }
    }

    /// These tables, with more sources that are checked closely.
    #[must_use]
    pub fn with_doubtful_sources(mut self, doubtful: &DoubtfulSources) -> Self {
        self.compiled.local.doubt(doubtful);
        self.doubtful = doubtful.clone();
        self
    }

    /// These tables, with filters ahead of everything.
    #[must_use]
    pub fn with_filters(mut self, filters: Option<Arc<FilterSet>>) -> Self {
        self.filters = filters;
        self
    }

    /// These tables, with feasible reverse paths.
    #[must_use]
    pub fn with_feasible(mut self, feasible: Vec<Feasible>) -> Self {
        self.feasible = feasible;
        self
    }
}

/// One routing table.
#[derive(Clone)]
pub struct Vrf {
    /// Longest-prefix match for IPv4.
    pub ipv4: Arc<dyn Fib<Address = u32>>,
    /// Longest-prefix match for IPv6.
    pub ipv6: Arc<dyn Fib<Address = u128>>,
}

/// The interfaces on which the sources of one routing table may arrive besides the best path: feasible paths (RFC
/// 3704).
#[derive(Clone)]
pub struct Feasible {
    /// For IPv4: a lookup gives the number of a set of interfaces.
    pub ipv4: (Arc<dyn Fib<Address = u32>>, Arc<InterfaceSets>),
    pub ipv6: (Arc<dyn Fib<Address = u128>>, Arc<InterfaceSets>),
}
