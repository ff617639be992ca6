//! The kernel path as a whole: its maps, its program, and the interfaces it is attached to.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use bm_bpf::{AttachType, PinnedLink};
use bm_fib::memory::{Part, Source};
use libbpf_rs::{MapHandle, Object};

use crate::attach::{self, AttachedInterface};
use crate::claims::Claims;
use crate::configuration::Configuration;
use crate::counters::Counters;
use crate::error::KernelError;
use crate::filters::FilterMaps;
use crate::grace;
use crate::jiffies::jiffies;
use crate::layout::{
    self, FIB4_ROOMS, FIB6_ROOMS, HOPS_ROOMS, INGRESSES, INTERFACES, SOURCES4_ROOMS, SOURCES6_ROOMS, View,
    Views,
};
use crate::maps::{self, MappedViews};
use crate::unresolved::{self, UnresolvedReader};
use bm_bpf::Pins;

/// The maps with the tables that one program reads.
struct Tables {
    hops: MapHandle,
    fib4: MapHandle,
    fib6: MapHandle,
    /// The feasible reverse paths of both families, where filters need them.
    sources: Option<[MapHandle; 2]>,
}

/// The kernel path.
pub struct Kernel {
    tables: Tables,
    /// Tables created since the program was loaded.
    newer: [Option<MapHandle>; 5],
    views: MapHandle,
    mapped: MappedViews,
    counts: MapHandle,
    /// Counts what was dropped on interfaces whose filters were not in place.
    held: MapHandle,
    /// Next hops without a MAC address that packets were for.
    unresolved: MapHandle,
    /// The filters' maps, if there are filters.
    filters: Option<FilterMaps>,
    /// The sockets of workers, if packets may be claimed for them.
    claims: Option<(MapHandle, u32)>,
    /// The table of flows and what belongs to it, if packets may be forwarded by flow; and whether the program does.
    flows: Option<FlowMaps>,
    by_flow: bool,
    /// Whether the program handles VLAN tags.
    tags: bool,
    /// One frame in so many is sampled; 0 for none.
    sample_one_in: u32,
    object: Object,
    /// The program for tc, with the same maps, once an interface has needed it.
    tc: Option<Object>,
    attached: Vec<AttachedInterface>,
    /// Links of an earlier daemon that no port has taken over.
    left: Vec<PinnedLink>,
    /// The small tables that the program uses now.
    view: Box<View>,
    /// Interfaces that found no place in it, by their index in Linux.
    without_slot: Vec<u32>,
    grace: Duration,
    /// Dropped last: it releases the folder.
    pins: Option<Pins>,
}

