//! Frame memory: slots, freelists and bursts.
//!
//! A frame is a packet in a slot of memory. One region of slots serves AF_XDP as UMEM, DPDK as mempool and LuaJIT as
//! packets, so a frame moves between them without a copy. What workers note about a frame (Lua's struct) is in a
//! separate header, and all headers are next to each other after the slots:
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
//! Headers inside the slots would all be a multiple of 2 KiB apart, and so fall into two of the 64 sets of a
//! first-level cache: only sixteen of a burst's 256 would fit (docs/decisions/0004-headers-apart.md). The same is
//! true for DPDK's mbufs, so they are next to the headers; without DPDK their two cache lines are never touched. And
//! it is true for packets, so data starts at one of seven cache lines of a slot in turn, wherever brickmoon chooses
//! the offset.
//!
//! A [`Frame`] owns its slot: it can be moved but not copied, and nobody else reads or writes the slot meanwhile. It
//! has no destructor, because it must be returned to *some* worker's [`Freelist`]; whoever drops a frame frees it
//! there and counts the reason.

mod burst;
mod frame;
mod freelist;
mod mbuf;
mod memory;
mod node;
mod pick;
mod stack;
mod swap;

pub use burst::{BURST, Burst, Mask, Places};
pub use frame::{FRONT, Frame, HEADER_STRIDE, MBUF_OFFSET, Meta, NoRoom};
pub use freelist::{FramePool, Freelist};
pub use mbuf::{AnyFrame, MbufFrame};
pub use memory::{Memory, MemoryError, Pages};
pub use node::{Node, node_of_core};
pub use pick::{Columns, PickedFrames, pick_into, pick_into_two};
pub use stack::StackHead;
pub use swap::swap_places;

/// The largest offset at which data starts in a new or received frame: always for AF_XDP; other frames start at one
/// of seven cache lines up to here. The rest of the slot is available in every frame.
pub const DATA_OFFSET: usize = 512;
