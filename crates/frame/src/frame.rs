//! One frame: a packet in the slot that it owns.

use std::fmt;
use std::ptr::NonNull;

use crate::DATA_OFFSET;

/// Lines of a slot that data begins at by turns.
const STARTS: u32 = 7;
const _: () = assert!(DATA_OFFSET - (STARTS as usize - 1) * 64 >= 128, "room for what is prepended");

/// Where data begins in the slot of that number, unless a kernel or a driver has put it elsewhere.
pub(crate) fn start_of(index: u32) -> usize {
    DATA_OFFSET - (index % STARTS) as usize * 64
}

/// What workers note of a frame. Plain numbers: none of them decides which memory is touched.
///
/// Shared with Lua and C as part of a frame's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Meta {
    /// Index of the port that the frame came in on.
    pub port: u16,
    /// Index of the logical interface that it came in on: the port's own, or a VLAN of it.
    pub interface: u16,
    /// Where the network header begins, in bytes from the start of data.
    pub network: u16,
    /// Why the frame leaves the fast path: the receiver's own code.
    pub verdict: u16,
    /// Index of the next hop that a hook chose, where `chosen` is 1.
    pub next_hop: u32,
    /// Whether a hook chose the next hop: set for frames that leave the fast path, like `verdict`.
    pub chosen: u32,
}

/// Of one frame. Lua sees `length` and `data` under these names, and so does DPDK's shim.
///
/// Shared with Lua and with DPDK's drivers, one owner at a time: whoever has the frame. We reach it through the raw
/// pointer that a [`Frame`] is, and a reference into it ends before anybody else gets the frame or is called with it,
/// so the compiler must take all of it for changed by such a call.
#[repr(C)]
struct Header {
    /// Bytes of data.
    length: u16,
    /// Bytes of the slot, for the bounds of data.
    slot_size: u16,
    /// Where data begins in the slot unless somebody else places it.
    start: u16,
    /// Lua's own: bytes of data when a full link dropped the packet.
    dropped: u16,
    /// First byte of data; C's and Lua's plain pointer.
    data: NonNull<u8>,
    meta: Meta,
    /// First byte of the slot.
    slot: NonNull<u8>,
}

/// Bytes from one header to the next: a line of the cache for the header, which ends with 24 bytes that DPDK keeps
/// in front of an mbuf, and two lines for the mbuf. An odd number of lines, so that a burst's headers fall into all
/// sets of a cache. Five lines cost 4 % of the router's packets a second, and 6 % of those of a source and a sink.
pub const HEADER_STRIDE: usize = 192;
/// Bytes in front of the first header. The last 48 in front of each header are Lua's, where apps written for Snabb keep
/// what they know of a packet: fields of the mbuf before it that no port of ours has a driver use, though some drivers
/// do so unasked (`c/pool.h`).
pub const FRONT: usize = 64;
/// Where the mbuf of a frame begins, in bytes from its header.
pub const MBUF_OFFSET: usize = 64;
/// Of a header, in front of what DPDK keeps.
pub(crate) const HEADER_BYTES: usize = 40;
const _: () = assert!(size_of::<Header>() == HEADER_BYTES && HEADER_BYTES + 24 <= MBUF_OFFSET);
// C and Lua know these places.
const _: () = assert!(std::mem::offset_of!(Header, data) == 8 && std::mem::offset_of!(Header, slot) == 32);

/// There is no room for that many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// How many bytes were wanted.
    pub wanted: usize,
    /// How many there are.
    pub room: usize,
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes do not fit: the frame has room for {}", self.wanted, self.room)
    }
}

impl std::error::Error for NoRoom {}

/// A packet in its slot. Dropping one loses the slot: free it to a [`Freelist`](crate::Freelist).
#[must_use = "a frame that is dropped is lost to its pool: free it and count why"]
#[repr(transparent)]
pub struct Frame(NonNull<Header>);

// SAFETY: a frame owns its slot, and the region lives as long as the process.
unsafe impl Send for Frame {}

