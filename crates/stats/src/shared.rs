//! The shared-memory file: a header, then names, then values.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bm_sys::{Access, Atomic, Map, Mutex};

/// "bmstats" and the version of the layout below.
const MAGIC: u64 = 0x626d_7374_6174_7301;
/// Bytes of the header; names follow it.
const HEADER: usize = 4096;
/// Bytes per name, padded with zeros.
const NAME: usize = 120;
/// Counters per cache line; blocks start at a multiple of this.
const LINE: usize = 8;

/// Why counters cannot be created or read.
#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    #[error("counters in {path}: {error}")]
    Io {
        /// Which file.
        path: String,
        /// The system's error.
        error: io::Error,
    },
    #[error("{path} has no counters that this version can read")]
    Format {
        /// Which file.
        path: String,
    },
    #[error(
        "{path} belongs to user ID {owner}: brickmoon reads counters only from files of root or of the \
         calling user"
    )]
    Owner {
        /// Which file.
        path: String,
        /// The owner's user ID.
        owner: u32,
    },
    #[error(
        "no counter is left for {name}: all {capacity} are in use; use fewer ports, workers, hooks or \
         apps, or restart brickmoon to free the counters of removed ones"
    )]
    Full {
        /// The counters that were requested.
        name: String,
        /// How many counters the registry has.
        capacity: usize,
    },
    #[error("counter name {name:?} is longer than {NAME} bytes")]
    NameTooLong {
        /// The name that was requested.
        name: String,
    },
}

/// The mapping. It is never unmapped, so that counters may be plain references.
#[derive(Clone, Copy)]
struct Mapping {
    header: &'static Header,
    names: *mut [u8; NAME],
    values: &'static [AtomicU64],
}

// SAFETY: `names` is written by the registry alone, under its lock and before `used` is raised over it,
// and read only below `used`; everything else is atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Shared with readers in other processes at any time, so it has only atomics.
#[repr(C)]
struct Header {
    magic: AtomicU64,
    capacity: AtomicU32,
    used: AtomicU32,
}

// SAFETY: atomics alone, of which the first is as long as the others together, so there is no padding.
unsafe impl Atomic for Header {}

fn bytes(capacity: usize) -> usize {
    HEADER + capacity * (NAME + size_of::<u64>())
}

fn map(file: &File, capacity: usize) -> io::Result<Mapping> {
    let map = Map::file(file, 0, bytes(capacity), Access::ReadWrite)?.leak();
    Ok(Mapping {
        header: &map.atomics(0, 1)[0],
        names: map.place(HEADER, capacity).as_ptr(),
        values: map.atomics(HEADER + capacity * NAME, capacity),
    })
}

/// The counters of this process, for the side that creates them.
pub struct Registry {
    mapping: Mapping,
    /// Blocks by the names of their counters. Locked while counters are created; never on the packet path.
    made: Mutex<HashMap<String, Block>>,
}

impl Registry {
    /// Creates the file, readable by everyone, with room for `capacity` counters.
    ///
    /// # Errors
    /// [`StatsError::Io`] if the file cannot be created or mapped.
    pub fn create(path: &Path, capacity: usize) -> Result<Self, StatsError> {
        let failed = |error| StatsError::Io { path: path.display().to_string(), error };
        // A reader of an earlier process keeps its old file; the new one must not change under it.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(failed)?;
        // Readable by everyone, whatever the process's umask is.
        let readable = file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
        readable.and_then(|()| Self::over(&file, capacity)).map_err(|error| {
            // A partly created file is of no use.
            let _gone = std::fs::remove_file(path);
            failed(error)
        })
    }

    /// Counters that nobody outside the process can see, for tests and benches.
    ///
    /// # Errors
    /// [`StatsError::Io`] if the memory cannot be allocated.
    pub fn anonymous(capacity: usize) -> Result<Self, StatsError> {
        let file = bm_sys::memfd(c"bm-stats");
        let counters = file.and_then(|file| Self::over(&File::from(file), capacity));
        counters.map_err(|error| StatsError::Io { path: "memory".into(), error })
    }

