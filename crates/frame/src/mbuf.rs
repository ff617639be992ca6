//! Frames whose mbuf says where their data is, as a DPDK driver left it; nothing is written into their header.
//!
//! ```text
//! driver -> MbufFrame -> ports and the router's plain path -> driver          (the header is not touched)
//!               '-> into_frame: the header says it, too -> Frame -> all others
//! ```
//!
//! The type is one of its own because such a frame's header is stale: it must not reach Lua, hooks, the slow path or other
//! kinds of ports, and all of these take a [`Frame`].

use std::ptr::NonNull;

use crate::MBUF_OFFSET;
use crate::frame::Frame;

/// The beginning of DPDK's `struct rte_mbuf`. The shim in `port-dpdk` asserts these offsets.
///
/// Shared with DPDK's drivers, one owner at a time: the owner of the frame.
#[repr(C)]
struct Mbuf {
    /// Null until DPDK has made a pool of the frames.
    buf_addr: *mut u8,
    buf_iova: u64,
    data_off: u16,
    /// References, segments and port.
    rearm: [u16; 3],
    ol_flags: u64,
    packet_type: u32,
    pkt_len: u32,
    data_len: u16,
    vlan_tci: u16,
    hash: [u32; 2],
    vlan_tci_outer: u16,
    buf_len: u16,
}

const _: () =
    assert!(std::mem::offset_of!(Mbuf, data_off) == 16 && std::mem::offset_of!(Mbuf, pkt_len) == 36);
const _: () =
    assert!(std::mem::offset_of!(Mbuf, data_len) == 40 && std::mem::offset_of!(Mbuf, buf_len) == 54);

/// Minimum number of bytes: an Ethernet header. Drivers may not support less.
const LEAST: u16 = 14;

/// A packet in its slot, described by its mbuf: a pointer to that, so that drivers write frames into slots of links and
/// send them from there. It is at least an Ethernet header long.
#[must_use = "a frame that is dropped is lost to its pool: turn it into a `Frame` and free that"]
#[repr(transparent)]
pub struct MbufFrame(NonNull<Mbuf>);

// SAFETY: like a frame, it owns its slot and its mbuf, and the region lives as long as the process.
unsafe impl Send for MbufFrame {}

impl MbufFrame {
    /// Describes the frame by its mbuf; its header is empty from now on. For ports that are not drivers of DPDK.
    ///
    /// # Errors
    /// Returns a frame that is shorter than an Ethernet header.
    pub fn from_frame(mut frame: Frame) -> Result<Self, Frame> {
        let length = frame.len() as u16;
        if length < LEAST {
            return Err(frame);
        }
        let (headroom, data) = (frame.headroom(), frame.data_mut().as_mut_ptr());
        frame.truncate(0);
        // SAFETY: an mbuf follows the header of a frame. `headroom` bytes of the slot are in front of the data.
        unsafe {
            let mbuf = frame.into_header().byte_add(MBUF_OFFSET).cast::<Mbuf>();
            let slot = data.sub(headroom);
            let Mbuf { buf_addr, buf_iova, data_off, pkt_len, data_len, buf_len, .. } = &mut *mbuf.as_ptr();
            if buf_addr.is_null() || data < *buf_addr {
                // The buffer begins where the slot does from now on.
                let back = (*buf_addr as usize).saturating_sub(slot as usize);
                *buf_addr = slot;
                *buf_iova = buf_iova.wrapping_sub(back as u64);
                *buf_len += back as u16;
            }
            *data_off = (data as usize - *buf_addr as usize) as u16;
            (*data_len, *pkt_len) = (length, length.into());
            Ok(Self(mbuf))
        }
    }

    /// First byte and number of bytes.
    #[inline(always)]
    fn extent(&self) -> (NonNull<u8>, usize) {
        // SAFETY: the mbuf was filled by its driver, and this frame's owner is the only one to use it. Its data is in
        // the slot.
        unsafe {
            let mbuf = self.0.as_ref();
            let data = NonNull::new_unchecked(mbuf.buf_addr.add(usize::from(mbuf.data_off)));
            (data, usize::from(mbuf.data_len))
        }
    }
}

/// A frame, whether its header or its mbuf says where its data is.
///
/// # Safety
/// A type that implements it is a pointer, and an `Option` of it is null where there is none.
pub unsafe trait AnyFrame: Sized + Send {
    /// Whether only its mbuf says where its data is.
    const IS_MBUF: bool;

    /// Writes into the header where the frame's data is.
    fn into_frame(self) -> Frame;

    /// Bytes of data.
    fn len(&self) -> usize;

    /// Whether there is no data.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The packet, starting with its Ethernet header.
    fn data(&self) -> &[u8];

