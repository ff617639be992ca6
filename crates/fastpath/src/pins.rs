//! Links that outlive the daemon: pinned in bpffs, a folder for each network namespace.
//!
//! ```text
//! /sys/fs/bpf/brickmoon/4026531840/7     namespace (its inode), then interface (its index in Linux)
//! ```
//!
//! Which bpffs that is, `bm_bpf` says: a daemon mounts one where there is none.
//!
//! A pinned link holds its program, and that its maps: after a crash packets go on by the last tables. Nothing
//! else is pinned, since the next daemon brings maps of its own. Which program a link has, and of which layout,
//! is told by the program's name.
//!
//! The folder is claimed by a lock that ends with the process, so no two daemons meet there. Files are named by
//! number: bpffs allows no dot in a name, and names of interfaces have some.

use std::ffi::CStr;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bm_bpf::{Bpffs, NotMounted};
use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, Program, libbpf_sys};

use crate::error::KernelError;

/// Our folder in bpffs, with one for each network namespace.
const FOLDER: &str = "brickmoon";
/// What the name of our program begins with; its layout version follows.
const PREFIX: &str = "bm_forward_";
/// How often our folder is asked for before it counts as another daemon's, and the pause between: others hold it
/// for a moment when they sweep it or remove it, and a process that was just being forked does with a lock that was
/// given back.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(10);

/// This network namespace's folder in bpffs, ours alone until this is dropped.
#[derive(Debug)]
pub struct Pins {
    bpffs: Bpffs,
    folder: Folder,
}

/// A folder that no other process may use until this is dropped.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    _claim: File,
}

/// Why links cannot be pinned.
#[derive(Debug)]
pub enum NoPins {
    /// There is no bpffs, and none can be mounted.
    NotMounted(NotMounted),
    /// Another process has the folder.
    Claimed {
        /// The folder.
        folder: PathBuf,
    },
    /// A system call failed.
    System {
        /// What it was about.
        folder: PathBuf,
        /// What it said.
        error: io::Error,
    },
}

impl fmt::Display for NoPins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMounted(why) => why.fmt(f),
            Self::Claimed { folder } => {
                write!(f, "another daemon has {}: one for each network namespace can", folder.display())
            }
            Self::System { folder, error } => write!(f, "{}: {error}", folder.display()),
        }
    }
}

impl std::error::Error for NoPins {}

/// A link that somebody pinned.
pub(crate) struct Pinned {
    pub path: PathBuf,
    pub link: Link,
    /// Its interface; 0 once that is gone.
    pub ifindex: u32,
    /// Number and name of its program.
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

    /// The layout version of the program; `None` for a program that is not ours.
    pub fn version(&self) -> Option<u32> {
        version(&self.program.1)
    }

    /// Takes the program off its interface, and the file away.
    pub fn remove(self) {
        // A link whose interface is gone is detached already; its file is all that is left.
        let _detached = self.link.detach();
        let _gone = fs::remove_file(&self.path);
    }
}

/// The layout version in the name of a program of ours.
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
    /// Claims the folder of this thread's network namespace, and clears away what namespaces that are gone
    /// have left in theirs. Mounts a bpffs where there is none.
    ///
    /// # Errors
    /// If there is no bpffs and none can be mounted, or another process has the folder.
    pub fn claim() -> Result<Self, NoPins> {
        Self::claim_in(Bpffs::find_or_mount().map_err(NoPins::NotMounted)?)
    }

    fn claim_in(bpffs: Bpffs) -> Result<Self, NoPins> {
        let root = bpffs.path().join(FOLDER);
        sweep(&root);
        let failed = |error| NoPins::System { folder: root.clone(), error };
        let namespace = fs::metadata("/proc/thread-self/ns/net").map_err(failed)?.ino();
        let path = root.join(namespace.to_string());
        for _ in 1..TRIES {
            match Folder::claim(&path) {
                Err(NoPins::Claimed { .. }) => std::thread::sleep(PAUSE),
                result => return result.map(|folder| Self { bpffs, folder }),
            }
        }
        Folder::claim(&path).map(|folder| Self { bpffs, folder })
    }

    /// The bpffs that the folder is in.
    pub fn bpffs(&self) -> &Bpffs {
        &self.bpffs
    }

    /// What is pinned on interfaces that are there; files of others are removed.
    pub(crate) fn links(&self) -> Vec<Pinned> {
        self.folder.links()
    }

    /// The file of an interface.
    pub(crate) fn path(&self, ifindex: u32) -> PathBuf {
        self.folder.path.join(ifindex.to_string())
    }

    /// Pins a link of ours.
    pub(crate) fn pin(&self, ifindex: u32, link: &mut Link) -> Result<PathBuf, KernelError> {
        let path = self.path(ifindex);
        match link.pin(&path) {
            Ok(()) => Ok(path),
            Err(error) => Err(KernelError::Pin { path, error }),
        }
    }
}

