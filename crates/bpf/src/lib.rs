//! Shared by everything that loads BPF programs: where programs are pinned, and which program an interface already
//! has.
//!
//! `fastpath` and `switch` pin links in a [`Bpffs`], so that they outlive the daemon. The daemon, its successor and
//! `brickmoon stop` must all find the same one, whatever mount namespace each runs in.
//!
//! Absent on purpose: programs, maps and links. They belong to the crates that load them.

mod bpffs;
mod claim;
mod mount;
mod occupant;
pub mod testing;

pub use bpffs::{Bpffs, NotMounted};
pub use claim::{ClaimedFolder, NotClaimed};
pub use occupant::Occupant;
