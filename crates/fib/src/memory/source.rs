//! Where arrays come from: this process's own memory, or a file that others map too.
//!
//! ```text
//! writer: Source::shared(file)  --array, array, ..-->  [ directory | root ... | blocks ... ]
//! reader: Source::attached(file) --array, array, ..->    the same, read-only, in the same order
//! ```
//!
//! A builder requests arrays from its source in a fixed order. In a file the first page is a directory with the
//! position and length of each array; a reader requests the same arrays in the same order and is refused if they
//! differ. The file is a memfd ([`memfd`]), which grows as needed, or anything else of a fixed size that can be
//! mapped shared and starts zeroed, such as a BPF array map with `BPF_F_MMAPABLE`.
//!
//! Absent on purpose: telling the writer how far readers in other processes are. Whoever shares a table keeps a
//! [`crate::published::ReaderHandle`] for them and calls `quiescent` once they have moved on.

use super::{Array, Filled, HUGE, OutOfMemory, Pages, Zeroed, aligned};
use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Size of the directory, and what arrays in a file are rounded up to.
const PAGE: usize = 4096;
/// First word of a directory: "bm-fib", version 1.
const MAGIC: u64 = u64::from_le_bytes(*b"bm-fib\0\x01");
/// Words of the directory before the first array's, and words for each: offset, length in bytes.
const HEAD: usize = 2;
const EACH: usize = 2;
/// Arrays that a directory has room for.
const ARRAYS: usize = (PAGE / 8 - HEAD) / EACH;

/// Where arrays come from.
#[derive(Debug)]
pub struct Source(Kind);

#[derive(Debug)]
enum Kind {
    Anonymous,
    File(Area),
}

/// A file with its directory.
#[derive(Debug)]
struct Area {
    file: OwnedFd,
    directory: Array<AtomicU64>,
    /// Arrays handed out so far.
    given: Cell<usize>,
    /// Where the next one goes; `None` in a file that is only read.
    end: Option<RefCell<usize>>,
    /// Whether the file may be made longer.
    grows: bool,
    /// How many bytes each array gets at most, where the file's layout is its reader's.
    rooms: Option<Box<[usize]>>,
}

impl Source {
    /// Memory of this process, in huge pages if there are any.
    pub fn anonymous() -> Self {
        Self(Kind::Anonymous)
    }

    /// Space for one new table in `file`, which must be zeroed and is mapped shared. A regular file, such as a memfd,
    /// grows as needed; any other keeps its size.
    ///
    /// # Errors
    /// The error of `dup`, `fstat` or `mmap`; `InvalidInput` if it already contains a table.
    pub fn shared(file: &impl AsFd) -> io::Result<Self> {
        let area = Area::map(file, true)?;
        if area.directory[0].load(Acquire) != 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file already contains a table"));
        }
        area.directory[0].store(MAGIC, Release);
        Ok(Self(Kind::File(area)))
    }

    /// The same in a file whose layout is defined by its reader, such as the value of a BPF map: after the page of
    /// the directory, `rooms` bytes for each array in turn, each a whole number of pages.
    ///
    /// A builder that requests a longer array gets what there is; the rest reads as zero. Only structures that check
    /// how much they got can be built there ([`crate::Chunk17`], [`crate::Range6`], next hops).
    ///
    /// # Errors
    /// The error of `dup`, `fstat` or `mmap`; `InvalidInput` if it already contains a table, or if a size is not a
    /// whole number of pages.
    pub fn laid_out(file: &impl AsFd, rooms: &[usize]) -> io::Result<Self> {
        if rooms.iter().any(|room| room % PAGE != 0) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the space for an array must be a whole number of pages",
            ));
        }
        let Self(kind) = Self::shared(file)?;
        match kind {
            Kind::File(area) => Ok(Self(Kind::File(Area { rooms: Some(rooms.into()), ..area }))),
            Kind::Anonymous => Ok(Self(kind)),
        }
    }

    /// The table that a builder has put into `file`, read-only. The file must not be shortened.
    ///
    /// # Errors
    /// The error of `dup`, `fstat` or `mmap`; `InvalidData` if it contains no table.
    pub fn attached(file: &impl AsFd) -> io::Result<Self> {
        let area = Area::map(file, false)?;
        if area.directory[0].load(Acquire) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file contains no table"));
        }
        Ok(Self(Kind::File(area)))
    }

    /// The next array: zeroed from a source to build in, as the builder made it from an attached one.
    ///
    /// An array of an attached source is in read-only memory: it must not be stored to.
    pub(crate) fn array<T: Zeroed>(&self, len: usize, filled: Filled) -> Result<Array<T>, OutOfMemory> {
        match &self.0 {
            Kind::Anonymous => Array::zeroed(len, filled),
            Kind::File(area) => area.array(len),
        }
    }
}

