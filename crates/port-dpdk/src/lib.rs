//! DPDK ports: any device that a poll-mode driver of the installed DPDK supports, using brickmoon's own frames.
//!
//! ```text
//!  freelist ◄─── mempool "brickmoon" ◄──── driver frees what it has sent
//!     │                  │
//!     │                  └──► driver receives into slots ──► DpdkPort::receive ─► burst
//!     └── other ports, Lua ...                   burst ─► DpdkPort::transmit ──► driver
//! ```
//!
//! The frame memory is registered with DPDK (`rte_extmem_register`, for cards), and its slots are those of a mempool
//! without a list of its own: it allocates from and frees to the [`Freelist`](bm_frame::Freelist) of the worker that
//! is in the port at that moment. An mbuf is stored after the header of its frame, so each is found from the other by
//! an addition, and a frame goes from a DPDK port to any other, or to Lua, without a copy.
//!
//! DPDK itself (its EAL) is started once per process, when the first device is opened, without huge pages if there
//! are none, and leaves no files behind. Its types do not leave the shim (`c/`). Built without the feature `dpdk`,
//! the crate has the same interface and refuses each device with the fix.

mod error;
mod spec;

#[cfg(feature = "dpdk")]
mod device;
#[cfg(feature = "dpdk")]
mod eal;
#[cfg(feature = "dpdk")]
mod ffi;
#[cfg(feature = "dpdk")]
mod log;
#[cfg(feature = "dpdk")]
mod pause;
#[cfg(feature = "dpdk")]
mod pci;
#[cfg(feature = "dpdk")]
mod pool;
#[cfg(feature = "dpdk")]
mod port;
#[cfg(feature = "dpdk")]
mod shared;
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

/// The options of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The number of queues, one per worker; 0 means one.
    pub queues: u16,
    /// Largest IP packet in bytes; `None` keeps the device's setting.
    pub mtu: Option<u16>,
}

/// How a device distributes flows over its queues; empty if it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RssSettings {
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
    /// Speed in Mbit/s; 0 if unknown.
    pub mbps: u32,
}

/// Whether this build includes DPDK.
pub const BUILT: bool = cfg!(feature = "dpdk");

/// Starts DPDK without huge pages, which a tool such as valgrind cannot give it: it has no room for the range of addresses
/// that DPDK reserves for them. The first device starts it otherwise.
///
/// # Errors
/// [`DpdkError`].
pub fn start_on_plain_pages() -> Result<(), DpdkError> {
    #[cfg(feature = "dpdk")]
    eal::start(false)?;
    Ok(())
}

/// Version of the DPDK that is linked; `None` if this build has none.
pub fn version() -> Option<String> {
    #[cfg(feature = "dpdk")]
    return Some(eal::version());
    #[cfg(not(feature = "dpdk"))]
    None
}
