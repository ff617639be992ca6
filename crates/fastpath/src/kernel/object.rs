//! The object files, made by the build script: which maps and settings their programs are loaded with.

use std::os::fd::AsFd;

use bm_bpf::AttachType;
use bm_bpf::samples::{self, SAMPLES};
use libbpf_rs::{MapCore, MapHandle, Object, ObjectBuilder, ProgramMut};

use super::flows::{self, FlowMaps};
use super::{Tables, hold};
use crate::filters::FilterMaps;
use crate::unresolved;

/// The object files with the XDP program, and with the one that extends the time for which tables are valid: without
/// flows, and with them.
static XDP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/forward.bpf.o"));
static XDP_FLOWS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/forward_flows.bpf.o"));
/// Those with the program for tc.
static TC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/skb.bpf.o"));
static TC_FLOWS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/skb_flows.bpf.o"));

/// The name of the forwarding program.
pub(crate) fn forwards(attach_type: AttachType) -> &'static str {
    match attach_type {
        AttachType::Xdp => "bm_forward_7",
        AttachType::Tc => "bm_forward_7_tc",
    }
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
/// The section with the numbers of buckets and flows for which the map of flows has room.
const FLOWS_ROOM: &str = ".rodata.flows";
/// The section that says how many frames are sampled, and the maps that exist only then.
const SAMPLING: &str = ".rodata.sampling";
const SAMPLING_MAPS: [&str; 3] = [SAMPLES, "sampling", "sample_of_cpu"];

/// What the programs are loaded with.
#[derive(Clone, Copy)]
pub(super) struct With<'a> {
    pub tables: &'a Tables,
    pub views: &'a MapHandle,
    /// The ring with reports of next hops without a MAC address.
    pub unresolved: &'a MapHandle,
    /// The counters, and those of what is held; new ones without.
    pub counts: Option<[&'a MapHandle; 2]>,
    pub filters: Option<&'a FilterMaps>,
    /// The map of workers' sockets, and the largest frame that their slots hold, in bytes.
    pub claims: Option<(&'a MapHandle, u32)>,
    /// The table of flows, if packets are forwarded by flow.
    pub flows: Option<&'a FlowMaps>,
    pub tags: bool,
    /// One frame in so many is sampled; 0 for none.
    pub sample_one_in: u32,
}

/// Loads the object file with the program of this type.
pub(super) fn load(attach_type: AttachType, with: With<'_>) -> Result<Object, bm_bpf::Error> {
    let With { tables, views, filters, claims, flows, tags, sample_one_in, .. } = with;
    let file = match (attach_type, flows) {
        (AttachType::Xdp, None) => XDP,
        (AttachType::Xdp, Some(_)) => XDP_FLOWS,
        (AttachType::Tc, None) => TC,
        (AttachType::Tc, Some(_)) => TC_FLOWS,
    };
    let failed = bm_bpf::Error::program("loading the program");
    let ring = (sample_one_in > 0).then(samples::samples).transpose().map_err(&failed)?;
    let mut builder = ObjectBuilder::default();
    let mut open = builder.open_memory(file).map_err(&failed)?;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let feasible = tables.sources.is_some();
        let claiming = claims.filter(|_| filters.is_some());
        let switches = [
            (FILTERS_ON, filters.is_some().into()),
            (TAGS_ON, tags.into()),
            (FEASIBLE_ON, feasible.into()),
            (CLAIMS_ON, claiming.map_or(0, |(_, frame_max)| frame_max)),
            (SAMPLING, sample_one_in),
        ];
        if let Some((_, value)) = switches.into_iter().find(|(switch, _)| name == *switch) {
            map.set_initial_value(&value.to_ne_bytes()).map_err(&failed)?;
        }
        if let Some(flows) = flows.filter(|_| name == FLOWS_ROOM) {
            map.set_initial_value(&flows.room()).map_err(&failed)?;
        }
        if filters.is_none() && FILTER_MAPS.contains(&name.as_str())
            || !feasible && SOURCE_MAPS.contains(&name.as_str())
            || claiming.is_none() && name == CLAIMS_MAP
            || ring.is_none() && SAMPLING_MAPS.contains(&name.as_str())
        {
            map.set_autocreate(false).map_err(&failed)?;
        }
        let shared = match name.as_str() {
            ".bss.hops" => Some(&tables.hops),
            ".bss.fib4" => Some(&tables.fib4),
            ".bss.fib6" => Some(&tables.fib6),
            CLAIMS_MAP => claiming.map(|(map, _)| map),
            SAMPLES => ring.as_ref(),
            flows::MAP => flows.map(|flows| &flows.table),
            "sources4" => tables.sources.as_ref().map(|[ipv4, _]| ipv4),
            "sources6" => tables.sources.as_ref().map(|[_, ipv6]| ipv6),
            ".bss.views" => Some(views),
            unresolved::MAP => Some(with.unresolved),
            "counts" => with.counts.map(|[counts, _]| counts),
            hold::MAP => with.counts.map(|[_, held]| held),
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

pub(super) fn find(object: &Object, name: &str) -> Result<MapHandle, bm_bpf::Error> {
    let map = object.maps().find(|map| map.name() == name).expect("the program has this map");
    MapHandle::try_from(&map).map_err(bm_bpf::Error::program("finding the maps"))
}

pub(super) fn program<'o>(object: &'o mut Object, name: &str) -> ProgramMut<'o> {
    object.progs_mut().find(|program| program.name() == name).expect("the object has this program")
}