    fn over(file: &File, capacity: usize) -> io::Result<Self> {
        let capacity = capacity.next_multiple_of(LINE);
        file.set_len(bytes(capacity) as u64)?;
        bm_sys::allocate(file, bytes(capacity))?;
        let mapping = map(file, capacity)?;
        mapping.header.capacity.store(capacity as u32, Ordering::Relaxed);
        mapping.header.magic.store(MAGIC, Ordering::Release);
        Ok(Self { mapping, made: Mutex::default() })
    }

    /// Creates one counter for each of `names`, called `group/name`, next to each other. They start at zero; if all
    /// of them existed before, those are returned, so that a restarted part continues its counts. Their previous
    /// writer must have ended.
    ///
    /// # Errors
    /// [`StatsError::Full`] or [`StatsError::NameTooLong`]; then no counter is created.
    pub fn block(&self, group: &str, names: &[&str]) -> Result<Block, StatsError> {
        let full: Vec<_> = names.iter().map(|name| format!("{group}/{name}")).collect();
        let mut made = self.made.lock();
        // The name of a counter never contains a line break.
        let key = full.join("\n");
        if let Some(block) = made.get(&key) {
            return Ok(*block);
        }
        let first = self.mapping.header.used.load(Ordering::Relaxed) as usize;
        let capacity = self.mapping.values.len();
        let end = (first + names.len()).next_multiple_of(LINE);
        if end > capacity {
            return Err(StatsError::Full { name: group.into(), capacity });
        }
        if let Some(name) = full.iter().find(|name| name.len() > NAME) {
            return Err(StatsError::NameTooLong { name: name.clone() });
        }
        for (index, name) in full.iter().enumerate() {
            let mut padded = [0; NAME];
            padded[..name.len()].copy_from_slice(name.as_bytes());
            // SAFETY: below capacity, above `used`: nobody reads here, and the lock keeps writers out.
            unsafe { self.mapping.names.add(first + index).write(padded) };
        }
        self.mapping.header.used.store(end as u32, Ordering::Release);
        let block = Block(&self.mapping.values[first..first + names.len()]);
        made.insert(key, block);
        Ok(block)
    }

    /// All counters and their values.
    pub fn counters(&self) -> Vec<(String, u64)> {
        counters(&self.mapping)
    }
}

/// Adjacent counters that one thread writes.
#[derive(Clone, Copy)]
pub struct Block(&'static [AtomicU64]);

impl Block {
    /// Adds `n` to the counter `index`. There must be only one writer at a time: see the module page.
    #[inline]
    pub fn add(&self, index: usize, n: u64) {
        let counter = &self.0[index];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets the counter `index`, for gauges.
    #[inline]
    pub fn set(&self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::Relaxed);
    }

    /// The value of the counter `index`.
    #[inline]
    pub fn get(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Relaxed)
    }
}

/// The counters of another process. They are read as from any file: a mapping would end the reader with SIGBUS if
/// somebody makes the file shorter.
pub struct Reader {
    file: File,
    path: String,
}

/// The first two fields of the header that a reader needs.
struct Extent {
    capacity: usize,
    used: usize,
}

