//! TAP ports, and the TAP twin of ports that the kernel does not know.
//!
//! ```text
//!   Linux ── TAP interface ──► TapPort::receive ─► worker ─► TapPort::transmit ──► TAP interface ── Linux
//!
//!   NIC that DPDK has taken ─► worker ─► Twin::deliver ─► TAP "twin" of the same MAC ── Linux
//! ```
//!
//! A [`TapPort`] is a queue of a TAP interface whose other end is Linux or a virtual machine. A [`Twin`] represents
//! in Linux a port that the kernel does not know, so that addresses, ARP and routing daemons have an interface to
//! work with. Both vanish with the process. Because frames have no header in front (`IFF_VNET_HDR`), Linux completes
//! checksums and segments packets before they are read here.

#![forbid(unsafe_code)]

mod error;
mod interface;
mod port;
mod twin;

pub use error::TapError;
pub use port::{TapDevice, TapPort};
pub use twin::{Twin, TwinHandle};
