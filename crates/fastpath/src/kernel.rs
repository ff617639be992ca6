//! The kernel path as a whole: its maps, its program, the interfaces that it is on.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use bm_fib::memory::{Part, Source};
use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder, ProgramInput, ProgramMut};

use crate::attach::{self, Attached};
use crate::counters::Counters;
use crate::error::KernelError;
use crate::grace;
use crate::layout::{self, FIB4_ROOMS, FIB6_ROOMS, HOPS_ROOMS, View, Views};
use crate::maps::{self, MappedViews};
use crate::situation::Situation;

/// The program, as the build made it.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/forward.bpf.o"));

/// The maps of tables that one program reads.
struct Tables {
    hops: MapHandle,
    fib4: MapHandle,
    fib6: MapHandle,
}

/// The kernel path.
pub struct Kernel {
    tables: Tables,
    /// Tables made since the program was loaded.
    newer: [Option<MapHandle>; 3],
    views: MapHandle,
    mapped: MappedViews,
    counts: MapHandle,
    object: Object,
    attached: Vec<Attached>,
    /// What the program goes by now.
    view: Box<View>,
}

impl Kernel {
    /// The program, loaded with empty tables and on no interface. After `grace` without [`Self::beat`] it
    /// leaves everything to Linux; zero is never.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn load(grace: Duration) -> Result<Self, KernelError> {
        let failed = KernelError::program("making its maps");
        let tables = Tables {
            hops: table(Part::NextHops).map_err(&failed)?,
            fib4: table(Part::Ipv4).map_err(&failed)?,
            fib6: table(Part::Ipv6).map_err(&failed)?,
        };
        let views = maps::create("views", size_of::<Views>()).map_err(&failed)?;
        let mapped = MappedViews::map(&views).map_err(KernelError::system("mapping its tables"))?;
        // Linux counts a hundred to a thousand jiffies a second; the grace is at least what was asked for.
        let jiffies = grace.as_millis().min(u128::from(u32::MAX)) as u32;
        mapped.head().grace_jiffies.store(jiffies, Relaxed);
        let object = object(&tables, &views, None)?;
        let counts = find(&object, "counts")?;
        let mut kernel = Self {
            tables,
            newer: [None, None, None],
            views,
            mapped,
            counts,
            object,
            attached: Vec::new(),
            view: View::empty(),
        };
        kernel.beat()?;
        Ok(kernel)
    }

    /// Memory for a new table, which the program reads from the next [`Self::publish`] on: next hops, routes of
    /// IPv4 as [`bm_fib::Chunk16`], routes of IPv6 as [`bm_fib::Range6`].
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn source(&mut self, part: Part) -> io::Result<Source> {
        let map = table(part).map_err(|error| io::Error::other(error.to_string()))?;
        let source = Source::laid_out(&map.as_fd(), rooms(part))?;
        self.newer[part as usize] = Some(map);
        Ok(source)
    }

    /// Puts the program on an interface; whether the kernel runs it behind the driver (generic mode). Nothing
    /// is forwarded from there before [`Self::publish`] says so.
    ///
    /// # Errors
    /// If there is no such interface, or the kernel refused.
    pub fn attach(&mut self, interface: &str) -> Result<(u32, bool), KernelError> {
        let attached = attach::attach(interface, &program(&mut self.object, "forward"))?;
        let found = (attached.ifindex, attached.generic);
        self.attached.push(attached);
        Ok(found)
    }

    /// Takes the program off all interfaces.
    pub fn detach(&mut self) {
        self.attached.clear();
    }

    /// Whether frames can be sent through an interface of ours.
    pub fn sends_through(&self, ifindex: u32) -> bool {
        attach::takes_frames(ifindex)
    }

    /// Has the program go by `situation`, and by the tables made since the last time.
    ///
    /// Each packet meets what was there before or all that is there now. Takes a grace period, about 10 ms,
    /// where something has changed.
    ///
    /// # Errors
    /// What the kernel refused: then the program goes by what was there before.
    pub fn publish(&mut self, situation: &Situation) -> Result<(), KernelError> {
        let view = situation.view();
        if self.newer.iter().any(Option::is_some) {
            self.renew()?;
        }
        if *view != *self.view {
            grace::wait().map_err(KernelError::system("waiting for packets in the program"))?;
            let next = self.mapped.head().current.load(Relaxed) ^ 1;
            self.mapped.write(next as usize & 1, &view);
            self.mapped.head().current.store(next, Release);
            self.view = view;
        }
        Ok(())
    }

    /// Loads a program that reads the newer tables, and switches all interfaces over to it.
    fn renew(&mut self) -> Result<(), KernelError> {
        let [hops, fib4, fib6] = &self.newer;
        let clone =
            |newer: &Option<MapHandle>, old: &MapHandle| MapHandle::try_from(newer.as_ref().unwrap_or(old));
        let failed = KernelError::program("taking its maps over");
        let tables = Tables {
            hops: clone(hops, &self.tables.hops).map_err(&failed)?,
            fib4: clone(fib4, &self.tables.fib4).map_err(&failed)?,
            fib6: clone(fib6, &self.tables.fib6).map_err(&failed)?,
        };
        let mut object = object(&tables, &self.views, Some(&self.counts))?;
        let forward = program(&mut object, "forward");
        for attached in &mut self.attached {
            // An interface that is gone has no program any more.
            if let Err(error) = attached.link.update_prog(&forward)
                && attach::exists(attached.ifindex)
            {
                return Err(KernelError::Program { step: "switching an interface to new tables", error });
            }
        }
        self.newer = [None, None, None];
        self.object = object;
        self.tables = tables;
        Ok(())
    }

    /// Says that the tables are good for another grace time.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn beat(&mut self) -> Result<(), KernelError> {
        let failed = KernelError::program("renewing its grace");
        let beat = program(&mut self.object, "beat");
        beat.test_run(ProgramInput::default()).map(drop).map_err(failed)
    }

    /// What became of the frames that came in on the interface that next hops call `index`.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn counters(&self, index: u16) -> Result<Counters, KernelError> {
        Counters::read(&self.counts, index).map_err(KernelError::program("reading its counters"))
    }
}

fn rooms(part: Part) -> &'static [usize] {
    match part {
        Part::NextHops => &HOPS_ROOMS,
        Part::Ipv4 => &FIB4_ROOMS,
        Part::Ipv6 => &FIB6_ROOMS,
    }
}

fn table(part: Part) -> libbpf_rs::Result<MapHandle> {
    let name = match part {
        Part::NextHops => "hops",
        Part::Ipv4 => "fib4",
        Part::Ipv6 => "fib6",
    };
    maps::create(name, layout::bytes(rooms(part)))
}

/// The program, loaded over these maps.
fn object(tables: &Tables, views: &MapHandle, counts: Option<&MapHandle>) -> Result<Object, KernelError> {
    let failed = KernelError::program("loading the program");
    let mut builder = ObjectBuilder::default();
    let mut open = builder.open_memory(OBJECT).map_err(&failed)?;
    for mut map in open.maps_mut() {
        let shared = match map.name().to_str() {
            Some("hops") => Some(&tables.hops),
            Some("fib4") => Some(&tables.fib4),
            Some("fib6") => Some(&tables.fib6),
            Some("views") => Some(views),
            Some("counts") => counts,
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
    MapHandle::try_from(&map).map_err(KernelError::program("finding its maps"))
}

fn program<'o>(object: &'o mut Object, name: &str) -> ProgramMut<'o> {
    object.progs_mut().find(|program| program.name() == name).expect("the object has this program")
}

#[cfg(test)]
mod tests;
