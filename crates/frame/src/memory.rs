//! The memory region of all frames: on huge pages, or plain ones if there are none.

use std::fmt;
use std::io;
use std::ptr::NonNull;

use crate::DATA_OFFSET;
use crate::frame::{FRONT, Frame, HEADER_STRIDE};
use crate::node::Node;
use bm_sys::{Commit, HUGE_PAGE as HUGE, Map};

/// The pages of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 2 MiB pages from the system's reserve (`/proc/sys/vm/nr_hugepages`).
    Huge,
    /// Plain pages, for which the kernel was asked for transparent huge pages.
    Plain,
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Huge => "2 MiB pages",
            Self::Plain => "plain pages",
        })
    }
}

/// Why frame memory cannot be allocated.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error("a slot cannot have {0} bytes: the size must be a multiple of 64 from 1024 to 65472")]
    SlotSize(usize),
    #[error("frame memory cannot have {count} slots: use 1 to {}", u32::MAX, count = .0)]
    Slots(usize),
    #[error("cannot allocate {bytes} bytes of frame memory: {error}")]
    Map {
        /// The number of bytes requested.
        bytes: usize,
        /// What it said.
        error: io::Error,
    },
    #[error("cannot allocate memory on NUMA node {node}: {error}")]
    Node {
        node: Node,
        /// What the system said.
        error: io::Error,
    },
}

/// The region. It is never unmapped, so frames may be plain pointers into it.
pub struct Memory {
    map: Map,
    slots: usize,
    slot_size: usize,
    pages: Pages,
}

/// The offset of the huge page that contains the byte at `offset`.
fn huge_page_start(offset: usize) -> usize {
    offset / HUGE * HUGE
}

