//! Errors of a node.

use std::fmt;
use std::io;
use std::path::PathBuf;

use bm_bpf::Occupant;

/// Errors of a node.
#[derive(Debug)]
pub enum ClusterError {
    /// The kernel rejected the program or a map.
    Program {
        /// The operation, as in "attaching the fabric program".
        step: &'static str,
        /// The kernel's error.
        error: libbpf_rs::Error,
    },
    /// A system call failed.
    System {
        /// The operation, as in "attaching the fabric program".
        step: &'static str,
        error: io::Error,
    },
    /// Another XDP program is on the interface.
    Taken(Occupant),
    /// The program could not be pinned.
    Pin {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        error: libbpf_rs::Error,
    },
    /// The MAC address of the interface could not be set.
    Mac {
        /// The interface.
        device: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// The key cannot be used.
    Key {
        /// Its file.
        path: PathBuf,
        why: String,
    },
    /// The members cannot be read from the store, or this node is not admitted.
    Store(String),
    /// No other member that this node has a link to has this name.
    NoSuchNode(String),
    /// A node does not answer a question, and why.
    NoAnswer(String, &'static str),
    /// The members are configured, and do not come from a store.
    NoStore,
    /// The settings are invalid.
    Settings(String),
    /// Nodes have not confirmed that this one is drained.
    NotConfirmed(Vec<String>),
    /// The program is not pinned, so it stops when the daemon ends.
    NotPinned,
}

impl ClusterError {
    /// For `map_err`: the kernel rejected a BPF operation.
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
                write!(f, "{}: cannot pin the program: {error}", path.display())
            }
            Self::Mac { device, error } => write!(
                f,
                "{device}: cannot set the MAC address to that of this node: {error}; some drivers change it only while the interface is down: run `ip link set {device} down` and try again"
            ),
            Self::Key { path, why } => write!(
                f,
                "key_file {}: {why}; create one with `(umask 077; head -c 32 /dev/urandom | base64 > {})` and copy it to all nodes",
                path.display(),
                path.display()
            ),
            Self::NotConfirmed(nodes) => write!(
                f,
                "no answer from {} yet: packets may still be sent over this node; see `brickmoon show cluster`",
                nodes.join(", ")
            ),
            Self::NoSuchNode(name) => {
                write!(f, "there is no fabric link to a node {name}; `brickmoon show cluster` names the others")
            }
            Self::NoAnswer(name, why) => write!(f, "no answer from {name}: {why}"),
            Self::NoStore => f.write_str(
                "the members are configured: remove the [[cluster.member]] on all nodes, set another `epoch`, and run `brickmoon reload` on each",
            ),
            Self::Settings(why) | Self::Store(why) => f.write_str(why),
            Self::NotPinned => {
                f.write_str("the fabric program is not pinned in bpffs, so it stops when the daemon ends")
            }
        }
    }
}

impl std::error::Error for ClusterError {}
