//! Flat arrays, zeroed, in huge pages when there are any.
//!
//! ```text
//! whole at once:  MAP_HUGETLB  -> else aligned and MADV_HUGEPAGE -> else plain pages
//! filled by need:                 aligned and MADV_HUGEPAGE      -> else plain pages
//! ```
//!
//! Tables use this because a lookup in 4 KiB pages costs half as much again in TLB misses. An array knows which pages
//! it got, so that the program can report it. It never grows: a table's limit is set when it is created, and pages
//! that were never touched cost nothing.
//!
//! A [`Source`] decides whose memory it is: this process's own, or a file that others map too, such as a memfd or a
//! BPF array map. Since structures contain indices and no pointers, a reader there needs only the same arrays.

mod source;

pub use source::{NotAttached, Source, memfd};

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

const HUGE: usize = 2 << 20;

/// Which pages an array got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Reserved huge pages (`vm.nr_hugepages`).
    Huge,
    /// The kernel was asked for transparent huge pages and took note.
    Transparent,
    /// Pages of 4 KiB: the array is small, or there is nothing better.
    Plain,
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Huge => "huge pages",
            Self::Transparent => "transparent huge pages",
            Self::Plain => "plain pages",
        })
    }
}

/// How an array will be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// All of it, soon: reserved huge pages serve it best.
    Whole,
    /// From the start and as far as needed: most of it may never be touched.
    ByNeed,
}

/// The system gave no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// How much was asked for.
    pub bytes: usize,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot allocate {} MiB of memory; raise the memory limit, or free some memory",
            self.bytes >> 20
        )
    }
}

impl std::error::Error for OutOfMemory {}

/// Types of array elements.
///
/// # Safety
/// All-zero bytes must be a valid value, the type must need no drop, and its alignment be at most a page.
pub unsafe trait Zeroed {}
// SAFETY: atomics of integers: zero is a value, nothing to drop, aligned to at most 8.
unsafe impl Zeroed for AtomicU8 {}
// SAFETY: as above.
unsafe impl Zeroed for AtomicU16 {}
// SAFETY: as above.
unsafe impl Zeroed for AtomicU32 {}
// SAFETY: as above.
unsafe impl Zeroed for AtomicU64 {}

/// The purpose of a table, where each has memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Next hops and groups.
    NextHops,
    /// Routes of IPv4.
    Ipv4,
    /// Routes of IPv6.
    Ipv6,
    /// On which interfaces IPv4 sources may arrive: routes to sets, then the sets ([`crate::sets`]).
    Sources4,
    /// The same for IPv6.
    Sources6,
}

/// A flat array of a fixed length.
pub struct Array<T> {
    start: NonNull<T>,
    len: usize,
    /// Items that may be stored to: fewer than `len` where the source had no room for all.
    room: usize,
    mapped: usize,
    pages: Pages,
}

// SAFETY: the array owns its mapping as a Vec owns its buffer, so it may move where its items may.
unsafe impl<T: Send> Send for Array<T> {}
// SAFETY: a shared array yields only `&[T]`.
unsafe impl<T: Sync> Sync for Array<T> {}

impl<T: Zeroed> Array<T> {
    /// An array of `len` zeroed items.
    pub fn zeroed(len: usize, filled: Filled) -> Result<Self, OutOfMemory> {
        let bytes = len * size_of::<T>();
        let (start, mapped, pages) = map(bytes.max(1), filled).ok_or(OutOfMemory { bytes })?;
        Ok(Self { start: start.cast(), len, room: len, mapped, pages })
    }
}

impl<T> Array<T> {
    /// The items that may be stored to; those after them are zero and stay so.
    pub(crate) fn writable(&self) -> &[T] {
        &self[..self.room]
    }

    /// Which pages it got.
    pub fn pages(&self) -> Pages {
        self.pages
    }
}

impl<T> Deref for Array<T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `map` gave at least `len` items of zeroed, page-aligned memory that this array owns
        // until its drop; zero is a value of `T` (`Zeroed`).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        // SAFETY: `start` and `mapped` are what `map` left mapped, and nobody borrows from us any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

