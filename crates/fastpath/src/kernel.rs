//! The kernel path as a whole: its maps, its program, and the interfaces it is attached to.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::{Duration, Instant};

use bm_bpf::PinnedLink;
use bm_fib::memory::{Part, Source};
use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder, ProgramMut};

use crate::attach::{self, Attached, Attachment};
use crate::claims::Claims;
use crate::counters::Counters;
use crate::error::KernelError;
use crate::filters::FilterMaps;
use crate::grace;
use crate::layout::{self, FIB4_ROOMS, FIB6_ROOMS, HOPS_ROOMS, SOURCES4_ROOMS, SOURCES6_ROOMS, View, Views};
use crate::maps::{self, MappedViews};
use crate::pins::{Pins, version_of};
use crate::situation::Situation;
use crate::tags;

/// The object file, made by the build script.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/forward.bpf.o"));

/// The name of the forwarding program in it.
pub(crate) const PROGRAM: &str = "bm_forward_5";

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
    /// The filters' maps, if there are filters.
    filters: Option<FilterMaps>,
    /// The sockets of workers, if packets may be claimed for them.
    claims: Option<MapHandle>,
    /// Whether the program handles VLAN tags.
    tags: bool,
    object: Object,
    attached: Vec<Attached>,
    /// Links of an earlier daemon that no port has taken over.
    left: Vec<PinnedLink>,
    /// The small tables that the program uses now.
    view: Box<View>,
    grace: Duration,
    /// Dropped last: it releases the folder.
    pins: Option<Pins>,
}

/// The result of [`Kernel::take_over`].
#[derive(Debug, Default)]
pub struct TakenOver {
    /// The number of interfaces that were switched from an earlier daemon's program to this one.
    pub switched: usize,
    /// Interfaces that are no longer ports; Linux forwards for them.
    pub removed: Vec<String>,
    /// Pinned links whose program is not brickmoon's, with the program's name: they are left alone.
    pub foreign: Vec<(PathBuf, String)>,
}

