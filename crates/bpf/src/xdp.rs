//! XDP on an interface: queries, and links that attach programs.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys::{self, bpf_link_create_opts, bpf_xdp_query_opts};

/// `XDP_ATTACHED_SKB` of `<linux/if_link.h>`.
const ATTACHED_GENERIC: u8 = 2;
/// `NETDEV_XDP_ACT_NDO_XMIT` of `<linux/netdev.h>`.
const SENDS_FRAMES: u64 = 4;

/// The state of XDP on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xdp {
    pub program_id: Option<u32>,
    /// The kernel runs that program behind the driver.
    pub generic: bool,
    /// The device sends frames that programs redirect to it. Before Linux 6.3 the kernel does not say: then `false`.
    pub sends_frames: bool,
}

impl Xdp {
    /// Queries the kernel.
    ///
    /// # Errors
    /// The kernel's error. Before Linux 6.3 a deleted interface is no error, and has no program.
    pub fn query(ifindex: u32) -> io::Result<Self> {
        let options = query(ifindex)?;
        Ok(Self {
            program_id: Some(options.prog_id).filter(|id| *id != 0),
            generic: options.attach_mode == ATTACHED_GENERIC,
            sends_frames: options.feature_flags & SENDS_FRAMES != 0,
        })
    }
}

pub(crate) fn query(ifindex: u32) -> io::Result<bpf_xdp_query_opts> {
    let mut options = bpf_xdp_query_opts {
        sz: size_of::<bpf_xdp_query_opts>() as libbpf_sys::size_t,
        ..bpf_xdp_query_opts::default()
    };
    // SAFETY: the options are whole and outlive the call.
    match unsafe { libbpf_sys::bpf_xdp_query(ifindex.cast_signed(), 0, &mut options) } {
        0 => Ok(options),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver.
    Native,
    /// Behind the driver, on any device.
    Generic,
}

/// Attaches a program in one mode, by a link: the kernel detaches it when the last descriptor of that is closed.
///
/// # Errors
/// The kernel's error: usually that the driver does not support XDP, or that another program is attached.
pub fn attach(program: &impl AsFd, ifindex: u32, mode: Mode) -> io::Result<OwnedFd> {
    let flags = match mode {
        Mode::Native => libbpf_sys::XDP_FLAGS_DRV_MODE,
        Mode::Generic => libbpf_sys::XDP_FLAGS_SKB_MODE,
    };
    let options = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as libbpf_sys::size_t,
        flags,
        ..bpf_link_create_opts::default()
    };
    let (program, ifindex) = (program.as_fd().as_raw_fd(), ifindex.cast_signed());
    // SAFETY: the options are whole and outlive the call.
    let fd = unsafe { libbpf_sys::bpf_link_create(program, ifindex, libbpf_sys::BPF_XDP, &options) };
    match fd {
        // SAFETY: the descriptor is fresh and owned by nobody else.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// Detaches the program of a link immediately, even if a forked child still has a descriptor of the link. A link whose
/// interface is gone has nothing to detach.
pub fn detach(link: &impl AsFd) {
    // SAFETY: passes a number.
    unsafe { libbpf_sys::bpf_link_detach(link.as_fd().as_raw_fd()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_program_and_cannot_send_xdp_frames() {
        let expected = Xdp { program_id: None, generic: false, sends_frames: false };
        assert_eq!(Xdp::query(1).unwrap(), expected);
    }

    #[test]
    fn only_programs_are_attached() {
        let file = std::fs::File::open("/dev/null").unwrap();
        for mode in [Mode::Native, Mode::Generic] {
            assert!(attach(&file, 1, mode).is_err());
        }
        assert_eq!(Xdp::query(1).unwrap().program_id, None);
    }
}
