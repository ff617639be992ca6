//! Access to Linux that several crates need, with the proofs for `unsafe` in one place.
//!
//! ```text
//! Map            mapped memory: files and BPF maps that others share, huge pages, anonymous memory
//! memfd          files in memory
//! Interfaces     index, MTU, MAC address, flags, driver and offloads of network interfaces
//! tap            queues of TAP interfaces
//! packet_socket  sends and receives whole frames on an interface
//! Namespace      the network or mount namespace of a thread
//! Waker          wakes a thread that waits
//! set_nice       how the kernel schedules a thread: nice value, real-time priority
//! Mutex          stays usable after a panic of another thread
//! heartbeat      whether each thread of the process makes progress
//! ```
//!
//! Every function is safe to call. A [`Map`] provides its address, checked places in it and slices of atomics. Other
//! shared memory is read through pointers by the crate that knows its layout, because only that crate knows who writes
//! there, and when (`docs/decisions/0020-memory-that-others-see.md`).
//!
//! Absent on purpose: messages for users, BPF and netlink. Callers add what they were doing to the `io::Error`.

mod ethtool;
mod file;
pub mod heartbeat;
pub mod interface;
mod map;
mod mutex;
mod namespace;
mod packet;
mod scheduling;
pub mod tap;
mod waker;

pub use ethtool::Offload;
pub use file::{allocate, memfd, open_regular, read_up_to};
pub use interface::{Flag, HardwareAddress, Interfaces};
pub use map::{Access, Atomic, Commit, HUGE_PAGE, Map, advise_huge};
pub use mutex::Mutex;
pub use namespace::Namespace;
pub use packet::{attach_filter, packet_socket};
pub use scheduling::{URGENT, set_nice, set_real_time};
pub use waker::{NoWaker, Waker, never_readable};

/// The effective user ID of this process; 0 is root.
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}
