//! The mount namespace that brickmoon runs in: the machine's, with an empty bpffs of the tests' own at the usual place.
//!
//! There is one for each test process. Nothing is mounted on the machine, and it does not matter what is mounted
//! there. Other programs stay in the machine's mount namespace, where names of network namespaces are files.

use crate::sys;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const BPFFS: &str = "/sys/fs/bpf";
/// Where brickmoon mounts a bpffs if it finds none, and looks first.
const BRICKMOONS: &str = "/run/brickmoon/bpf";

struct Mounts {
    namespace: File,
    /// The root of the bpffs, by which it is reached from another mount namespace.
    bpffs: File,
}

/// The mount namespace of this process; none without root.
fn mounts() -> Option<&'static Mounts> {
    static MOUNTS: OnceLock<Option<Mounts>> = OnceLock::new();
    let make = || std::thread::spawn(make).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    MOUNTS.get_or_init(|| sys::is_root().then(make)).as_ref()
}

/// Creates it, on a thread that ends right afterwards.
fn make() -> Mounts {
    sys::leave_mounts().unwrap_or_else(|error| panic!("unshare: {error}"));
    run("mount", &["--make-rprivate", "/"], true);
    run("umount", &["-q", BRICKMOONS], false);
    run("mount", &["-t", "bpf", "bpf", BPFFS], true);
    let [namespace, bpffs] = [Path::new("/proc/thread-self/ns/mnt"), Path::new(BPFFS)]
        .map(|path| File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
    Mounts { namespace, bpffs }
}

fn run(program: &str, arguments: &[&str], must: bool) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!must || output.status.success(), "{program} {arguments:?}: {text}");
}

/// The mount namespace, for `setns`.
pub fn descriptor() -> Option<RawFd> {
    mounts().map(|mounts| mounts.namespace.as_raw_fd())
}

/// Its bpffs, by a path that is valid in this process and in those that it starts.
pub fn bpffs() -> PathBuf {
    let path = |mounts: &Mounts| format!("/proc/{}/fd/{}", std::process::id(), mounts.bpffs.as_raw_fd());
    mounts().map_or(BPFFS.into(), |mounts| path(mounts).into())
}
