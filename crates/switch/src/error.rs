//! Why a switch could not do what was requested.

use std::fmt;
use std::io;
use std::path::PathBuf;

use bm_bpf::Occupant;

/// Why a switch could not do what was requested.
#[derive(Debug)]
pub enum SwitchError {
    /// The kernel refused the programs or a map.
    Program {
        /// What was being done.
        step: &'static str,
        /// The kernel's error.
        error: libbpf_rs::Error,
    },
    /// A system call failed.
    System {
        /// What was being done.
        step: &'static str,
        error: io::Error,
    },
    /// Another XDP program is on the interface.
    Taken(Occupant),
    /// The link could not be pinned.
    Pin {
        /// Where.
        path: PathBuf,
        /// The kernel's error.
        error: libbpf_rs::Error,
    },
    /// All slots are in use.
    ManyPorts,
    /// The switch's own interface could not be made.
    Own {
        /// Its name.
        interface: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// The programs are not pinned, so they would end with the daemon.
    NotPinned,
}

impl SwitchError {
    /// For `map_err`: the kernel refused a BPF operation.
    pub(crate) fn program(step: &'static str) -> impl Fn(libbpf_rs::Error) -> Self {
        move |error| Self::Program { step, error }
    }

    /// For `map_err`: a system call failed.
    pub(crate) fn system(step: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::System { step, error }
    }
}

impl fmt::Display for SwitchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program { step, error } => {
                write!(f, "{step}: {error}; a switch needs root and Linux 6.1 or newer")
            }
            Self::System { step, error } => write!(f, "{step}: {error}"),
            Self::Taken(occupant) => write!(f, "{occupant}"),
            Self::Pin { path, error } => {
                write!(f, "{}: cannot pin the program: {error}", path.display())
            }
            Self::ManyPorts => write!(f, "a switch can have at most {} ports", crate::layout::SLOTS),
            Self::Own { interface, error } => write!(
                f,
                "cannot create the switch's own interface {interface}: {error}; if another interface has that name, remove it with `ip link del {interface}`"
            ),
            Self::NotPinned => {
                f.write_str("the programs are not pinned in bpffs, so they stop when the daemon ends")
            }
        }
    }
}

impl std::error::Error for SwitchError {}
