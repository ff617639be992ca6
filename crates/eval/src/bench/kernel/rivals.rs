//! The programs that take turns on the router's interfaces, and the links that attach them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use bm_bpf::xdp::{self, Xdp};
use bm_testbed::testbed::{Testbed, TestbedError, mac};
use bm_testbed::traffic::{attach, system};
use libbpf_rs::libbpf_sys;
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use skeleton::RivalsSkelBuilder;

/// Generated from `bpf/rivals.bpf.c` during the build.
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/rivals.skel.rs"));
}

/// The rivals, loaded but not attached.
pub struct Rivals {
    pub floor: OwnedFd,
    pub fib_helper: OwnedFd,
}

impl Rivals {
    /// Loads them; the floor sends to the first next hop of the test bed.
    pub fn load(testbed: &Testbed) -> Result<Self, TestbedError> {
        let out = testbed.router.index(&testbed.interfaces.router_out)?;
        load(out).map_err(TestbedError::system("load the rivals of the kernel path"))
    }
}

fn load(out: u32) -> io::Result<Rivals> {
    let mut storage = MaybeUninit::uninit();
    let mut open = RivalsSkelBuilder::default().open(&mut storage).map_err(system)?;
    if let Some(settings) = open.maps.rodata_data.as_deref_mut() {
        settings.out_ifindex = out;
        settings.out_macs[..6].copy_from_slice(&mac::next_hop(1));
        settings.out_macs[6..].copy_from_slice(&mac::ROUTER_OUT);
    }
    let loaded = open.load().map_err(system)?;
    Ok(Rivals {
        floor: loaded.progs.fixed_next_hop.as_fd().try_clone_to_owned()?,
        fib_helper: loaded.progs.fib_helper.as_fd().try_clone_to_owned()?,
    })
}

/// A program on both of the router's interfaces, detached when this is dropped.
pub struct OnRouter {
    links: Vec<OwnedFd>,
}

impl OnRouter {
    /// Attaches the program, in native mode.
    pub fn attach(testbed: &Testbed, program: &OwnedFd) -> Result<Self, TestbedError> {
        let mut links = Vec::new();
        for index in indices(testbed)? {
            let failed = TestbedError::system("attach a program to the router's interfaces");
            links.push(testbed.router.enter(|| attach(program, index).map_err(failed))?);
        }
        Ok(Self { links })
    }
}

impl Drop for OnRouter {
    fn drop(&mut self) {
        for link in &self.links {
            // Detached at once: after a close alone, a worker of the kernel would detach it later.
            xdp::detach(link);
        }
    }
}

fn indices(testbed: &Testbed) -> Result<[u32; 2], TestbedError> {
    let Testbed { router, interfaces, .. } = testbed;
    Ok([router.index(&interfaces.router_in)?, router.index(&interfaces.router_out)?])
}

/// The daemon's program, detached from the router's interfaces: from now on the bench attaches it. The daemon
/// continues to write its tables.
pub fn borrow_program(testbed: &Testbed) -> Result<OwnedFd, TestbedError> {
    let indices = indices(testbed)?;
    let id = testbed
        .router
        .enter(|| program_on(indices[0]).map_err(TestbedError::system("find the program of brickmoon")))?;
    // SAFETY: passes a number.
    let program = opened(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) });
    let program = program.map_err(TestbedError::system("open the program of brickmoon"))?;
    for link in LinkInfoIter::default().filter(|link| link.prog_id == id) {
        if matches!(&link.info, LinkTypeInfo::Xdp(on) if indices.contains(&on.ifindex)) {
            // SAFETY: passes a number.
            let link = opened(unsafe { libbpf_sys::bpf_link_get_fd_by_id(link.id) });
            let link = link.map_err(TestbedError::system("open a link of brickmoon"))?;
            drop(OnRouter { links: vec![link] });
        }
    }
    Ok(program)
}

/// The ID of the program on an interface of this thread's namespace.
fn program_on(index: u32) -> io::Result<u32> {
    Xdp::query(index)?
        .program_id
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is none on the router's interface"))
}

fn opened(fd: i32) -> io::Result<OwnedFd> {
    match fd {
        // SAFETY: the descriptor is fresh and owned by nobody else.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}
