//! Where BPF objects are pinned: the one thing that all who pin share.
//!
//! `fastpath` and `switch` pin links in a [`Bpffs`], so that they outlive the daemon. Which one it is must be
//! answered alike by the daemon, by its successor and by `brickmoon stop`, whatever mount namespace each runs in.
//!
//! Absent on purpose: programs, maps and links. Those belong to the crates that load them.

mod bpffs;
mod mount;
pub mod testing;

pub use bpffs::{Bpffs, NotMounted};