impl Reader {
    /// Opens the file of a running process for reading.
    ///
    /// The file may be in a folder where others can create files, so it must be a regular file that belongs to root
    /// or to the calling user, and symbolic links are not followed.
    ///
    /// # Errors
    /// [`StatsError::Io`] if it cannot be read or is a symbolic link, [`StatsError::Owner`] if it belongs to another
    /// user, [`StatsError::Format`] if its content is not as expected.
    pub fn open(path: &Path) -> Result<Self, StatsError> {
        let name = path.display().to_string();
        let failed = |error| StatsError::Io { path: name.clone(), error };
        // Without O_NONBLOCK, opening a FIFO would wait for a writer.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if ![0, bm_sys::effective_user()].contains(&meta.uid()) {
            return Err(StatsError::Owner { path: name, owner: meta.uid() });
        }
        let length = meta.len();
        if !meta.is_file() || length < HEADER as u64 {
            return Err(StatsError::Format { path: name });
        }
        let reader = Self { file, path: name };
        if length < bytes(reader.extent()?.capacity) as u64 {
            return Err(StatsError::Format { path: reader.path });
        }
        Ok(reader)
    }

    fn extent(&self) -> Result<Extent, StatsError> {
        let mut magic = [0; 8];
        self.read(&mut magic, 0)?;
        let [mut capacity, mut used] = [[0; 4]; 2];
        self.read(&mut capacity, 8)?;
        self.read(&mut used, 12)?;
        if u64::from_ne_bytes(magic) != MAGIC {
            return Err(StatsError::Format { path: self.path.clone() });
        }
        let [capacity, used] = [capacity, used].map(|word| u32::from_ne_bytes(word) as usize);
        Ok(Extent { capacity, used: used.min(capacity) })
    }

    fn read(&self, into: &mut [u8], offset: usize) -> Result<(), StatsError> {
        self.file
            .read_exact_at(into, offset as u64)
            .map_err(|error| StatsError::Io { path: self.path.clone(), error })
    }

    /// All counters and their current values.
    ///
    /// # Errors
    /// [`StatsError::Io`] if the file has become shorter, or cannot be read.
    pub fn counters(&self) -> Result<Vec<(String, u64)>, StatsError> {
        let Extent { capacity, used } = self.extent()?;
        let (mut names, mut values) = (vec![0; used * NAME], vec![0; used * size_of::<u64>()]);
        self.read(&mut names, HEADER)?;
        self.read(&mut values, HEADER + capacity * NAME)?;
        let (names, _) = names.as_chunks::<NAME>();
        // The kernel copies aligned words whole.
        let (values, _) = values.as_chunks();
        let values = values.iter().map(|word| u64::from_ne_bytes(*word));
        Ok(names.iter().zip(values).filter_map(|(name, value)| Some((text(name)?, value))).collect())
    }
}

/// The name of a counter; `None` for the padding up to a cache line.
fn text(name: &[u8; NAME]) -> Option<String> {
    let length = name.iter().position(|&byte| byte == 0).unwrap_or(NAME);
    (length > 0).then(|| OsStr::from_bytes(&name[..length]).to_string_lossy().into_owned())
}

