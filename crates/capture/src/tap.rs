//! The object file, loaded and attached: once for each program that is watched, and once for what Linux and workers send.

use std::os::fd::{AsFd, AsRawFd};

use bm_bpf::{AttachType, ProgramInfo};
use libbpf_rs::{Link, MapCore, MapHandle, Object, ObjectBuilder, OpenMapMut, OpenObject};

use crate::error::CaptureError;
use crate::options::Options;
use crate::port::Program;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/capture.bpf.o"));

/// The section with `struct settings`.
const SETTINGS: &str = ".rodata.settings";
/// The map of counters that a watched program has.
const COUNTS: &str = "counts";
/// Counters of a program that are compared: `COUNTERS_MAX` of `../bpf/capture.bpf.c`.
const COUNTERS: u32 = 32;
/// The counters of the kernel path's programs that count bytes, a bit for each: `FORWARDED_BYTES` and `RECEIVED_BYTES`.
const BYTE_COUNTERS: u32 = 0b110;
/// The metadata with which `steer` runs over frames that a worker hands to Linux: `BY_HAND` of its `deliver.h`.
const BY_HAND: u32 = 28;

/// Maps that all loaded object files share.
pub struct SharedMaps {
    pub ports: MapHandle,
    pub events: MapHandle,
}

/// A loaded object file; dropping it detaches its programs.
pub struct Tap {
    /// Detached in this order: what runs first stops first.
    _links: Vec<Link>,
    object: Object,
}

/// Which programs of the object file are used, and in which order they are attached: what runs last comes first, so that
/// no packet is seen only by the first.
fn names(attach_type: AttachType) -> [&'static str; 2] {
    match attach_type {
        AttachType::Xdp => ["after_xdp", "before_xdp"],
        AttachType::Tc => ["after_tc", "before_tc"],
    }
}

/// The programs that show what workers send, and what Linux sends.
const BY_WORKERS: [&str; 2] = ["worker_sent", "worker_sends"];
const BY_LINUX: [&str; 1] = ["sent_by_linux"];

/// What the programs of a capture know about the program that they watch.
struct WatchedProgram {
    counts: Option<MapHandle>,
    counters: u32,
    not_frames: u32,
    by_hand: u32,
}

impl WatchedProgram {
    fn nothing() -> Self {
        Self { counts: None, counters: 0, not_frames: 0, by_hand: 0 }
    }

    fn by(program: &Program) -> Self {
        let counts = ProgramInfo::query(program.id).ok().and_then(|info| info.map(COUNTS));
        let counters = counts.as_ref().map_or(0, |counts| (counts.value_size() / 8).min(COUNTERS));
        let steers = program.name == "steer";
        Self {
            counts,
            counters,
            not_frames: if steers { 0 } else { BYTE_COUNTERS },
            by_hand: if steers { BY_HAND } else { 0 },
        }
    }
}

impl Tap {
    /// Shows what Linux sends at the ports, and workers as well.
    pub(crate) fn of_senders(options: &Options) -> Result<Self, CaptureError> {
        let names: Vec<_> = BY_WORKERS.into_iter().chain(BY_LINUX).collect();
        let open = open(options, &names, None, &WatchedProgram::nothing())?;
        Self::attach(open, &names)
    }

    /// Shows what a program of a port gets, and what it does with that.
    pub(crate) fn of_program(
        options: &Options,
        program: &Program,
        shared: &SharedMaps,
    ) -> Result<Self, CaptureError> {
        let names = names(program.attach_type);
        let failed = CaptureError::at("finding the program of a port");
        let mut open = open(options, &names, Some(shared), &WatchedProgram::by(program))?;
        let target = libbpf_rs::Program::fd_from_id(program.id).map_err(&failed)?;
        for mut one in open.progs_mut() {
            if names.iter().any(|name| one.name() == *name) {
                let function = Some(program.name.clone());
                one.set_attach_target(target.as_fd().as_raw_fd(), function).map_err(&failed)?;
            }
        }
        Self::attach(open, &names)
    }

    fn attach(open: OpenObject, names: &[&str]) -> Result<Self, CaptureError> {
        let object = open.load().map_err(CaptureError::at("loading the programs of a capture"))?;
        let mut links = Vec::new();
        for name in names {
            let program = object.progs_mut().find(|program| program.name() == *name);
            let program = program.expect("the object file has it");
            links.push(program.attach().map_err(CaptureError::at("attaching the programs of a capture"))?);
        }
        links.reverse();
        Ok(Self { _links: links, object })
    }

    /// A map of the object file.
    pub fn map(&self, name: &str) -> Result<MapHandle, CaptureError> {
        let map = self.object.maps().find(|map| map.name() == name).expect("the object file has it");
        MapHandle::try_from(&map).map_err(CaptureError::at("finding a map"))
    }
}

/// The object file with its filter and settings; only the programs of these names are loaded.
fn open(
    options: &Options,
    names: &[&str],
    shared: Option<&SharedMaps>,
    watched: &WatchedProgram,
) -> Result<OpenObject, CaptureError> {
    let failed = CaptureError::at("preparing the programs of a capture");
    let file = options.filter.placed(OBJECT);
    let mut open = ObjectBuilder::default().open_memory(&file).map_err(&failed)?;
    for mut program in open.progs_mut() {
        let wanted = names.iter().any(|name| program.name() == *name);
        program.set_autoload(wanted);
    }
    for mut map in open.maps_mut() {
        prepare(&mut map, options, shared, watched).map_err(&failed)?;
    }
    Ok(open)
}

fn prepare(
    map: &mut OpenMapMut<'_>,
    options: &Options,
    shared: Option<&SharedMaps>,
    watched: &WatchedProgram,
) -> libbpf_rs::Result<()> {
    let name = map.name().to_string_lossy().into_owned();
    match name.as_str() {
        SETTINGS => map.set_initial_value(&settings(options, watched)),
        COUNTS => watched.counts.as_ref().map_or(Ok(()), |counts| map.reuse_fd(counts.as_fd())),
        "ports" => shared.map_or(Ok(()), |shared| map.reuse_fd(shared.ports.as_fd())),
        "events" => shared.map_or(Ok(()), |shared| map.reuse_fd(shared.events.as_fd())),
        _ => Ok(()),
    }
}

/// `struct settings` of the programs, in bytes.
fn settings(options: &Options, watched: &WatchedProgram) -> Vec<u8> {
    let words = [
        options.snap_length,
        options.filter.bytes(),
        options.one_in,
        watched.counters,
        watched.not_frames,
        options.namespace,
        watched.by_hand,
        u32::from(options.rewritten),
        options.tap,
    ];
    words.into_iter().flat_map(u32::to_ne_bytes).collect()
}

#[cfg(test)]
mod tests;
