//! What can go wrong with a TAP interface, and what to mend.

use std::fmt;
use std::io;

/// Why there is no TAP interface.
#[derive(Debug)]
pub enum TapError {
    /// No interface can have that name.
    Name {
        /// The name asked for.
        name: String,
    },
    /// The kernel has no TAP device.
    NoDriver {
        /// What the system said of `/dev/net/tun`.
        error: io::Error,
    },
    /// We may not make interfaces.
    Permission {
        /// The name asked for.
        name: String,
        /// What the system said.
        error: io::Error,
    },
    /// The name is that of another interface, or of a TAP interface that somebody has open.
    Taken {
        /// The name asked for.
        name: String,
        /// What the system said.
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
        /// What the system said.
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
