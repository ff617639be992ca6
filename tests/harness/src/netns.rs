//! Network namespaces that clean up after themselves.
//!
//! A name is `bm-<test>-p<pid>-<role>`. The namespace is deleted when its [`Namespace`] is dropped, also in a panic.
//! Those of killed tests are removed by the next test, which recognizes them by the process ID of a process that no
//! longer exists.
//!
//! Everything here panics if it cannot do its work, and says how to fix it: all callers are tests.

use crate::{mounts, sys};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

const FOLDER: &str = "/run/netns";
/// Where brickmoon pins in a bpffs: a folder for each namespace.
const PINS: &str = "brickmoon";
/// The same for switches.
const SWITCH_PINS: &str = "brickmoon-switch";
/// The same for nodes of a cluster.
const CLUSTER_PINS: &str = "brickmoon-cluster";

/// A network namespace that belongs to a test.
pub struct Namespace {
    name: String,
    file: File,
}

impl Namespace {
    /// Creates it, after removing those of dead tests.
    pub fn new(test: &str, role: &str) -> Self {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep);
        let name = format!("bm-{test}-p{}-{role}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output().expect("ip (iproute2) runs");
        assert!(made.status.success(), "ip netns add {name}: {}", String::from_utf8_lossy(&made.stderr));
        let file = File::open(Path::new(FOLDER).join(&name))
            .unwrap_or_else(|error| panic!("{FOLDER}/{name}: {error}"));
        Self { name, file }
    }

    /// Its name, for `ip netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its open file, for `setns`.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Runs `action` on a thread within the namespace. Sockets opened there stay there.
    pub fn within<T: Send>(&self, action: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = || {
                sys::enter_namespace(&self.file)
                    .unwrap_or_else(|error| panic!("setns {}: {error}", self.name));
                action()
            };
            scope.spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Reads a setting below `/proc/sys/`, written with dots or slashes.
    pub fn setting(&self, name: &str) -> String {
        let path = setting_path(name);
        let read = self.within(|| std::fs::read_to_string(&path));
        read.unwrap_or_else(|error| panic!("{path} in {}: {error}", self.name)).trim().to_string()
    }

    /// Changes settings below `/proc/sys/`.
    pub fn set(&self, settings: &[(&str, &str)]) {
        self.within(|| {
            for (name, value) in settings {
                let path = setting_path(name);
                std::fs::write(&path, value)
                    .unwrap_or_else(|error| panic!("{path} = {value} in {}: {error}", self.name));
            }
        });
    }

    /// A raw socket on the interface `name`.
    pub fn packet_socket(&self, name: &str) -> sys::PacketSocket {
        let open = || sys::interface_index(name).and_then(sys::PacketSocket::open);
        self.within(open).unwrap_or_else(|error| panic!("packet socket on {name} in {}: {error}", self.name))
    }
}

impl Namespace {
    /// Where the kernel path is pinned here.
    pub fn pins(&self) -> PathBuf {
        self.below(PINS)
    }

    /// Where switches are pinned here.
    pub fn switch_pins(&self) -> PathBuf {
        self.below(SWITCH_PINS)
    }

    /// Where the fabric program is pinned here.
    pub fn cluster_pins(&self) -> PathBuf {
        self.below(CLUSTER_PINS)
    }

    fn below(&self, folder: &str) -> PathBuf {
        let inode = self.file.metadata().unwrap_or_else(|error| panic!("{}: {error}", self.name)).ino();
        mounts::bpffs().join(folder).join(inode.to_string())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let pins = [self.pins(), self.switch_pins(), self.cluster_pins()];
        remove(&self.name);
        // Removes what a killed daemon left there; usually there is nothing.
        pins.map(std::fs::remove_dir_all).into_iter().for_each(drop);
        [PINS, SWITCH_PINS, CLUSTER_PINS]
            .map(|folder| std::fs::remove_dir(mounts::bpffs().join(folder)))
            .into_iter()
            .for_each(drop);
    }
}

/// The path of a setting, whose name has dots as in `sysctl`, or slashes.
fn setting_path(name: &str) -> String {
    if name.contains('/') {
        format!("/proc/sys/{name}")
    } else {
        format!("/proc/sys/{}", name.replace('.', "/"))
    }
}

/// Kills processes that still run in a namespace, and deletes it.
fn remove(name: &str) {
    let pids = Command::new("ip").args(["netns", "pids", name]).output();
    let pids = pids.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    for pid in pids.split_whitespace().filter_map(|pid| pid.parse().ok()) {
        // It may be gone already, which is fine.
        let _ = sys::signal(pid, libc::SIGKILL);
    }
    let _ = Command::new("ip").args(["netns", "del", name]).output();
}

/// Removes the namespaces of tests whose process is gone.
pub fn sweep() {
    let names = std::fs::read_dir(FOLDER).into_iter().flatten().flatten();
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        if owner(&name).is_some_and(|owner| !Path::new("/proc").join(owner.to_string()).exists()) {
            remove(&name);
        }
    }
}

/// The process that created a namespace of this crate.
fn owner(name: &str) -> Option<u32> {
    let (_, rest) = name.strip_prefix("bm-")?.rsplit_once("-p")?;
    rest.split_once('-')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_owner_of_a_namespace() {
        assert_eq!(owner("bm-icmp-errors-p4711-src"), Some(4711));
        assert_eq!(owner("bm-p-p7-rtr"), Some(7));
        for foreign in ["kb-src", "bm-src", "bm-x-p-src", "bm-demo-px1-src", "vpn-p5-x"] {
            assert_eq!(owner(foreign), None, "{foreign}");
        }
    }
}
