//! One frame: a packet in a slot of memory that it owns.

use std::fmt;
use std::ptr::NonNull;

use crate::DATA_OFFSET;

/// The number of different cache lines of a slot at which data may start.
const STARTS: u32 = 7;
const _: () = assert!(DATA_OFFSET - (STARTS as usize - 1) * 64 >= 128, "room for what is prepended");

/// The offset of data in the slot of that number, unless the kernel or a driver has placed it elsewhere.
pub(crate) fn start_of(index: u32) -> usize {
    DATA_OFFSET - (index % STARTS) as usize * 64
}

/// What workers note about a frame. These are plain numbers: none of them affects which memory is accessed.
///
/// Shared with Lua and C as part of a frame's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Meta {
    /// Index of the port that the frame came in on.
    pub port: u16,
    /// Index of the logical interface on which it arrived: the port's own, or a VLAN of it.
    pub interface: u16,
    /// Offset of the network header, in bytes from the start of data.
    pub network: u16,
    /// Why the frame leaves the fast path; the receiver defines the codes.
    pub verdict: u16,
    /// Index of the next hop that a hook chose, where `chosen` is 1; some verdicts use it otherwise.
    pub next_hop: u32,
    /// Whether a hook chose the next hop. Set for frames that leave the fast path, like `verdict`.
    pub chosen: u32,
}

/// The header of one frame. Lua and DPDK's shim know `length` and `data` by these names.
///
/// Shared with Lua and with DPDK's drivers, one owner at a time: the owner of the frame. Rust accesses it through the
/// raw pointer in [`Frame`], and a reference into it ends before anyone else gets the frame or is called with it, so
/// the compiler must assume that such a call changes all of it.
#[repr(C)]
struct Header {
    /// Bytes of data.
    length: u16,
    /// Bytes of the slot, for the bounds of data.
    slot_size: u16,
    /// Offset of data in the slot by default.
    start: u16,
    /// For Lua: bytes of data when a full link dropped the packet.
    dropped: u16,
    /// First byte of data; a plain pointer for C and Lua.
    data: NonNull<u8>,
    meta: Meta,
    /// First byte of the slot.
    slot: NonNull<u8>,
}

/// Bytes from one header to the next: one cache line for the header, which ends with 24 bytes that DPDK keeps in
/// front of an mbuf, and two lines for the mbuf. An odd number of lines, so that the headers of a burst are spread
/// over all sets of a cache. Five lines cost 4 % of the router's packets per second, and 6 % of those of a source and
/// a sink.
pub const HEADER_STRIDE: usize = 192;
/// Bytes in front of the first header. The last 48 bytes in front of each header are for Lua, where apps written for
/// Snabb keep data about a packet: fields of the previous mbuf that drivers of brickmoon's ports are not asked to
/// use, though some use them anyway (`c/pool.h`).
pub const FRONT: usize = 64;
/// Offset of the mbuf of a frame, in bytes from its header.
pub const MBUF_OFFSET: usize = 64;
/// Size of a header, without what DPDK keeps.
pub(crate) const HEADER_BYTES: usize = 40;
const _: () = assert!(size_of::<Header>() == HEADER_BYTES && HEADER_BYTES + 24 <= MBUF_OFFSET);
// C and Lua know these offsets.
const _: () = assert!(std::mem::offset_of!(Header, data) == 8 && std::mem::offset_of!(Header, slot) == 32);

/// There is no room for that many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} bytes do not fit: the frame has room for {}", .wanted, .room)]
pub struct NoRoom {
    /// The number of bytes needed.
    pub wanted: usize,
    /// The number of bytes available.
    pub room: usize,
}

/// A packet in its slot. Dropping it loses the slot: free it to a [`Freelist`](crate::Freelist) instead.
#[must_use = "a frame that is dropped is lost to its pool: free it and count why"]
#[repr(transparent)]
pub struct Frame(NonNull<Header>);

// SAFETY: a frame owns its slot, and the region lives as long as the process.
unsafe impl Send for Frame {}

