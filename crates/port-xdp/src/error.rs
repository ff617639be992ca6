//! Errors of AF_XDP ports, and how to fix them.

use std::fmt;
use std::io;

use bm_bpf::Occupant;

/// The largest slot that AF_XDP takes, in bytes.
const SLOT_MAX: usize = 4096;

/// Why an AF_XDP port cannot be opened.
#[derive(Debug)]
pub enum XdpError {
    /// No such interface in this network namespace.
    NoInterface {
        /// The name asked for.
        interface: String,
    },
    /// Another XDP program is attached to the interface.
    Taken(Occupant),
    /// Neither native nor generic mode accepted the program.
    Attach {
        interface: String,
        /// The error of native mode.
        native: Option<io::Error>,
        /// The error of generic mode.
        generic: Option<io::Error>,
    },
    /// A frame of the interface is larger than a slot.
    Mtu {
        interface: String,
        /// Its MTU in bytes.
        mtu: usize,
        /// The largest that fits.
        mtu_max: usize,
        /// Bytes of a slot.
        slot_size: usize,
    },
    /// The kernel refused the steering program or one of its maps.
    Program {
        interface: String,
        /// What libbpf said.
        error: libbpf_rs::Error,
    },
    /// The interface has no such queue.
    NoQueue {
        interface: String,
        /// The requested queue.
        queue: u32,
        /// The number of queues.
        queues: u32,
    },
    /// The socket of a queue could not be opened.
    Socket {
        interface: String,
        queue: u32,
        /// The step that failed.
        step: &'static str,
        /// What the system said.
        error: io::Error,
    },
    /// A query failed.
    System {
        interface: String,
        /// What was queried.
        step: &'static str,
        /// What the system said.
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

impl fmt::Display for XdpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInterface { interface } => {
                write!(f, "there is no interface {interface:?} in this network namespace")
            }
            Self::Taken(occupant) => write!(f, "{occupant}"),
            Self::Attach { interface, native, generic } => {
                write!(f, "{interface}: no XDP program can be attached")?;
                for (mode, error) in [("native", native), ("generic", generic)] {
                    if let Some(error) = error {
                        write!(f, "; {mode} mode: {error}{}", hint(error))?;
                    }
                }
                Ok(())
            }
            Self::Mtu { interface, mtu, mtu_max, slot_size } => {
                write!(
                    f,
                    "{interface} has an MTU of {mtu}, but a slot of {slot_size} bytes has room for at most {mtu_max}: "
                )?;
                // AF_XDP supports no larger slots.
                if *slot_size < SLOT_MAX && *mtu <= mtu_max + (SLOT_MAX - slot_size) {
                    write!(f, "set slot_size = {SLOT_MAX} in [daemon], or ")?;
                }
                write!(f, "lower the MTU with `ip link set dev {interface} mtu {mtu_max}`")
            }
            Self::Program { interface, error } => {
                let denied = error.kind() == libbpf_rs::ErrorKind::PermissionDenied;
                let advice = if denied { hint(&io::Error::from_raw_os_error(libc::EPERM)) } else { "" };
                write!(f, "steering program of {interface}: {error:#}{advice}")
            }
            Self::NoQueue { interface, queue, queues } => {
                write!(
                    f,
                    "{interface} has no queue {queue}: the number of queues is {queues}, counted from 0"
                )
            }
            Self::Socket { interface, queue, step, error } => {
                write!(f, "AF_XDP socket of {interface}, queue {queue}: {step}: {error}{}", hint(error))
            }
            Self::System { interface, step, error } => {
                write!(f, "{interface}: {step}: {error}{}", hint(error))
            }
        }
    }
}

impl std::error::Error for XdpError {}
