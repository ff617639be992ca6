//! A BPF array mapped into memory: the counters of programs are read, and their settings written, without a call.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use super::layout::Plain;

/// The entries of a memory-mapped array map.
///
/// Programs read and write them at the same time on other cores, so each access is a volatile copy.
/// A word of eight bytes is read at once; several words may be from different moments.
pub struct MappedArray<T: Plain> {
    memory: NonNull<u8>,
    bytes: usize,
    entries: usize,
    holds: PhantomData<T>,
}

// SAFETY: the memory is shared with the kernel anyway; nothing in it belongs to a thread.
unsafe impl<T: Plain> Send for MappedArray<T> {}
// SAFETY: as above; accesses are volatile copies and hand out no reference.
unsafe impl<T: Plain> Sync for MappedArray<T> {}

impl<T: Plain> MappedArray<T> {
    /// Bytes from one entry to the next: arrays round values up to eight.
    const STRIDE: usize = size_of::<T>().next_multiple_of(8);

    /// Maps the array of a descriptor. Its values must be as long as `T`, and there must be at least `entries`.
    pub fn new(map: BorrowedFd<'_>, value_bytes: usize, entries: usize) -> io::Result<Self> {
        assert_eq!(value_bytes, size_of::<T>(), "the layout is not that of the program");
        let bytes = (Self::STRIDE * entries).next_multiple_of(4096);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at a place of the kernel's choice; it refuses what the map does not have.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, map.as_raw_fd(), 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { memory, bytes, entries, holds: PhantomData })
    }

    /// A copy of an entry.
    pub fn get(&self, index: usize) -> T {
        // SAFETY: `at` is inside the mapping and aligned; `T` is plain, so any bytes are a value.
        unsafe { self.at(index).read_volatile() }
    }

    /// Sets an entry.
    pub fn set(&self, index: usize, value: T) {
        // SAFETY: `at` is inside the mapping and aligned; nobody holds a reference into it.
        unsafe { self.at(index).write_volatile(value) }
    }

    fn at(&self, index: usize) -> *mut T {
        assert!(index < self.entries, "entry {index} of {}", self.entries);
        // SAFETY: the index is below the number of entries, all of which lie in the mapping.
        unsafe { self.memory.as_ptr().add(index * Self::STRIDE).cast() }
    }
}

impl<T: Plain> Drop for MappedArray<T> {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped; no pointer into it outlives a call.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}
