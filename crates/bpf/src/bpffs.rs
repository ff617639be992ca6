//! Which BPF file system pins are in.
//!
//! ```text
//! 1. /run/brickmoon/bpf              one that brickmoon has mounted: once it is there, it stays the place
//! 2. /sys/fs/bpf                     the usual one
//! 3. /proc/1/root/run/brickmoon/bpf  the same two as process 1 sees them: `ip netns exec` and containers mount
//! 4. /proc/1/root/sys/fs/bpf         another /sys, which hides the second
//! ```
//!
//! A process that gives up the right to access process 1 ([`Bpffs::keep_open`]) keeps the third or fourth open
//! instead, and finds it in `/proc/self/fd` from then on.
//!
//! The first of these that is a bpffs is used. If there is none, a daemon mounts one at `/run/brickmoon/bpf` in the
//! mount namespace of process 1: mounted anywhere else, it would vanish with the shell that started the daemon. It
//! stays mounted when the daemon ends, so that a daemon that starts meanwhile finds the same one.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::mount::{self, is_bpffs};

/// The usual mount point of bpffs.
pub(crate) const USUAL: &str = "/sys/fs/bpf";
/// Where brickmoon mounts one if there is none.
pub(crate) const OWN: &str = "/run/brickmoon/bpf";
/// The root directory of process 1, whatever mount namespace this process is in.
const INIT_ROOT: &str = "/proc/1/root";
/// Open files of this process.
const OPEN_FILES: &str = "/proc/self/fd";

/// A mounted BPF file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bpffs {
    path: PathBuf,
    mounted_now: bool,
}

/// No bpffs is mounted, and mounting one failed.
#[derive(Debug, thiserror::Error)]
#[error(
    "no bpffs is mounted at {USUAL}, and mounting one at {OWN} failed: {0}; run `mount -t bpf bpf {USUAL}` before \
     starting brickmoon, or start the container with `docker run -v {USUAL}:{USUAL}`"
)]
pub struct NotMounted(io::Error);

impl fmt::Display for Bpffs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mounted_now {
            write!(f, "mounted a bpffs at {}, because none is mounted at {USUAL}", self.path.display())
        } else {
            write!(f, "using the bpffs at {}", for_others(&self.path).display())
        }
    }
}

/// A bpffs that this process keeps open.
struct OpenBpffs {
    /// The path by which this process reaches it: through the open file, if there is no other way.
    found: Bpffs,
    /// The path at which it was found.
    place: PathBuf,
    _folder: File,
}

static KEPT: OnceLock<OpenBpffs> = OnceLock::new();

/// A path as other processes can use it: one that starts at an open file of this process is of no use to them.
pub(crate) fn for_others(path: &Path) -> PathBuf {
    // Component by component: joining an empty rest would leave a slash at the end.
    KEPT.get()
        .and_then(|kept| {
            path.strip_prefix(&kept.found.path)
                .ok()
                .map(|rest| kept.place.components().chain(rest.components()).collect())
        })
        .unwrap_or_else(|| path.into())
}

/// The first place at which a bpffs is mounted. While it looks, another process may mount one at a place that it has
/// passed, and a later place may be the same directory by another path: so it looks at the earlier ones again.
fn first(places: &[PathBuf], is_mounted: impl Fn(&Path) -> bool) -> Option<&PathBuf> {
    let mut found = places.iter().position(|path| is_mounted(path))?;
    while let Some(earlier) = places[..found].iter().position(|path| is_mounted(path)) {
        found = earlier;
    }
    places.get(found)
}

impl Bpffs {
    /// Finds a bpffs or mounts one, and makes sure that this process can use it later without the right to mount or
    /// to access process 1.
    ///
    /// # Errors
    /// If there is none and the kernel refuses to mount one, or to open it.
    pub fn keep_open() -> Result<(), NotMounted> {
        let found = Self::find_or_mount()?;
        let mut options = File::options();
        options.read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY);
        let folder = options.open(&found.path).map_err(NotMounted)?;
        let place = found.path.clone();
        let path = match place.starts_with(INIT_ROOT) {
            true => Path::new(OPEN_FILES).join(folder.as_raw_fd().to_string()),
            false => found.path,
        };
        // The first one is kept, because pins are in it.
        let _first = KEPT.get_or_init(|| OpenBpffs { found: Self { path, ..found }, place, _folder: folder });
        Ok(())
    }

    /// Finds a mounted bpffs.
    pub fn find() -> Option<Self> {
        if let Some(kept) = KEPT.get() {
            return Some(kept.found.clone());
        }
        let of_init = [OWN, USUAL].map(|path| PathBuf::from(format!("{INIT_ROOT}{path}")));
        let places = [[OWN, USUAL].map(PathBuf::from), of_init].concat();
        first(&places, is_bpffs).map(|path| Self { path: path.clone(), mounted_now: false })
    }

    /// Finds a mounted bpffs, or mounts one.
    ///
    /// # Errors
    /// If there is none and the kernel refuses to mount one.
    pub(crate) fn find_or_mount() -> Result<Self, NotMounted> {
        if let Some(found) = Self::find() {
            return Ok(found);
        }
        mount::mount(Path::new(OWN)).map_err(NotMounted)?;
        Self::find()
            .map(|found| Self { mounted_now: true, ..found })
            .ok_or_else(|| NotMounted(io::Error::other("it was unmounted again immediately")))
    }

    /// Its root directory. The path is valid in this process's mount namespace.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts it if brickmoon mounted it, it contains no pins, and no process has it open.
    pub fn unmount_own() {
        // Fails if it is in use or was never mounted; then nothing changes.
        let _in_use = mount::unmount(Path::new(OWN));
    }
}

#[cfg(test)]
mod tests;
