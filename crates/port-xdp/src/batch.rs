//! Frames for Linux, many in one system call.
//!
//! ```text
//! frames -> memory that is shared with bpf/deliver.h -> one run of the steering program for each -> Linux
//! ```
//!
//! Having the kernel run a program on a frame takes about 18 us, nearly all of which is the fixed cost of the call.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use bm_sys::{Access, Map};
use libbpf_rs::libbpf_sys;

/// The largest frame that the kernel accepts, in bytes: a page, less its own headroom and tailroom.
pub const DELIVER_MAX: usize = 3_500;
/// The smallest: an Ethernet header.
pub(crate) const DELIVER_MIN: usize = 14;
/// Frames in one call. The same in `bpf/deliver.h`, as is the layout of what follows.
pub(crate) const FRAMES: usize = 64;
/// Bytes of metadata that tell the program that it runs as a test run. The same in `bpf/deliver.h`.
pub(crate) const BY_HAND: usize = 28;

/// `struct held`.
///
/// Shared with the program as part of a [`Queue`].
#[repr(C)]
struct HeldFrame {
    length: u32,
    data: [u8; DELIVER_MAX],
}

/// `struct queue`.
///
/// Shared with the program, which touches it only within [`Batch::run`]'s system call: the kernel is opaque to the compiler,
/// and all access here is by raw pointers.
#[repr(C)]
struct Queue {
    passed: u64,
    next: u32,
    count: u32,
    of: [HeldFrame; FRAMES],
}

/// Whether the kernel lets a program copy a frame's bytes into another frame, as Linux does since 5.18.
pub(crate) fn is_possible() -> bool {
    let (kind, helper) = (libbpf_sys::BPF_PROG_TYPE_XDP, libbpf_sys::BPF_FUNC_xdp_store_bytes);
    // SAFETY: passes numbers, and no options.
    unsafe { libbpf_sys::libbpf_probe_bpf_helper(kind, helper, std::ptr::null()) == 1 }
}

/// The program and its memory.
pub(crate) struct Batch {
    program: OwnedFd,
    /// The value of the map: a `Queue`.
    map: Map,
    filled: usize,
}

impl Batch {
    /// Maps the queue of a steering program.
    pub fn open(program: &OwnedFd, queue: &impl AsFd) -> io::Result<Self> {
        let map = Map::file(queue, 0, size_of::<Queue>(), Access::ReadWrite)?;
        Ok(Self { program: program.try_clone()?, map, filled: 0 })
    }

    /// Adds the next frame; `false` if there is no room, or the frame is too long or too short.
    pub fn push(&mut self, packet: &[u8]) -> bool {
        if self.filled == FRAMES || !(DELIVER_MIN..=DELIVER_MAX).contains(&packet.len()) {
            return false;
        }
        // SAFETY: the place is within the mapping since `filled` is below `FRAMES`, and the packet fits by the check
        // above. The program does not run now, so nobody else touches the memory.
        unsafe {
            let held = &raw mut (*self.queue()).of[self.filled];
            (&raw mut (*held).length).write(packet.len() as u32);
            let data = (&raw mut (*held).data).cast::<u8>();
            std::ptr::copy_nonoverlapping(packet.as_ptr(), data, packet.len());
        }
        self.filled += 1;
        true
    }

    fn queue(&mut self) -> *mut Queue {
        self.map.place(0, 1).as_ptr()
    }

    /// Whether it has no frames.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Hands over the added frames with `run`, which has the kernel run the program that many times. Returns a bit
    /// for each frame that Linux got; afterwards there is room again.
    pub fn run(&mut self, run: impl FnOnce(&OwnedFd, u32) -> io::Result<()>) -> u64 {
        let count = std::mem::take(&mut self.filled) as u32;
        let queue = self.queue();
        // SAFETY: the mapping lives as long as `self`, and the program does not run now.
        unsafe {
            (&raw mut (*queue).passed).write(0);
            (&raw mut (*queue).next).write(0);
            (&raw mut (*queue).count).write(count);
        }
        // The bits show which frames were delivered before an error.
        let _rest_is_lost = run(&self.program, count);
        // SAFETY: as before; the system call is over.
        unsafe {
            (&raw mut (*queue).count).write(0);
            (&raw const (*queue).passed).read()
        }
    }
}
