//! Injects system faults, chosen by a seed, into an unmodified daemon.
//!
//! ```text
//! test ─► Faults ─► a file, mapped by both ─► src/faults.c in the daemon (LD_PRELOAD): recvmmsg, open, bpf, ... fail
//! ```
//!
//! Uses one seed at a time: [`Faults::begin`] makes calls fail, [`Faults::end`] makes them succeed again and returns
//! how many failed.

use crate::subject::Router;
use std::fmt;
use std::fs::File;
use std::io::Result;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// What can fail, in the order of `enum kind` in `faults.c`.
const KINDS: [&str; 12] = [
    "receive",
    "send",
    "wait",
    "open",
    "socket",
    "read",
    "mmap",
    "bpf",
    "clock",
    "tap-read",
    "tap-write",
    CONTROL_CLOCK,
];
/// Makes the control thread panic: the clock fails, for which Rust's standard library has no error.
pub const CONTROL_CLOCK: &str = "control-clock";
/// Offset of the counters: after the seed, the rate and the kinds. Calls come first.
const CALLS: u64 = 24;
const FAULTS: u64 = CALLS + 8 * KINDS.len() as u64;
const LENGTH: u64 = FAULTS + 8 * KINDS.len() as u64;

/// The fault injection of one daemon.
pub struct Faults {
    file: File,
    path: PathBuf,
}

/// How many calls failed, by kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Failed([u64; KINDS.len()]);

impl Failed {
    /// All of them.
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The count of one kind.
    pub fn of(&self, kind: &str) -> u64 {
        KINDS.iter().zip(self.0).filter(|(name, _)| **name == kind).map(|(_, count)| count).sum()
    }

    /// Adds the counts of another period.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += count);
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<String> =
            KINDS.iter().zip(self.0).map(|(name, count)| format!("{name} {count}")).collect();
        f.write_str(&each.join(", "))
    }
}

impl Faults {
    /// Fault injection for the daemons that `router` starts from now on; nothing fails before [`begin`](Self::begin).
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn of(router: &mut Router<'_>, name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("{name}.faults"));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        file.set_len(LENGTH)?;
        router.set_variable("LD_PRELOAD", env!("BM_FAULTS_LIBRARY"));
        router.set_variable("BM_FAULTS", &path.to_string_lossy());
        Ok(Self { file, path })
    }

    /// Makes `rate` of 1024 calls fail from now on; the seed decides which. All kinds but [`CONTROL_CLOCK`].
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn begin(&self, seed: u64, rate: u64) -> Result<()> {
        let survived: Vec<&str> = KINDS.into_iter().filter(|kind| *kind != CONTROL_CLOCK).collect();
        self.begin_only(&survived, seed, rate)
    }

    /// The same for calls of these kinds only.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn begin_only(&self, kinds: &[&str], seed: u64, rate: u64) -> Result<()> {
        let bits = KINDS.iter().zip(0..).filter(|(kind, _)| kinds.contains(kind));
        let bits: u64 = bits.map(|(_, bit)| 1 << bit).sum();
        self.file.write_all_at(&[0; (LENGTH - CALLS) as usize], CALLS)?;
        self.file.write_all_at(&seed.to_ne_bytes(), 0)?;
        self.file.write_all_at(&bits.to_ne_bytes(), 16)?;
        self.file.write_all_at(&rate.to_ne_bytes(), 8)
    }

    /// Makes all calls succeed from now on. Returns how many failed.
    ///
    /// # Errors
    /// If the file cannot be written or read.
    pub fn end(&self) -> Result<Failed> {
        self.file.write_all_at(&[0; 8], 8)?;
        let mut failed = Failed::default();
        for (kind, count) in (0..).zip(&mut failed.0) {
            let mut bytes = [0; 8];
            self.file.read_exact_at(&mut bytes, FAULTS + 8 * kind)?;
            *count = u64::from_ne_bytes(bytes);
        }
        Ok(failed)
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        // It does not matter if it is already gone.
        let _gone = std::fs::remove_file(&self.path);
    }
}
