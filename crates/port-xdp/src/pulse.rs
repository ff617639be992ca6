//! Shows the steering program that the worker of a queue is running.
//!
//! ```text
//! steer.bpf.c: a frame for the socket -> since = now, unless it is set      worker: receive -> since = 0
//!              since is older than a while -> the worker hangs, or is being killed: Linux gets the frame
//! ```
//!
//! A killed process keeps its sockets until the kernel has freed its memory, which takes longer the more there is;
//! and a worker that hangs keeps them for ever. In both cases frames would fill the ring and be lost. One word per
//! queue, in memory that the program and the worker share, shows the difference.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the map for each queue: a cache line. The same in `bpf/steer.bpf.c`.
const LINE: usize = 64;

/// The word of one queue.
pub(crate) struct Pulse {
    base: NonNull<libc::c_void>,
    length: usize,
    since: NonNull<AtomicU64>,
}

// SAFETY: the mapping belongs to this alone, and its word is atomic.
unsafe impl Send for Pulse {}

impl Pulse {
    /// Maps the word of `queue` from the array `map`, which has a cache line for each of `queues`.
    pub fn open(map: &impl AsFd, queue: u32, queues: u32) -> io::Result<Self> {
        debug_assert!(queue < queues);
        let length = queues as usize * LINE;
        // SAFETY: a fresh mapping, placed by the kernel, of a map that is at least this long.
        let base = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let fd = map.as_fd().as_raw_fd();
            libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, fd, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base).ok_or(io::ErrorKind::AddrNotAvailable)?;
        // SAFETY: the line of `queue` lies within the mapping, and lines are aligned.
        let since = unsafe { base.cast::<u8>().add(queue as usize * LINE) }.cast();
        Ok(Self { base, length, since })
    }

    /// Shows that the worker takes frames. Stores only if the program has set the word, so that the cache line stays
    /// shared while no frames arrive.
    #[inline]
    pub fn beat(&self) {
        // SAFETY: the mapping lives as long as `self`, and the word is only touched by atomics and by the
        // program's single loads and stores.
        let since = unsafe { self.since.as_ref() };
        if since.load(Ordering::Relaxed) != 0 {
            since.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of which no reference is left.
        unsafe { libc::munmap(self.base.as_ptr(), self.length) };
    }
}
