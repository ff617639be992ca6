//! Flat arrays, zeroed, in huge pages if there are any.
//!
//! ```text
//! whole at once:  MAP_HUGETLB  -> else aligned and MADV_HUGEPAGE -> else plain pages
//! filled by need:                 aligned and MADV_HUGEPAGE      -> else plain pages
//! ```
//!
//! Tables use this because a lookup in 4 KiB pages takes one and a half times as long, because of TLB misses. An array knows which pages
//! it got, so that the program can report it. It never grows: a table's limit is set when it is created, and pages
//! that were never touched cost nothing.
//!
//! A [`Source`] decides whose memory it is: this process's own, or a file that others map too, such as a memfd or a
//! BPF array map. Since structures contain indices and no pointers, a reader there needs only the same arrays.

mod source;

pub use bm_sys::memfd;
pub use source::{NotAttached, Source};

pub(crate) use bm_sys::advise_huge;

use bm_sys::{Commit, HUGE_PAGE as HUGE, Map};
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// The kind of pages of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Reserved huge pages (`vm.nr_hugepages`).
    Huge,
    /// Transparent huge pages were requested, and the kernel accepted that.
    Transparent,
    /// Pages of 4 KiB: the array is small, or no others are available.
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
    /// Completely, and soon: reserved huge pages are best.
    Whole,
    /// From the start and as far as needed: most of it may never be touched.
    ByNeed,
}

/// The system gave no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot allocate {} MiB of memory; raise the memory limit, or free some memory", .bytes >> 20)]
pub struct OutOfMemory {
    /// Number of bytes requested.
    pub bytes: usize,
}

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
    /// On which interfaces IPv6 sources may arrive.
    Sources6,
}

/// A flat array of a fixed length.
pub struct Array<T> {
    map: Map,
    len: usize,
    /// Number of items that can be stored to: fewer than `len` if the source had no room for all.
    room: usize,
    pages: Pages,
    /// It owns its items as a Vec does.
    items: PhantomData<T>,
}

impl<T: Zeroed> Array<T> {
    /// An array of `len` zeroed items.
    pub fn zeroed(len: usize, filled: Filled) -> Result<Self, OutOfMemory> {
        let bytes = len * size_of::<T>();
        let (map, pages) = map(bytes.max(1), filled).map_err(|_| OutOfMemory { bytes })?;
        Ok(Self { map, len, room: len, pages, items: PhantomData })
    }
}

impl<T> Array<T> {
    /// The items that may be stored to; those after them are zero and stay so.
    pub(crate) fn writable(&self) -> &[T] {
        &self[..self.room]
    }

    /// The kind of its pages.
    pub fn pages(&self) -> Pages {
        self.pages
    }
}

impl<T> Deref for Array<T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the map has room for at least `len` items of zeroed, page-aligned memory, which this array owns
        // until its drop; zero is a value of `T` (`Zeroed`).
        unsafe { std::slice::from_raw_parts(self.map.start().cast().as_ptr(), self.len) }
    }
}

impl<T> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array of {} in {}", self.len, self.pages)
    }
}

/// Prefetches the cache line of `item`.
#[inline(always)]
pub fn prefetch<T>(item: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that could be observed, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>((item as *const T).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}

fn map(bytes: usize, filled: Filled) -> io::Result<(Map, Pages)> {
    // From half a huge page up, the saved TLB misses are worth the unused rest.
    if bytes < HUGE / 2 {
        return Ok((Map::anonymous(bytes, Commit::OnDemand)?, Pages::Plain));
    }
    let whole = bytes.next_multiple_of(HUGE);
    if filled == Filled::Whole
        && let Ok(map) = Map::huge(whole, false)
    {
        return Ok((map, Pages::Huge));
    }
    let map = Map::aligned(whole, Commit::OnDemand)?;
    let pages = if map.advise_huge() { Pages::Transparent } else { Pages::Plain };
    Ok((map, pages))
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
