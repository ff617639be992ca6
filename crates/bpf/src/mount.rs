//! Mounting and unmounting in the mount namespace of process 1.
//!
//! This happens in a separate thread: entering a mount namespace requires a root and working directory that are not
//! shared with the other threads, and the thread cannot return.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null;

use bm_sys::Namespace;

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
    let target = c_path(at)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | libc::MS_RELATIME;
    // SAFETY: all strings end in zero and outlive the call; bpffs reads its options as one.
    let done = unsafe {
        let options = c"mode=0700".as_ptr().cast();
        libc::mount(c"bpf".as_ptr(), target.as_ptr(), c"bpf".as_ptr(), flags, options)
    };
    checked(done)
}

/// Unmounts a bpffs if it contains no folder. The kernel puts files of its own there (`maps.debug`).
pub(crate) fn unmount(at: &Path) -> io::Result<()> {
    in_init_namespace(|| {
        let _turn = MountLock::take(at)?;
        if !is_bpffs(at) || fs::read_dir(at)?.flatten().any(|entry| entry.path().is_dir()) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        unmount_here(at, libc::UMOUNT_NOFOLLOW)
    })
}

/// Unmounts what is mounted there in this thread's mount namespace.
pub(crate) fn unmount_here(at: &Path, flags: libc::c_int) -> io::Result<()> {
    let target = c_path(at)?;
    // SAFETY: the path ends in zero and outlives the call.
    checked(unsafe { libc::umount2(target.as_ptr(), flags) })
}

/// Gives this thread a new mount namespace, from which mounts do not propagate.
pub(crate) fn leave() -> io::Result<()> {
    Namespace::Mount.unshare()?;
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: the path ends in zero and outlives the call; this kind of mount reads no other string.
    let done = unsafe { libc::mount(null(), c"/".as_ptr(), null(), flags, null()) };
    checked(done)
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

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(crate) fn is_bpffs(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: zeros are a value of this structure of numbers.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in zero, and the structure outlives the call.
    unsafe { libc::statfs(path.as_ptr(), &mut found) == 0 && found.f_type as u32 == MAGIC }
}
