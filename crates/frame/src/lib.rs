//! Frame memory: slots, freelists and bursts.
//!
//! A frame is a packet in its slot. One region of slots serves AF_XDP as UMEM, DPDK as mempool and
//! LuaJIT as packets, so a frame moves between them without a copy:
//!
//! ```text
//! slot  0         64         192        256            512                    slot size
//!       | mempool | mbuf     | Header   | headroom     | data ...             |
//!         DPDK's    DPDK's     ours       XDP_PACKET_    bytes of the packet
//!                              (Lua's     HEADROOM, or
//!                              struct)    for prepend
//! ```
//!
//! A [`Frame`] owns its slot: it can be moved, not copied, and nobody else reads or writes the slot
//! meanwhile. It has no destructor, since it must go back to *some* worker's [`Freelist`]; whoever ends a
//! frame's way frees it there and counts why.

mod burst;
mod frame;
mod freelist;
mod memory;

pub use burst::{BURST, Burst, Mask, Places};
pub use frame::{Frame, Meta, NoRoom};
pub use freelist::{Depot, Freelist};
pub use memory::{Memory, MemoryError, Pages};

/// Where our header begins in a slot.
pub const HEADER_OFFSET: usize = 192;
/// Where data begins in a slot when a frame is fresh or just received.
pub const DATA_OFFSET: usize = 512;
/// Where the headroom begins; data may grow down to here.
pub const HEADROOM_OFFSET: usize = 256;
