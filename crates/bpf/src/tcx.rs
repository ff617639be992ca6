//! Programs at tc's ingress, by links (tcx), which Linux has from 6.6 on.

use std::fmt;
use std::ptr::{self, NonNull};

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

/// Attaches a program to the ingress of an interface, behind the programs that are there already: the kernel detaches
/// it when the last descriptor of the link is closed.
///
/// # Errors
/// The kernel's error: usually that it is older than Linux 6.6.
pub fn attach(program: &Program<'_>, ifindex: u32) -> libbpf_rs::Result<Link> {
    let program = program.as_libbpf_object().as_ptr();
    // SAFETY: the program is a loaded one and outlives the call; without options the kernel appends.
    let link = unsafe { libbpf_sys::bpf_program__attach_tcx(program, ifindex.cast_signed(), ptr::null()) };
    match NonNull::new(link) {
        // SAFETY: the link is fresh and owned by nobody else.
        Some(link) => Ok(unsafe { Link::from_ptr(link) }),
        None => Err(std::io::Error::last_os_error().into()),
    }
}
