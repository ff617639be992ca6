//! Links that outlive the daemon: pinned in bpffs, in one folder for each network namespace.
//!
//! ```text
//! /sys/fs/bpf/brickmoon/4026531840/7     namespace (its inode), then interface (its index in Linux)
//! ```
//!
//! `bm_bpf` decides which bpffs that is: a daemon mounts one if there is none.
//!
//! A pinned link keeps its program, and the program its maps: after a crash packets are still forwarded, with the
//! last tables. Nothing else is pinned, since the next daemon creates its own maps. The program's name shows its
//! layout version.
//!
//! `bm_bpf::pins` creates and removes the files, and locks the folder.

use std::fmt;
use std::path::PathBuf;

use bm_bpf::pins::{self, NotPinned, PinFolder, PinnedLink};
use bm_bpf::{Bpffs, NotClaimed, NotMounted};
use libbpf_rs::Link;

use crate::error::KernelError;

/// brickmoon's folder in bpffs, with a subfolder for each network namespace.
const FOLDER: &str = "brickmoon";
/// The program's name starts with this; its layout version follows.
const PREFIX: &str = "bm_forward_";
/// The name of the program for tc ends with this.
const AT_TC: &str = "_tc";

/// The folder of this network namespace in bpffs, claimed until this is dropped.
#[derive(Debug)]
pub struct Pins {
    bpffs: Bpffs,
    folder: PinFolder,
}

/// Why links cannot be pinned.
#[derive(Debug)]
pub enum NoPins {
    /// There is no bpffs, and mounting one failed.
    NotMounted(NotMounted),
    /// The folder in it cannot be claimed.
    Folder(NotClaimed),
}

impl fmt::Display for NoPins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMounted(why) => why.fmt(f),
            Self::Folder(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for NoPins {}

/// The layout version of the program of a link; `None` if it is not brickmoon's.
pub(crate) fn version_of(pinned: &PinnedLink) -> Option<u32> {
    version(&pinned.program.name)
}

/// The layout version in the name of a program of brickmoon.
fn version(name: &str) -> Option<u32> {
    let version = name.strip_prefix(PREFIX)?;
    version.strip_suffix(AT_TC).unwrap_or(version).parse().ok()
}

impl Pins {
    /// Claims the folder of this thread's network namespace, and removes the leftovers of deleted namespaces. Mounts
    /// a bpffs if there is none.
    ///
    /// # Errors
    /// If there is no bpffs and none can be mounted, or another process has the folder.
    pub fn claim() -> Result<Self, NoPins> {
        Self::claim_in(Bpffs::find_or_mount().map_err(NoPins::NotMounted)?)
    }

    fn claim_in(bpffs: Bpffs) -> Result<Self, NoPins> {
        let root = bpffs.path().join(FOLDER);
        pins::sweep(&root, 1);
        let below = pins::of_namespace(&root).map_err(NoPins::Folder)?;
        let folder = PinFolder::claim(&root, &below).map_err(NoPins::Folder)?;
        Ok(Self { bpffs, folder })
    }

    /// The bpffs that the folder is in.
    pub fn bpffs(&self) -> &Bpffs {
        &self.bpffs
    }

    /// The links that are pinned for existing interfaces; files of other interfaces are removed.
    pub(crate) fn links(&self) -> Vec<PinnedLink> {
        self.folder.links()
    }

    /// The file of an interface.
    #[cfg(test)]
    pub(crate) fn path(&self, ifindex: u32) -> PathBuf {
        self.folder.path(ifindex, bm_bpf::AttachType::Xdp)
    }

    /// Pins a link.
    pub(crate) fn pin(&self, ifindex: u32, link: &mut Link) -> Result<PathBuf, KernelError> {
        let failed = |NotPinned { path, error }| KernelError::Pin { path, error };
        self.folder.pin(ifindex, link).map_err(failed)
    }
}

/// Detaches the programs that an ended daemon left on interfaces of this network namespace; returns their names.
///
/// # Errors
/// If a running daemon has the folder.
pub fn remove_kept() -> Result<Vec<String>, NoPins> {
    // Without a bpffs, nothing can have been left.
    let Some(bpffs) = Bpffs::find() else { return Ok(Vec::new()) };
    let pins = Pins::claim_in(bpffs)?;
    let ours = pins.links().into_iter().filter(|pinned| version_of(pinned).is_some());
    let removed = ours.map(|pinned| {
        let name = crate::attach::name(pinned.ifindex);
        pinned.remove();
        name
    });
    Ok(removed.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_bpf::AttachType;

    #[test]
    fn recognizes_its_own_programs_by_name() {
        for attach_type in [AttachType::Xdp, AttachType::Tc] {
            assert_eq!(version(crate::kernel::forwards(attach_type)), Some(7));
        }
        assert_eq!(version("bm_forward_17"), Some(17));
        for other in ["bm_forward_", "bm_forward", "steer", "xdp_pass", ""] {
            assert_eq!(version(other), None, "{other}");
        }
    }
}
