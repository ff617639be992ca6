//! Flows: the table that programs share with the thread which learns them, and the program that reports what Linux sends.
//!
//! ```text
//! program on a port ◄── map flows ◄── the thread bm-flows ◄── ring reports ◄── bm_observe_tc at tc's egress of interfaces
//! ```
//!
//! Programs with flows are loaded while an interface has [`crate::Interface::by_flow`], and so is the observer. Who loads the
//! first of them needs some hundred milliseconds; until then Linux forwards, as it does without flows.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::Duration;

use bm_bpf::{AttachType, pins, tcx};
use bm_sys::{Access, Map};
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Struct;
use libbpf_rs::{Link, MapHandle, Object, ObjectBuilder};

use super::Kernel;
use crate::attach;
use crate::configuration::Configuration;
use crate::error::KernelError;
use crate::jiffies::jiffies;
use crate::lease::Lease;
use crate::maps;
use crate::reports::{self, Reports};

/// The map's name in the programs.
pub(super) const MAP: &str = "flows";
/// The object file with the observer, made by the build script; the program's name.
static OBSERVER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/observe.bpf.o"));
const OBSERVE: &str = "bm_observe_tc";
/// The section with the times after which a flow is reported.
const AFTER: &str = ".rodata.observe";
/// How old a connection must be: most that end sooner have few packets, and each report costs as much as some of those.
const AGE: Duration = Duration::from_millis(50);
/// How soon it is reported again.
const AGAIN: Duration = Duration::from_millis(250);
/// How long a flow with one packet is remembered. Each of a million connections has a packet every few seconds only.
const KEEP: Duration = Duration::from_secs(12);
/// After which time the connection of a flow in use is looked up again: within 100 ms Linux decides about its packets.
const CHECK_EVERY: Duration = Duration::from_millis(80);

/// The maps of flows, and the observer.
pub(super) struct FlowMaps {
    pub table: MapHandle,
    reports: MapHandle,
    max: usize,
    /// Loaded when it is needed first.
    observer: Option<Object>,
    /// The observer on interfaces, by their index in Linux.
    links: BTreeMap<u32, Link>,
}

/// The memory of a table of flows, and the reports of what Linux sends.
pub struct FlowArea {
    /// At least [`bm_flows::bytes`] of [`Self::max`].
    pub memory: Map,
    /// The most flows that there may be.
    pub max: usize,
    pub reports: Reports,
    /// Until when flows may be used ([`bm_flows::Table::set_until`]): as long as the tables that packets are routed by.
    pub lease: Lease,
}

/// Why packets cannot be forwarded by flow on this machine; `None` if they can.
pub fn why_no_flows() -> Option<String> {
    if !attach::has_tcx() {
        return Some("Linux has no links at tc before 6.6, by which flows are learned".into());
    }
    let Ok(btf) = Btf::from_vmlinux() else {
        return Some("the kernel has no type information (CONFIG_DEBUG_INFO_BTF)".into());
    };
    let nft = btf.type_by_name::<Struct<'_>>("netns_nftables");
    let is_there =
        nft.is_some_and(|nft| nft.iter().any(|member| member.name.is_some_and(|name| name == "base_seq")));
    (!is_there).then(|| {
        "programs cannot read the generation of nftables in this kernel: that needs Linux 6.17".into()
    })
}

impl FlowMaps {
    /// The value of the section that tells a program the room in the map, and how often it looks connections up.
    pub fn room(&self) -> Vec<u8> {
        let room = [bm_flows::buckets(self.max) as u32, self.max as u32, jiffies(CHECK_EVERY)];
        room.into_iter().flat_map(u32::to_ne_bytes).collect()
    }

    /// Loads the observer.
    fn load(&self) -> Result<Object, bm_bpf::Error> {
        let failed = bm_bpf::Error::program("loading the program that sees what Linux sends");
        let mut builder = ObjectBuilder::default();
        let mut open = builder.open_memory(OBSERVER).map_err(&failed)?;
        let after: Vec<u8> =
            [AGE, AGAIN, KEEP].into_iter().flat_map(|time| jiffies(time).to_ne_bytes()).collect();
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            match name.as_str() {
                AFTER => map.set_initial_value(&after).map_err(&failed)?,
                MAP => map.reuse_fd(self.table.as_fd()).map_err(&failed)?,
                reports::MAP => map.reuse_fd(self.reports.as_fd()).map_err(&failed)?,
                _ => {}
            }
        }
        open.load().map_err(&failed)
    }

    /// Puts the observer on these interfaces, and on no others. Those where that fails are not learned from.
    fn observe(&mut self, interfaces: &[u32]) -> Result<(), KernelError> {
        self.links.retain(|ifindex, link| interfaces.contains(ifindex) && is_on(link, *ifindex));
        let new: Vec<u32> =
            interfaces.iter().copied().filter(|ifindex| !self.links.contains_key(ifindex)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let observer = match self.observer.take() {
            Some(observer) => observer,
            None => self.load()?,
        };
        let program = observer.progs_mut().find(|program| program.name() == OBSERVE);
        let program = program.expect("the object has this program");
        for ifindex in new {
            // An interface that has just been deleted; the next configuration is without it.
            if let Ok(link) = tcx::attach(&program, ifindex) {
                self.links.insert(ifindex, link);
            }
        }
        self.observer = Some(observer);
        Ok(())
    }
}

/// Whether a link is still on an interface. It is not once that is deleted, even if another one has got its index.
fn is_on(link: &Link, ifindex: u32) -> bool {
    let on = link.info().map(|info| info.info);
    on.is_ok_and(|on| pins::place(&on) == Some((ifindex, AttachType::Tc)))
}

impl Kernel {
    /// Allows packets to be forwarded by flow, of which there may be `max`; returns where they are written, by one writer.
    /// To be called before the first [`Self::publish`].
    ///
    /// # Errors
    /// The kernel's error: it has no room for the table, or is too old ([`why_no_flows`]).
    pub fn take_flows(&mut self, max: usize) -> Result<FlowArea, KernelError> {
        let failed = bm_bpf::Error::program("creating the table of flows");
        let bytes = bm_flows::bytes(max);
        let table = maps::create(MAP, bytes).map_err(&failed)?;
        let memory = Map::file(&table, 0, bytes.next_multiple_of(4096), Access::ReadWrite)
            .map_err(bm_bpf::Error::system("mapping the table of flows into memory"))?;
        let reports = reports::create().map_err(&failed)?;
        let lease = self.lease().map_err(bm_bpf::Error::system("mapping the time it may run"))?;
        let area = FlowArea { memory, max, reports: Reports::of(&reports).map_err(&failed)?, lease };
        let (observer, links) = (None, BTreeMap::new());
        self.flows = Some(FlowMaps { table, reports, max, observer, links });
        Ok(area)
    }

    /// Whether programs for this configuration have flows.
    pub(super) fn takes_flows(&self, configuration: &Configuration) -> bool {
        self.flows.is_some() && configuration.has_flows()
    }

    /// Observes what Linux sends through our interfaces while anything is forwarded by flow.
    pub(super) fn observe(&mut self, configuration: &Configuration) -> Result<(), KernelError> {
        let by_flow = self.by_flow;
        let Some(flows) = &mut self.flows else { return Ok(()) };
        let up = configuration.interfaces.iter().filter(|interface| by_flow && interface.up);
        let interfaces: Vec<u32> = up.map(|interface| interface.ifindex).collect();
        flows.observe(&interfaces)
    }
}