impl Kernel {
    /// Loads the program with empty tables, attached to no interface. If [`Self::beat`] is not called for the time
    /// `grace`, it leaves everything to Linux; zero means never.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn load(grace: Duration) -> Result<Self, KernelError> {
        let failed = bm_bpf::Error::program("creating the maps");
        let tables = Tables {
            hops: table(Part::NextHops).map_err(&failed)?,
            fib4: table(Part::Ipv4).map_err(&failed)?,
            fib6: table(Part::Ipv6).map_err(&failed)?,
            sources: None,
        };
        let views = maps::create("views", size_of::<Views>()).map_err(&failed)?;
        let unresolved = unresolved::create().map_err(&failed)?;
        let mapped =
            MappedViews::map(&views).map_err(bm_bpf::Error::system("mapping the tables into memory"))?;
        mapped.head().grace_jiffies.store(jiffies(grace), Relaxed);
        let object = object::load(
            AttachType::Xdp,
            With {
                tables: &tables,
                views: &views,
                unresolved: &unresolved,
                counts: None,
                filters: None,
                claims: None,
                flows: None,
                tags: false,
                sample_one_in: 0,
            },
        )?;
        let (counts, held) = (find(&object, "counts")?, find(&object, hold::MAP)?);
        let mut kernel = Self {
            tables,
            newer: [const { None }; 5],
            views,
            mapped,
            counts,
            held,
            unresolved,
            filters: None,
            claims: None,
            flows: None,
            by_flow: false,
            tags: false,
            sample_one_in: 0,
            object,
            tc: None,
            attached: Vec::new(),
            left: Vec::new(),
            pins: None,
            grace,
            view: View::empty(),
            without_slot: Vec::new(),
        };
        kernel.beat()?;
        Ok(kernel)
    }

    /// Pins the program where [`Self::attach`] attaches it from now on: there it survives a crash, and stays if
    /// [`Self::keep`] was called. Links that are already pinned are adopted.
    pub fn pinned(mut self, pins: Pins) -> Self {
        self.left = pins.links();
        self.pins = Some(pins);
        self
    }

    /// How long the program forwards without [`Self::beat`]; zero means forever.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// Memory for a new table, which the program reads from the next [`Self::publish`] on: next hops, IPv4 routes as
    /// [`bm_fib::Chunk17`], IPv6 routes as [`bm_fib::Range6`]; feasible reverse paths likewise, followed by their
    /// sets ([`bm_fib::sets::SetWriter`]).
    ///
    /// # Errors
    /// The kernel's error.
    pub fn source(&mut self, part: Part) -> io::Result<Source> {
        let map = table(part).map_err(|error| io::Error::other(error.to_string()))?;
        let source = Source::laid_out(&map.as_fd(), capacities(part))?;
        self.newer[part as usize] = Some(map);
        Ok(source)
    }

    /// Allows packets to be claimed for workers by filters; returns where their sockets are registered. Larger frames than
    /// `frame_max` bytes are left to Linux, since AF_XDP would drop them. To be called before the first [`Self::publish`].
    ///
    /// # Errors
    /// The kernel's error.
    pub fn take_claims(&mut self, frame_max: u32) -> Result<Claims, KernelError> {
        let failed = bm_bpf::Error::program("creating the map of workers' sockets");
        let map = Claims::create().map_err(&failed)?;
        self.claims = Some((map.handle().map_err(&failed)?, frame_max));
        Ok(map)
    }

    /// Reads which next hops without a MAC address packets were for, on interfaces that report them.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn unresolved(&self) -> Result<UnresolvedReader, KernelError> {
        let failed = bm_bpf::Error::program("mapping the ring of next hops without a MAC address");
        Ok(UnresolvedReader::open(&self.unresolved).map_err(failed)?)
    }

    /// Whether frames can be sent through an interface of the kernel path.
    pub fn can_send_through(&self, ifindex: u32) -> bool {
        attach::takes_frames(ifindex)
    }

    /// Whether senders on an interface may leave checksums to a device that does not exist, as on a veth.
    pub fn may_leave_checksums(&self, ifindex: u32) -> bool {
        attach::may_leave_checksums(ifindex)
    }

    /// Makes the program use `configuration`, and the tables created since the last call.
    ///
    /// Each packet is handled either with the old state or entirely with the new one. Takes a grace period, about 10
    /// ms, if anything has changed.
    ///
    /// # Errors
    /// The kernel's error: the program then keeps using the old state.
    pub fn publish(&mut self, configuration: &Configuration) -> Result<(), KernelError> {
        let view = configuration.view();
        self.without_slot = configuration.without_slot();
        let filters = self.filters_for(configuration)?;
        let feasible = configuration.feasible && configuration.filters.is_some();
        if filters.is_some()
            || configuration.has_tags() != self.tags
            || feasible != self.tables.sources.is_some()
            || configuration.sample_one_in != self.sample_one_in
            || self.takes_flows(configuration) != self.by_flow
            || self.newer.iter().any(Option::is_some)
        {
            self.renew(filters, configuration, feasible)?;
        }
        self.apply_filters(configuration)?;
        if *view != *self.view {
            grace::wait()
                .map_err(bm_bpf::Error::system("waiting for packets that are still in the program"))?;
            let next = self.mapped.head().current.load(Relaxed) ^ 1;
            self.mapped.write(next as usize & 1, &view);
            self.mapped.head().current.store(next, Release);
            self.view = view;
        }
        self.observe(configuration)
    }

    /// Loads a program that reads the newer tables, with filters if `filters` says so, and switches all interfaces to
    /// it.
    fn renew(
        &mut self,
        filters: Option<Option<FilterMaps>>,
        configuration: &Configuration,
        feasible: bool,
    ) -> Result<(), KernelError> {
        let by_flow = self.takes_flows(configuration);
        let [hops, fib4, fib6, ..] = &self.newer;
        let clone =
            |newer: &Option<MapHandle>, old: &MapHandle| MapHandle::try_from(newer.as_ref().unwrap_or(old));
        let failed = bm_bpf::Error::program("reopening the maps");
        let tables = Tables {
            hops: clone(hops, &self.tables.hops).map_err(&failed)?,
            fib4: clone(fib4, &self.tables.fib4).map_err(&failed)?,
            fib6: clone(fib6, &self.tables.fib6).map_err(&failed)?,
            sources: if feasible { self.sources().map_err(&failed)? } else { None },
        };
        let with = With {
            tables: &tables,
            views: &self.views,
            unresolved: &self.unresolved,
            counts: Some([&self.counts, &self.held]),
            filters: filters.as_ref().unwrap_or(&self.filters).as_ref(),
            claims: self.claims.as_ref().map(|(map, frame_max)| (map, *frame_max)),
            flows: self.flows.as_ref().filter(|_| by_flow),
            tags: configuration.has_tags(),
            sample_one_in: configuration.sample_one_in,
        };
        let mut object = object::load(AttachType::Xdp, with)?;
        // Each takes up to some hundred milliseconds.
        bm_sys::heartbeat::beat();
        let at_tc = self.attached.iter().any(|attached| attached.attach_type == AttachType::Tc);
        let mut tc = at_tc.then(|| object::load(AttachType::Tc, with)).transpose()?;
        bm_sys::heartbeat::beat();
        for attached in self.attached.iter_mut().filter(|attached| !attached.waits && attached.held.is_none())
        {
            let of_it = match attached.attach_type {
                AttachType::Xdp => Some(&mut object),
                AttachType::Tc => tc.as_mut(),
            };
            if let Some(object) = of_it {
                switch(attached, &program(object, object::forwards(attached.attach_type)))?;
            }
        }
        self.newer = [const { None }; 5];
        (self.object, self.tc) = (object, tc);
        self.tables = tables;
        if let Some(filters) = filters {
            self.filters = filters;
        }
        (self.tags, self.sample_one_in) = (configuration.has_tags(), configuration.sample_one_in);
        self.by_flow = by_flow;
        Ok(())
    }

    /// The latest tables of feasible reverse paths; none before both have been created.
    fn sources(&self) -> libbpf_rs::Result<Option<[MapHandle; 2]>> {
        let [ipv4, ipv6] = [(Part::Sources4, 0), (Part::Sources6, 1)].map(|(part, old)| {
            let old = self.tables.sources.as_ref().map(|sources| &sources[old]);
            self.newer[part as usize].as_ref().or(old).map(MapHandle::try_from).transpose()
        });
        let both = ipv4?.zip(ipv6?);
        Ok(both.map(|(ipv4, ipv6)| [ipv4, ipv6]))
    }

    /// Interfaces with the program where it does not see all packets, or does not know the interface, so that no filter
    /// applies: by their index in Linux, and why.
    pub fn uncovered(&self) -> BTreeMap<u32, String> {
        let uncovered = self.attached.iter().filter_map(|attached| {
            let ifindex = attached.ifindex;
            let no_slot = self.without_slot.contains(&ifindex).then(|| {
                format!(
                    "the kernel path has no room for it: it holds {INTERFACES} interfaces, whose indices (`ip link`) must \
                     differ modulo {INGRESSES}; this one has {ifindex}"
                )
            });
            Some((ifindex, no_slot.or_else(|| attached.why_not_first())?))
        });
        uncovered.collect()
    }

    /// The counters of the interface that next hops call `index`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn counters(&self, index: u16) -> Result<Counters, KernelError> {
        let counters = Counters::read(&self.counts, index.into());
        Ok(counters.map_err(bm_bpf::Error::program("reading the counters"))?.unwrap_or_default())
    }
}

fn capacities(part: Part) -> &'static [usize] {
    match part {
        Part::NextHops => &HOPS_ROOMS,
        Part::Ipv4 => &FIB4_ROOMS,
        Part::Ipv6 => &FIB6_ROOMS,
        Part::Sources4 => &SOURCES4_ROOMS,
        Part::Sources6 => &SOURCES6_ROOMS,
    }
}

fn table(part: Part) -> libbpf_rs::Result<MapHandle> {
    let name = match part {
        Part::NextHops => "hops",
        Part::Ipv4 => "fib4",
        Part::Ipv6 => "fib6",
        Part::Sources4 => "sources4",
        Part::Sources6 => "sources6",
    };
    maps::create(name, layout::bytes(capacities(part)))
}

mod adapt;
mod attended;
mod check;
mod filtering;
mod flows;
mod hold;
mod object;
mod outlive;
mod place;
mod trial;
use flows::FlowMaps;
use object::{With, find, program};
use place::switch;

pub use adapt::ChangedAttachment;
pub use flows::{FlowArea, why_no_flows};
pub(crate) use object::forwards;
pub use place::TakenOver;
pub use trial::Verdict;

#[cfg(test)]
mod tests;
