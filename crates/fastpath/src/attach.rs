//! Interfaces: the program on them, and whether their devices take frames from it.

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;

use libbpf_rs::libbpf_sys::{self, bpf_xdp_query_opts};
use libbpf_rs::{Link, ProgramMut};

use crate::error::KernelError;

/// `NETDEV_XDP_ACT_NDO_XMIT` of `<linux/netdev.h>`.
const TAKES_FRAMES: u64 = 4;
/// `XDP_ATTACHED_SKB` of `<linux/if_link.h>`.
const ATTACHED_GENERIC: u8 = 2;

/// An interface with the program on it.
pub struct Attached {
    pub ifindex: u32,
    pub link: Link,
    /// The driver knows no XDP, so the kernel runs the program behind it.
    pub generic: bool,
}

/// The number of an interface of this thread's network namespace.
fn ifindex(interface: &str) -> Option<u32> {
    let name = CString::new(interface).ok()?;
    // SAFETY: the name is a string that ends in zero.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => None,
        index => Some(index),
    }
}

fn query(ifindex: u32) -> io::Result<bpf_xdp_query_opts> {
    let mut options = bpf_xdp_query_opts {
        sz: size_of::<bpf_xdp_query_opts>() as libbpf_sys::size_t,
        ..bpf_xdp_query_opts::default()
    };
    // SAFETY: the options are whole and outlive the call.
    match unsafe { libbpf_sys::bpf_xdp_query(ifindex as i32, 0, &mut options) } {
        0 => Ok(options),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// Whether the device of an interface takes frames that XDP redirects: a veth does once its far end has GRO
/// or a program, most cards always do.
pub fn takes_frames(ifindex: u32) -> bool {
    query(ifindex).is_ok_and(|options| options.feature_flags & TAKES_FRAMES != 0)
}

/// Whether there is still an interface of that number.
pub fn exists(ifindex: u32) -> bool {
    query(ifindex).is_ok()
}

/// Puts the program on an interface, in the driver where that knows XDP.
pub fn attach(interface: &str, program: &ProgramMut<'_>) -> Result<Attached, KernelError> {
    let none = || KernelError::NoInterface { interface: interface.into() };
    let ifindex = ifindex(interface).ok_or_else(none)?;
    let there = query(ifindex).map_err(KernelError::system("asking for XDP programs"))?;
    if there.attach_mode != 0 {
        return Err(KernelError::Taken { interface: interface.into() });
    }
    let failed = |error| KernelError::Attach { interface: interface.into(), error };
    let link = program.attach_xdp(ifindex as i32).map_err(failed)?;
    let generic = query(ifindex).is_ok_and(|options| options.attach_mode == ATTACHED_GENERIC);
    Ok(Attached { ifindex, link, generic })
}

impl Drop for Attached {
    fn drop(&mut self) {
        // At once, also while a child that was just forked has our descriptors.
        // SAFETY: passes a number.
        unsafe { libbpf_sys::bpf_link_detach(std::os::fd::AsFd::as_fd(&self.link).as_raw_fd()) };
    }
}
