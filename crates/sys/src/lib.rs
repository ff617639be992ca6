//! Linux as several crates use it, with the proofs for `unsafe` in one place.
//!
//! ```text
//! Map         memory that the kernel maps: files and BPF maps that others share, huge pages, anonymous memory
//! memfd       files in memory
//! Interfaces  numbers, names, MTU, MAC and flags of interfaces; what ethtool asks drivers and sets
//! tap         queues of TAP interfaces
//! Namespace   the network or mounts of a thread
//! Waker       what one thread waits on and another makes ready
//! ```
//!
//! Everything here is safe to call. A [`Map`] gives its address, checked places in it and slices of atomics; what else
//! lies in shared memory is read through pointers by the crate that knows its layout, because that crate alone knows
//! who writes there, and when (`docs/decisions/0020-memory-that-others-see.md`).
//!
//! Absent on purpose: names of ports, messages for users, anything of BPF or netlink. Callers add what they were doing
//! to the `io::Error` that they get.

mod ethtool;
mod file;
pub mod interface;
mod map;
mod namespace;
pub mod tap;
mod waker;

pub use ethtool::Offload;
pub use file::{allocate, memfd};
pub use interface::{Flag, HardwareAddress, Interfaces};
pub use map::{Access, Atomic, Commit, HUGE_PAGE, Map, advise_huge};
pub use namespace::Namespace;
pub use waker::{NoWaker, Waker, never_readable};

/// The user with whose rights this process runs: 0 is root.
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}
