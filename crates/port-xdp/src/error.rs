//! Errors of AF_XDP ports, and how to fix them.

use std::io;

use bm_bpf::AttachedProgram;

/// The largest slot that AF_XDP takes, in bytes.
const SLOT_MAX: usize = 4096;

/// Why an AF_XDP port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    #[error("there is no interface {interface:?} in this network namespace")]
    NoInterface { interface: String },
    #[error("{0}")]
    Taken(AttachedProgram),
    /// Neither native nor generic mode accepted the program.
    #[error(
        "{interface}: no XDP program can be attached{}{}",
        refused("native", native.as_ref()),
        refused("generic", generic.as_ref())
    )]
    Attach {
        interface: String,
        /// The error of native mode.
        native: Option<io::Error>,
        /// The error of generic mode.
        generic: Option<io::Error>,
    },
    /// A frame of the interface is larger than a slot.
    #[error(
        "{interface} has an MTU of {mtu}, but a slot of {slot_size} bytes has room for at most {mtu_max}: {}lower the \
         MTU with `ip link set dev {interface} mtu {mtu_max}`",
        larger_slots(*mtu, *mtu_max, *slot_size)
    )]
    Mtu {
        interface: String,
        mtu: usize,
        /// The largest that fits.
        mtu_max: usize,
        /// Bytes of a slot.
        slot_size: usize,
    },
    /// The kernel refused the steering program or one of its maps.
    #[error("steering program of {interface}: {error:#}{}", program_hint(error))]
    Program { interface: String, error: libbpf_rs::Error },
    #[error("{interface} has no queue {queue}: the number of queues is {queues}, counted from 0")]
    NoQueue { interface: String, queue: u32, queues: u32 },
    /// The socket of a queue could not be opened.
    #[error("AF_XDP socket of {interface}, queue {queue}: {step}: {error}{}", hint(error))]
    Socket { interface: String, queue: u32, step: &'static str, error: io::Error },
    /// A query failed.
    #[error("{interface}: {step}: {error}{}", hint(error))]
    System {
        interface: String,
        /// What was queried.
        step: &'static str,
        error: io::Error,
    },
}

/// The fix for errors with a usual cause.
fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => ": run as root, or with CAP_NET_ADMIN, CAP_BPF and CAP_NET_RAW",
        Some(libc::EBUSY) => ": another AF_XDP socket uses this queue",
        Some(libc::ENOBUFS | libc::ENOMEM) => ": use fewer slots, or raise the limit of locked memory",
        Some(libc::EAFNOSUPPORT) => ": this kernel is built without AF_XDP (CONFIG_XDP_SOCKETS)",
        _ => "",
    }
}

fn program_hint(error: &libbpf_rs::Error) -> &'static str {
    match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => hint(&io::Error::from_raw_os_error(libc::EPERM)),
        _ => "",
    }
}

/// The error of one mode; empty if it was not tried.
fn refused(mode: &str, error: Option<&io::Error>) -> String {
    error.map_or_else(String::new, |error| format!("; {mode} mode: {error}{}", hint(error)))
}

/// The advice to take larger slots, if frames of this MTU fit into the largest that AF_XDP supports.
fn larger_slots(mtu: usize, mtu_max: usize, slot_size: usize) -> String {
    if slot_size < SLOT_MAX && mtu <= mtu_max + (SLOT_MAX - slot_size) {
        return format!("set slot_size = {SLOT_MAX} in [daemon], or ");
    }
    String::new()
}
