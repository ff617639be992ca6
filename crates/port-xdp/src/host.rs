//! Giving a frame back to Linux, as received on the interface.
//!
//! The kernel runs a program that says XDP_PASS over the frame (a test run with live frames), with the
//! interface as where it came from: from there on it goes the way of any received frame. Nothing in Linux
//! can tell it from one that was never taken.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use bm_port::HostPort;
use libbpf_rs::libbpf_sys::{self, bpf_test_run_opts};

/// Most bytes of a frame that the kernel takes: a page, less its own headroom and tailroom.
pub const DELIVER_MAX: usize = 3_500;

/// `struct xdp_md`.
///
/// Shared with the kernel for the length of a system call, which gets its address and is opaque to the compiler.
#[repr(C)]
#[derive(Default)]
struct Context {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress_ifindex: u32,
    rx_queue_index: u32,
    egress_ifindex: u32,
}

/// Hands frames of an AF_XDP port to Linux. The thread must be in the interface's network namespace.
pub struct XdpHost {
    program: OwnedFd,
    ifindex: u32,
}

impl XdpHost {
    pub(crate) fn new(program: OwnedFd, ifindex: u32) -> Self {
        Self { program, ifindex }
    }
}

impl HostPort for XdpHost {
    fn deliver(&mut self, packet: &[u8]) -> io::Result<()> {
        if packet.len() > DELIVER_MAX {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        let size = packet.len() as u32;
        let context = Context { data_end: size, ingress_ifindex: self.ifindex, ..Context::default() };
        let mut run = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>() as libbpf_sys::size_t,
            data_in: packet.as_ptr().cast(),
            data_size_in: size,
            ctx_in: std::ptr::from_ref(&context).cast(),
            ctx_size_in: size_of::<Context>() as u32,
            repeat: 1,
            flags: libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES,
            batch_size: 1,
            ..bpf_test_run_opts::default()
        };
        // SAFETY: the packet and the context are of the sizes given and outlive the call.
        match unsafe { libbpf_sys::bpf_prog_test_run_opts(self.program.as_raw_fd(), &mut run) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }
}
