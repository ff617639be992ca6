//! Links that outlive the process that made them: pinned in a folder of bpffs, one file for each interface.
//!
//! ```text
//! /sys/fs/bpf/brickmoon/4026531840/7              root, network namespace (its inode), interface (its index)
//! /sys/fs/bpf/brickmoon/4026531840/7-tc           a program at tc
//! /sys/fs/bpf/brickmoon-switch/4026531840/lan/7   a folder for each switch
//! ```
//!
//! A pinned link keeps its program, and the program its maps: after a crash it still forwards. Nothing else is pinned,
//! since the next daemon creates maps of its own; the name of a program shows the version of its layout. The folder is
//! claimed by a lock that ends with the process, so no two daemons use it at a time. Files are named by number: bpffs allows no dots in names, but names of interfaces may
//! contain some.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::Link;
use libbpf_rs::query::LinkTypeInfo;

use crate::bpffs::{Bpffs, NotMounted};
use crate::claim::{ClaimedFolder, NotClaimed};
use crate::error::Error;
use crate::program::ProgramInfo;
use crate::tcx::AttachType;

/// A BPF link that an entry in bpffs keeps attached, also after this process has ended.
pub struct PinnedLink {
    /// Its file.
    pub path: PathBuf,
    pub link: Link,
    /// Its interface index; 0 if the interface is deleted.
    pub ifindex: u32,
    /// What its program is attached to there.
    pub attach_type: AttachType,
    /// Its program; without a name if the kernel does not say.
    pub program: ProgramInfo,
}

impl PinnedLink {
    fn open(path: PathBuf) -> Option<Self> {
        let link = Link::open(&path).ok()?;
        let info = link.info().ok()?;
        let (ifindex, attach_type) = place(&info.info)?;
        let id = info.prog_id;
        let program = ProgramInfo::query(id).unwrap_or_else(|_| ProgramInfo { id, ..ProgramInfo::default() });
        Some(Self { path, link, ifindex, attach_type, program })
    }

    /// Detaches the program from its interface and removes the file.
    pub fn remove(self) {
        // A link whose interface is gone is already detached; only its file is left.
        let _detached = self.link.detach();
        let _gone = fs::remove_file(&self.path);
    }
}

/// The interface of a link, 0 if it is deleted, and what its program is attached to there; `None` for other links.
pub fn place(link: &LinkTypeInfo) -> Option<(u32, AttachType)> {
    match link {
        LinkTypeInfo::Xdp(of) => Some((of.ifindex, AttachType::Xdp)),
        LinkTypeInfo::Tcx(of) => Some((of.ifindex, AttachType::Tc)),
        _ => None,
    }
}