impl Frame {
    /// # Safety
    /// `slot` is the first byte of the slot number `index`, of `slot_size` bytes, that nobody else owns, and
    /// `header` that of its header, a multiple of 64; both in a region that lives as long as the process.
    pub(crate) unsafe fn at(
        slot: NonNull<u8>,
        (index, slot_size): (u32, usize),
        header: NonNull<u8>,
    ) -> Self {
        let start = start_of(index);
        // SAFETY: data starts below the slot's size; the header is aligned and goes with the slot.
        unsafe {
            let header = header.cast::<Header>();
            header.write(Header {
                length: 0,
                slot_size: slot_size as u16,
                start: start as u16,
                dropped: 0,
                data: slot.add(start),
                meta: Meta::default(),
                slot,
            });
            Self(header)
        }
    }

    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: the frame owns its slot, whose header was written when it was claimed.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn header_mut(&mut self) -> &mut Header {
        // SAFETY: as in `header`, and `&mut self` keeps others out.
        unsafe { self.0.as_mut() }
    }

    /// What workers noted of the frame.
    #[inline]
    pub fn meta(&self) -> &Meta {
        &self.header().meta
    }

    /// What workers note of the frame, to change.
    #[inline]
    pub fn meta_mut(&mut self) -> &mut Meta {
        &mut self.header_mut().meta
    }

    pub(crate) fn header_address(&self) -> usize {
        self.0.as_ptr() as usize
    }

    /// Where the frame's header is, for a driver that keeps the frame from here on. Its mbuf is
    /// [`MBUF_OFFSET`] bytes behind.
    pub fn into_header(self) -> NonNull<u8> {
        self.0.cast()
    }

    /// The frame whose header is there.
    ///
    /// # Safety
    /// `header` came from [`into_header`](Self::into_header), and whoever had the frame since gives it up.
    pub unsafe fn from_header(header: NonNull<u8>) -> Self {
        Self(header.cast())
    }

    fn slot(&self) -> NonNull<u8> {
        self.header().slot
    }

    /// Bytes of data.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.header().length)
    }

    /// Whether there is no data.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The packet, from its Ethernet header on.
    #[inline]
    pub fn data(&self) -> &[u8] {
        let header = self.header();
        // SAFETY: `data` and `length` are changed only by the methods below, which keep both within the
        // slot that this frame owns; slots are zeroed memory at first, so every byte is initialised.
        unsafe { std::slice::from_raw_parts(header.data.as_ptr(), usize::from(header.length)) }
    }

    /// The packet, to change.
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        let header = self.header();
        // SAFETY: as in `data`, and `&mut self` keeps others out.
        unsafe { std::slice::from_raw_parts_mut(header.data.as_ptr(), usize::from(header.length)) }
    }

    /// Bytes free in front of data.
    pub fn headroom(&self) -> usize {
        self.header().data.as_ptr() as usize - self.slot().as_ptr() as usize
    }

    /// Bytes free behind data.
    pub fn tailroom(&self) -> usize {
        let end = self.slot().as_ptr() as usize + usize::from(self.header().slot_size);
        end - self.header().data.as_ptr() as usize - self.len()
    }

    /// Makes the data `length` bytes long: cut, or grown by whatever bytes the slot held before.
    ///
    /// # Errors
    /// [`NoRoom`] if the slot ends before; nothing is changed.
    #[inline]
    pub fn set_len(&mut self, length: usize) -> Result<(), NoRoom> {
        let room = self.tailroom() + self.len();
        if length > room {
            return Err(NoRoom { wanted: length, room });
        }
        self.header_mut().length = length as u16;
        Ok(())
    }

    /// Cuts the data to `length` bytes; does nothing if it is shorter already.
    #[inline]
    pub fn truncate(&mut self, length: u16) {
        // Most frames are as long as they shall be: their header's line stays unwritten.
        if length < self.header().length {
            self.header_mut().length = length;
        }
    }

    /// Grows the data by `count` bytes at its front, whatever they held before.
    ///
    /// # Errors
    /// [`NoRoom`] if the headroom is smaller; nothing is changed.
    pub fn prepend(&mut self, count: usize) -> Result<(), NoRoom> {
        let room = self.headroom();
        if count > room {
            return Err(NoRoom { wanted: count, room });
        }
        let header = self.header_mut();
        // SAFETY: the headroom is at least that long, so the pointer stays within the slot.
        header.data = unsafe { header.data.sub(count) };
        header.length += count as u16;
        Ok(())
    }

    /// Takes `count` bytes off the front of the data, or all there are.
    pub fn trim_front(&mut self, count: usize) {
        let header = self.header_mut();
        let count = count.min(usize::from(header.length));
        // SAFETY: the data is at least that long, so the pointer stays within the slot.
        header.data = unsafe { header.data.add(count) };
        header.length -= count as u16;
    }

    /// Sets data to a copy of `bytes`, at the slot's usual place: at [`DATA_OFFSET`] or some lines before it.
    ///
    /// # Errors
    /// [`NoRoom`] if they are more than any frame of the region holds; nothing is changed.
    pub fn copy_from(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        let room = usize::from(self.header().slot_size) - DATA_OFFSET;
        if bytes.len() > room {
            return Err(NoRoom { wanted: bytes.len(), room });
        }
        let slot = self.slot();
        let header = self.header_mut();
        // SAFETY: the usual place lies within the slot.
        header.data = unsafe { slot.add(usize::from(header.start)) };
        header.length = bytes.len() as u16;
        self.data_mut().copy_from_slice(bytes);
        Ok(())
    }

    /// Declares that the packet is at `offset` of the slot and `length` bytes long, where somebody else
    /// (the kernel, a driver) has written it.
    ///
    /// # Safety
    /// The bytes were written by whoever owned the slot before, or earlier.
    ///
    /// # Errors
    /// [`NoRoom`] if that is not within the slot's headroom and data; nothing is changed.
    #[inline]
    pub unsafe fn place(&mut self, offset: usize, length: usize) -> Result<(), NoRoom> {
        let room = usize::from(self.header().slot_size);
        if offset + length > room {
            return Err(NoRoom { wanted: offset + length, room });
        }
        let slot = self.slot();
        let header = self.header_mut();
        // SAFETY: within the slot by the check above.
        header.data = unsafe { slot.add(offset) };
        header.length = length as u16;
        Ok(())
    }

    /// Asks the cache for the header: what is asked of it later then need not wait.
    #[inline]
    pub fn prefetch_header(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: prefetching has no effect but on the cache, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.0.as_ptr().cast());
        }
    }

    /// Asks the cache for the first bytes of data. The header is read for it: that is one of many side by side.
    #[inline]
    pub fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: prefetching has no effect but on the cache, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.header().data.as_ptr().cast());
        }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame {{ {:?}, data: {:02x?} }}", self.meta(), self.data())
    }
}

