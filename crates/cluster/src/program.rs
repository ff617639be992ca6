//! The program and its maps.

use std::os::fd::AsFd;

use bm_bpf::{MapValue, PinnedLink};
use bm_vlb::address::Node;
use bm_vlb::membership::Epoch;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, ProgramMut};

use crate::counters::Counters;
use crate::layout::{NO_EPOCH, Neighbor, Own, PROGRAM};
use crate::pins;

/// The object file with the program, made by the build script.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fabric.bpf.o"));
const MAPS: [&str; 6] = ["self", "links", "ports", "neighbors", "used", "counts"];

/// How many frames for Linux can wait on a CPU.
const WAITING_MAX: u32 = 2048;

/// The program and its maps.
pub struct Program {
    object: Object,
    own: MapHandle,
    links: MapHandle,
    ports: MapHandle,
    neighbors: MapHandle,
    used: MapHandle,
    counts: MapHandle,
    /// Whether the maps are those of an earlier daemon.
    pub inherited: bool,
}

impl Program {
    /// Loads the program without attaching it to an interface. Uses the maps of an earlier daemon's program if there is
    /// one with the same layout.
    pub fn load(earlier: &[PinnedLink]) -> Result<Self, bm_bpf::Error> {
        let failed = bm_bpf::Error::program("loading the fabric program");
        let mut builder = ObjectBuilder::default();
        let mut open = builder.open_memory(OBJECT).map_err(&failed)?;
        let mut inherited = false;
        let cpus = libbpf_rs::num_possible_cpus().map_err(&failed)?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name == "cpus" {
                map.set_max_entries(u32::try_from(cpus).unwrap_or(1)).map_err(&failed)?;
            }
            if !MAPS.contains(&name.as_str()) {
                continue;
            }
            let mut ours = earlier.iter().filter(|pinned| pins::is_ours(pinned));
            if let Some(map_before) = ours.find_map(|pinned| pins::map(pinned, &name)) {
                map.reuse_fd(map_before.as_fd()).map_err(&failed)?;
                inherited = true;
            }
        }
        let object = open.load().map_err(&failed)?;
        let find = |name| find(&object, name);
        Ok(Self {
            own: find("self")?,
            links: find("links")?,
            ports: find("ports")?,
            neighbors: find("neighbors")?,
            used: find("used")?,
            counts: find("counts")?,
            inherited,
            object,
        })
    }

    /// The program, for attaching it to fabric links.
    pub(crate) fn xdp_program(&mut self) -> ProgramMut<'_> {
        self.object
            .progs_mut()
            .find(|program| program.name() == PROGRAM)
            .expect("the object has this program")
    }

    /// Sets the number of this node and the epochs whose frames it accepts.
    pub fn set_own(&self, node: Node, epoch: Epoch, before: Option<Epoch>) -> Result<(), bm_bpf::Error> {
        let own = Own {
            node: node.number().into(),
            epoch: epoch.number().into(),
            epoch_before: before.map_or(NO_EPOCH, |before| before.number().into()),
            unused: 0,
        };
        update(&self.own, 0, own.bytes(), "setting the number of this node")
    }

    /// The epochs that an earlier daemon has set: the current one, and the one before it.
    pub fn epochs(&self) -> Option<(Epoch, Option<Epoch>)> {
        let own = Own::from_bytes(&self.own.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()??)?;
        let [now, before] =
            [own.epoch, own.epoch_before].map(|number| u8::try_from(number).ok().map(Epoch::new));
        Some((now?, before))
    }

    /// Sets the interface of the link to a node; 0: it is not a member.
    pub fn set_link(&self, node: Node, ifindex: u32) -> Result<(), bm_bpf::Error> {
        update(&self.links, node.number().into(), &ifindex.to_ne_bytes(), "setting a fabric link")
    }

    /// The interface of the link to a node, as [`Self::set_link`] has set it; `None` if the map cannot be read.
    pub fn link(&self, node: Node) -> Option<u32> {
        let key = u32::from(node.number()).to_ne_bytes();
        let value = self.links.lookup(&key, MapFlags::ANY).ok()??;
        value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
    }

    /// Sets the interface of an external port; 0: there is none.
    pub fn set_port(&self, port: u8, ifindex: u32) -> Result<(), bm_bpf::Error> {
        update(&self.ports, port.into(), &ifindex.to_ne_bytes(), "setting an external port")
    }

    /// Makes new packets of frames for Linux, however Linux has marked the old ones: needed on veths.
    pub(crate) fn renew_packets(&self) -> Result<(), bm_bpf::Error> {
        let cpus = find(&self.object, "cpus")?;
        for cpu in 0..cpus.max_entries() {
            // Frames arrive on no CPU that is offline.
            let _offline = cpus.update(&cpu.to_ne_bytes(), &WAITING_MAX.to_ne_bytes(), MapFlags::ANY);
        }
        Ok(())
    }

    /// Starts or stops counting frames of an interface.
    pub fn count(&self, ifindex: u32, counted: bool) -> Result<(), bm_bpf::Error> {
        let key = ifindex.to_ne_bytes();
        if !counted {
            let _gone = self.counts.delete(&key);
            return Ok(());
        }
        if self.counters(ifindex).is_some() {
            return Ok(());
        }
        let failed = bm_bpf::Error::program("adding the counters of a fabric link");
        bm_bpf::reset_counters(&self.counts, &key).map_err(failed)
    }

    /// Sets the neighbor with an index.
    pub fn set_neighbor(&self, index: u16, neighbor: &Neighbor) -> Result<(), bm_bpf::Error> {
        update(&self.neighbors, index.into(), neighbor.bytes(), "setting a neighbor")
    }

    /// All neighbors by index. Used once, to take over from an earlier daemon.
    pub fn neighbors(&self) -> Vec<(u16, Neighbor)> {
        (0..=u16::MAX)
            .filter_map(|index| {
                let value = self.neighbors.lookup(&u32::from(index).to_ne_bytes(), MapFlags::ANY).ok()??;
                Neighbor::from_bytes(&value)
                    .filter(|neighbor| neighbor.ifindex != 0)
                    .map(|neighbor| (index, neighbor))
            })
            .collect()
    }

    /// Whether frames were sent to a neighbor since the last call.
    pub fn take_used(&self, index: u16) -> bool {
        let key = u32::from(index).to_ne_bytes();
        let used = self.used.lookup(&key, MapFlags::ANY).ok().flatten();
        let was = used.is_some_and(|value| value.iter().any(|byte| *byte != 0));
        if was {
            let _never_fails = self.used.update(&key, &0u64.to_ne_bytes(), MapFlags::ANY);
        }
        was
    }

    /// The counters of an interface; `None` if it is not a fabric link.
    pub fn counters(&self, ifindex: u32) -> Option<Counters> {
        Counters::read(&self.counts, ifindex).ok().flatten()
    }
}

fn update(map: &MapHandle, key: u32, value: &[u8], step: &'static str) -> Result<(), bm_bpf::Error> {
    map.update(&key.to_ne_bytes(), value, MapFlags::ANY).map_err(bm_bpf::Error::program(step))
}

fn find(object: &Object, name: &str) -> Result<MapHandle, bm_bpf::Error> {
    let map = object.maps().find(|map| map.name() == name).expect("the program has this map");
    MapHandle::try_from(&map).map_err(bm_bpf::Error::program("finding the maps of the fabric program"))
}
