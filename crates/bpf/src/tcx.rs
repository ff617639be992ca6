//! Programs at tc's ingress, by links (tcx), which Linux has from 6.6 on.

use std::ptr::NonNull;
use std::{fmt, io};

use libbpf_rs::{AsRawLibbpf, Link, Program, libbpf_sys};

/// What a program is attached to on an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachType {
    /// XDP: it gets frames before Linux does.
    #[default]
    Xdp,
    /// Ingress of tc: it gets packets as Linux has them, which may be large and have incomplete checksums.
    Tc,
}

impl fmt::Display for AttachType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Xdp => "xdp",
            Self::Tc => "tc",
        })
    }
}

/// Runs the program before all others.
const BEFORE: u32 = 1 << 3;
/// The most programs at an interface's ingress, which is the kernel's limit.
const PROGRAMS_MAX: usize = 64;

/// Attaches a program to the ingress of an interface, in front of the programs that are there already, which may hand
/// packets to Linux without those behind: the kernel detaches it when the last descriptor of the link is closed.
///
/// # Errors
/// The kernel's error: usually that it is older than Linux 6.6.
pub fn attach(program: &Program<'_>, ifindex: u32) -> libbpf_rs::Result<Link> {
    let program = program.as_libbpf_object().as_ptr();
    let options = libbpf_sys::bpf_tcx_opts {
        sz: size_of::<libbpf_sys::bpf_tcx_opts>() as libbpf_sys::size_t,
        flags: BEFORE,
        ..libbpf_sys::bpf_tcx_opts::default()
    };
    // SAFETY: the program is a loaded one, the options are whole as their size says, and both outlive the call.
    let link = unsafe { libbpf_sys::bpf_program__attach_tcx(program, ifindex.cast_signed(), &options) };
    match NonNull::new(link) {
        // SAFETY: the link is fresh and owned by nobody else.
        Some(link) => Ok(unsafe { Link::from_ptr(link) }),
        None => Err(io::Error::last_os_error().into()),
    }
}

/// The IDs of the programs at the ingress of an interface, in the order in which they run.
///
/// # Errors
/// The kernel's error: it is older than Linux 6.6, or there is no such interface.
pub fn programs(ifindex: u32) -> io::Result<Vec<u32>> {
    let mut ids = [0u32; PROGRAMS_MAX];
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as libbpf_sys::size_t,
        prog_ids: ids.as_mut_ptr(),
        ..libbpf_sys::bpf_prog_query_opts::default()
    };
    options.__bindgen_anon_1.prog_cnt = PROGRAMS_MAX as u32;
    // SAFETY: the options are whole as their size says, and have room for as many IDs as they say.
    let failed = unsafe {
        libbpf_sys::bpf_prog_query_opts(ifindex.cast_signed(), libbpf_sys::BPF_TCX_INGRESS, &mut options)
    };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(-failed));
    }
    // SAFETY: both fields of the union are the same number, which the kernel has set.
    let count = unsafe { options.__bindgen_anon_1.prog_cnt } as usize;
    Ok(ids[..count.min(PROGRAMS_MAX)].to_vec())
}