impl Folder {
    /// Asks once: [`sweep`] meets the folders of all daemons that live, and must not wait for any.
    fn claim(path: &Path) -> Result<Self, NoPins> {
        let system = |error| NoPins::System { folder: path.into(), error };
        let claimed = || Err(NoPins::Claimed { folder: path.into() });
        fs::create_dir_all(path).map_err(system)?;
        let claim = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return claimed(),
            opened => opened.map_err(system)?,
        };
        // SAFETY: passes numbers.
        if unsafe { libc::flock(claim.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return claimed();
        }
        // Whoever had it before may have removed it between our two steps.
        let inode = |meta: io::Result<fs::Metadata>| meta.map(|meta| meta.ino()).ok();
        if inode(claim.metadata()).is_some_and(|own| inode(fs::metadata(path)) == Some(own)) {
            return Ok(Self { path: path.into(), _claim: claim });
        }
        claimed()
    }

    fn links(&self) -> Vec<Pinned> {
        let files = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let links = files.filter_map(|file| Pinned::open(file.path()));
        let (mut here, gone): (Vec<_>, Vec<_>) = links.partition(|pinned| pinned.ifindex != 0);
        here.sort_by_key(|pinned| pinned.ifindex);
        gone.into_iter().for_each(Pinned::remove);
        here
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // They stay where something is in them.
        let _emptied = fs::remove_dir(&self.path);
        let _emptied = self.path.parent().filter(|root| root.ends_with(FOLDER)).map(fs::remove_dir);
    }
}

/// Removes what lies in folders that nobody claims and belongs to no interface any more.
fn sweep(root: &Path) {
    for path in fs::read_dir(root).into_iter().flatten().flatten() {
        if let Ok(folder) = Folder::claim(&path.path()) {
            folder.links();
        }
    }
}

/// Takes our program off the interfaces of this network namespace on which a daemon that is no more has left
/// it; their names.
///
/// # Errors
/// If a daemon has the folder.
pub fn remove_kept() -> Result<Vec<String>, NoPins> {
    // Where there is no bpffs, nothing was kept.
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
    fn a_folder_of_others_is_not_waited_for() {
        let folder = std::env::temp_dir().join(format!("bm-pins-{}", std::process::id()));
        let ours = Folder::claim(&folder).unwrap();
        let asked = std::time::Instant::now();
        for _ in 0..200 {
            assert!(matches!(Folder::claim(&folder), Err(NoPins::Claimed { .. })));
        }
        // With the pauses of `claim` it would be 20 seconds.
        assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
        drop(ours);
        drop(Folder::claim(&folder).unwrap());
        assert!(!folder.exists());
    }

    #[test]
    fn knows_its_own_programs_by_name() {
        assert_eq!(version(crate::kernel::PROGRAM), Some(4));
        assert_eq!(version("bm_forward_17"), Some(17));
        for other in ["bm_forward_", "bm_forward", "steer", "xdp_pass", ""] {
            assert_eq!(version(other), None, "{other}");
        }
    }
}