/// Why links cannot be pinned.
#[derive(Debug, thiserror::Error)]
pub enum NoPins {
    /// There is no bpffs, and mounting one failed.
    #[error(transparent)]
    NotMounted(#[from] NotMounted),
    /// The folder in it cannot be claimed.
    #[error(transparent)]
    Folder(#[from] NotClaimed),
}

/// A folder of pinned links that no other process may use until this is dropped.
#[derive(Debug)]
pub struct Pins {
    bpffs: Bpffs,
    folder: ClaimedFolder,
}

impl Pins {
    /// Claims the folder `below` that of this thread's network namespace in the folder `root` of bpffs, and removes what
    /// deleted interfaces have left below `root`. Mounts a bpffs if there is none.
    ///
    /// # Errors
    /// If there is no bpffs and none can be mounted, or another process has the folder.
    pub fn claim(root: &str, below: &Path) -> Result<Self, NoPins> {
        let bpffs = Bpffs::find_or_mount()?;
        let root = bpffs.path().join(root);
        sweep(&root, 1 + below.components().count());
        let folder = ClaimedFolder::claim(&root, &namespace(&root)?.join(below))?;
        Ok(Self { bpffs, folder })
    }

    /// The bpffs that the folder is in.
    pub fn bpffs(&self) -> &Bpffs {
        &self.bpffs
    }

    /// The links that are pinned for existing interfaces, by index; files of other interfaces are removed.
    pub fn links(&self) -> Vec<PinnedLink> {
        links_in(&self.folder)
    }

    /// The file of an interface.
    pub fn path(&self, ifindex: u32, attach_type: AttachType) -> PathBuf {
        self.folder.path().join(match attach_type {
            AttachType::Xdp => ifindex.to_string(),
            AttachType::Tc => format!("{ifindex}-tc"),
        })
    }

    /// Pins a link.
    ///
    /// # Errors
    /// [`Error::Pin`].
    pub fn pin(&self, ifindex: u32, link: &mut Link) -> Result<PathBuf, Error> {
        let placed = link.info().ok().and_then(|info| place(&info.info));
        let path = self.path(ifindex, placed.map_or(AttachType::Xdp, |(_, attach_type)| attach_type));
        match link.pin(&path) {
            Ok(()) => Ok(path),
            Err(error) => Err(Error::Pin { path, error }),
        }
    }
}

/// Detaches programs that an ended daemon has left: those of the links that are pinned as [`Pins::claim`] says, and that
/// `is_ours`. Returns the indices of their interfaces.
///
/// # Errors
/// If a running daemon has the folder.
pub fn remove_kept(
    root: &str,
    below: &Path,
    is_ours: impl Fn(&PinnedLink) -> bool,
) -> Result<Vec<u32>, NoPins> {
    // Without a bpffs, nothing can have been left.
    let Some(bpffs) = Bpffs::find() else { return Ok(Vec::new()) };
    let root = bpffs.path().join(root);
    let below = namespace(&root)?.join(below);
    if !root.join(&below).exists() {
        return Ok(Vec::new());
    }
    // A process that the previous owner is starting may have its lock for a moment, so this is tried more than once.
    let folder = ClaimedFolder::claim(&root, &below)?;
    let mut removed = Vec::new();
    for pinned in links_in(&folder).into_iter().filter(is_ours) {
        removed.push(pinned.ifindex);
        pinned.remove();
    }
    Ok(removed)
}

/// The names of the folders below that of this thread's network namespace; none without a bpffs.
pub fn kept_folders(root: &str) -> Vec<OsString> {
    let Some(root) = Bpffs::find().map(|bpffs| bpffs.path().join(root)) else { return Vec::new() };
    namespace(&root).map_or_else(|_| Vec::new(), |namespace| names_in(&root.join(namespace)).collect())
}

/// The name of the folder of this thread's network namespace below `root`.
///
/// # Errors
/// [`NotClaimed::System`] if `/proc` does not say.
fn namespace(root: &Path) -> Result<PathBuf, NotClaimed> {
    match fs::metadata("/proc/thread-self/ns/net") {
        Ok(namespace) => Ok(namespace.ino().to_string().into()),
        Err(error) => Err(NotClaimed::System { folder: root.into(), error }),
    }
}

fn links_in(folder: &ClaimedFolder) -> Vec<PinnedLink> {
    let folder = folder.path();
    let links = names_in(folder).filter_map(|name| PinnedLink::open(folder.join(name)));
    let (mut here, gone): (Vec<_>, Vec<_>) = links.partition(|pinned| pinned.ifindex != 0);
    here.sort_by_key(|pinned| pinned.ifindex);
    gone.into_iter().for_each(PinnedLink::remove);
    here
}

/// The names in a folder; none if there is no such folder.
fn names_in(folder: &Path) -> impl Iterator<Item = OsString> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name())
}

/// Removes files whose interface no longer exists from folders that no process has claimed, `levels` below `root`.
fn sweep(root: &Path, levels: usize) {
    let mut folders = vec![PathBuf::new()];
    for _ in 0..levels {
        folders = folders
            .iter()
            .flat_map(|folder| names_in(&root.join(folder)).map(|name| folder.join(name)))
            .collect();
    }
    for folder in folders {
        // Tries only once: this visits the folders of all running daemons, and must not wait for any.
        if let Ok(folder) = ClaimedFolder::try_claim(root, &folder) {
            links_in(&folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_removes_empty_folders_down_to_its_level() {
        let root = std::env::temp_dir().join(format!("bm-pins-sweep-{}", std::process::id()));
        for folder in ["1/lan", "1/wan", "2/lan"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let ours = ClaimedFolder::claim(&root, "1/lan".as_ref()).unwrap();
        sweep(&root, 2);
        let left: Vec<_> = names_in(&root).flat_map(|name| names_in(&root.join(name))).collect();
        assert_eq!(left, ["lan"], "only what is claimed stays");
        drop(ours);
        assert!(!root.exists());
        sweep(&root, 2);
        assert_eq!(names_in(&root).count(), 0);
    }

    #[test]
    fn the_folder_of_a_namespace_is_its_number() {
        let name = namespace(Path::new("/")).unwrap();
        assert!(name.to_string_lossy().parse::<u64>().is_ok(), "{name:?}");
    }
}
