//! XDP on an interface: queries, and links that attach programs.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys::{self, bpf_link_create_opts};

pub(crate) mod query;

/// `XDP_ATTACHED_SKB` of `<linux/if_link.h>`.
const ATTACHED_GENERIC: u8 = 2;
/// `NETDEV_XDP_ACT_NDO_XMIT` of `<linux/netdev.h>`.
const SENDS_FRAMES: u64 = 4;
/// What a driver must have for zero-copy, and the kernel asks for: `NETDEV_XDP_ACT_BASIC`, `_REDIRECT` and
/// `_XSK_ZEROCOPY`.
const ZERO_COPY: u64 = 1 | 2 | 8;

/// The state of XDP on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xdp {
    pub program_id: Option<u32>,
    /// The kernel runs that program behind the driver.
    pub generic: bool,
    /// The device sends frames that programs redirect to it. Before Linux 6.3 the kernel does not say: then `false`.
    pub sends_frames: bool,
    /// AF_XDP sockets of the device may be bound in zero-copy mode. Before Linux 6.3 only binding one tells: `None`.
    pub zero_copy: Option<bool>,
}

impl Xdp {
    /// Queries the kernel.
    ///
    /// # Errors
    /// The kernel's error, such as that there is no such interface.
    pub fn query(ifindex: u32) -> io::Result<Self> {
        let state = query::state(ifindex)?;
        Ok(Self {
            program_id: Some(state.program).filter(|id| *id != 0),
            generic: state.attached == ATTACHED_GENERIC,
            sends_frames: state.features.is_some_and(|features| features & SENDS_FRAMES != 0),
            zero_copy: state.features.map(|features| features & ZERO_COPY == ZERO_COPY),
        })
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
        let found = Xdp::query(1).unwrap();
        assert_eq!((found.program_id, found.generic, found.sends_frames), (None, false, false));
        assert_ne!(found.zero_copy, Some(true));
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
