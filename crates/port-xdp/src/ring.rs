//! The rings that a socket shares with the kernel.
//!
//! Each has one producer and one consumer. The port produces free frames (fill) and frames to send (tx), and consumes
//! received frames (rx) and sent ones (completion). The port's own index is kept in the ring's struct; the kernel's
//! is read when the port has reached the value that it knew.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use bm_sys::Map;

/// Entries of type `T` shared with the kernel.
pub(crate) struct Ring<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    /// The port's index.
    ours: u32,
    /// The kernel's index, as it was read last.
    theirs: u32,
    /// What the pointers above point into.
    _map: Map,
}

// SAFETY: the mapping belongs to the ring alone, and the kernel does not care which thread uses it.
unsafe impl<T> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps the ring of `size` entries (a power of two) at `page_offset` of a socket.
    ///
    /// # Safety
    /// The socket must have a ring there, with that many entries of type `T`, and `offsets` must be those of that
    /// ring.
    pub(crate) unsafe fn map(
        socket: &OwnedFd,
        page_offset: usize,
        offsets: &libc::xdp_ring_offset,
        size: u32,
    ) -> io::Result<Self> {
        debug_assert!(size.is_power_of_two());
        let bytes = offsets.desc as usize + size as usize * size_of::<T>();
        let map = Map::file_populated(socket, page_offset, bytes)?;
        Ok(Self {
            producer: map.place(offsets.producer as usize, 1),
            consumer: map.place(offsets.consumer as usize, 1),
            flags: map.place(offsets.flags as usize, 1),
            entries: map.place(offsets.desc as usize, size as usize),
            size,
            ours: 0,
            theirs: 0,
            _map: map,
        })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: it lies within our mapping, and is shared as an atomic by both sides.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as in `producer`.
        unsafe { self.consumer.as_ref() }
    }

    /// Whether the kernel needs a system call to continue.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        // SAFETY: as in `producer`.
        unsafe { self.flags.as_ref() }.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// For a ring that the port produces: how many entries are free, up to `wanted`.
    #[inline]
    pub(crate) fn free(&mut self, wanted: u32) -> u32 {
        if self.size - self.ours.wrapping_sub(self.theirs) < wanted {
            // Acquire: the kernel has read the entries that it consumed, so they may be overwritten.
            self.theirs = self.consumer().load(Ordering::Acquire);
        }
        (self.size - self.ours.wrapping_sub(self.theirs)).min(wanted)
    }

    /// Writes an entry that [`free`](Self::free) found; the kernel does not see it before `submit`.
    #[inline]
    pub(crate) fn write(&mut self, entry: T) {
        debug_assert!(self.ours.wrapping_sub(self.theirs) < self.size, "free says how many fit");
        // SAFETY: masked, so within the ring; the kernel reads entries below the producer's index only.
        unsafe { self.entries.add((self.ours & (self.size - 1)) as usize).write(entry) };
        self.ours = self.ours.wrapping_add(1);
    }

    /// Makes all written entries visible to the kernel.
    #[inline]
    pub(crate) fn submit(&mut self) {
        self.producer().store(self.ours, Ordering::Release);
    }

    /// For a ring that the port produces: how many entries the kernel has not consumed yet.
    #[inline]
    pub(crate) fn pending(&self) -> u32 {
        self.ours.wrapping_sub(self.consumer().load(Ordering::Acquire))
    }

    /// For a ring that the port consumes: how many entries are available, up to `wanted`.
    #[inline]
    pub(crate) fn available(&mut self, wanted: u32) -> u32 {
        if self.theirs.wrapping_sub(self.ours) < wanted {
            // Acquire: the kernel has written the entries it says it produced.
            self.theirs = self.producer().load(Ordering::Acquire);
        }
        self.theirs.wrapping_sub(self.ours).min(wanted)
    }

    /// Reads an entry that [`available`](Self::available) found.
    #[inline]
    pub(crate) fn read(&mut self) -> T {
        debug_assert!(self.ours != self.theirs, "available says how many there are");
        // SAFETY: masked, so within the ring; the kernel wrote it before it raised its index over it, and
        // does not write there again before `release`.
        let entry = unsafe { self.entries.add((self.ours & (self.size - 1)) as usize).read() };
        self.ours = self.ours.wrapping_add(1);
        entry
    }

    /// Returns the slots of all entries read to the kernel.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.consumer().store(self.ours, Ordering::Release);
    }
}
