//! Frame memory: slots, freelists and bursts.
//!
//! A frame is a packet in its slot. One region of slots serves AF_XDP as UMEM, DPDK as mempool and
//! LuaJIT as packets, so a frame moves between them without a copy. What workers note of a frame (Lua's
//! struct) is in a header of its own, and all headers lie side by side behind the slots:
//!
//! ```text
//! region  [ slot 0 | slot 1 | slot 2 | ... ][ header 0 | header 1 | header 2 | ... ]
//!
//! slot    0                     128 to 512             slot size
//!         | headroom            | data ...             |
//!           for prepend, and      bytes of the packet: AF_XDP's begin at 512, a fresh frame's at one of
//!           XDP_PACKET_HEADROOM   seven lines, by the slot's number; DPDK's too
//!
//! header  0                40            64           144                       192
//!         | ours, and Lua's | mempool's  | mbuf       | its end, or Lua's notes |
//! ```
//!
//! Headers within the slots would all be a multiple of 2 KiB apart, and so fall into two of the 64 sets of a
//! first-level cache: sixteen of a burst's 256 would find room (docs/decisions/0004-headers-apart.md). The same
//! holds for DPDK's mbufs, so they lie with the headers; without DPDK nobody touches their two lines. And it holds for
//! packets, so that data begins at seven lines of the slots by turns, wherever we choose the place.
//!
//! A [`Frame`] owns its slot: it can be moved, not copied, and nobody else reads or writes the slot
//! meanwhile. It has no destructor, since it must go back to *some* worker's [`Freelist`]; whoever ends a
//! frame's way frees it there and counts why.

mod burst;
mod frame;
mod freelist;
mod memory;
mod node;
mod pick;
mod stack;
mod swap;

pub use burst::{BURST, Burst, Mask, Places};
pub use frame::{FRONT, Frame, HEADER_STRIDE, MBUF_OFFSET, Meta, NoRoom};
pub use freelist::{Depot, Freelist};
pub use memory::{Memory, MemoryError, Pages};
pub use node::{Node, node_of_core};
pub use stack::StackHead;
pub use swap::swap_places;

/// Where data begins in a slot at the latest when a frame is fresh or just received: AF_XDP's always, that of other
/// frames at one of seven lines up to here. What is behind is room that every frame has.
pub const DATA_OFFSET: usize = 512;
