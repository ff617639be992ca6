//! Why a node could not do what was requested.

use std::fmt;
use std::io;
use std::path::PathBuf;

use bm_bpf::Occupant;

/// Why a node could not do what was requested.
#[derive(Debug)]
pub enum ClusterError {
    /// The kernel refused the program or a map.
    Program {
        /// What was being done.
        step: &'static str,
        /// What the kernel said.
        error: libbpf_rs::Error,
    },
    /// A system call failed.
    System {
        /// What was being done.
        step: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// Another XDP program is on the interface.
    Taken(Occupant),
    /// The program could not be pinned.
    Pin {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        error: libbpf_rs::Error,
    },
    /// The interface could not be given the address of this node.
    Mac {
        /// Its name.
        device: String,
        /// What the kernel said.
        error: io::Error,
    },
    /// The key cannot be used.
    Key {
        /// Its file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The settings are wrong.
    Settings(String),
    /// The program is not pinned, so it would end with the daemon.
    NotPinned,
}

impl ClusterError {
    /// For `map_err`: the kernel refused a BPF operation.
    pub(crate) fn program(step: &'static str) -> impl Fn(libbpf_rs::Error) -> Self {
        move |error| Self::Program { step, error }
    }

    /// For `map_err`: a system call failed.
    pub(crate) fn system(step: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::System { step, error }
    }
}

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program { step, error } => {
                write!(f, "{step}: {error}; a cluster needs root and Linux 6.1 or newer")
            }
            Self::System { step, error } => write!(f, "{step}: {error}"),
            Self::Taken(occupant) => write!(f, "{occupant}"),
            Self::Pin { path, error } => {
                write!(f, "{}: the program cannot be pinned there: {error}", path.display())
            }
            Self::Mac { device, error } => write!(
                f,
                "{device}: cannot set its MAC address to that of this node: {error}; if its driver changes it only while the interface is down, run `ip link set {device} down` and start again"
            ),
            Self::Key { path, why } => write!(
                f,
                "key_file {}: {why}; create one with `(umask 077; head -c 32 /dev/urandom | base64 > {})` and copy it to all nodes",
                path.display(),
                path.display()
            ),
            Self::Settings(why) => f.write_str(why),
            Self::NotPinned => {
                f.write_str("the fabric program is not pinned in bpffs, so it cannot outlive the daemon")
            }
        }
    }
}

impl std::error::Error for ClusterError {}