impl Kernel {
    /// Loads the program with empty tables, attached to no interface. If [`Self::beat`] is not called for the time
    /// `grace`, it leaves everything to Linux; zero means never.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn load(grace: Duration) -> Result<Self, KernelError> {
        let failed = KernelError::program("creating the maps");
        let tables = Tables {
            hops: table(Part::NextHops).map_err(&failed)?,
            fib4: table(Part::Ipv4).map_err(&failed)?,
            fib6: table(Part::Ipv6).map_err(&failed)?,
            sources: None,
        };
        let views = maps::create("views", size_of::<Views>()).map_err(&failed)?;
        let mapped =
            MappedViews::map(&views).map_err(KernelError::system("mapping the tables into memory"))?;
        let jiffies =
            attended::jiffies(grace).map_err(KernelError::system("finding the length of a jiffy"))?;
        mapped.head().grace_jiffies.store(jiffies, Relaxed);
        let object = object(&tables, &views, None, None, None, false)?;
        let (counts, held) = (find(&object, "counts")?, find(&object, hold::MAP)?);
        let mut kernel = Self {
            tables,
            newer: [const { None }; 5],
            views,
            mapped,
            counts,
            held,
            filters: None,
            claims: None,
            tags: false,
            object,
            attached: Vec::new(),
            left: Vec::new(),
            pins: None,
            grace,
            view: View::empty(),
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

    /// How long the program forwards without [`Self::beat`]; zero means for ever.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// Memory for a new table, which the program reads from the next [`Self::publish`] on: next hops, IPv4 routes as
    /// [`bm_fib::Chunk17`], IPv6 routes as [`bm_fib::Range6`]; feasible reverse paths likewise, followed by their
    /// sets ([`bm_fib::sets::SetWriter`]).
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn source(&mut self, part: Part) -> io::Result<Source> {
        let map = table(part).map_err(|error| io::Error::other(error.to_string()))?;
        let source = Source::laid_out(&map.as_fd(), rooms(part))?;
        self.newer[part as usize] = Some(map);
        Ok(source)
    }

    /// Attaches the program to an interface, unless it is attached already. Nothing is forwarded from there before
    /// [`Self::publish`] says so.
    ///
    /// If an earlier daemon left its program there, that keeps forwarding with its own tables until
    /// [`Self::take_over`], whatever its layout version: it shares no map with this one.
    ///
    /// # Errors
    /// If there is no such interface, another program is attached to it, or the kernel refused.
    pub fn attach(&mut self, interface: &str) -> Result<Attachment, KernelError> {
        self.put_on(interface, false)
    }

    fn put_on(&mut self, interface: &str, held: bool) -> Result<Attachment, KernelError> {
        let ifindex = attach::ifindex(interface)?;
        // Entries of deleted interfaces would be in the way of a new one with the same index.
        self.attached.retain(Attached::is_live);
        if self.attached.iter().any(|attached| attached.ifindex == ifindex) {
            return Ok(Attachment { ifindex, generic: attach::is_generic(ifindex), adopted: None });
        }
        let on = attach::program_on(ifindex);
        let of_it = |pinned: &PinnedLink| pinned.ifindex == ifindex && Some(pinned.program.id) == on;
        let adopted = match self.left.iter().position(of_it) {
            Some(at) => Some(self.adopt(interface, at)?),
            None => {
                let name = if held { hold::PROGRAM } else { PROGRAM };
                let mut attached = attach::attach(interface, &program(&mut self.object, name))?;
                attached.held = held.then(Instant::now);
                if !held {
                    hold::pin(self.pins.as_ref(), &mut attached)?;
                }
                self.attached.push(attached);
                None
            }
        };
        Ok(Attachment { ifindex, generic: attach::is_generic(ifindex), adopted })
    }

    /// Detaches the program from all interfaces except these: Linux gets their packets from then on.
    pub fn detach_others(&mut self, keep: &[u32]) {
        self.attached.retain(|attached| keep.contains(&attached.ifindex) && attached.is_live());
    }

    /// Adopts a pinned link; returns the layout version of its program.
    fn adopt(&mut self, interface: &str, at: usize) -> Result<u32, KernelError> {
        let pinned = &self.left[at];
        let Some(version) = version_of(pinned) else {
            let (interface, path) = (interface.into(), pinned.path.clone());
            return Err(KernelError::Foreign { interface, path, program: pinned.program.name.clone() });
        };
        let PinnedLink { path, link, ifindex, .. } = self.left.swap_remove(at);
        // The earlier daemon did this already, and how it was before is unknown.
        let tags_kept = tags::keep(interface, true);
        self.attached.push(Attached {
            ifindex,
            link,
            pin: Some(path),
            waits: true,
            held: None,
            kept: false,
            tags_kept,
        });
        Ok(version)
    }

    /// Switches interfaces that an earlier daemon left from its program to this one, which must have its tables by
    /// now, and detaches its program from interfaces that are no longer ports. A repeated call does what is left to
    /// do.
    ///
    /// # Errors
    /// What the kernel refused. Interfaces that were not switched keep the earlier program.
    pub fn take_over(&mut self) -> Result<TakenOver, KernelError> {
        let mut done = TakenOver::default();
        let forward = program(&mut self.object, PROGRAM);
        for attached in self.attached.iter_mut().filter(|attached| attached.waits) {
            switch(attached, &forward)?;
            attached.waits = false;
            done.switched += 1;
            // The kernel waits for its devices with each of them.
            bm_heartbeat::beat();
        }
        for pinned in self.left.drain(..) {
            if version_of(&pinned).is_some() {
                done.removed.push(attach::name(pinned.ifindex));
                pinned.remove();
            } else {
                done.foreign.push((pinned.path, pinned.program.name));
            }
        }
        Ok(done)
    }

    /// Allows packets to be claimed for workers by filters; returns where their sockets are registered. To be called
    /// before the first [`Self::publish`].
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn take_claims(&mut self) -> Result<Claims, KernelError> {
        let failed = KernelError::program("creating the map of workers' sockets");
        let map = Claims::create().map_err(&failed)?;
        self.claims = Some(map.handle().map_err(&failed)?);
        Ok(map)
    }

    /// Whether frames can be sent through an interface of the kernel path.
    pub fn sends_through(&self, ifindex: u32) -> bool {
        attach::takes_frames(ifindex)
    }

    /// Makes the program use `situation`, and the tables created since the last call.
    ///
    /// Each packet is handled either with the old state or entirely with the new one. Takes a grace period, about 10
    /// ms, if anything has changed.
    ///
    /// # Errors
    /// What the kernel refused: the program then keeps using the old state.
    pub fn publish(&mut self, situation: &Situation) -> Result<(), KernelError> {
        let view = situation.view();
        let filters = self.filters_for(situation)?;
        let (tags, feasible) = (situation.has_tags(), situation.feasible && situation.filters.is_some());
        if filters.is_some()
            || tags != self.tags
            || feasible != self.tables.sources.is_some()
            || self.newer.iter().any(Option::is_some)
        {
            self.renew(filters, tags, feasible)?;
        }
        self.refilter(situation)?;
        if *view != *self.view {
            grace::wait()
                .map_err(KernelError::system("waiting for packets that are still in the program"))?;
            let next = self.mapped.head().current.load(Relaxed) ^ 1;
            self.mapped.write(next as usize & 1, &view);
            self.mapped.head().current.store(next, Release);
            self.view = view;
        }
        Ok(())
    }

    /// Loads a program that reads the newer tables, with filters if `filters` says so, and switches all interfaces to
    /// it.
    fn renew(
        &mut self,
        filters: Option<Option<FilterMaps>>,
        tags: bool,
        feasible: bool,
    ) -> Result<(), KernelError> {
        let [hops, fib4, fib6, ..] = &self.newer;
        let clone =
            |newer: &Option<MapHandle>, old: &MapHandle| MapHandle::try_from(newer.as_ref().unwrap_or(old));
        let failed = KernelError::program("reopening the maps");
        let tables = Tables {
            hops: clone(hops, &self.tables.hops).map_err(&failed)?,
            fib4: clone(fib4, &self.tables.fib4).map_err(&failed)?,
            fib6: clone(fib6, &self.tables.fib6).map_err(&failed)?,
            sources: if feasible { self.sources().map_err(&failed)? } else { None },
        };
        let with = filters.as_ref().unwrap_or(&self.filters).as_ref();
        let mut object =
            object(&tables, &self.views, Some([&self.counts, &self.held]), with, self.claims.as_ref(), tags)?;
        let forward = program(&mut object, PROGRAM);
        for attached in self.attached.iter_mut().filter(|attached| !attached.waits && attached.held.is_none())
        {
            switch(attached, &forward)?;
        }
        self.newer = [const { None }; 5];
        self.object = object;
        self.tables = tables;
        if let Some(filters) = filters {
            self.filters = filters;
        }
        self.tags = tags;
        Ok(())
    }

    /// The latest tables of feasible reverse paths; none before both have been created.
    fn sources(&self) -> libbpf_rs::Result<Option<[MapHandle; 2]>> {
        let latest = |part: Part, old: usize| {
            let old = self.tables.sources.as_ref().map(|sources| &sources[old]);
            self.newer[part as usize].as_ref().or(old).map(MapHandle::try_from).transpose()
        };
        let both = latest(Part::Sources4, 0)?.zip(latest(Part::Sources6, 1)?);
        Ok(both.map(|(ipv4, ipv6)| [ipv4, ipv6]))
    }

    /// The counters of the interface that next hops call `index`.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn counters(&self, index: u16) -> Result<Counters, KernelError> {
        Counters::read(&self.counts, index).map_err(KernelError::program("reading the counters"))
    }
}

