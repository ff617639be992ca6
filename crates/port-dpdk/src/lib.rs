//! DPDK ports: any device that a poll-mode driver of the DPDK installed can drive, over our own frames.
//!
//! ```text
//!  freelist ◄─── mempool "brickmoon" ◄──── driver frees what it has sent
//!     │                  │
//!     │                  └──► driver receives into slots ──► DpdkPort::receive ─► burst
//!     └── other ports, Lua ...                   burst ─► DpdkPort::transmit ──► driver
//! ```
//!
//! The frame region is memory of DPDK (`rte_extmem_register`, for cards) and its slots are a mempool's, which has no list
//! of its own, but takes and gives at the [`Freelist`](bm_frame::Freelist) of the worker that is in the port just
//! then. An mbuf lies behind the header of its frame, so each is found from the other by an addition, and a frame
//! goes from a DPDK port to any other, or to Lua, where it lies.
//!
//! DPDK itself (its EAL) is started when the first device is opened, once a process, without huge pages where there
//! are none, and leaves no files behind. Its types end in the shim (`c/`). Built without the feature `dpdk`, the
//! crate is the same to its callers and refuses each device with what to do about it.

mod error;
mod spec;

#[cfg(feature = "dpdk")]
mod device;
#[cfg(feature = "dpdk")]
mod eal;
#[cfg(feature = "dpdk")]
mod ffi;
#[cfg(feature = "dpdk")]
mod pci;
#[cfg(feature = "dpdk")]
mod pool;
#[cfg(feature = "dpdk")]
mod port;
#[cfg(feature = "dpdk")]
mod rest;
#[cfg(feature = "dpdk")]
mod steer;

#[cfg(not(feature = "dpdk"))]
mod absent;

#[cfg(not(feature = "dpdk"))]
pub use absent::{DpdkDevice, DpdkPort, DpdkSteering};
#[cfg(feature = "dpdk")]
pub use device::DpdkDevice;
pub use error::DpdkError;
#[cfg(feature = "dpdk")]
pub use port::DpdkPort;
pub use spec::Spec;
#[cfg(feature = "dpdk")]
pub use steer::DpdkSteering;

/// What is wanted of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Queues, each for a worker of its own; 0 for one.
    pub queues: u16,
    /// Largest IP packet in bytes; `None` for what the device has.
    pub mtu: Option<u16>,
}

/// How a device spreads flows over its queues; empty where it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// The key of its hash (Toeplitz).
    pub key: Vec<u8>,
    /// The queue of each value of the hash.
    pub queues: Vec<u16>,
}

/// State of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Whether there is a carrier.
    pub up: bool,
    /// Speed in Mbit/s; 0 where that means nothing.
    pub mbps: u32,
}

/// Whether this build can drive devices by DPDK.
pub const BUILT: bool = cfg!(feature = "dpdk");

/// Version of the DPDK that is linked; `None` if none is.
pub fn version() -> Option<String> {
    #[cfg(feature = "dpdk")]
    return Some(eal::version());
    #[cfg(not(feature = "dpdk"))]
    None
}
