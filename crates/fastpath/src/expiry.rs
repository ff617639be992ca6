//! The end of the grace time before its time: for the process that watches over tables whose daemon has ended.
//!
//! It has nothing of the kernel path but the map that says how long tables hold ([`Kernel::views`]), and needs
//! nothing else: when they are out of date, the program leaves everything to Linux, as after the grace time.
//!
//! [`Kernel::views`]: crate::Kernel::views

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::maps::MappedViews;

/// Priority among real-time processes: that watcher sleeps nearly always, and must be quick when it does not.
const PRIORITY: i32 = 10;

/// The map that says how long tables hold.
pub struct Expiry {
    views: MappedViews,
}

impl Expiry {
    /// From the descriptor of the map.
    ///
    /// # Errors
    /// What the system refused.
    pub fn open(views: &OwnedFd) -> io::Result<Self> {
        MappedViews::map(views).map(|views| Self { views })
    }

    /// Whether the daemon was at work on its tables when it ended: something may be half done.
    pub fn is_busy(&self) -> bool {
        self.views.head().busy.load(Acquire) != 0
    }

    /// From now on the program leaves everything to Linux.
    pub fn expire(&self) {
        let head = self.views.head();
        let grace = u64::from(head.grace_jiffies.load(Acquire));
        // Before the daemon's last sign of life, and so in the past.
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
