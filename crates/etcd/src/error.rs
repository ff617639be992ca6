//! Why a request failed.

use std::fmt;
use std::path::PathBuf;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdError {
    /// A file of the settings cannot be used.
    File {
        /// The setting that names it.
        setting: &'static str,
        path: PathBuf,
        why: String,
    },
    /// There was no answer.
    Unreachable { endpoint: String, why: String },
    /// etcd refused it.
    Refused { endpoint: String, message: String },
    /// The answer is not one of etcd's gateway.
    Malformed { endpoint: String },
}

impl fmt::Display for EtcdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { setting, path, why } => write!(f, "`{setting}` {}: {why}", path.display()),
            Self::Unreachable { endpoint, why } => write!(f, "{endpoint} does not answer: {why}"),
            Self::Refused { endpoint, message } => write!(f, "{endpoint} refuses the request: {message}"),
            Self::Malformed { endpoint } => {
                write!(f, "{endpoint} does not answer like etcd's JSON gateway: is it etcd 3.4 or newer?")
            }
        }
    }
}

impl std::error::Error for EtcdError {}
