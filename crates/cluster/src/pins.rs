//! Links that outlive the daemon ([`bm_bpf::pins`]).
//!
//! ```text
//! /sys/fs/bpf/brickmoon-cluster/4026531840/7     namespace (its inode), interface (its number)
//! ```
//!
//! A node remains intermediate and output node without a daemon. The next daemon loads its own program with the same
//! maps, which keep the neighbors and their indices.

use std::path::Path;

use bm_bpf::{NoPins, PinnedLink, Pins, pins};
use libbpf_rs::MapHandle;

use crate::layout::PROGRAM;

/// brickmoon's folder in bpffs for fabric programs, with a subfolder for each network namespace.
const FOLDER: &str = "brickmoon-cluster";
/// The folder for the programs of relays.
const RELAY_FOLDER: &str = "brickmoon-relay";
/// The program's name starts with this; the version of its layout follows.
const PREFIX: &str = "bm_fabric_";

/// Claims the folder for fabric programs.
pub fn claim() -> Result<Pins, NoPins> {
    Pins::claim(FOLDER, Path::new(""))
}

/// Claims the folder for programs of relays.
pub(crate) fn claim_of_relays() -> Result<Pins, NoPins> {
    Pins::claim(RELAY_FOLDER, Path::new(""))
}

/// Whether a link was left by a node of a cluster, of any version.
pub fn is_ours(pinned: &PinnedLink) -> bool {
    pinned.program.name.starts_with(PREFIX)
}

/// A map of a link's program; `None` if its layout may be different from this version's.
pub fn map(pinned: &PinnedLink, name: &str) -> Option<MapHandle> {
    if pinned.program.name == PROGRAM { pinned.program.map(name) } else { None }
}

/// Detaches the fabric program that an earlier daemon left in this network namespace. Returns the indices of its
/// interfaces.
pub fn remove_kept() -> Vec<u32> {
    pins::remove_kept(FOLDER, Path::new(""), is_ours).unwrap_or_default()
}
