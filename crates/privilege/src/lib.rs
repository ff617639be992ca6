//! Dropping privileges and returning freed memory, identifying the process at the other end of a Unix socket, and locks
//! that other users cannot take.
//!
//! ```text
//! brickmoon up: reads its configuration, listens, mounts a bpffs     (all privileges of root)
//!        │ confine()
//!        ▼
//! capabilities ∩ KEPT · no_new_privs · seccomp                       (inherited by all later threads and children)
//! ```
//!
//! Capabilities belong to threads and are inherited by new ones, so [`confine`] must be called before any other thread
//! is started. A system call that brickmoon does not use returns EPERM and appears in the kernel's audit log; the
//! process is not killed.
//!
//! Absent on purpose: another user than root. The kernel's files that the daemon writes and its folders in bpffs belong
//! to root. Lua programs (`brickmoon run`) are not confined: they may need anything.

mod allocator;
mod calls;
mod capabilities;
mod lock;
mod peer;
mod seccomp;

use std::io;

pub use allocator::give_memory_back;
pub use capabilities::{KeptCapabilities, kept_by_daemon, kept_by_watcher, needs_files_of_others};
pub use lock::LockFile;
pub use peer::{group, groups_of};

/// Why a process could not be confined.
#[derive(Debug, thiserror::Error)]
pub enum NotConfined {
    #[error("other threads are already running")]
    Threads,
    #[error("cannot {step}: {error}")]
    Refused {
        step: &'static str,
        /// The error of the system.
        error: io::Error,
    },
}

impl NotConfined {
    /// The error of a step, for `map_err`.
    fn at(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Refused { step, error }
    }
}

/// The set of system calls that a process needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// What the daemon calls. `raw_io` adds access to I/O ports, which some DPDK drivers use.
    Daemon {
        /// Whether I/O ports may be used.
        raw_io: bool,
    },
    /// What the process calls that watches the daemon's tables; it starts no other process.
    Watcher,
}

/// Drops all capabilities except `kept`, and denies all system calls except `calls`, for this thread and all that it
/// starts.
///
/// # Errors
/// If other threads are already running, or the system denies a step. Earlier steps stay in effect.
pub fn confine(kept: KeptCapabilities, calls: Calls) -> Result<(), NotConfined> {
    let threads =
        std::fs::read_dir("/proc/self/task").map_err(NotConfined::at("read /proc/self/task"))?.count();
    if threads != 1 {
        return Err(NotConfined::Threads);
    }
    capabilities::reduce(kept).map_err(NotConfined::at("drop capabilities"))?;
    rustix::thread::set_no_new_privs(true)
        .map_err(io::Error::from)
        .map_err(NotConfined::at("set no_new_privs"))?;
    seccomp::install(calls).map_err(NotConfined::at("install a seccomp filter"))
}

#[cfg(test)]
mod tests;
