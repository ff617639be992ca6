//! Keeps some capabilities and drops the others (capabilities(7)).

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// A set of capabilities to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptCapabilities(CapabilitySet);

/// The capabilities that the daemon keeps.
///
/// | capability | for |
/// |---|---|
/// | NET_ADMIN | interfaces, neighbors, XDP programs, large socket buffers |
/// | NET_RAW | AF_XDP sockets, packet sockets on fabric links, ESP that Linux sends |
/// | BPF, PERFMON | loading programs and maps |
/// | SYS_ADMIN | the kernel's list of BPF links, among which are programs at netfilter's hooks; DPDK's physical addresses |
/// | IPC_LOCK | locked frame memory |
/// | SYS_NICE | real-time priority of workers |
///
/// `raw_io` adds SYS_RAWIO, for DPDK drivers that use I/O ports; `files_of_others` adds DAC_OVERRIDE, for a configuration
/// or a socket in a directory of another user.
pub fn kept_by_daemon(raw_io: bool, files_of_others: bool) -> KeptCapabilities {
    let mut kept = CapabilitySet::NET_ADMIN
        | CapabilitySet::NET_RAW
        | CapabilitySet::BPF
        | CapabilitySet::PERFMON
        | CapabilitySet::SYS_ADMIN
        | CapabilitySet::IPC_LOCK
        | CapabilitySet::SYS_NICE;
    kept.set(CapabilitySet::SYS_RAWIO, raw_io);
    kept.set(CapabilitySet::DAC_OVERRIDE, files_of_others);
    KeptCapabilities(kept)
}

/// The capabilities of the process that watches the daemon's tables: it reads settings and runs one BPF program.
pub fn kept_by_watcher() -> KeptCapabilities {
    KeptCapabilities(
        CapabilitySet::NET_ADMIN
            | CapabilitySet::BPF
            | CapabilitySet::PERFMON
            | CapabilitySet::SYS_ADMIN
            | CapabilitySet::SYS_NICE,
    )
}

/// Whether the configuration file or the directory of the socket is accessible only with DAC_OVERRIDE. Asks the kernel,
/// with that capability turned off for the moment.
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
    // Turn the capability on again; it is still permitted.
    let _back = set_capabilities(None, all);
    unread || unwritten
}

/// The directory of a file.
fn folder(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether files can be created in a directory with the effective capabilities.
fn may_make(folder: &Path) -> io::Result<()> {
    let folder = CString::new(folder.as_os_str().as_bytes()).map_err(io::Error::other)?;
    let access = libc::W_OK | libc::X_OK;
    // SAFETY: the path ends in zero and outlives the call.
    match unsafe { libc::faccessat(libc::AT_FDCWD, folder.as_ptr(), access, libc::AT_EACCESS) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Drops all capabilities except `kept`, also from the bounding set if permitted; otherwise `no_new_privs` keeps executed
/// programs from gaining more than this process has.
pub(crate) fn reduce(kept: KeptCapabilities) -> io::Result<()> {
    let KeptCapabilities(kept) = kept;
    let have = capabilities(None)?;
    for capability in (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit)) {
        if !kept.contains(capability) {
            // Ends at the first number that the kernel does not know, or at once if not permitted.
            let _known = rustix::thread::remove_capability_from_bounding_set(capability);
        }
    }
    let permitted = have.permitted & kept;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: permitted, permitted, inheritable: none })?;
    Ok(())
}
