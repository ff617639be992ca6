//! The state file of IPsec: which sequence numbers have been reserved with which keys.
//!
//! ```text
//! fingerprint of suite and keys     IV mask          last reserved    checksum
//! 0123456789abcdef0123456789abcdef  0123456789abcdef 0000000000800000 89abcdef
//! ```
//!
//! A line is written, and is on the disk, before any of its numbers is used. Numbers that ended workers have left are free
//! again, so reloads and clean restarts use up none; a kill costs those of the last blocks. IVs are the numbers, exclusive or the mask,
//! which stays the same as long as the keys do: so no IV is used twice, whatever happens to the process. The mask is
//! random, so that a file that is lost does little harm: then two lives of an SA have an IV in common with a probability
//! of at most 2^-32. The file has no keys, and they cannot be found from it.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bm_ipsec::{Block, Numbers, ReturnedNumbers, UsedUp};

/// Bytes of a line.
const LINE: usize = 32 + 1 + 16 + 1 + 16 + 1 + 8 + 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    fingerprint: u128,
    iv_mask: u64,
    reserved: u64,
}

/// The open file. It is locked, so that no other process reserves the same numbers.
pub struct Record {
    file: File,
    path: PathBuf,
    lines: Vec<(Line, ReturnedNumbers)>,
}

/// Why no numbers could be reserved.
#[derive(Debug)]
pub enum NoNumbers {
    UsedUp(UsedUp),
    /// The file cannot be written, or there are no random numbers.
    Failed(String),
}

impl Record {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// What is wrong with the file, and how to fix it.
    pub fn open(path: &Path) -> Result<Self, String> {
        let cannot = |error: std::io::Error| {
            format!(
                "cannot use {} to record the sequence numbers of IPsec: {error}; set state_file in [ipsec] to a file that can be written",
                path.display()
            )
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(cannot)?;
        }
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(cannot)?;
        file.try_lock().map_err(|_| {
            format!(
                "{} is used by another process: give each daemon its own state_file in [ipsec]",
                path.display()
            )
        })?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(cannot)?;
        let lines: Option<Vec<Line>> = text.chunks(LINE).map(Line::parse).collect();
        let lines = lines.ok_or_else(|| {
            format!(
                "{} is damaged, so it is not known which IVs have been used: delete it, and use new keys in [ipsec]",
                path.display()
            )
        })?;
        let lines = lines.into_iter().map(|line| (line, ReturnedNumbers::default())).collect();
        Ok(Self { file, path: path.into(), lines })
    }

    /// The next `count` numbers for the keys with this fingerprint, or fewer, and the mask of their IVs.
    ///
    /// # Errors
    /// All numbers are used, or the file cannot be written; no number is used then.
    pub fn reserve(&mut self, fingerprint: u128, count: u64, esn: bool) -> Result<(Block, u64), NoNumbers> {
        let known = self.lines.iter().position(|(line, _)| line.fingerprint == fingerprint);
        let at = known.unwrap_or(self.lines.len());
        if known.is_none() {
            let iv_mask = self.random().map_err(NoNumbers::Failed)?;
            self.lines.push((Line { fingerprint, iv_mask, reserved: 0 }, ReturnedNumbers::default()));
        }
        let reserved = self.reserve_in(at, count, esn);
        if reserved.is_err() && known.is_none() {
            // The next line of the file is for whichever SA is written first.
            self.lines.pop();
        }
        reserved
    }

    fn reserve_in(&mut self, at: usize, count: u64, esn: bool) -> Result<(Block, u64), NoNumbers> {
        let (line, returned) = &mut self.lines[at];
        // In the file it is still higher, as if these numbers were used.
        line.reserved = returned.take_below(line.reserved + 1) - 1;
        let mut numbers = Numbers::after(line.reserved, esn).with_returned(returned);
        let end = numbers.end_of(count).map_err(NoNumbers::UsedUp)?;
        let written = Line { reserved: end - 1, ..*line };
        self.write(at, &written).map_err(NoNumbers::Failed)?;
        self.lines[at].0 = written;
        let block = numbers.reserve(count).map_err(NoNumbers::UsedUp)?;
        Ok((block, written.iv_mask))
    }

    /// Frees the numbers that ended workers have left, for the next start.
    ///
    /// # Errors
    /// The file cannot be written; then they are lost.
    pub fn free_returned(&mut self) -> Result<(), String> {
        for at in 0..self.lines.len() {
            let (line, returned) = &mut self.lines[at];
            let reserved = returned.take_below(line.reserved + 1) - 1;
            if reserved != line.reserved {
                line.reserved = reserved;
                let line = *line;
                self.write(at, &line)?;
            }
        }
        Ok(())
    }

