//! Which capabilities are kept, and how the others are given up (capabilities(7)).

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Capabilities that a process keeps, as far as it has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept(CapabilitySet);

/// What the daemon keeps.
///
/// | capability | for |
/// |---|---|
/// | NET_ADMIN | interfaces, neighbours, XDP programs, large socket buffers |
/// | NET_RAW | AF_XDP sockets |
/// | BPF, PERFMON | loading programs and maps |
/// | SYS_ADMIN | the kernel's list of BPF links, among which are programs at netfilter's hooks; DPDK's physical addresses |
/// | IPC_LOCK | frames that are never swapped out |
/// | SYS_NICE | real-time priority of workers |
///
/// `raw_io` adds SYS_RAWIO, for drivers of DPDK that use I/O ports; `files_of_others` adds DAC_OVERRIDE, where the
/// configuration or the socket is in a folder of another user.
pub fn kept_by_daemon(raw_io: bool, files_of_others: bool) -> Kept {
    let mut kept = CapabilitySet::NET_ADMIN
        | CapabilitySet::NET_RAW
        | CapabilitySet::BPF
        | CapabilitySet::PERFMON
        | CapabilitySet::SYS_ADMIN
        | CapabilitySet::IPC_LOCK
        | CapabilitySet::SYS_NICE;
    kept.set(CapabilitySet::SYS_RAWIO, raw_io);
    kept.set(CapabilitySet::DAC_OVERRIDE, files_of_others);
    Kept(kept)
}

/// What the process keeps that watches over the daemon's tables: it reads settings, and runs one BPF program.
pub fn kept_by_watcher() -> Kept {
    Kept(
        CapabilitySet::NET_ADMIN
            | CapabilitySet::BPF
            | CapabilitySet::PERFMON
            | CapabilitySet::SYS_ADMIN
            | CapabilitySet::SYS_NICE,
    )
}

/// Whether a file, or the folder of a file that is made and removed, can only be used by whoever may use the files of all
/// users: asked of the kernel, with that capability put aside for the moment.
pub fn needs_files_of_others(read: Option<&Path>, made: &Path) -> bool {
    let Ok(all) = capabilities(None) else { return false };
    let others = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH | CapabilitySet::FOWNER;
    let without = CapabilitySets { effective: all.effective & !others, ..all };
    if set_capabilities(None, without).is_err() {
        return false;
    }
    let denied =
        |tried: io::Result<()>| tried.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    let unread = read.is_some_and(|file| denied(File::open(file).map(drop)));
    let unwritten = denied(may_make(folder(made)));
    // What was there a moment ago may be taken back.
    let _back = set_capabilities(None, all);
    unread || unwritten
}

/// The folder that a file is in.
fn folder(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether files can be made in a folder with the capabilities that are in effect.
fn may_make(folder: &Path) -> io::Result<()> {
    let folder = CString::new(folder.as_os_str().as_bytes()).map_err(io::Error::other)?;
    let access = libc::W_OK | libc::X_OK;
    // SAFETY: the path ends in zero and outlives the call.
    match unsafe { libc::faccessat(libc::AT_FDCWD, folder.as_ptr(), access, libc::AT_EACCESS) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives up all but `kept`. In the bounding set, too, where that is allowed; where it is not, `no_new_privs` keeps a
/// program that is executed from getting more than this process has.
pub(crate) fn reduce(kept: Kept) -> io::Result<()> {
    let Kept(kept) = kept;
    let have = capabilities(None)?;
    for capability in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        if !kept.contains(capability) {
            // Ends with the first number that the kernel does not know, or at once where it is not allowed.
            let _known = rustix::thread::remove_capability_from_bounding_set(capability);
        }
    }
    let permitted = have.permitted & kept;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: permitted, permitted, inheritable: none })?;
    Ok(())
}
