//! Why a switch could not do what was requested.

use std::io;

/// Why a switch could not do what was requested.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    #[error("{}{}", .0, .0.requirement("a switch"))]
    Bpf(#[from] bm_bpf::Error),
    /// All slots are in use.
    #[error("a switch can have at most {} ports", crate::layout::SLOTS)]
    ManyPorts,
    #[error(
        "cannot create the switch's own interface {interface}: {error}; if another interface has that name, remove it \
         with `ip link del {interface}`"
    )]
    Own { interface: String, error: io::Error },
}