    fn write(&self, at: usize, line: &Line) -> Result<(), String> {
        let written = self.file.write_all_at(line.to_string().as_bytes(), (at * LINE) as u64);
        written
            .and_then(|()| self.file.sync_data())
            .map_err(|error| format!("cannot write {}: {error}", self.path.display()))
    }

    fn random(&self) -> Result<u64, String> {
        let mut bytes = [0; 8];
        let read = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
        read.map_err(|error| format!("cannot read /dev/urandom: {error}"))?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

impl Line {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut words = text.split(' ');
        let fingerprint = u128::from_str_radix(words.next()?, 16).ok()?;
        let iv_mask = u64::from_str_radix(words.next()?, 16).ok()?;
        let reserved = u64::from_str_radix(words.next()?, 16).ok()?;
        let line = Self { fingerprint, iv_mask, reserved };
        (line.to_string() == text).then_some(line)
    }
}

impl std::fmt::Display for NoNumbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UsedUp(error) => error.fmt(f),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:032x} {:016x} {:016x}", self.fingerprint, self.iv_mask, self.reserved);
        writeln!(f, "{text} {:08x}", checksum(text.as_bytes()))
    }
}

/// FNV-1a.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("bm-ipsec-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn file(&self) -> PathBuf {
            self.0.join("state")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _gone = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn no_iv_is_used_twice_over_restarts() {
        let folder = Folder::new("restarts");
        let (mut ivs, mut masks) = (HashSet::new(), HashSet::new());
        for _ in 0..5 {
            // As if killed: blocks are kept until the file is closed.
            let mut blocks = Vec::new();
            let mut record = Record::open(&folder.file()).unwrap();
            for fingerprint in [1, 2] {
                for _ in 0..3 {
                    let (block, mask) = record.reserve(fingerprint, 10, false).unwrap();
                    masks.insert((fingerprint, mask));
                    for number in block.next()..block.end() {
                        assert!(ivs.insert((fingerprint, number ^ mask)));
                    }
                    blocks.push(block);
                }
            }
        }
        assert_eq!((ivs.len(), masks.len()), (300, 2));
        assert_eq!(std::fs::metadata(folder.file()).unwrap().len(), 2 * LINE as u64);
    }

    #[test]
    fn numbers_end() {
        let folder = Folder::new("end");
        let mut record = Record::open(&folder.file()).unwrap();
        let (block, _) = record.reserve(7, u64::MAX, false).unwrap();
        assert_eq!((block.next(), block.end()), (1, 1 << 32));
        assert!(matches!(record.reserve(7, 1, false), Err(NoNumbers::UsedUp(_))));
        drop(block);
        assert_eq!(record.reserve(7, 1, false).unwrap().0.next(), 1);
    }

    #[test]
    fn a_clean_end_uses_up_only_what_was_sent() {
        let folder = Folder::new("clean");
        for start in 0..300 {
            let mut record = Record::open(&folder.file()).unwrap();
            let first = record.reserve(7, 1 << 30, false).unwrap().0;
            assert_eq!(first.next(), 1, "start {start}");
            let second = record.reserve(7, 1 << 30, false).unwrap().0;
            drop((first, second));
            record.free_returned().unwrap();
        }
    }

    #[test]
    fn a_file_in_use_or_damaged_is_refused() {
        let folder = Folder::new("damaged");
        let mut record = Record::open(&folder.file()).unwrap();
        record.reserve(7, 10, true).unwrap();
        let Err(used) = Record::open(&folder.file()) else { panic!("it is locked") };
        assert!(used.contains("is used by another process"), "{used}");
        drop(record);
        let good = std::fs::read(folder.file()).unwrap();
        for at in [0, 40, 60, 70] {
            let mut bad = good.clone();
            bad[at] = if bad[at] == b'0' { b'1' } else { b'0' };
            std::fs::write(folder.file(), &bad).unwrap();
            let Err(damaged) = Record::open(&folder.file()) else { panic!("byte {at}") };
            assert!(damaged.contains("use new keys"), "{damaged}");
        }
        std::fs::write(folder.file(), &good[..LINE - 1]).unwrap();
        assert!(Record::open(&folder.file()).is_err());
        let Err(nowhere) = Record::open(Path::new("/proc/bm/state")) else { panic!("no such folder") };
        assert!(nowhere.contains("set state_file in [ipsec]"), "{nowhere}");
    }
}
