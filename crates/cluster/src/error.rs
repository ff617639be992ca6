//! Errors of a node.

use std::io;
use std::path::PathBuf;

/// Errors of a node.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error("{}{}", .0, .0.requirement("a cluster"))]
    Bpf(#[from] bm_bpf::Error),
    #[error(
        "{device}: cannot set the MAC address to that of this node: {error}; some drivers change it only while the \
         interface is down: run `ip link set {device} down` and try again"
    )]
    Mac {
        /// The interface.
        device: String,
        error: io::Error,
    },
    /// The key cannot be used.
    #[error(
        "key_file {0}: {why}; create one with `(umask 077; head -c 32 /dev/urandom | base64 > {0})` and copy it to all \
         nodes",
        path.display()
    )]
    Key { path: PathBuf, why: String },
    /// The members cannot be read from the store, or this node is not admitted.
    #[error("{0}")]
    Store(String),
    /// No other member that this node has a link to has this name.
    #[error("there is no fabric link to a node {0}; `brickmoon show cluster` names the others")]
    NoSuchNode(String),
    /// A node does not answer a question, and why.
    #[error("no answer from {0}: {1}")]
    NoAnswer(String, &'static str),
    #[error(
        "the members are configured: remove the [[cluster.member]] on all nodes, set another `epoch`, and run \
         `brickmoon reload` on each"
    )]
    NoStore,
    /// The settings are invalid.
    #[error("{0}")]
    Settings(String),
    /// Nodes have not confirmed that this one is drained.
    #[error(
        "no answer from {} yet: packets may still be sent over this node; see `brickmoon show cluster`", .0.join(", ")
    )]
    NotConfirmed(Vec<String>),
}
