//! Where arrays come from: this process's own memory, or a file that others map too.
//!
//! ```text
//! writer: Source::shared(file)  --array, array, ..-->  [ directory | root ... | blocks ... ]
//! reader: Source::attached(file) --array, array, ..->    the same, read-only, in the same order
//! ```
//!
//! A builder requests arrays from its source in a fixed order. In a file the first page is a directory with the
//! position and length of each array; a reader requests the same arrays in the same order and is refused if they
//! differ. The file is a memfd ([`super::memfd`]), which grows as needed, or anything else of a fixed size that can be
//! mapped shared and starts zeroed, such as a BPF array map with `BPF_F_MMAPABLE`.
//!
//! Absent on purpose: telling the writer how far readers in other processes are. Whoever shares a table keeps a
//! [`crate::published::ReaderHandle`] for them and calls `quiescent` once they have moved on.

use super::{Array, Filled, HUGE, OutOfMemory, Pages, Zeroed};
use bm_sys::{Access, Map};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsFd;
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
    file: File,
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

    /// Space for one new table in a file whose layout is defined by its reader, such as the value of a BPF map: after
    /// the page of the directory, `rooms` bytes for each array in turn, each a whole number of pages.
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
    ///
    /// # Errors
    /// If there is no memory, or the file has no such array.
    pub fn array<T: Zeroed>(&self, len: usize, filled: Filled) -> Result<Array<T>, OutOfMemory> {
        match &self.0 {
            Kind::Anonymous => Array::zeroed(len, filled),
            Kind::File(area) => area.array(len),
        }
    }
}

impl Area {
    fn map(file: &impl AsFd, writable: bool) -> io::Result<Self> {
        let file = File::from(file.as_fd().try_clone_to_owned()?);
        let length = length(&file)?;
        let grows = length.is_some();
        match length {
            Some(_) if writable => lengthen(&file, PAGE)?,
            Some(..PAGE) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the file contains no table"));
            }
            _ => (),
        }
        let map = map_file(&file, 0, PAGE, access(writable))?;
        let directory = array(map, PAGE / 8, PAGE / 8);
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
        let map = match &self.end {
            Some(end) if let Some(rooms) = &self.rooms => {
                let (offset, given) = (*end.borrow(), *rooms.get(place).ok_or(full)?);
                *end.borrow_mut() += given;
                entry[0].store(offset as u64, Release);
                entry[1].store(bytes.min(given) as u64, Release);
                self.directory[1].store(place as u64 + 1, Release);
                room = len.min(given / size_of::<T>());
                Map::file_then_zeros(&self.file, offset, given.min(mapped), mapped)
            }
            Some(end) => {
                let offset = self.extend(&mut end.borrow_mut(), mapped).ok_or(full)?;
                entry[0].store(offset as u64, Release);
                entry[1].store(bytes as u64, Release);
                self.directory[1].store(place as u64 + 1, Release);
                map_file(&self.file, offset, mapped, Access::ReadWrite)
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
                    map_file(&self.file, offset, mapped, Access::Read)
                }
            }
        };
        let map = map.map_err(|_| full)?;
        self.given.set(place + 1);
        Ok(array(map, len, room))
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table in the file has another structure or version; rebuild it with this version")]
pub struct NotAttached;

impl From<OutOfMemory> for NotAttached {
    fn from(_: OutOfMemory) -> Self {
        Self
    }
}

/// The file's length, if it has one.
fn length(file: &File) -> io::Result<Option<usize>> {
    let meta = file.metadata()?;
    Ok(meta.is_file().then_some(meta.len() as usize))
}

/// Makes the file as long as `bytes` if it is shorter.
fn lengthen(file: &File, bytes: usize) -> io::Result<()> {
    if length(file)?.is_some_and(|length| length >= bytes) {
        return Ok(());
    }
    file.set_len(bytes as u64)
}

fn access(writable: bool) -> Access {
    if writable { Access::ReadWrite } else { Access::Read }
}

/// An array in a mapped part of a file.
fn array<T>(map: Map, len: usize, room: usize) -> Array<T> {
    Array { map, len, room, pages: Pages::Plain, items: PhantomData }
}

/// Maps a part of a file shared; a large one at a huge page's start, so that it may be in huge pages.
fn map_file(file: &File, offset: usize, bytes: usize, access: Access) -> io::Result<Map> {
    if bytes < HUGE {
        return Map::file(file, offset, bytes, access);
    }
    let map = Map::file_aligned(file, offset, bytes, access)?;
    // Refused where the file has no huge pages.
    map.advise_huge();
    Ok(map)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use bm_sys::memfd;
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
        let file = File::from(memfd(c"test").unwrap());
        lengthen(&file, 4 * PAGE).unwrap();
        let source = Source::laid_out(&file, &[2 * PAGE, PAGE]).unwrap();
        let small = source.array::<AtomicU16>(100, Filled::Whole).unwrap();
        let cut = source.array::<AtomicU64>(1 << 20, Filled::ByNeed).unwrap();
        assert_eq!((small.writable().len(), cut.len(), cut.writable().len()), (100, 1 << 20, PAGE / 8));
        assert!(cut.iter().all(|item| item.load(Relaxed) == 0));
        small[99].store(7, Relaxed);
        cut[PAGE / 8 - 1].store(8, Relaxed);
        let whole = map_file(&file, 0, 4 * PAGE, Access::Read).unwrap();
        let whole: Array<u16> = array(whole, 2 * PAGE, 0);
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