impl Memory {
    /// Maps a region of `slots` slots of `slot_size` bytes, on huge pages if there are enough. AF_XDP supports only
    /// slots of 2048 or 4096 bytes.
    ///
    /// # Errors
    /// See [`MemoryError`].
    pub fn new(slots: usize, slot_size: usize) -> Result<&'static Self, MemoryError> {
        Self::on(slots, slot_size, Pages::Huge)
    }

    /// Maps a region on pages of this kind: on huge pages only if there are enough, else on plain pages.
    ///
    /// # Errors
    /// See [`MemoryError`].
    pub fn on(slots: usize, slot_size: usize, best: Pages) -> Result<&'static Self, MemoryError> {
        Self::mapped(slots, slot_size, best, true)
    }

    /// Maps a region without allocating its pages yet, so that they can be [placed](Self::place).
    ///
    /// # Errors
    /// See [`MemoryError`].
    pub(crate) fn untouched(
        slots: usize,
        slot_size: usize,
        best: Pages,
    ) -> Result<&'static Self, MemoryError> {
        Self::mapped(slots, slot_size, best, false)
    }

    fn mapped(
        slots: usize,
        slot_size: usize,
        best: Pages,
        populate: bool,
    ) -> Result<&'static Self, MemoryError> {
        if !slot_size.is_multiple_of(64) || !(1024..=usize::from(u16::MAX)).contains(&slot_size) {
            return Err(MemoryError::SlotSize(slot_size));
        }
        if slots == 0 || slots >= u32::MAX as usize {
            return Err(MemoryError::Slots(slots));
        }
        let bytes = (slots * (slot_size + HEADER_STRIDE) + FRONT).next_multiple_of(HUGE);
        let (map, pages) = map(bytes, best, populate).map_err(|error| MemoryError::Map { bytes, error })?;
        Ok(Box::leak(Box::new(Self { map, slots, slot_size, pages })))
    }

    /// Places the slots from `first` up to `end`, and their headers, on `node` if that has free memory, with the
    /// granularity of huge pages. Only for a region that has not been accessed yet, from its first slot to its last.
    ///
    /// # Errors
    /// What the system said; the pages are then placed by the system's default.
    pub(crate) fn place(&self, first: usize, end: usize, node: Node) -> io::Result<()> {
        let slots = [first, end].map(|slot| huge_page_start(slot * self.slot_size));
        let headers = [first, end].map(|slot| huge_page_start(self.bytes() + slot * HEADER_STRIDE));
        let headers = [headers[0], if end == self.slots { self.region_bytes() } else { headers[1] }];
        for [from, to] in [slots, headers].into_iter().filter(|[from, to]| from < to) {
            self.map.prefer_node(from..to, node)?;
        }
        Ok(())
    }

    /// Makes the kernel allocate all pages now, which it has already done for huge pages that are not to be placed.
    pub(crate) fn populate(&self) {
        self.map.populate();
    }

    /// The address of the first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.map.start()
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Bytes of a slot.
    pub fn slot_size(&self) -> usize {
        self.slot_size
    }

    /// Bytes of all slots. The headers that follow are not included.
    pub fn bytes(&self) -> usize {
        self.slots * self.slot_size
    }

    /// The address of the headers, [`HEADER_STRIDE`] bytes each, starting with that of slot 0. [`FRONT`] bytes are in
    /// front of it.
    pub fn headers(&self) -> NonNull<u8> {
        // SAFETY: headers follow the slots within the region.
        unsafe { self.base().add(self.bytes() + FRONT) }
    }

    /// Bytes of the whole region, including headers and the padding to 2 MiB.
    pub fn region_bytes(&self) -> usize {
        (self.slots * (self.slot_size + HEADER_STRIDE) + FRONT).next_multiple_of(HUGE)
    }

    /// The kind of pages that it got.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Bytes of data that every new frame can hold.
    pub fn room(&self) -> usize {
        self.slot_size - DATA_OFFSET
    }

    /// The index of the slot that `frame` owns.
    pub fn index(&self, frame: &Frame) -> u32 {
        ((frame.header_address() - self.headers().as_ptr() as usize) / HEADER_STRIDE) as u32
    }

    /// Offset of `frame`'s data from the base, in bytes: an AF_XDP address.
    pub fn data_offset(&self, frame: &Frame) -> u64 {
        (frame.data().as_ptr() as usize - self.base().as_ptr() as usize) as u64
    }

    /// The frame of slot `index`, without data.
    ///
    /// # Safety
    /// The slot must have no other owner: it has never been claimed, or its owner (for example a kernel ring) has
    /// just returned it.
    ///
    /// # Panics
    /// If there is no such slot.
    pub unsafe fn claim(&self, index: u32) -> Frame {
        assert!((index as usize) < self.slots, "slot {index} of {}", self.slots);
        // SAFETY: in bounds by the assertion, and headers follow the slots, whose bytes are a multiple of 64;
        // the caller hands over ownership.
        unsafe {
            let slot = self.base().add(index as usize * self.slot_size);
            let header = self.headers().add(index as usize * HEADER_STRIDE);
            Frame::at(slot, index, self.slot_size, header)
        }
    }
}

fn map(bytes: usize, best: Pages, populate: bool) -> io::Result<(Map, Pages)> {
    if best == Pages::Huge
        && let Ok(map) = Map::huge(bytes, populate)
    {
        return Ok((map, Pages::Huge));
    }
    let map = Map::aligned(bytes, Commit::Now)?;
    // Refusal changes nothing.
    map.advise_huge();
    Ok((map, Pages::Plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FramePool;

    #[test]
    fn refuses_sizes_that_headers_cannot_express() {
        for size in [0, 960, 2047, 65_536] {
            assert!(matches!(Memory::new(8, size), Err(MemoryError::SlotSize(refused)) if refused == size));
        }
        assert_eq!(Memory::new(8, 10_816).unwrap().room(), 10_304);
        assert!(matches!(Memory::new(0, 2048), Err(MemoryError::Slots(0))));
    }

    #[test]
    fn a_slot_is_found_again() {
        let frame_pool = FramePool::new(8, 2048).unwrap();
        let memory = frame_pool.memory();
        let mut frame = std::iter::from_fn(|| frame_pool.take()).nth(3).unwrap();
        assert_eq!((memory.index(&frame), memory.data_offset(&frame)), (3, 3 * 2048 + 320));
        frame.prepend(14).unwrap();
        assert_eq!((memory.index(&frame), memory.data_offset(&frame)), (3, 3 * 2048 + 306));
    }
}