impl Area {
    fn map(file: &impl AsFd, writable: bool) -> io::Result<Self> {
        let file = file.as_fd().try_clone_to_owned()?;
        let length = length(&file)?;
        let grows = length.is_some();
        match length {
            Some(_) if writable => lengthen(&file, PAGE)?,
            Some(..PAGE) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the file contains no table"));
            }
            _ => (),
        }
        let start = map_file(&file, 0, PAGE, writable)?;
        let len = PAGE / 8;
        let directory = Array { start: start.cast(), len, room: len, mapped: PAGE, pages: Pages::Plain };
        let end = writable.then_some(RefCell::new(PAGE));
        Ok(Self { file, directory, given: Cell::new(0), end, grows, rooms: None })
    }

    fn array<T: Zeroed>(&self, len: usize) -> Result<Array<T>, OutOfMemory> {
        let bytes = len * size_of::<T>();
        let full = OutOfMemory { bytes };
        let place = self.given.get();
        let entry = self.directory.get(HEAD + place * EACH..).filter(|_| place < ARRAYS).ok_or(full)?;
        let mapped = bytes.max(1).next_multiple_of(PAGE);
        let mut room = len;
        let start = match &self.end {
            Some(end) if let Some(rooms) = &self.rooms => {
                let (offset, given) = (*end.borrow(), *rooms.get(place).ok_or(full)?);
                *end.borrow_mut() += given;
                entry[0].store(offset as u64, Release);
                entry[1].store(bytes.min(given) as u64, Release);
                self.directory[1].store(place as u64 + 1, Release);
                room = len.min(given / size_of::<T>());
                map_front(&self.file, offset, given.min(mapped), mapped)
            }
            Some(end) => {
                let offset = self.extend(&mut end.borrow_mut(), mapped).ok_or(full)?;
                entry[0].store(offset as u64, Release);
                entry[1].store(bytes as u64, Release);
                self.directory[1].store(place as u64 + 1, Release);
                map_file(&self.file, offset, mapped, true)
            }
            None if place as u64 >= self.directory[1].load(Acquire) => return Err(full),
            None if entry[1].load(Acquire) != bytes as u64 => return Err(full),
            None => {
                let offset = entry[0].load(Acquire) as usize;
                let length = length(&self.file).map_err(|_| full)?.unwrap_or(usize::MAX);
                let end = offset.checked_add(mapped).ok_or(full)?;
                if end > length {
                    Err(io::ErrorKind::UnexpectedEof.into())
                } else {
                    map_file(&self.file, offset, mapped, false)
                }
            }
        };
        let start = start.map_err(|_| full)?.cast();
        self.given.set(place + 1);
        Ok(Array { start, len, room, mapped, pages: Pages::Plain })
    }

    /// Where `bytes` more go. Large arrays of a file that grows start on a huge page of it.
    fn extend(&self, end: &mut usize, bytes: usize) -> Option<usize> {
        let align = if self.grows && bytes >= HUGE { HUGE } else { PAGE };
        let offset = end.next_multiple_of(align);
        if self.grows {
            lengthen(&self.file, offset + bytes).ok()?;
        }
        *end = offset + bytes;
        Some(offset)
    }
}

/// Why a table in a file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAttached;

impl fmt::Display for NotAttached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the table in the file has another structure or version; rebuild it with this version")
    }
}

impl std::error::Error for NotAttached {}

impl From<OutOfMemory> for NotAttached {
    fn from(_: OutOfMemory) -> Self {
        Self
    }
}

