//! Links that outlive the daemon: pinned in bpffs, in one folder for each network namespace.
//!
//! ```text
//! /sys/fs/bpf/brickmoon-cluster/4026531840/7     namespace (its inode), interface (its number)
//! ```
//!
//! A pinned link keeps the program and its maps, so a node remains intermediate and output node without a daemon.
//! The next daemon loads its own program with the same maps, which keep the neighbors and their indices.

use std::io;
use std::path::PathBuf;

use bm_bpf::Bpffs;
use bm_bpf::pins::{self, NotPinned, PinFolder, PinnedLink};
use libbpf_rs::{Link, MapHandle};

use crate::error::ClusterError;
use crate::layout::PROGRAM;

/// brickmoon's folder in bpffs for fabric programs, with a subfolder for each network namespace.
const FOLDER: &str = "brickmoon-cluster";
/// The same for the programs of relays.
pub const RELAY_FOLDER: &str = "brickmoon-relay";
/// The program's name starts with this; the version of its layout follows.
const PREFIX: &str = "bm_fabric_";

/// The folder of this network namespace in bpffs, claimed until this is dropped.
pub struct Pins(PinFolder);

/// Whether a link was left by a node of a cluster, of any version.
pub fn is_ours(pinned: &PinnedLink) -> bool {
    pinned.program.name.starts_with(PREFIX)
}

/// A map of a link's program; `None` if its layout may be different from this version's.
pub fn map(pinned: &PinnedLink, name: &str) -> Option<MapHandle> {
    if pinned.program.name == PROGRAM { pinned.program.map(name) } else { None }
}

fn root(bpffs: &Bpffs) -> PathBuf {
    bpffs.path().join(FOLDER)
}

impl Pins {
    /// Claims the folder. Mounts a bpffs where there is none.
    ///
    /// # Errors
    /// If there is no bpffs and none can be mounted, or another process has the folder.
    pub fn claim() -> io::Result<Self> {
        Self::claim_in(FOLDER)
    }

    /// The same in another of brickmoon's folders.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub fn claim_in(folder: &str) -> io::Result<Self> {
        let bpffs = Bpffs::find_or_mount().map_err(io::Error::other)?;
        let root = bpffs.path().join(folder);
        pins::sweep(&root, 1);
        let claim = |namespace: PathBuf| PinFolder::claim(&root, &namespace);
        pins::of_namespace(&root).and_then(claim).map(Self).map_err(io::Error::other)
    }

    /// The links that are pinned for existing interfaces; files of other interfaces are removed.
    pub fn links(&self) -> Vec<PinnedLink> {
        self.0.links()
    }

    /// Pins a link of this node.
    pub fn pin(&self, ifindex: u32, link: &mut Link) -> Result<PathBuf, ClusterError> {
        let failed = |NotPinned { path, error }| ClusterError::Pin { path, error };
        self.0.pin(ifindex, link).map_err(failed)
    }
}

/// Detaches the fabric program that an earlier daemon left in this network namespace. Returns the indices of its
/// interfaces.
pub fn remove_kept() -> Vec<u32> {
    let Some(root) = Bpffs::find().map(|bpffs| root(&bpffs)) else { return Vec::new() };
    let Ok(namespace) = pins::of_namespace(&root) else { return Vec::new() };
    if !root.join(&namespace).exists() {
        return Vec::new();
    }
    let Ok(folder) = PinFolder::claim(&root, &namespace) else { return Vec::new() };
    let ours = folder.links().into_iter().filter(is_ours);
    ours.map(|pinned| (pinned.ifindex, pinned.remove()).0).collect()
}