    /// The packet, mutable.
    fn data_mut(&mut self) -> &mut [u8];

    /// Truncates the data to `length` bytes, if it is longer; of an [`MbufFrame`], at least an Ethernet header is left.
    fn truncate(&mut self, length: u16);

    /// Prefetches the first bytes of data.
    fn prefetch(&self);

    /// The frame, if its header says where its data is.
    fn as_frame(&mut self) -> Option<&mut Frame>;
}

// SAFETY: a transparent `NonNull`.
unsafe impl AnyFrame for Frame {
    const IS_MBUF: bool = false;

    #[inline(always)]
    fn into_frame(self) -> Frame {
        self
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn data(&self) -> &[u8] {
        self.data()
    }

    #[inline(always)]
    fn data_mut(&mut self) -> &mut [u8] {
        self.data_mut()
    }

    #[inline(always)]
    fn truncate(&mut self, length: u16) {
        self.truncate(length);
    }

    #[inline(always)]
    fn prefetch(&self) {
        self.prefetch();
    }

    #[inline(always)]
    fn as_frame(&mut self) -> Option<&mut Frame> {
        Some(self)
    }
}

// SAFETY: a transparent `NonNull`.
unsafe impl AnyFrame for MbufFrame {
    const IS_MBUF: bool = true;

    #[inline(always)]
    fn into_frame(self) -> Frame {
        let (data, length) = self.extent();
        // SAFETY: an mbuf follows the header of its frame, which nobody else has.
        let mut frame = unsafe { Frame::from_header(self.0.byte_sub(MBUF_OFFSET).cast()) };
        frame.describe(data, length as u16);
        frame
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.extent().1
    }

    #[inline(always)]
    fn data(&self) -> &[u8] {
        let (data, length) = self.extent();
        // SAFETY: these bytes are in the slot, which this frame owns; slots are zeroed memory at first.
        unsafe { std::slice::from_raw_parts(data.as_ptr(), length) }
    }

    #[inline(always)]
    fn data_mut(&mut self) -> &mut [u8] {
        let (data, length) = self.extent();
        // SAFETY: as in `data`, and `&mut self` keeps others out.
        unsafe { std::slice::from_raw_parts_mut(data.as_ptr(), length) }
    }

    #[inline(always)]
    fn truncate(&mut self, length: u16) {
        // SAFETY: as in `extent`, and `&mut self` keeps others out.
        let mbuf = unsafe { self.0.as_mut() };
        let length = length.max(LEAST);
        if length < mbuf.data_len {
            (mbuf.data_len, mbuf.pkt_len) = (length, length.into());
        }
    }

    #[inline(always)]
    fn prefetch(&self) {
        crate::frame::prefetch(self.extent().0);
    }

    #[inline(always)]
    fn as_frame(&mut self) -> Option<&mut Frame> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FramePool, Freelist};

    #[test]
    fn the_mbuf_says_where_data_is_until_it_becomes_a_frame() {
        let pool = FramePool::new(4, 2048).unwrap();
        let mut list = Freelist::new(pool.clone(), 4);
        let short = MbufFrame::from_frame(list.allocate_with(&[7; 13]).unwrap());
        list.free(short.err().expect("it is shorter than an Ethernet header"));
        let mut frame = list.allocate_with(&[7; 20]).unwrap();
        frame.prepend(2).unwrap();
        frame.trim_front(2);
        let mut frame = MbufFrame::from_frame(frame).ok().unwrap();
        assert_eq!((frame.data(), frame.len(), frame.is_empty()), (&[7; 20][..], 20, false));
        frame.data_mut()[0] = 9;
        frame.truncate(27);
        assert_eq!(frame.len(), 20, "it is not extended");
        frame.truncate(18);
        // SAFETY: the mbuf is this frame's.
        let mbuf = unsafe { frame.0.as_ref() };
        assert_eq!((mbuf.data_len, mbuf.pkt_len), (18, 18));
        frame.truncate(1);
        assert_eq!(frame.len(), 14, "drivers send nothing shorter");
        let frame = frame.into_frame();
        assert_eq!(frame.data(), [&[9][..], &[7; 13]].concat());
        // The next data of the same slot begins further in front.
        let mut frame = frame;
        frame.prepend(frame.headroom()).unwrap();
        frame.truncate(60);
        frame.data_mut().fill(5);
        let frame = MbufFrame::from_frame(frame).ok().unwrap().into_frame();
        assert_eq!((frame.data(), frame.headroom()), (&[5; 60][..], 0));
        list.free(frame);
        drop(list);
        assert_eq!(pool.available(), 4);
    }
}
