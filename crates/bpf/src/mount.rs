//! Mounting and unmounting in the mount namespace of process 1.
//!
//! This happens in a separate thread: entering a mount namespace requires a root and working directory that are not
//! shared with the other threads, and the thread cannot return.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use bm_sys::Namespace;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

/// `BPF_FS_MAGIC` of `<linux/magic.h>`.
const MAGIC: u32 = 0xcafe_4a11;

/// Mounts a bpffs for the whole system, unless another process has just done so.
pub(crate) fn mount(at: &Path) -> io::Result<()> {
    in_init_namespace(|| {
        let _turn = MountLock::take(at)?;
        if is_bpffs(at) {
            return Ok(());
        }
        fs::create_dir_all(at)?;
        mount_here(at)
    })
}

/// Mounts an empty bpffs in this thread's mount namespace.
pub(crate) fn mount_here(at: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RELATIME;
    Ok(rustix::mount::mount(c"bpf", at, c"bpf", flags, c"mode=0700")?)
}

/// Unmounts a bpffs if it contains no folder. The kernel puts files of its own there (`maps.debug`).
pub(crate) fn unmount(at: &Path) -> io::Result<()> {
    in_init_namespace(|| {
        let _turn = MountLock::take(at)?;
        if !is_bpffs(at) || fs::read_dir(at)?.flatten().any(|entry| entry.path().is_dir()) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        unmount_here(at, UnmountFlags::NOFOLLOW)
    })
}

/// Unmounts what is mounted there in this thread's mount namespace.
pub(crate) fn unmount_here(at: &Path, flags: UnmountFlags) -> io::Result<()> {
    Ok(rustix::mount::unmount(at, flags)?)
}

/// Gives this thread a new mount namespace, from which mounts do not propagate.
pub(crate) fn leave() -> io::Result<()> {
    Namespace::Mount.unshare()?;
    let flags = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    Ok(rustix::mount::mount_change(c"/", flags)?)
}

/// A lock on the folder of the mount point, so that two processes that find no bpffs do not both mount one.
struct MountLock {
    _folder: File,
}

impl MountLock {
    fn take(at: &Path) -> io::Result<Self> {
        let folder = at.parent().unwrap_or(at);
        fs::create_dir_all(folder)?;
        let folder = File::open(folder)?;
        folder.lock()?;
        Ok(Self { _folder: folder })
    }
}

fn in_init_namespace(action: impl FnOnce() -> io::Result<()> + Send) -> io::Result<()> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter_init_namespace();
            action()
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the mounting thread panicked")))
    })
}

/// Moves this thread to the mount namespace of process 1. If that is not allowed the thread stays: a mount that ends
/// with this mount namespace is better than none.
fn enter_init_namespace() {
    let Ok(namespace) = File::open("/proc/1/ns/mnt") else { return };
    let _refused = Namespace::Mount.enter(&namespace);
}

pub(crate) fn is_bpffs(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type as u32 == MAGIC)
}
