//! The programs that take turns on the router's interfaces, and the links that attach them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use bm_bpf::ProgramInfo;
use bm_bpf::xdp::{self, Xdp};
use bm_testbed::testbed::{Testbed, TestbedError, mac};
use bm_testbed::traffic::{attach, system};
use libbpf_rs::MapCore;
use libbpf_rs::libbpf_sys::{self, bpf_link_create_opts, bpf_prog_query_opts};
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

    /// Attaches the daemon's observer of what Linux sends, at tc's egress.
    pub fn observe(testbed: &Testbed, observer: &OwnedFd) -> Result<Self, TestbedError> {
        let mut links = Vec::new();
        for index in indices(testbed)? {
            let failed = TestbedError::system("attach the observer of brickmoon");
            links.push(testbed.router.enter(|| attach_at_egress(observer, index).map_err(failed))?);
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

/// Detaches the daemon's observer of what Linux sends from the router's interfaces, where the daemon attaches it while
/// anything is forwarded by flow: from now on the bench attaches it. `None` if it is not there.
pub(super) fn borrow_observer(testbed: &Testbed) -> Result<Option<OwnedFd>, TestbedError> {
    let indices = indices(testbed)?;
    let failed = TestbedError::system("take the observer of brickmoon");
    testbed.router.enter(|| take_from_egress(&indices).map_err(failed))
}

/// Whether the daemon sees what Linux sends through the router's interfaces.
pub(super) fn is_observed(testbed: &Testbed) -> Result<bool, TestbedError> {
    let indices = indices(testbed)?;
    let failed = TestbedError::system("look for the observer of brickmoon");
    let found = testbed
        .router
        .enter(|| indices.map(at_egress).into_iter().collect::<io::Result<Vec<_>>>().map_err(failed));
    Ok(found?.iter().any(|found| !found.is_empty()))
}

/// The size of a map of a program, in bytes; 0 if it has no map of this name.
pub(super) fn map_bytes(testbed: &Testbed, name: &str) -> Result<u64, TestbedError> {
    let [index, _] = indices(testbed)?;
    let id = testbed
        .router
        .enter(|| program_on(index).map_err(TestbedError::system("find the program of brickmoon")))?;
    let program = ProgramInfo::query(id).map_err(TestbedError::system("look at the program of brickmoon"))?;
    let map = program.map(name);
    Ok(map.map_or(0, |map| u64::from(map.value_size()) * u64::from(map.max_entries())))
}

/// A program attached to an interface, each by its ID.
struct EgressProgram {
    program: u32,
    link: u32,
}

/// The most programs at one place of an interface, which is the kernel's limit.
const PROGRAMS_MAX: usize = 64;

/// What is attached to tc's egress of an interface of this thread's namespace: nothing but brickmoon's, as the test bed
/// attaches nothing there.
fn at_egress(index: u32) -> io::Result<Vec<EgressProgram>> {
    let (mut programs, mut links) = ([0u32; PROGRAMS_MAX], [0u32; PROGRAMS_MAX]);
    let mut options = bpf_prog_query_opts {
        sz: size_of::<bpf_prog_query_opts>() as libbpf_sys::size_t,
        prog_ids: programs.as_mut_ptr(),
        link_ids: links.as_mut_ptr(),
        ..bpf_prog_query_opts::default()
    };
    options.__bindgen_anon_1.prog_cnt = PROGRAMS_MAX as u32;
    // SAFETY: the options are whole, and have room for as many IDs as they say.
    let result =
        unsafe { libbpf_sys::bpf_prog_query_opts(index as i32, libbpf_sys::BPF_TCX_EGRESS, &mut options) };
    match result {
        0 => {}
        // Linux before 6.6, which has no such programs.
        _ if -result == libc::EINVAL => return Ok(Vec::new()),
        _ => return Err(io::Error::from_raw_os_error(-result)),
    }
    // SAFETY: both fields of the union are the same number, which the kernel has set.
    let count = unsafe { options.__bindgen_anon_1.prog_cnt } as usize;
    let found = programs.into_iter().zip(links).take(count);
    Ok(found.map(|(program, link)| EgressProgram { program, link }).collect())
}

/// Detaches what is at tc's egress of these interfaces; returns its program.
fn take_from_egress(indices: &[u32]) -> io::Result<Option<OwnedFd>> {
    let mut program = None;
    for index in indices {
        for found in at_egress(*index)? {
            // SAFETY: passes a number.
            program = Some(opened(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(found.program) })?);
            // SAFETY: passes a number.
            let link = opened(unsafe { libbpf_sys::bpf_link_get_fd_by_id(found.link) })?;
            xdp::detach(&link);
        }
    }
    Ok(program)
}

/// Attaches a program to tc's egress of an interface of this thread's namespace; closing the link detaches it.
fn attach_at_egress(program: &OwnedFd, index: u32) -> io::Result<OwnedFd> {
    let options = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as libbpf_sys::size_t,
        ..bpf_link_create_opts::default()
    };
    let (program, index) = (program.as_raw_fd(), index as i32);
    // SAFETY: the options are whole and outlive the call.
    opened(unsafe { libbpf_sys::bpf_link_create(program, index, libbpf_sys::BPF_TCX_EGRESS, &options) })
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

#[cfg(test)]
mod tests {
    use bm_testbed::testbed::{TestbedOptions, require_root};
    use libbpf_rs::libbpf_sys::bpf_insn;

    use super::*;

    /// A program for tc that leaves every packet to those behind it: r0 = TCX_NEXT; exit.
    fn passes() -> OwnedFd {
        let code = [
            bpf_insn { code: 0xb7, imm: -1, ..bpf_insn::default() },
            bpf_insn { code: 0x95, ..bpf_insn::default() },
        ];
        // SAFETY: the instructions and both strings are whole and outlive the call; options are not needed.
        let program = unsafe {
            libbpf_sys::bpf_prog_load(
                libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
                c"passes".as_ptr(),
                c"GPL".as_ptr(),
                code.as_ptr(),
                code.len() as libbpf_sys::size_t,
                std::ptr::null_mut(),
            )
        };
        opened(program).unwrap()
    }

    #[test]
    fn an_observer_is_taken_and_attached_again() {
        if require_root().is_err() {
            return eprintln!("skipped an_observer_is_taken_and_attached_again: needs root");
        }
        let (prefix, tag) = ("bm-rivals".into(), "rv".into());
        let testbed = Testbed::up(&TestbedOptions { prefix, tag, next_hops: 1 }).unwrap();
        assert!(borrow_observer(&testbed).unwrap().is_none());
        let Ok(theirs) = OnRouter::observe(&testbed, &passes()) else {
            return eprintln!(
                "skipped an_observer_is_taken_and_attached_again: Linux has no links at tc before 6.6"
            );
        };
        assert!(is_observed(&testbed).unwrap());
        let taken = borrow_observer(&testbed).unwrap().unwrap();
        assert!(!is_observed(&testbed).unwrap());
        let ours = OnRouter::observe(&testbed, &taken).unwrap();
        // The links of those from whom it was taken have nothing to detach any more.
        drop(theirs);
        assert!(is_observed(&testbed).unwrap());
        drop(ours);
        assert!(!is_observed(&testbed).unwrap());
    }
}
