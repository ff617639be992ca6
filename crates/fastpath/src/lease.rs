//! The kernel path's leave to forward, for those who have nothing else of it: the thread that sees to it that control
//! goes on, and the process that watches over tables whose daemon has ended.
//!
//! It is the map that says how long tables hold, and the program that says it once more. Nobody who hangs holds a lock
//! that this needs.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Release};

use libbpf_rs::libbpf_sys::{self, bpf_test_run_opts};

use crate::maps::MappedViews;

/// Priority among real-time processes: who keeps a lease sleeps nearly always, and must be quick when it does not.
const PRIORITY: i32 = 10;

/// The kernel path's leave to forward.
pub struct Lease {
    views: MappedViews,
    beat: OwnedFd,
}

impl Lease {
    /// From the descriptors of the map and the program ([`crate::Kernel::lease_parts`]).
    ///
    /// # Errors
    /// What the system refused.
    pub fn open(views: BorrowedFd<'_>, beat: OwnedFd) -> io::Result<Self> {
        Ok(Self { views: MappedViews::map(&views)?, beat })
    }

    /// Whether the daemon was at work on its tables when it ended: something may be half done.
    pub fn is_busy(&self) -> bool {
        self.views.head().busy.load(Acquire) != 0
    }

    /// The program may forward from now on for as long as [`crate::Kernel::load`] was told.
    ///
    /// # Errors
    /// What the kernel refused.
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

    /// From now on the program leaves everything to Linux, until [`Self::renew`].
    pub fn expire(&self) {
        let head = self.views.head();
        let grace = u64::from(head.grace_jiffies.load(Acquire));
        // Before the last renewal, and so in the past.
        let past = head.alive_until.load(Acquire).wrapping_sub(grace).wrapping_sub(1);
        head.alive_until.store(past, Release);
        if grace == 0 {
            // Tables held for ever.
            head.grace_jiffies.store(1, Release);
        }
    }
}
/// Has this process outlive the one that started it: in a session of its own, so that no terminal ends it, and without
/// any file that it was not given as input or output.
pub fn stand_alone() {
    // SAFETY: takes nothing.
    let _leads_already = unsafe { libc::setsid() };
    // SAFETY: passes numbers. What libraries of the other process left open is nobody's here; nothing was opened yet.
    let _unknown = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
}

/// Has this thread go before all that are not real-time threads, or as far before them as is allowed.
pub fn go_first() {
    let parameter = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: the structure outlives the call.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameter) } != 0 {
        // SAFETY: passes numbers.
        let _refused = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    }
}