impl<T> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array of {} in {}", self.len, self.pages)
    }
}

/// Requests huge pages for the space of a large vector, whose pages are not touched yet.
pub(crate) fn advise_huge<T>(vec: &Vec<T>) {
    let start = vec.as_ptr().cast::<u8>();
    let ahead = start.align_offset(HUGE);
    let bytes = (vec.capacity() * size_of::<T>()).saturating_sub(ahead) / HUGE * HUGE;
    if bytes > 0 {
        // SAFETY: advice on memory that the vector owns, which no advice of this kind changes.
        unsafe { libc::madvise(start.wrapping_add(ahead).cast_mut().cast(), bytes, libc::MADV_HUGEPAGE) };
    }
}

/// Prefetches the cache line of `item`.
#[inline(always)]
pub(crate) fn prefetch<T>(item: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that could be observed, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>((item as *const T).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}

fn map(bytes: usize, filled: Filled) -> Option<(NonNull<u8>, usize, Pages)> {
    // From half a huge page up, the saved TLB misses are worth the unused rest.
    if bytes < HUGE / 2 {
        return anonymous(bytes, 0).map(|start| (start, bytes, Pages::Plain));
    }
    let mapped = bytes.next_multiple_of(HUGE);
    if filled == Filled::Whole
        && let Some(start) = anonymous(mapped, libc::MAP_HUGETLB)
    {
        return Some((start, mapped, Pages::Huge));
    }
    let start = aligned(mapped)?;
    // SAFETY: advice on a mapping of our own, which no one has seen yet.
    let noted = unsafe { libc::madvise(start.as_ptr().cast(), mapped, libc::MADV_HUGEPAGE) } == 0;
    Some((start, mapped, if noted { Pages::Transparent } else { Pages::Plain }))
}

fn anonymous(bytes: usize, more: libc::c_int) -> Option<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | more;
    let flags = if more == 0 { flags | libc::MAP_NORESERVE } else { flags };
    // SAFETY: a fresh anonymous mapping touches no memory that exists.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
}

/// A mapping whose start is a multiple of the huge page: one page too much, with the ends unmapped.
fn aligned(bytes: usize) -> Option<NonNull<u8>> {
    let start = anonymous(bytes + HUGE, 0)?;
    let ahead = start.as_ptr().align_offset(HUGE);
    // SAFETY: both cuts lie within the fresh mapping and outside the `bytes` that are kept, and the
    // sum of all three is `bytes + HUGE`.
    unsafe {
        let kept = start.as_ptr().add(ahead);
        if ahead > 0 {
            libc::munmap(start.as_ptr().cast(), ahead);
        }
        if HUGE > ahead {
            libc::munmap(kept.add(bytes).cast(), HUGE - ahead);
        }
        NonNull::new(kept)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn is_zeroed_and_holds_what_is_stored() {
        for filled in [Filled::Whole, Filled::ByNeed] {
            for len in [0, 1, 1000, 3 << 20] {
                let array = Array::<AtomicU16>::zeroed(len, filled).unwrap();
                assert_eq!(array.len(), len);
                assert!(array.iter().all(|item| item.load(Relaxed) == 0));
                if let Some(last) = array.last() {
                    last.store(7, Relaxed);
                    assert_eq!(array[len - 1].load(Relaxed), 7);
                }
            }
        }
    }

    #[test]
    fn large_arrays_start_on_a_huge_page() {
        let array = Array::<AtomicU8>::zeroed(5 << 20, Filled::ByNeed).unwrap();
        assert_eq!(array.as_ptr() as usize % HUGE, 0);
    }

    #[test]
    fn says_so_when_there_is_no_memory() {
        let bytes = 1 << 47;
        assert_eq!(Array::<AtomicU8>::zeroed(bytes, Filled::ByNeed).unwrap_err(), OutOfMemory { bytes });
    }
}
