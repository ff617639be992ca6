//! TAP ports, and the TAP twin of ports that the kernel does not know.
//!
//! ```text
//!   Linux ── TAP interface ──► TapPort::receive ─► worker ─► TapPort::transmit ──► TAP interface ── Linux
//!
//!   NIC that DPDK has taken ─► worker ─► Twin::deliver ─► TAP "twin" of the same MAC ── Linux
//! ```
//!
//! A [`TapPort`] is a queue of a TAP interface: its wire ends in Linux, or in a virtual machine. A [`Twin`]
//! is the other thing: it is in Linux what a port would be if the kernel knew it, so that addresses, ARP and
//! routing daemons have an interface to work on. Both vanish with the process. Without a header in front of
//! frames (`IFF_VNET_HDR`), Linux completes checksums and cuts segments itself before we read them.

mod error;
mod interface;
mod port;
mod twin;

pub use error::TapError;
pub use port::{TapDevice, TapPort};
pub use twin::{Twin, TwinHandle};
