//! The BPF programs, loaded once: descriptors of the programs, memory of their maps.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys::{self, bpf_link_create_opts};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{ErrorKind, MapCore, MapHandle};

use super::layout::{Destination, GeneratorState, Plain, SinkState};
use super::mapped::MappedArray;
use super::skeleton::TrafficSkelBuilder;
use super::{DESTINATIONS_MAX, TRACKED_MAX};
use crate::testbed::TestbedError;

/// Generator and sinks, loaded but not attached.
pub struct Programs {
    pub(super) generate: OwnedFd,
    pub(super) sink_frames: OwnedFd,
    pub(super) sink_skbs: OwnedFd,
    pass: OwnedFd,
    pub(super) destinations: MappedArray<Destination>,
    pub(super) generator: MappedArray<GeneratorState>,
    pub(super) sink: MappedArray<SinkState>,
    pub(super) expected: MappedArray<u64>,
    pub(super) arrivals: MapHandle,
}

impl Programs {
    /// Loads the programs; needs root.
    pub fn load() -> Result<Self, TestbedError> {
        load().map_err(|error| TestbedError::System { what: "load the traffic programs".into(), error })
    }

    /// Attaches a program that passes everything to Linux. It keeps the NAPI of a veth interface enabled, as GRO does,
    /// and is detached when the link is closed.
    pub fn attach_pass(&self, ifindex: u32) -> Result<OwnedFd, TestbedError> {
        attach(&self.pass, ifindex).map_err(TestbedError::system("attach an XDP program that passes"))
    }
}

fn load() -> io::Result<Programs> {
    let mut storage = MaybeUninit::uninit();
    let mut open = TrafficSkelBuilder::default().open(&mut storage).map_err(system)?;
    open.maps.destinations.set_max_entries(DESTINATIONS_MAX as u32).map_err(system)?;
    let loaded = open.load().map_err(system)?;
    let (programs, maps) = (&loaded.progs, &loaded.maps);
    Ok(Programs {
        generate: owned(&programs.generate)?,
        sink_frames: owned(&programs.sink_frames)?,
        sink_skbs: owned(&programs.sink_skbs)?,
        pass: owned(&programs.pass)?,
        destinations: mapped(&maps.destinations, DESTINATIONS_MAX)?,
        generator: mapped(&maps.generators, 1)?,
        sink: mapped(&maps.sinks, 1)?,
        expected: mapped(&maps.expected, TRACKED_MAX)?,
        arrivals: MapHandle::try_from(&maps.arrivals).map_err(system)?,
    })
}

fn owned<M>(program: &libbpf_rs::ProgramImpl<'_, M>) -> io::Result<OwnedFd>
where
    for<'a> libbpf_rs::ProgramImpl<'a, M>: AsFd,
{
    program.as_fd().try_clone_to_owned()
}

fn mapped<T: Plain>(map: &impl MapCore, entries: usize) -> io::Result<MappedArray<T>> {
    MappedArray::new(map.as_fd(), map.value_size() as usize, entries)
}

/// Attaches to an interface of this thread's namespace, in native mode; closing the link detaches it.
pub fn attach(program: &OwnedFd, ifindex: u32) -> io::Result<OwnedFd> {
    let options = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as libbpf_sys::size_t,
        flags: libbpf_sys::XDP_FLAGS_DRV_MODE,
        ..bpf_link_create_opts::default()
    };
    let program = program.as_raw_fd();
    // SAFETY: the options are whole and outlive the call.
    let fd = unsafe { libbpf_sys::bpf_link_create(program, ifindex as i32, libbpf_sys::BPF_XDP, &options) };
    match fd {
        // SAFETY: the descriptor is fresh and owned by nobody else.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// The system's error behind libbpf's, with libbpf's text.
pub fn system(error: libbpf_rs::Error) -> io::Error {
    let kind = match error.kind() {
        ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        ErrorKind::NotFound => io::ErrorKind::NotFound,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, format!("{error:#}"))
}