/// Makes an interface run this program; a deleted interface runs none.
fn switch(attached: &mut Attached, forward: &ProgramMut<'_>) -> Result<(), KernelError> {
    match attached.link.update_prog(forward) {
        Err(error) if attached.is_live() => {
            Err(KernelError::Program { step: "switching an interface to new tables", error })
        }
        _ => Ok(()),
    }
}

fn rooms(part: Part) -> &'static [usize] {
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
    maps::create(name, layout::bytes(rooms(part)))
}

/// The parts of the object file that only a program with filters has.
const FILTER_MAPS: [&str; 3] = ["filters", "filter_counts", "filter_sources"];
/// The section that says whether the program filters.
const FILTERS_ON: &str = ".rodata.filters";
/// The section that says whether it handles VLAN tags.
const TAGS_ON: &str = ".rodata.tags";
/// The section that says whether it checks feasible reverse paths, and the maps that exist only then.
const FEASIBLE_ON: &str = ".rodata.feasible";
const SOURCE_MAPS: [&str; 2] = ["sources4", "sources6"];
/// The section that says whether packets may be claimed for workers, and the map that exists only then.
const CLAIMS_ON: &str = ".rodata.claims";
const CLAIMS_MAP: &str = "claims";

/// Loads the program with these maps.
fn object(
    tables: &Tables,
    views: &MapHandle,
    counts: Option<[&MapHandle; 2]>,
    filters: Option<&FilterMaps>,
    claims: Option<&MapHandle>,
    tags: bool,
) -> Result<Object, KernelError> {
    let failed = KernelError::program("loading the program");
    let mut builder = ObjectBuilder::default();
    let mut open = builder.open_memory(OBJECT).map_err(&failed)?;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let feasible = tables.sources.is_some();
        let claiming = claims.filter(|_| filters.is_some());
        let switches = [
            (FILTERS_ON, filters.is_some()),
            (TAGS_ON, tags),
            (FEASIBLE_ON, feasible),
            (CLAIMS_ON, claiming.is_some()),
        ];
        for (switch, on) in switches {
            if name == switch {
                map.set_initial_value(&u32::from(on).to_ne_bytes()).map_err(&failed)?;
            }
        }
        if filters.is_none() && FILTER_MAPS.contains(&name.as_str())
            || !feasible && SOURCE_MAPS.contains(&name.as_str())
            || claiming.is_none() && name == CLAIMS_MAP
        {
            map.set_autocreate(false).map_err(&failed)?;
        }
        let shared = match name.as_str() {
            ".bss.hops" => Some(&tables.hops),
            ".bss.fib4" => Some(&tables.fib4),
            ".bss.fib6" => Some(&tables.fib6),
            CLAIMS_MAP => claiming,
            "sources4" => tables.sources.as_ref().map(|[ipv4, _]| ipv4),
            "sources6" => tables.sources.as_ref().map(|[_, ipv6]| ipv6),
            ".bss.views" => Some(views),
            "counts" => counts.map(|[counts, _]| counts),
            hold::MAP => counts.map(|[_, held]| held),
            "filters" => filters.map(|maps| &maps.filters),
            "filter_counts" => filters.map(|maps| &maps.counts),
            "filter_sources" => filters.map(|maps| &maps.sources),
            _ => None,
        };
        if let Some(shared) = shared {
            map.reuse_fd(shared.as_fd()).map_err(&failed)?;
        }
    }
    open.load().map_err(&failed)
}

fn find(object: &Object, name: &str) -> Result<MapHandle, KernelError> {
    let map = object.maps().find(|map| map.name() == name).expect("the program has this map");
    MapHandle::try_from(&map).map_err(KernelError::program("finding the maps"))
}

fn program<'o>(object: &'o mut Object, name: &str) -> ProgramMut<'o> {
    object.progs_mut().find(|program| program.name() == name).expect("the object has this program")
}

mod attended;
mod check;
mod filtering;
mod hold;
mod outlive;
mod trial;
pub use trial::Verdict;

#[cfg(test)]
mod tests;
