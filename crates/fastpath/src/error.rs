//! Why the kernel path could not do what was requested.

use std::path::PathBuf;

use bm_bpf::Error;

/// Why the kernel path could not do what was requested.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("{}{}{}", prefix(.0), .0, .0.requirement("the kernel path"))]
    Bpf(#[from] Error),
    /// No such interface in this network namespace.
    #[error("{interface}: there is no such interface here (`ip link` lists them)")]
    NoInterface { interface: String },
    #[error("{interface}: the forwarding program cannot be attached: {error}")]
    Attach { interface: String, error: libbpf_rs::Error },
    #[error(
        "{interface}: the forwarding program cannot be attached at tc: {error}; that needs Linux 6.6 or newer: set \
         attach = \"xdp\" for this port"
    )]
    AttachTc { interface: String, error: libbpf_rs::Error },
    /// A pinned link of an interface has a program that is not brickmoon's.
    #[error(
        "{interface}: {0} attaches the program {program:?}, which is not brickmoon's; detach it with `rm {0}`",
        path.display()
    )]
    Foreign { interface: String, path: PathBuf, program: String },
    /// Two interfaces on which packets are claimed need the same slot in the program's tables.
    #[error(
        "{interface}: its interface index (`ip link`) and that of {other} have the same low 12 bits, so packets can be \
         claimed on only one of them; recreate one of the interfaces, or give it `path = \"user\"`"
    )]
    SamePlace {
        interface: String,
        /// The one that uses the slot.
        other: String,
    },
}

/// Which part of brickmoon failed, where the error does not name an interface or a file.
fn prefix(error: &Error) -> &'static str {
    match error {
        Error::Program { .. } | Error::System { .. } => "kernel path: ",
        Error::Taken(_) | Error::Pin { .. } | Error::NotPinned => "",
    }
}
