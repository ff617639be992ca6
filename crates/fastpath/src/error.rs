//! Why the kernel path could not do what was requested.

use std::fmt;
use std::io;
use std::path::PathBuf;

use bm_bpf::Occupant;

/// Why the kernel path could not do what was requested.
#[derive(Debug)]
pub enum KernelError {
    /// The kernel refused the program or its maps.
    Program {
        /// What was being done.
        step: &'static str,
        /// The kernel's error.
        error: libbpf_rs::Error,
    },
    /// No such interface in this network namespace.
    NoInterface {
        /// Its name.
        interface: String,
    },
    /// Another XDP program is on the interface.
    Taken(Occupant),
    /// The program could not be attached to the interface.
    Attach {
        /// Its name.
        interface: String,
        /// The kernel's error.
        error: libbpf_rs::Error,
    },
    /// The program could not be attached to the ingress of the interface.
    AttachTc {
        /// Its name.
        interface: String,
        /// The kernel's error.
        error: libbpf_rs::Error,
    },
    /// The link could not be pinned.
    Pin {
        /// Where.
        path: PathBuf,
        /// The kernel's error.
        error: libbpf_rs::Error,
    },
    /// A pinned link of an interface has a program that is not brickmoon's.
    Foreign {
        interface: String,
        /// The file.
        path: PathBuf,
        /// The program's name.
        program: String,
    },
    /// Two interfaces on which packets are claimed need the same slot in the program's tables.
    SamePlace {
        /// The second.
        interface: String,
        /// The one that uses the slot.
        other: String,
    },
    /// The program is not pinned, so it would end with the daemon.
    NotPinned,
    /// A system call failed.
    System {
        /// What was being done.
        step: &'static str,
        error: io::Error,
    },
}

impl KernelError {
    /// For `map_err`: the kernel refused a BPF operation.
    pub(crate) fn program(step: &'static str) -> impl Fn(libbpf_rs::Error) -> Self {
        move |error| Self::Program { step, error }
    }

    /// For `map_err`: a system call failed.
    pub(crate) fn system(step: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::System { step, error }
    }
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program { step, error } => {
                write!(f, "kernel path: {step}: {error}; the kernel path needs root and Linux 6.1 or newer")
            }
            Self::NoInterface { interface } => {
                write!(f, "{interface}: there is no such interface here (`ip link` lists them)")
            }
            Self::Taken(occupant) => write!(f, "{occupant}"),
            Self::Attach { interface, error } => {
                write!(f, "{interface}: the forwarding program cannot be attached: {error}")
            }
            Self::AttachTc { interface, error } => write!(
                f,
                "{interface}: the forwarding program cannot be attached at tc: {error}; that needs Linux 6.6 or newer: set attach = \"xdp\" for this port"
            ),
            Self::Pin { path, error } => {
                write!(f, "{}: the program cannot be pinned there: {error}", path.display())
            }
            Self::Foreign { interface, path, program } => write!(
                f,
                "{interface}: {0} attaches the program {program:?}, which is not brickmoon's; detach it with `rm {0}`",
                path.display()
            ),
            Self::SamePlace { interface, other } => write!(
                f,
                "{interface}: its interface index (`ip link`) and that of {other} have the same low 12 bits, so packets can be claimed on only one of them; recreate one of the interfaces, or give it `path = \"user\"`"
            ),
            Self::NotPinned => {
                write!(
                    f,
                    "the program is not pinned in bpffs, so it cannot outlive the daemon (`brickmoon status` says why)"
                )
            }
            Self::System { step, error } => write!(f, "kernel path: {step}: {error}"),
        }
    }
}

impl std::error::Error for KernelError {}
