//! Why packets cannot be captured.

use std::io;

/// Why packets cannot be captured, with what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error(
        "no program of brickmoon is attached to {port}: Linux has all of its packets, and `tcpdump -i {port}` shows them"
    )]
    NoProgram { port: String },
    #[error("cannot find out which programs are attached to {port}: {error}")]
    Query { port: String, error: io::Error },
    #[error("{}", refused(step, error))]
    Refused { step: &'static str, error: libbpf_rs::Error },
}

impl CaptureError {
    /// For `map_err`: the kernel refused a step.
    pub(crate) fn at(step: &'static str) -> impl Fn(libbpf_rs::Error) -> Self {
        move |error| Self::Refused { step, error }
    }
}

fn refused(step: &str, error: &libbpf_rs::Error) -> String {
    match (error.kind(), bm_sys::effective_user()) {
        (libbpf_rs::ErrorKind::PermissionDenied, 0) => {
            "this kernel does not let programs run before and after others (BPF trampolines, fentry): \
             a security module or a container forbids it"
                .into()
        }
        (libbpf_rs::ErrorKind::PermissionDenied, _) => {
            "a capture loads programs into the kernel: run it as root".into()
        }
        _ => format!(
            "{step}: {error:#}; it needs a kernel with BTF (CONFIG_DEBUG_INFO_BTF) and BPF trampolines, as Debian's and \
             Ubuntu's are"
        ),
    }
}
