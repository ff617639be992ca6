//! Links that outlive the process that made them: pinned in a folder of bpffs, one file for each interface.
//!
//! ```text
//! /sys/fs/bpf/brickmoon/4026531840/7              root, network namespace (its inode), interface (its index)
//! /sys/fs/bpf/brickmoon/4026531840/7-tc           the same, of a program at tc
//! /sys/fs/bpf/brickmoon-switch/4026531840/lan/7   the same with one more level
//! ```
//!
//! A pinned link holds its program, and that its maps. The folder is claimed by a lock that ends with the process, so
//! no two daemons use it at a time. Files are named by number: bpffs allows no dots in names, but names of interfaces may
//! contain some.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::Link;
use libbpf_rs::query::LinkTypeInfo;

use crate::claim::{ClaimedFolder, NotClaimed};
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

/// The link was not pinned.
#[derive(Debug)]
pub struct NotPinned {
    /// Where it was to be.
    pub path: PathBuf,
    /// The kernel's error.
    pub error: libbpf_rs::Error,
}

/// A folder of pinned links that no other process may use until this is dropped.
#[derive(Debug)]
pub struct PinFolder(ClaimedFolder);

impl PinFolder {
    /// Claims the folder `below` the folder `root` of a bpffs, and creates both if they do not exist. Waits a moment
    /// if another process has it.
    ///
    /// # Errors
    /// See [`NotClaimed`].
    pub fn claim(root: &Path, below: &Path) -> Result<Self, NotClaimed> {
        ClaimedFolder::claim(root, below).map(Self)
    }

    /// As [`claim`](Self::claim), without waiting.
    ///
    /// # Errors
    /// See [`NotClaimed`].
    pub fn try_claim(root: &Path, below: &Path) -> Result<Self, NotClaimed> {
        ClaimedFolder::try_claim(root, below).map(Self)
    }

    /// The links that are pinned for existing interfaces, by index; files of other interfaces are removed.
    pub fn links(&self) -> Vec<PinnedLink> {
        let folder = self.0.path();
        let links = names_in(folder).filter_map(|name| PinnedLink::open(folder.join(name)));
        let (mut here, gone): (Vec<_>, Vec<_>) = links.partition(|pinned| pinned.ifindex != 0);
        here.sort_by_key(|pinned| pinned.ifindex);
        gone.into_iter().for_each(PinnedLink::remove);
        here
    }

    /// The file of an interface.
    pub fn path(&self, ifindex: u32, attach_type: AttachType) -> PathBuf {
        self.0.path().join(match attach_type {
            AttachType::Xdp => ifindex.to_string(),
            AttachType::Tc => format!("{ifindex}-tc"),
        })
    }

    /// Pins a link.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn pin(&self, ifindex: u32, link: &mut Link) -> Result<PathBuf, NotPinned> {
        let placed = link.info().ok().and_then(|info| place(&info.info));
        let path = self.path(ifindex, placed.map_or(AttachType::Xdp, |(_, attach_type)| attach_type));
        match link.pin(&path) {
            Ok(()) => Ok(path),
            Err(error) => Err(NotPinned { path, error }),
        }
    }
}

/// What the folder of this thread's network namespace is called below `root`.
///
/// # Errors
/// [`NotClaimed::System`] if `/proc` does not say.
pub fn of_namespace(root: &Path) -> Result<PathBuf, NotClaimed> {
    match fs::metadata("/proc/thread-self/ns/net") {
        Ok(namespace) => Ok(namespace.ino().to_string().into()),
        Err(error) => Err(NotClaimed::System { folder: root.into(), error }),
    }
}

/// The names in a folder; none if there is no such folder.
pub fn names_in(folder: &Path) -> impl Iterator<Item = OsString> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name())
}

/// Removes files whose interface no longer exists from folders that no process has claimed, `levels` below `root`.
pub fn sweep(root: &Path, levels: usize) {
    let mut folders = vec![PathBuf::new()];
    for _ in 0..levels {
        let below = |folder: &PathBuf| names_in(&root.join(folder)).map(|name| folder.join(name)).collect();
        folders = folders.iter().flat_map::<Vec<_>, _>(below).collect();
    }
    for folder in folders {
        // Tries only once: this visits the folders of all running daemons, and must not wait for any.
        if let Ok(folder) = PinFolder::try_claim(root, &folder) {
            folder.links();
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
        let ours = PinFolder::claim(&root, "1/lan".as_ref()).unwrap();
        sweep(&root, 2);
        let left: Vec<_> = names_in(&root).flat_map(|name| names_in(&root.join(name))).collect();
        assert_eq!(left, ["lan"], "only what is claimed stays");
        assert_eq!(ours.path(7, AttachType::Xdp), root.join("1/lan/7"));
        assert_eq!(ours.path(7, AttachType::Tc), root.join("1/lan/7-tc"));
        drop(ours);
        assert!(!root.exists());
        sweep(&root, 2);
        assert_eq!(names_in(&root).count(), 0);
    }

    #[test]
    fn the_folder_of_a_namespace_is_its_number() {
        let name = of_namespace(Path::new("/")).unwrap();
        assert!(name.to_string_lossy().parse::<u64>().is_ok(), "{name:?}");
    }
}
