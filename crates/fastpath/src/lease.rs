//! The permission of the kernel path to forward, for code that has no access to the rest of it: the thread that
//! checks that control makes progress, and the process that watches over the tables after the daemon has ended.
//!
//! It consists of the map with the time until which tables are valid, and the program that extends that time. It
//! needs no lock that a hung thread might hold.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Release};

use libbpf_rs::libbpf_sys::{self, bpf_test_run_opts};

use crate::maps::MappedViews;

/// Real-time priority: whoever renews the lease sleeps nearly always, and must be quick otherwise.
const PRIORITY: i32 = 10;

/// The permission of the kernel path to forward, for a limited time.
pub struct Lease {
    views: MappedViews,
    beat: OwnedFd,
}

impl Lease {
    /// Opens it from the descriptors of the map and the program ([`crate::Kernel::lease_parts`]).
    ///
    /// # Errors
    /// The system's error.
    pub fn open(views: BorrowedFd<'_>, beat: OwnedFd) -> io::Result<Self> {
        Ok(Self { views: MappedViews::map(&views)?, beat })
    }

    /// Whether the daemon was changing its tables when it ended: a change may be incomplete.
    pub fn is_busy(&self) -> bool {
        self.views.head().busy.load(Acquire) != 0
    }

    /// Allows the program to forward for the time that was passed to [`crate::Kernel::load`], from now on.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn renew(&self) -> io::Result<()> {
        let mut options = bpf_test_run_opts {
            sz: size_of::<bpf_test_run_opts>() as libbpf_sys::size_t,
            ..bpf_test_run_opts::default()
        };
        let program = self.beat.as_fd().as_raw_fd();
        // SAFETY: the options are whole and outlive the call; the program is given no memory of ours.
        match unsafe { libbpf_sys::bpf_prog_test_run_opts(program, &raw mut options) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }

    /// Until when the program may forward: the low 32 bits of the jiffies.
    pub fn until(&self) -> u32 {
        self.views.head().alive_until.load(Acquire) as u32
    }

    /// Makes the program leave everything to Linux from now on, until [`Self::renew`].
    pub fn expire(&self) {
        let head = self.views.head();
        let grace = u64::from(head.grace_jiffies.load(Acquire));
        // A time before the last renewal, and so in the past.
        let past = head.alive_until.load(Acquire).wrapping_sub(grace).wrapping_sub(1);
        head.alive_until.store(past, Release);
        if grace == 0 {
            // For tables without a time limit.
            head.grace_jiffies.store(1, Release);
        }
    }
}
/// Detaches this process from the one that started it, so that it can outlive it: it gets its own session, so that no
/// terminal ends it, and keeps no open file except its input and output.
pub fn detach_from_parent() {
    let _leads_already = rustix::process::setsid();
    // SAFETY: passes numbers. What libraries of the other process left open is nobody's here; nothing was opened yet.
    let _unknown = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
}

/// Gives this thread priority over all threads without real-time priority, or as much as is allowed.
pub fn prioritize() {
    let parameter = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: the structure outlives the call.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameter) } != 0 {
        let _refused = bm_sys::set_nice(-20);
    }
}
