//! Memory that the kernel maps for this process.
//!
//! ```text
//! Map::file       part of a file, shared with everybody who maps it: memfd, BPF map, ring of a socket
//! Map::anonymous  zeroed pages of this process
//! Map::aligned    the same, beginning on a huge page
//! Map::huge       pages of the system's reserve of huge pages
//! ```
//!
//! A `Map` owns its pages as a `Vec` owns its buffer: it unmaps them when it is dropped.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Bytes of a huge page of x86-64.
pub const HUGE_PAGE: usize = 2 << 20;
/// Bytes of a page.
const PAGE: usize = 4096;

/// How a mapped file may be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads. A store ends the process with SIGSEGV.
    Read,
    /// Loads and stores.
    ReadWrite,
}

impl Access {
    fn protection(self) -> libc::c_int {
        match self {
            Self::Read => libc::PROT_READ,
            Self::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

/// When anonymous memory counts towards the memory that the system has committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// Immediately: asking for more memory than the system has is an error.
    Now,
    /// As pages are accessed: for large tables that may never be used completely.
    OnDemand,
}

/// A type for memory that others write at any time.
///
/// # Safety
/// The type consists of atomics, without padding: all bytes are a value, and a store by somebody else is no data race.
/// Its alignment is at most a page.
pub unsafe trait Atomic {}
// SAFETY: an atomic.
unsafe impl Atomic for AtomicU8 {}
// SAFETY: as above.
unsafe impl Atomic for AtomicU16 {}
// SAFETY: as above.
unsafe impl Atomic for AtomicU32 {}
// SAFETY: as above.
unsafe impl Atomic for AtomicU64 {}

/// Mapped memory, unmapped when this is dropped.
#[derive(Debug)]
pub struct Map {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the map owns its pages, whichever thread has it.
unsafe impl Send for Map {}
// SAFETY: shared, it gives its address, which is a number until somebody proves more, and atomics.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `bytes` bytes of a file from `offset` on, a multiple of a page, shared with everybody who maps them.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub fn file(file: &impl AsFd, offset: usize, bytes: usize, access: Access) -> io::Result<Self> {
        Self::new(bytes, access.protection(), libc::MAP_SHARED, Some((file.as_fd(), offset)))
    }

    /// As [`file`](Self::file), to load from and store to, with all pages present: a ring that is used at once.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub fn file_populated(file: &impl AsFd, offset: usize, bytes: usize) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        Self::new(bytes, Access::ReadWrite.protection(), flags, Some((file.as_fd(), offset)))
    }

