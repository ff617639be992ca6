//! Why a BPF program cannot be loaded, attached, changed or kept.

use std::io;
use std::path::PathBuf;

use crate::attached::AttachedProgram;

/// Why a BPF program cannot be loaded, attached, changed or kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a program or a map. What it needs is in [`Error::requirement`].
    #[error("{step}: {error}")]
    Program {
        /// What was being done, as in "attaching the fabric program".
        step: &'static str,
        error: libbpf_rs::Error,
    },
    /// Another system call failed.
    #[error("{step}: {error}")]
    System { step: &'static str, error: io::Error },
    #[error("{0}")]
    Taken(AttachedProgram),
    /// The link of a program could not be pinned.
    #[error("{}: the program cannot be pinned there: {error}", path.display())]
    Pin { path: PathBuf, error: libbpf_rs::Error },
    /// No link is pinned, so nothing can be left running.
    #[error(
        "the programs are not pinned in bpffs, so they stop when the daemon ends (`brickmoon status` says why)"
    )]
    NotPinned,
}

impl Error {
    /// For `map_err`: the kernel refused a program or a map.
    pub fn program(step: &'static str) -> impl Fn(libbpf_rs::Error) -> Self {
        move |error| Self::Program { step, error }
    }

    /// For `map_err`: a system call failed.
    pub fn system(step: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::System { step, error }
    }

    /// For `map_err`: a program could not be attached to an interface, perhaps because another one is.
    pub fn attach(step: &'static str, ifindex: u32, interface: &str) -> impl Fn(libbpf_rs::Error) -> Self {
        move |error| match AttachedProgram::on(ifindex, interface) {
            Some(other) => Self::Taken(other),
            None => Self::Program { step, error },
        }
    }

    /// What `user`, "a switch" for example, needs for its programs: the end of a message if the kernel refused one.
    pub fn requirement(&self, user: &str) -> String {
        match self {
            Self::Program { .. } => format!("; {user} needs root and Linux 6.1 or newer"),
            _ => String::new(),
        }
    }
}
