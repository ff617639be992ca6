//! Why packets cannot be captured.

use std::fmt;
use std::io;

/// Why packets cannot be captured, with what to do about it.
#[derive(Debug)]
pub enum CaptureError {
    /// No program of brickmoon is attached to the interface.
    NoProgram { port: String },
    /// It is not known which programs an interface has.
    Query { port: String, error: io::Error },
    /// A step that the kernel refused.
    Refused { step: &'static str, error: libbpf_rs::Error },
}

impl CaptureError {
    /// The error of a step.
    pub(crate) fn at(step: &'static str) -> impl Fn(libbpf_rs::Error) -> Self {
        move |error| Self::Refused { step, error }
    }
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProgram { port } => write!(
                f,
                "no program of brickmoon is attached to {port}: Linux has all of its packets, and `tcpdump -i {port}` shows them"
            ),
            Self::Query { port, error } => write!(f, "cannot find out which programs are attached to {port}: {error}"),
            Self::Refused { error, .. } if error.kind() == libbpf_rs::ErrorKind::PermissionDenied => {
                f.write_str(match bm_sys::effective_user() {
                    0 => {
                        "this kernel does not let programs run before and after others (BPF trampolines, fentry): \
                         a security module or a container forbids it"
                    }
                    _ => "a capture loads programs into the kernel: run it as root",
                })
            }
            Self::Refused { step, error } => write!(
                f,
                "{step}: {error:#}; it needs a kernel with BTF (CONFIG_DEBUG_INFO_BTF) and BPF trampolines, as Debian's and Ubuntu's are"
            ),
        }
    }
}

impl std::error::Error for CaptureError {}
