//! Links that outlive the daemon: pinned in bpffs, in one folder for each network namespace.
//!
//! ```text
//! /sys/fs/bpf/brickmoon/4026531840/7     namespace (its inode), then interface (its index in Linux)
//! ```
//!
//! `bm_bpf` decides which bpffs that is: a daemon mounts one where there is none.
//!
//! A pinned link keeps its program, and the program its maps: after a crash packets are still forwarded, with the
//! last tables. Nothing else is pinned, since the next daemon creates its own maps. The program's name shows its
//! layout version.
//!
//! The folder is claimed with a lock that ends with the process, so no two daemons use it. Files are named by
//! interface index: bpffs allows no dot in a name, and some interface names have one.

use std::ffi::CStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bm_bpf::{Bpffs, ClaimedFolder, NotClaimed, NotMounted};
use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, Program, libbpf_sys};

use crate::error::KernelError;

/// brickmoon's folder in bpffs, with a subfolder for each network namespace.
const FOLDER: &str = "brickmoon";
/// The program's name starts with this; its layout version follows.
const PREFIX: &str = "bm_forward_";
/// The folder of this network namespace in bpffs, claimed until this is dropped.
#[derive(Debug)]
pub struct Pins {
    bpffs: Bpffs,
    folder: ClaimedFolder,
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

/// A pinned link.
pub(crate) struct Pinned {
    pub path: PathBuf,
    pub link: Link,
    /// Its interface index; 0 if the interface is deleted.
    pub ifindex: u32,
    /// ID and name of its program.
    pub program: (u32, String),
}

impl Pinned {
    fn open(path: PathBuf) -> Option<Self> {
        let link = Link::open(&path).ok()?;
        let info = link.info().ok()?;
        let LinkTypeInfo::Xdp(of) = info.info else { return None };
        let program = (info.prog_id, program_name(info.prog_id).unwrap_or_default());
        Some(Self { path, link, ifindex: of.ifindex, program })
    }

    /// The layout version of the program; `None` if it is not brickmoon's.
    pub fn version(&self) -> Option<u32> {
        version(&self.program.1)
    }

    /// Detaches the program from its interface and removes the file.
    pub fn remove(self) {
        // A link whose interface is gone is already detached; only its file is left.
        let _detached = self.link.detach();
        let _gone = fs::remove_file(&self.path);
    }
}

/// The layout version in the name of a program of brickmoon.
fn version(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

fn program_name(id: u32) -> io::Result<String> {
    let program = Program::fd_from_id(id).map_err(io::Error::other)?;
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut len = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: the structure is whole, as long as `len` says, and asks for no arrays: all its pointers are null.
    let failed =
        unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &mut info, &mut len) };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(-failed));
    }
    let name = info.name.map(|byte| byte as u8);
    let name = CStr::from_bytes_until_nul(&name).map_err(io::Error::other)?;
    Ok(name.to_string_lossy().into_owned())
}

impl Pins {
    /// Claims the folder of this thread's network namespace, and removes the leftovers of deleted namespaces. Mounts
    /// a bpffs where there is none.
    ///
    /// # Errors
    /// If there is no bpffs and none can be mounted, or another process has the folder.
    pub fn claim() -> Result<Self, NoPins> {
        Self::claim_in(Bpffs::find_or_mount().map_err(NoPins::NotMounted)?)
    }

    fn claim_in(bpffs: Bpffs) -> Result<Self, NoPins> {
        let root = bpffs.path().join(FOLDER);
        sweep(&root);
        let namespace = fs::metadata("/proc/thread-self/ns/net")
            .map_err(|error| NoPins::Folder(NotClaimed::System { folder: root.clone(), error }))?;
        let below = namespace.ino().to_string();
        let folder = ClaimedFolder::claim(&root, below.as_ref()).map_err(NoPins::Folder)?;
        Ok(Self { bpffs, folder })
    }

    /// The bpffs that the folder is in.
    pub fn bpffs(&self) -> &Bpffs {
        &self.bpffs
    }

    /// The links that are pinned for existing interfaces; files of other interfaces are removed.
    pub(crate) fn links(&self) -> Vec<Pinned> {
        links(self.folder.path())
    }

    /// The file of an interface.
    pub(crate) fn path(&self, ifindex: u32) -> PathBuf {
        self.folder.path().join(ifindex.to_string())
    }

    /// Pins a link.
    pub(crate) fn pin(&self, ifindex: u32, link: &mut Link) -> Result<PathBuf, KernelError> {
        let path = self.path(ifindex);
        match link.pin(&path) {
            Ok(()) => Ok(path),
            Err(error) => Err(KernelError::Pin { path, error }),
        }
    }
}

fn links(folder: &Path) -> Vec<Pinned> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let links = files.filter_map(|file| Pinned::open(file.path()));
    let (mut here, gone): (Vec<_>, Vec<_>) = links.partition(|pinned| pinned.ifindex != 0);
    here.sort_by_key(|pinned| pinned.ifindex);
    gone.into_iter().for_each(Pinned::remove);
    here
}

/// Removes files in folders that no process claims and whose interface no longer exists.
fn sweep(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        // Tries only once: this visits the folders of all running daemons, and must not wait for any.
        if let Ok(folder) = ClaimedFolder::try_claim(root, entry.file_name().as_ref()) {
            links(folder.path());
        }
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
    let ours = pins.links().into_iter().filter(|pinned| pinned.version().is_some());
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

    #[test]
    fn knows_its_own_programs_by_name() {
        assert_eq!(version(crate::kernel::PROGRAM), Some(5));
        assert_eq!(version("bm_forward_17"), Some(17));
        for other in ["bm_forward_", "bm_forward", "steer", "xdp_pass", ""] {
            assert_eq!(version(other), None, "{other}");
        }
    }
}
