//! What all who load BPF programs share: where they are pinned, and who has an interface already.
//!
//! `fastpath` and `switch` pin links in a [`Bpffs`], so that they outlive the daemon. Which one it is must be
//! answered alike by the daemon, by its successor and by `brickmoon stop`, whatever mount namespace each runs in.
//!
//! Absent on purpose: programs, maps and links. Those belong to the crates that load them.

mod bpffs;
mod claim;
mod mount;
mod occupant;
pub mod testing;

pub use bpffs::{Bpffs, NotMounted};
pub use claim::{ClaimedFolder, NotClaimed};
pub use occupant::Occupant;