fn counters(mapping: &Mapping) -> Vec<(String, u64)> {
    let used = mapping.header.used.load(Ordering::Acquire) as usize;
    let named = (0..used.min(mapping.values.len())).filter_map(|index| {
        // SAFETY: below `used`, so written before the release store that we acquired, and never again.
        let name = text(unsafe { &*mapping.names.add(index) })?;
        Some((name, mapping.values[index].load(Ordering::Relaxed)))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[test]
    fn counters_are_read_by_other_processes() {
        let path = std::env::temp_dir().join(format!("bm-stats-test-{}", std::process::id()));
        let registry = Registry::create(&path, 64).unwrap();
        let first = registry.block("port/a", &["received", "sent"]).unwrap();
        let second = registry.block("port/b", &["received"]).unwrap();
        first.add(1, 5);
        second.add(0, 7);
        second.add(0, 1);
        let seen = Reader::open(&path).unwrap().counters().unwrap();
        std::fs::remove_file(&path).unwrap();
        let expected = [("port/a/received", 0), ("port/a/sent", 5), ("port/b/received", 8)];
        assert_eq!(seen, expected.map(|(name, value)| (name.to_string(), value)));
    }

    #[test]
    fn a_file_that_becomes_shorter_is_an_error() {
        let path = std::env::temp_dir().join(format!("bm-stats-short-{}", std::process::id()));
        let registry = Registry::create(&path, 4096).unwrap();
        registry.block("port/a", &["received"]).unwrap().add(0, 9);
        let reader = Reader::open(&path).unwrap();
        assert_eq!(reader.counters().unwrap(), [("port/a/received".to_string(), 9)]);
        // The registry is not touched any more: for its own process, this is fatal.
        for length in [HEADER + 4096 * NAME, HEADER + 50, HEADER, 10, 0] {
            OpenOptions::new().write(true).open(&path).unwrap().set_len(length as u64).unwrap();
            let error = reader.counters().err().unwrap();
            assert!(matches!(error, StatsError::Io { .. }), "{length}: {error}");
        }
        let opened = Reader::open(&path);
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(opened, Err(StatsError::Format { .. })));
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let path = std::env::temp_dir().join(format!("bm-stats-link-{}", std::process::id()));
        let target = path.with_extension("target");
        std::fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let _registry = Registry::create(&path, 8).unwrap();
        assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "kept");
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o644);
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&target).unwrap();
    }

    #[test]
    fn rejects_what_does_not_fit_and_keeps_the_rest() {
        let registry = Registry::anonymous(8).unwrap();
        let names: Vec<_> = (0..9).map(|n| n.to_string()).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        assert!(matches!(registry.block("a", &names), Err(StatsError::Full { capacity: 8, .. })));
        assert!(matches!(registry.block(&"x".repeat(200), &["y"]), Err(StatsError::NameTooLong { .. })));
        assert!(registry.counters().is_empty());
        assert!(registry.block("a", &names[..8]).is_ok());
    }

    #[test]
    fn counters_continue_after_a_restart() {
        let registry = Registry::anonymous(16).unwrap();
        for restart in 0..100 {
            let block = registry.block("worker/0", &["breaths", "moves"]).unwrap();
            assert_eq!(block.get(1), restart);
            block.add(1, 1);
        }
        assert_eq!(registry.block("worker/0", &["breaths"]).unwrap().get(0), 0, "another block");
        let full = registry.block("worker/1", &["breaths"]).err().unwrap().to_string();
        assert_eq!(
            full,
            "no counter is left for worker/1: all 16 are in use; use fewer ports, workers, hooks or apps, or restart brickmoon to free the counters of removed ones"
        );
    }

    #[test]
    fn readers_see_whole_names_while_counters_are_made() {
        let registry = Registry::anonymous(4096).unwrap();
        let all_made = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let read = || {
                let mut seen = 0;
                while !all_made.load(Ordering::Acquire) {
                    let counters = registry.counters();
                    assert!(counters.len() >= seen, "counters do not go");
                    seen = counters.len();
                    for (at, (name, value)) in counters.into_iter().enumerate() {
                        assert_eq!(name, format!("app/{}/{}", at / 8, at % 8));
                        assert!(value <= 1000);
                    }
                }
            };
            scope.spawn(read);
            scope.spawn(read);
            let names = ["0", "1", "2", "3", "4", "5", "6", "7"];
            for app in 0..512 {
                let block = registry.block(&format!("app/{app}"), &names).unwrap();
                (0..1000).for_each(|n| block.add(n % 8, 1));
            }
            all_made.store(true, Ordering::Release);
        });
        assert_eq!(registry.counters().iter().map(|(_, value)| value).sum::<u64>(), 512 * 1000);
    }

    #[test]
    fn a_reader_follows_no_link_and_trusts_no_other_user() {
        let path = std::env::temp_dir().join(format!("bm-stats-reader-{}", std::process::id()));
        let link = path.with_extension("link");
        let _registry = Registry::create(&path, 8).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let followed = Reader::open(&link);
        std::fs::remove_file(&link).unwrap();
        let Err(StatsError::Io { error, .. }) = followed else { panic!("the link was followed") };
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
        assert!(Reader::open(&path).is_ok());
        match std::os::unix::fs::chown(&path, Some(65534), None) {
            Ok(()) => {
                let error = Reader::open(&path).err().unwrap();
                assert!(matches!(error, StatsError::Owner { owner: 65534, .. }), "{error}");
            }
            Err(error) => eprintln!("skipped: a file of another user, which takes root: {error}"),
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_fifo_in_its_place_is_not_waited_for() {
        let path = std::env::temp_dir().join(format!("bm-stats-fifo-{}", std::process::id()));
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let opened = Reader::open(&path);
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(opened, Err(StatsError::Format { .. })));
    }

    #[test]
    fn rejects_files_of_other_programs() {
        let path = std::env::temp_dir().join(format!("bm-stats-other-{}", std::process::id()));
        std::fs::write(&path, vec![7; 8192]).unwrap();
        let opened = Reader::open(&path);
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(opened, Err(StatsError::Format { .. })));
    }
}