    /// As [`file`](Self::file), beginning on a huge page, so that the file's huge pages can be used.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub fn file_aligned(file: &impl AsFd, offset: usize, bytes: usize, access: Access) -> io::Result<Self> {
        let mut map = Self::aligned(bytes, Commit::OnDemand)?;
        map.overlay(file.as_fd(), offset, bytes, access)?;
        Ok(map)
    }

    /// As [`file`](Self::file), to load from and store to, with zeros behind it that can only be loaded from: `whole`
    /// bytes together.
    ///
    /// # Errors
    /// The error of `mmap`.
    ///
    /// # Panics
    /// If `bytes` is more than `whole`.
    pub fn file_then_zeros(file: &impl AsFd, offset: usize, bytes: usize, whole: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mut map = Self::new(whole, libc::PROT_READ, flags, None)?;
        map.overlay(file.as_fd(), offset, bytes, Access::ReadWrite)?;
        Ok(map)
    }

    /// Zeroed memory of this process alone.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub fn anonymous(bytes: usize, commit: Commit) -> io::Result<Self> {
        let commit = if commit == Commit::OnDemand { libc::MAP_NORESERVE } else { 0 };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | commit;
        Self::new(bytes, Access::ReadWrite.protection(), flags, None)
    }

    /// As [`anonymous`](Self::anonymous), beginning on a huge page: one huge page more is mapped, then the ends are
    /// unmapped.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub fn aligned(bytes: usize, commit: Commit) -> io::Result<Self> {
        let mut map = Self::anonymous(bytes.saturating_add(HUGE_PAGE), commit)?;
        let ahead = map.start.as_ptr().align_offset(HUGE_PAGE);
        map.keep(ahead..ahead + bytes.next_multiple_of(PAGE));
        map.bytes = bytes;
        Ok(map)
    }

    /// Zeroed memory of this process in huge pages of the system's reserve (`vm.nr_hugepages`); `bytes` is a multiple of
    /// their size. With `populate` all of them are allocated now.
    ///
    /// # Errors
    /// The error of `mmap`: usually that the reserve has too few.
    pub fn huge(bytes: usize, populate: bool) -> io::Result<Self> {
        let populate = if populate { libc::MAP_POPULATE } else { 0 };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | populate;
        Self::new(bytes, Access::ReadWrite.protection(), flags, None)
    }

    fn new(
        bytes: usize,
        protection: libc::c_int,
        flags: libc::c_int,
        file: Option<(BorrowedFd<'_>, usize)>,
    ) -> io::Result<Self> {
        let (fd, offset) = file.map_or((-1, 0), |(file, offset)| (file.as_raw_fd(), offset as libc::off_t));
        // SAFETY: the kernel picks a free place (no caller passes MAP_FIXED), so no memory that exists changes.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    /// Puts a part of a file in the place of the first `bytes` bytes.
    fn overlay(
        &mut self,
        file: BorrowedFd<'_>,
        offset: usize,
        bytes: usize,
        access: Access,
    ) -> io::Result<()> {
        assert!(bytes <= self.bytes, "{bytes} bytes of a file in a map of {}", self.bytes);
        let (start, flags) = (self.start.as_ptr().cast(), libc::MAP_SHARED | libc::MAP_FIXED);
        let (fd, offset) = (file.as_raw_fd(), offset as libc::off_t);
        // SAFETY: replaces pages of our own, by the assertion, to which `&mut self` proves that no reference exists.
        let start = unsafe { libc::mmap(start, bytes, access.protection(), flags, fd, offset) };
        if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Unmaps all but `kept`, which begins and ends at a page.
    fn keep(&mut self, kept: Range<usize>) {
        assert!(kept.start <= kept.end && kept.end <= self.bytes, "{kept:?} of {} bytes", self.bytes);
        // SAFETY: both cuts lie within our own mapping, by the assertion, and `&mut self` proves that no reference to
        // them exists.
        unsafe {
            if kept.start > 0 {
                libc::munmap(self.start.as_ptr().cast(), kept.start);
            }
            if kept.end < self.bytes {
                libc::munmap(self.start.add(kept.end).as_ptr().cast(), self.bytes - kept.end);
            }
            self.start = self.start.add(kept.start);
        }
        self.bytes = kept.len();
    }

    /// The address of the first byte.
    #[inline(always)]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its size in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of `count` items of type `T`, `offset` bytes from the start.
    ///
    /// # Panics
    /// If they do not fit into the map, or `offset` is not aligned for them.
    #[inline]
    pub fn place<T>(&self, offset: usize, count: usize) -> NonNull<T> {
        let end = count.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset));
        assert!(
            end.is_some_and(|end| end <= self.bytes) && offset.is_multiple_of(align_of::<T>()),
            "{count} items at {offset} in a map of {} bytes",
            self.bytes
        );
        // SAFETY: within the mapping by the assertion.
        unsafe { self.start.add(offset) }.cast()
    }

    /// `count` atomics, `offset` bytes from the start. In a map that may only be read they may only be loaded.
    ///
    /// # Panics
    /// As [`place`](Self::place).
    #[inline]
    pub fn atomics<T: Atomic>(&self, offset: usize, count: usize) -> &[T] {
        // SAFETY: all of it lies within the mapping, which lives as long as `self`, and is aligned, since the mapping
        // begins at a page. All bytes are a value, and what others do there is no data race (`Atomic`).
        unsafe { std::slice::from_raw_parts(self.place(offset, count).as_ptr(), count) }
    }

    /// Asks for transparent huge pages; returns whether the kernel accepted that.
    pub fn advise_huge(&self) -> bool {
        advise(self.start.as_ptr(), self.bytes, libc::MADV_HUGEPAGE).is_ok()
    }

    /// Makes the kernel allocate all pages now. A kernel that cannot do this (before Linux 5.14) allocates each at its
    /// first access.
    pub fn populate(&self) {
        let _later = advise(self.start.as_ptr(), self.bytes, libc::MADV_POPULATE_WRITE);
    }

    /// Places the pages of a range on a NUMA node if that has free memory, else elsewhere. They must not have been
    /// accessed yet.
    ///
    /// # Errors
    /// The error of `mbind`: for example, that there is no such node.
    ///
    /// # Panics
    /// If the range lies outside the map.
    pub fn prefer_node(&self, range: Range<usize>, node: u32) -> io::Result<()> {
        const WORD: usize = u64::BITS as usize;
        let mut mask = [0u64; 16];
        let word =
            mask.get_mut(node as usize / WORD).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        *word |= 1 << (node as usize % WORD);
        let (start, bytes) = (self.place::<u8>(range.start, range.len()).as_ptr(), range.len());
        // The kernel uses one bit less than the given number.
        let most = mask.len() * WORD + 1;
        // SAFETY: changes where pages of our own mapping come from, not what is in them; the mask is as long as said and
        // outlives the call.
        let done = unsafe {
            libc::syscall(libc::SYS_mbind, start, bytes, libc::MPOL_PREFERRED, mask.as_ptr(), most, 0)
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Keeps the memory mapped until the process ends.
    pub fn leak(self) -> &'static Self {
        Box::leak(Box::new(self))
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody borrows any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Asks for huge pages for the capacity of a large vector whose pages have not been accessed yet.
pub fn advise_huge<T>(vec: &Vec<T>) {
    let start = vec.as_ptr().cast::<u8>();
    let ahead = start.align_offset(HUGE_PAGE);
    let bytes = (vec.capacity() * size_of::<T>()).saturating_sub(ahead) / HUGE_PAGE * HUGE_PAGE;
    if bytes > 0 {
        let _refused = advise(start.wrapping_add(ahead).cast_mut(), bytes, libc::MADV_HUGEPAGE);
    }
}

/// Gives the kernel advice that changes no byte of memory: huge pages, or pages allocated now.
fn advise(start: *mut u8, bytes: usize, advice: libc::c_int) -> io::Result<()> {
    // SAFETY: neither kind of advice changes what is in memory, whosever it is.
    match unsafe { libc::madvise(start.cast(), bytes, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd;
    use std::fs::File;
    use std::sync::atomic::Ordering::Relaxed;

    fn file(bytes: usize) -> File {
        let file = File::from(memfd(c"bm-sys-test").unwrap());
        file.set_len(bytes as u64).unwrap();
        file
    }

    /// Whether something is mapped at an address of this process.
    fn is_mapped(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
        let mut ranges = maps.lines().map(|line| line.split_once(' ').unwrap().0.split_once('-').unwrap());
        ranges.any(|(from, to)| (number(from)..number(to)).contains(&address))
    }

    #[test]
    fn two_maps_of_a_file_see_the_same_words() {
        let file = file(3 * PAGE);
        let written = Map::file(&file, 0, 3 * PAGE, Access::ReadWrite).unwrap();
        let read = Map::file(&file, PAGE, PAGE, Access::Read).unwrap();
        written.atomics::<AtomicU64>(PAGE + 8, 2)[1].store(7, Relaxed);
        assert_eq!(read.atomics::<AtomicU64>(0, 3)[2].load(Relaxed), 7);
        assert_eq!(read.bytes(), PAGE);
    }

    #[test]
    fn is_unmapped_when_dropped() {
        let file = file(PAGE);
        let map = Map::file_populated(&file, 0, PAGE).unwrap();
        let address = map.start().as_ptr() as usize;
        assert!(is_mapped(address));
        // Another thread may map something at once; not eight times in a row at the same place.
        let mut seen = vec![(map, address)];
        seen.extend((0..7).map(|_| {
            let map = Map::file(&file, 0, PAGE, Access::Read).unwrap();
            let address = map.start().as_ptr() as usize;
            (map, address)
        }));
        let addresses: Vec<_> = seen.into_iter().map(|(_, address)| address).collect();
        assert!(addresses.into_iter().any(|address| !is_mapped(address)));
    }

    #[test]
    fn an_aligned_map_begins_on_a_huge_page_and_is_zero() {
        for bytes in [1, PAGE, HUGE_PAGE, 3 * HUGE_PAGE + PAGE] {
            let map = Map::aligned(bytes, Commit::OnDemand).unwrap();
            assert_eq!((map.start().as_ptr() as usize % HUGE_PAGE, map.bytes()), (0, bytes));
            assert!(map.atomics::<AtomicU8>(0, bytes).iter().all(|byte| byte.load(Relaxed) == 0));
        }
    }

    #[test]
    fn memory_beyond_the_files_content_is_zero() {
        let file = file(PAGE);
        let map = Map::file_then_zeros(&file, 0, PAGE, 4 * PAGE).unwrap();
        map.atomics::<AtomicU32>(PAGE - 4, 1)[0].store(9, Relaxed);
        let words = map.atomics::<AtomicU32>(0, PAGE);
        assert_eq!(words[PAGE / 4 - 1].load(Relaxed), 9);
        assert!(words[PAGE / 4..].iter().all(|word| word.load(Relaxed) == 0));
        let aligned = Map::file_aligned(&file, 0, PAGE, Access::Read).unwrap();
        assert_eq!(aligned.start().as_ptr() as usize % HUGE_PAGE, 0);
        assert_eq!(aligned.atomics::<AtomicU32>(PAGE - 4, 1)[0].load(Relaxed), 9);
    }

    #[test]
    fn errors_say_why_mapping_failed() {
        let error = |map: io::Result<Map>| map.unwrap_err().raw_os_error();
        assert_eq!(error(Map::anonymous(1 << 47, Commit::OnDemand)), Some(libc::ENOMEM));
        assert_eq!(error(Map::anonymous(0, Commit::Now)), Some(libc::EINVAL));
        let folder = File::open("/").unwrap();
        assert_eq!(error(Map::file(&folder, 0, PAGE, Access::Read)), Some(libc::ENODEV));
    }

    #[test]
    #[should_panic(expected = "2 items at 4088 in a map of 4096 bytes")]
    fn access_beyond_the_map_panics() {
        Map::anonymous(PAGE, Commit::Now).unwrap().atomics::<AtomicU64>(PAGE - 8, 2);
    }

    #[test]
    #[should_panic(expected = "1 items at 4 in a map of 4096 bytes")]
    fn misaligned_access_panics() {
        Map::anonymous(PAGE, Commit::Now).unwrap().place::<u64>(4, 1);
    }

    #[test]
    fn vectors_may_have_any_length() {
        advise_huge(&Vec::<u8>::new());
        advise_huge(&Vec::<u64>::with_capacity(3 * HUGE_PAGE / 8));
    }
}
