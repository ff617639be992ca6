//! Errors of TAP interfaces, and how to fix them.

use std::io;

/// Why a TAP interface cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    #[error("{name:?} is not a valid interface name: use 1 to 15 characters and no slash")]
    Name {
        /// The requested name.
        name: String,
    },
    #[error("/dev/net/tun: {error}; load the driver with: modprobe tun")]
    NoDriver {
        /// The error of opening `/dev/net/tun`.
        error: io::Error,
    },
    #[error("TAP interface {name}: {error}: run as root, or with CAP_NET_ADMIN")]
    Permission {
        /// The requested name.
        name: String,
        /// The system's error.
        error: io::Error,
    },
    #[error(
        "TAP interface {name}: {error}: the name is in use; choose another, or look what uses it with: ip \
         -details link show dev {name}"
    )]
    Taken {
        /// The requested name.
        name: String,
        /// The system's error.
        error: io::Error,
    },
    #[error(
        "{name} has an MTU of {mtu}, but a slot has room for at most {mtu_max}: use larger slots, or lower \
         the MTU with: ip link set dev {name} mtu {mtu_max}"
    )]
    Mtu {
        /// Which interface.
        name: String,
        /// Its MTU in bytes.
        mtu: usize,
        /// The largest that fits.
        mtu_max: usize,
    },
    #[error("TAP interface {name}: {step}: {error}")]
    System {
        /// Which interface.
        name: String,
        /// What was tried.
        step: &'static str,
        /// The system's error.
        error: io::Error,
    },
}
