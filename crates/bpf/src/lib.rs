//! Shared by everything that loads BPF programs: XDP and tc on interfaces, values of maps, pinned links, the file system
//! that they are pinned in, rings, and the one with samples of frames.
//!
//! `fastpath` and `switch` pin links in a [`Bpffs`], so that they outlive the daemon. The daemon, its successor and
//! `brickmoon stop` must all find the same one, whatever mount namespace each runs in.
//!
//! No programs, and no other maps: they belong to the crates that load them.

mod attached;
mod bpffs;
mod claim;
mod counters;
mod error;
mod map;
mod mount;
pub mod pins;
mod program;
mod ring;
pub mod samples;
pub mod tcx;
pub mod testing;
pub mod xdp;

pub use attached::AttachedProgram;
pub use bpffs::{Bpffs, NotMounted};
pub use claim::NotClaimed;
pub use error::Error;
pub use map::{MapValue, reset_counters, sum_counters};
pub use pins::{NoPins, PinnedLink, Pins};
pub use program::ProgramInfo;
pub use ring::RingReader;
pub use tcx::AttachType;