#[cfg(test)]
mod tests {
    use crate::{Memory, NoRoom};

    #[test]
    fn data_begins_at_seven_lines_by_turns() {
        let memory = Memory::new(15, 2048).unwrap();
        let begins = |slot| {
            // SAFETY: each slot is claimed once.
            let mut frame = unsafe { memory.claim(slot) };
            let fresh = frame.headroom();
            frame.set_len(1).unwrap();
            frame.prepend(14).unwrap();
            frame.copy_from(&[0; 1536]).unwrap();
            assert_eq!(frame.headroom(), fresh, "a copy begins where a fresh frame does");
            assert!(frame.copy_from(&[0; 1537]).is_err(), "all frames hold as much");
            fresh
        };
        let found: Vec<_> = (0..15).map(begins).collect();
        let turn = [512, 448, 384, 320, 256, 192, 128];
        assert_eq!(found, [&turn[..], &turn, &turn[..1]].concat());
    }

    #[test]
    fn grows_and_shrinks_within_its_slot() {
        let memory = Memory::new(1, 2048).unwrap();
        // SAFETY: the only claim on the only slot.
        let mut frame = unsafe { memory.claim(0) };
        frame.copy_from(&[1, 2, 3, 4]).unwrap();
        frame.trim_front(1);
        assert_eq!((frame.data(), frame.headroom()), ([2, 3, 4].as_slice(), 513));
        frame.prepend(1).unwrap();
        assert_eq!(frame.data(), [1, 2, 3, 4]);
        assert_eq!(frame.prepend(513), Err(NoRoom { wanted: 513, room: 512 }));
        assert_eq!(frame.set_len(1537), Err(NoRoom { wanted: 1537, room: 1536 }));
        frame.set_len(1536).unwrap();
        assert_eq!(frame.tailroom(), 0);
        assert!(frame.copy_from(&[0; 1537]).is_err());
        frame.truncate(2000);
        assert_eq!(frame.len(), 1536);
    }
}
