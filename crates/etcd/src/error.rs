//! Why a request failed.

use std::path::PathBuf;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    #[error("`{setting}` {}: {why}", path.display())]
    File {
        /// The setting that names it.
        setting: &'static str,
        path: PathBuf,
        why: String,
    },
    #[error("{endpoint} does not answer: {why}")]
    Unreachable { endpoint: String, why: String },
    #[error("{endpoint} refuses the request: {message}")]
    Refused { endpoint: String, message: String },
    #[error("{endpoint} does not answer like etcd's JSON gateway: is it etcd 3.4 or newer?")]
    Malformed { endpoint: String },
}
