//! TAP ports, and the TAP host TAP of ports that the kernel does not know.
//!
//! ```text
//!   Linux ── TAP interface ──► TapPort::receive ─► worker ─► TapPort::transmit ──► TAP interface ── Linux
//!
//!   NIC that DPDK has taken ─► worker ─► HostTap::deliver ─► TAP "host TAP" of the same MAC ── Linux
//! ```
//!
//! A [`TapPort`] is a queue of a TAP interface whose other end is Linux or a virtual machine. A [`HostTap`] represents
//! in Linux a port that the kernel does not know, so that addresses, ARP and routing daemons have an interface to
//! work with. Both vanish with the process. A [`Tun`] is the queue of a TUN interface that others have made. Because frames have no header in front (`IFF_VNET_HDR`), Linux completes
//! checksums and segments packets before they are read here.

#![forbid(unsafe_code)]

mod error;
mod host_tap;
mod interface;
mod port;
mod tun;

pub use error::TapError;
pub use host_tap::{HostTap, HostTapHandle};
pub use interface::TapPresence;
pub use port::{TapDevice, TapPort};
pub use tun::Tun;
