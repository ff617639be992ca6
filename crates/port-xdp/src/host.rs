//! Delivers a frame to Linux as if it had been received on the interface.
//!
//! The kernel runs a program that returns XDP_PASS on the frame (a test run with live frames), with the interface as
//! its ingress: from there on it is handled like any received frame. Nothing in Linux can distinguish it from a frame
//! that was never taken.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use bm_port::HostPort;
use libbpf_rs::libbpf_sys::{self, bpf_test_run_opts};

use crate::batch::{BY_HAND, Batch, DELIVER_MAX, FRAMES};

/// Bytes of the dummy frame for a program that replaces the content.
const ANY: usize = 64;

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
    /// For many frames per call, if the kernel supports it.
    batch: Option<Batch>,
}

impl XdpHost {
    pub(crate) fn new(program: OwnedFd, ifindex: u32, batch: Option<Batch>) -> Self {
        Self { program, ifindex, batch }
    }
}

impl HostPort for XdpHost {
    fn deliver(&mut self, packet: &[u8]) -> io::Result<()> {
        if packet.len() > DELIVER_MAX {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        run(&self.program, self.ifindex, packet, 0, 1)
    }

    fn deliver_all(&mut self, packets: &[&[u8]]) -> Vec<usize> {
        let batch = if packets.len() > 1 { self.batch.take() } else { None };
        match batch {
            None => packets
                .iter()
                .enumerate()
                .filter_map(|(place, packet)| self.deliver(packet).is_err().then_some(place))
                .collect(),
            Some(mut batch) => {
                let lost = in_batches(&mut batch, self.ifindex, packets);
                self.batch = Some(batch);
                lost
            }
        }
    }
}

/// Hands over packets in batches of as many as fit; returns the indices of those that were lost.
fn in_batches(batch: &mut Batch, ifindex: u32, packets: &[&[u8]]) -> Vec<usize> {
    let mut lost = Vec::new();
    for (number, packets) in packets.chunks(FRAMES).enumerate() {
        let mut places = Vec::with_capacity(FRAMES);
        for (place, packet) in (number * FRAMES..).zip(packets) {
            if batch.push(packet) { places.push(place) } else { lost.push(place) }
        }
        if batch.is_empty() {
            continue;
        }
        let passed = batch.run(|program, count| run(program, ifindex, &[0; BY_HAND + ANY], BY_HAND, count));
        lost.extend(
            places.into_iter().enumerate().filter(|(bit, _)| passed >> bit & 1 == 0).map(|(_, at)| at),
        );
    }
    lost
}

/// Has the kernel run a program on a frame received on the interface, with the given number of bytes of metadata in
/// front, and the given number of times.
fn run(program: &OwnedFd, ifindex: u32, frame: &[u8], metadata: usize, times: u32) -> io::Result<()> {
    let size = frame.len() as u32;
    let data = metadata as u32;
    let context = Context { data, data_end: size, ingress_ifindex: ifindex, ..Context::default() };
    let mut run = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>() as libbpf_sys::size_t,
        data_in: frame.as_ptr().cast(),
        data_size_in: size,
        ctx_in: std::ptr::from_ref(&context).cast(),
        ctx_size_in: size_of::<Context>() as u32,
        repeat: times as i32,
        flags: libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES,
        batch_size: times,
        ..bpf_test_run_opts::default()
    };
    // SAFETY: the frame and the context are of the sizes given and outlive the call.
    match unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut run) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}
