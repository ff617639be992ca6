//! Errors of TAP interfaces, and how to fix them.

use std::fmt;
use std::io;

/// Why a TAP interface cannot be opened.
#[derive(Debug)]
pub enum TapError {
    /// The name is not valid for an interface.
    Name {
        /// The requested name.
        name: String,
    },
    /// The kernel has no TAP driver.
    NoDriver {
        /// The error of opening `/dev/net/tun`.
        error: io::Error,
    },
    /// The process may not create interfaces.
    Permission {
        /// The requested name.
        name: String,
        /// The system's error.
        error: io::Error,
    },
    /// Another interface has the name, or another process has the TAP interface open.
    Taken {
        /// The requested name.
        name: String,
        /// The system's error.
        error: io::Error,
    },
    /// A frame of the interface is larger than a slot.
    Mtu {
        /// Which interface.
        name: String,
        /// Its MTU in bytes.
        mtu: usize,
        /// The largest that fits.
        mtu_max: usize,
    },
    /// Something else failed.
    System {
        /// Which interface.
        name: String,
        /// What was tried.
        step: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

impl fmt::Display for TapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { name } => {
                write!(f, "{name:?} is not a valid interface name: use 1 to 15 characters and no slash")
            }
            Self::NoDriver { error } => {
                write!(f, "/dev/net/tun: {error}; load the driver with: modprobe tun")
            }
            Self::Permission { name, error } => {
                write!(f, "TAP interface {name}: {error}: run as root, or with CAP_NET_ADMIN")
            }
            Self::Taken { name, error } => write!(
                f,
                "TAP interface {name}: {error}: the name is in use; choose another, or look what uses it with: \
                 ip -details link show dev {name}"
            ),
            Self::Mtu { name, mtu, mtu_max } => write!(
                f,
                "{name} has an MTU of {mtu}, but a slot has room for at most {mtu_max}: use larger slots, or lower the MTU with: \
                 ip link set dev {name} mtu {mtu_max}"
            ),
            Self::System { name, step, error } => write!(f, "TAP interface {name}: {step}: {error}"),
        }
    }
}

impl std::error::Error for TapError {}
