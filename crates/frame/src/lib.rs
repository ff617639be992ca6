//! Frame memory: slots, freelists and bursts.
//!
//! A frame is a packet in its slot. One region of slots serves AF_XDP as UMEM, DPDK as mempool and
//! LuaJIT as packets, so a frame moves between them without a copy. What workers note of a frame (Lua's
//! struct) is in a header of its own, and all headers lie side by side behind the slots:
//!
//! ```text
//! region  [ slot 0 | slot 1 | slot 2 | ... ][ header 0 | header 1 | header 2 | ... ]
//!
//! slot    0         64         192   256            512                    slot size
//!         | mempool | mbuf     | -   | headroom     | data ...             |
//!           DPDK's    DPDK's           XDP_PACKET_    bytes of the packet
//!                                      HEADROOM, or for prepend
//! ```
//!
//! Headers within the slots would all be a multiple of 2 KiB apart, and so fall into two of the 64 sets of a
//! first-level cache: sixteen of a burst's 256 would find room (docs/decisions/0004-headers-apart.md).
//!
//! A [`Frame`] owns its slot: it can be moved, not copied, and nobody else reads or writes the slot
//! meanwhile. It has no destructor, since it must go back to *some* worker's [`Freelist`]; whoever ends a
//! frame's way frees it there and counts why.

mod burst;
mod frame;
mod freelist;
mod memory;
mod stack;

pub use burst::{BURST, Burst, Mask, Places};
pub use frame::{Frame, Meta, NoRoom};
pub use freelist::{Depot, Freelist};
pub use memory::{Memory, MemoryError, Pages};
pub use stack::StackHead;

/// Where data begins in a slot when a frame is fresh or just received.
pub const DATA_OFFSET: usize = 512;
/// Where the headroom begins; data may grow down to here.
pub const HEADROOM_OFFSET: usize = 256;
