//! What a process of brickmoon gives up once it no longer needs it (privileges, freed memory), who is at the other end of a
//! Unix socket, and locks that other users cannot take.
//!
//! ```text
//! brickmoon up: reads its configuration, listens, mounts a bpffs     (all that root may do)
//!        │ confine()
//!        ▼
//! capabilities ∩ KEPT · no_new_privs · seccomp                       (and so in each thread and child from here on)
//! ```
//!
//! Capabilities belong to threads and are handed down to new ones, so [`confine`] comes before any other thread is
//! started. A system call that nothing of brickmoon makes returns EPERM, and the kernel's audit log names it; the process
//! is not killed.
//!
//! Absent on purpose: another user than root. The kernel's files that the daemon writes and its folders in bpffs belong
//! to root. Lua programs (`brickmoon run`) are not confined: they are whatever their authors make them.

mod allocator;
mod calls;
mod capabilities;
mod lock;
mod peer;
mod seccomp;

use std::fmt;
use std::io;

pub use allocator::give_memory_back;
pub use capabilities::{Kept, kept_by_daemon, kept_by_watcher, needs_files_of_others};
pub use lock::LockFile;
pub use peer::{group, groups_of};

/// Why a process could not be confined.
#[derive(Debug)]
pub enum NotConfined {
    /// Other threads run already, and would keep what they have.
    Threads,
    /// A step was refused.
    Refused {
        /// Which.
        step: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

impl fmt::Display for NotConfined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Threads => f.write_str("other threads run already"),
            Self::Refused { step, error } => write!(f, "{step}: {error}"),
        }
    }
}

impl std::error::Error for NotConfined {}

/// Which system calls a process needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Those of the daemon. `raw_io` adds access to I/O ports, which some drivers of DPDK use.
    Daemon {
        /// Whether I/O ports may be used.
        raw_io: bool,
    },
    /// Those of the process that watches over the daemon's tables: it starts no other process.
    Watcher,
}

/// Gives up all capabilities but `kept`, and all system calls but `calls`, in this thread and all that it starts.
///
/// # Errors
/// If other threads run already, or the system refuses a step. Steps before it hold.
pub fn confine(kept: Kept, calls: Calls) -> Result<(), NotConfined> {
    let refused = |step| move |error| NotConfined::Refused { step, error };
    let threads = std::fs::read_dir("/proc/self/task").map_err(refused("read /proc/self/task"))?.count();
    if threads != 1 {
        return Err(NotConfined::Threads);
    }
    capabilities::reduce(kept).map_err(refused("give up capabilities"))?;
    rustix::thread::set_no_new_privs(true)
        .map_err(|error| refused("set no_new_privs")(io::Error::from(error)))?;
    seccomp::install(calls).map_err(refused("install a seccomp filter"))
}

#[cfg(test)]
mod tests;