impl Frame {
    /// # Safety
    /// `slot` must be the first byte of the slot with number `index`, of `slot_size` bytes, that has no other owner,
    /// and `header` that of its header, a multiple of 64; both in a region that lives as long as the process.
    pub(crate) unsafe fn at(slot: NonNull<u8>, index: u32, slot_size: usize, header: NonNull<u8>) -> Self {
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

    /// What workers noted about the frame.
    #[inline]
    pub fn meta(&self) -> &Meta {
        &self.header().meta
    }

    /// What workers note about the frame, mutable.
    #[inline]
    pub fn meta_mut(&mut self) -> &mut Meta {
        &mut self.header_mut().meta
    }

    /// Writes down where data is, which must be in the slot, and how long.
    #[inline(always)]
    pub(crate) fn describe(&mut self, data: NonNull<u8>, length: u16) {
        let header = self.header_mut();
        (header.data, header.length) = (data, length);
    }

    pub(crate) fn header_address(&self) -> usize {
        self.0.as_ptr() as usize
    }

    /// The address of the frame's header, for a driver that owns the frame from now on. Its mbuf follows after
    /// [`MBUF_OFFSET`] bytes.
    pub fn into_header(self) -> NonNull<u8> {
        self.0.cast()
    }

    /// The frame with that header.
    ///
    /// # Safety
    /// `header` must come from [`into_header`](Self::into_header), and its current owner gives it up.
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

    /// The packet, starting with its Ethernet header.
    #[inline]
    pub fn data(&self) -> &[u8] {
        let header = self.header();
        // SAFETY: `data` and `length` are changed only by the methods below, which keep both within the
        // slot that this frame owns; slots are zeroed memory at first, so every byte is initialised.
        unsafe { std::slice::from_raw_parts(header.data.as_ptr(), usize::from(header.length)) }
    }

    /// The packet, mutable.
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

    /// Sets the length of data to `length`: truncates it, or extends it with whatever bytes the slot contains.
    ///
    /// # Errors
    /// [`NoRoom`] if the slot is too small; nothing is changed then.
    #[inline]
    pub fn set_len(&mut self, length: usize) -> Result<(), NoRoom> {
        let room = self.tailroom() + self.len();
        if length > room {
            return Err(NoRoom { wanted: length, room });
        }
        self.header_mut().length = length as u16;
        Ok(())
    }

    /// Truncates the data to `length` bytes, if it is longer.
    #[inline]
    pub fn truncate(&mut self, length: u16) {
        // Most frames have the right length already: their header's cache line is not written then.
        if length < self.header().length {
            self.header_mut().length = length;
        }
    }

    /// Extends the data by `count` bytes at its front, with whatever they contained before.
    ///
    /// # Errors
    /// [`NoRoom`] if the headroom is smaller; nothing is changed then.
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

    /// Removes `count` bytes from the front of the data, or all if there are fewer.
    pub fn trim_front(&mut self, count: usize) {
        let header = self.header_mut();
        let count = count.min(usize::from(header.length));
        // SAFETY: the data is at least that long, so the pointer stays within the slot.
        header.data = unsafe { header.data.add(count) };
        header.length -= count as u16;
    }

    /// Sets data to a copy of `bytes`, at the slot's default offset: [`DATA_OFFSET`] or some cache lines before it.
    ///
    /// # Errors
    /// [`NoRoom`] if they are more than every frame of the region can hold; nothing is changed then.
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

    /// Sets the packet to the `length` bytes at `offset` of the slot, where the kernel or a driver has written it.
    ///
    /// # Safety
    /// The bytes must have been written by a previous owner of the slot.
    ///
    /// # Errors
    /// [`NoRoom`] if that is not within the slot's headroom and data; nothing is changed then.
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

    /// Prefetches the header, so that later accesses to it do not have to wait.
    #[inline]
    pub fn prefetch_header(&self) {
        prefetch(self.0.cast());
    }

    /// Prefetches the first bytes of data. This reads the header: one such read among many that proceed in parallel.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(self.header().data);
    }
}

/// Prefetches the cache line of an address.
#[inline(always)]
pub(crate) fn prefetch(address: NonNull<u8>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching has no effect but on the cache, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.as_ptr().cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame {{ {:?}, data: {:02x?} }}", self.meta(), self.data())
    }
}

#[cfg(test)]
mod tests {
    use crate::{FramePool, NoRoom};

    #[test]
    fn data_begins_at_seven_lines_by_turns() {
        let frame_pool = FramePool::new(15, 2048).unwrap();
        let begins = |slot| {
            let mut frame = frame_pool.take().unwrap();
            assert_eq!(frame_pool.memory().index(&frame), slot);
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
        let mut frame = FramePool::new(1, 2048).unwrap().take().unwrap();
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