/// A nameless file in memory that cannot be shortened, for [`Source::shared`]. `name` shows in /proc.
///
/// # Errors
/// What `memfd_create` or `fcntl` say.
pub fn memfd(name: &CStr) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a string that ends in zero, and the call only makes a new file.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call gave us the file, and nobody else has its number.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a seal on a file of our own; no memory is touched.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// The file's length, if it has one.
fn length(file: &OwnedFd) -> io::Result<Option<usize>> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `stat` is writable and as large as the call expects.
    if unsafe { libc::fstat(file.as_raw_fd(), stat.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed before, filled by the call.
    let stat = unsafe { stat.assume_init() };
    Ok((stat.st_mode & libc::S_IFMT == libc::S_IFREG).then_some(stat.st_size as usize))
}

/// Makes the file as long as `bytes` if it is shorter.
fn lengthen(file: &OwnedFd, bytes: usize) -> io::Result<()> {
    if length(file)?.is_some_and(|length| length >= bytes) {
        return Ok(());
    }
    // SAFETY: the file is shorter, so nothing that is mapped goes away.
    match unsafe { libc::ftruncate(file.as_raw_fd(), bytes as libc::off_t) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Maps a part of a file shared; a large one at a huge page's start, so that it may be in huge pages.
fn map_file(file: &OwnedFd, offset: usize, bytes: usize, writable: bool) -> io::Result<NonNull<u8>> {
    let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let (at, fixed) = if bytes >= HUGE {
        let reserved = aligned(bytes.next_multiple_of(HUGE)).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: within the fresh reservation: what lies past the last page of the file is given back.
        unsafe { unmap_tail(reserved, bytes) };
        (reserved.as_ptr().cast(), libc::MAP_FIXED)
    } else {
        (std::ptr::null_mut(), 0)
    };
    let (flags, fd) = (libc::MAP_SHARED | fixed, file.as_raw_fd());
    // SAFETY: either the kernel picks a free place, or it replaces our own fresh reservation of exactly
    // this length.
    let start = unsafe { libc::mmap(at, bytes, protection, flags, fd, offset as libc::off_t) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if bytes >= HUGE {
        // SAFETY: advice on a mapping of our own; refused where the file has no huge pages.
        unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
    }
    NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Maps a part of a file shared and writable, and zeros that cannot be stored to behind it, `whole` bytes
/// together.
fn map_front(file: &OwnedFd, offset: usize, bytes: usize, whole: usize) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the kernel picks a free place.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), whole, libc::PROT_READ, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: replaces the front of our own fresh reservation, which is at least as long.
    let front =
        unsafe { libc::mmap(start, bytes, protection, flags, file.as_raw_fd(), offset as libc::off_t) };
    if front == libc::MAP_FAILED {
        let error = io::Error::last_os_error();
        // SAFETY: our own reservation, which nobody else knows.
        unsafe { libc::munmap(start, whole) };
        return Err(error);
    }
    NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Gives back what a reservation of whole huge pages has past `bytes`.
///
/// # Safety
/// `start` is a reservation of `bytes` rounded up to huge pages, and `bytes` is a multiple of a page.
unsafe fn unmap_tail(start: NonNull<u8>, bytes: usize) {
    let tail = bytes.next_multiple_of(HUGE) - bytes;
    if tail > 0 {
        // SAFETY: the caller's promise.
        unsafe { libc::munmap(start.as_ptr().add(bytes).cast(), tail) };
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU16;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_second_mapping_sees_what_the_first_stores() {
        let file = memfd(c"test").unwrap();
        let source = Source::shared(&file).unwrap();
        let small = source.array::<AtomicU16>(100, Filled::Whole).unwrap();
        let large = source.array::<AtomicU64>(1 << 20, Filled::ByNeed).unwrap();
        assert!(large.iter().all(|item| item.load(Relaxed) == 0));
        small[99].store(7, Relaxed);
        let reader = Source::attached(&file).unwrap();
        let seen_small = reader.array::<AtomicU16>(100, Filled::Whole).unwrap();
        let seen_large = reader.array::<AtomicU64>(1 << 20, Filled::ByNeed).unwrap();
        large[12_345].store(8, Relaxed);
        assert_eq!((seen_small[99].load(Relaxed), seen_large[12_345].load(Relaxed)), (7, 8));
        assert!(reader.array::<AtomicU16>(1, Filled::Whole).is_err());
    }

    #[test]
    fn a_laid_out_file_has_each_array_where_its_reader_looks() {
        let file = memfd(c"test").unwrap();
        lengthen(&file, 4 * PAGE).unwrap();
        let source = Source::laid_out(&file, &[2 * PAGE, PAGE]).unwrap();
        let small = source.array::<AtomicU16>(100, Filled::Whole).unwrap();
        let cut = source.array::<AtomicU64>(1 << 20, Filled::ByNeed).unwrap();
        assert_eq!((small.writable().len(), cut.len(), cut.writable().len()), (100, 1 << 20, PAGE / 8));
        assert!(cut.iter().all(|item| item.load(Relaxed) == 0));
        small[99].store(7, Relaxed);
        cut[PAGE / 8 - 1].store(8, Relaxed);
        let whole = map_file(&file, 0, 4 * PAGE, false).unwrap().cast::<u16>();
        let whole = Array { start: whole, len: 2 * PAGE, room: 0, mapped: 4 * PAGE, pages: Pages::Plain };
        assert_eq!((whole[PAGE / 2 + 99], whole[2 * PAGE - 4]), (7, 8));
        assert!(source.array::<AtomicU16>(1, Filled::Whole).is_err());
        assert!(Source::laid_out(&memfd(c"test").unwrap(), &[1]).is_err());
    }

    #[test]
    fn refuses_what_is_not_there() {
        let file = memfd(c"test").unwrap();
        assert!(Source::attached(&file).is_err());
        let source = Source::shared(&file).unwrap();
        source.array::<AtomicU16>(100, Filled::Whole).unwrap();
        assert_eq!(Source::shared(&file).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let reader = Source::attached(&file).unwrap();
        assert!(reader.array::<AtomicU16>(101, Filled::Whole).is_err());
        assert!(Source::shared(&std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
