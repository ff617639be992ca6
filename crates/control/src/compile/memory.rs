//! Memory of the tables: in this process, or shared with other readers.

use bm_fib::memory::{OutOfMemory, Part, Source};

/// Allocates memory whenever a table is created.
pub trait Memory: Send + Sync {
    /// Called once for next hops, and for routes of the main VRF each time that its table is created again.
    ///
    /// # Errors
    /// If there is none; the implementation logs the reason.
    fn source(&self, part: Part) -> Result<Source, OutOfMemory>;

    /// Maximum number of interfaces that other readers support; a multiple of 64.
    fn interfaces(&self) -> usize {
        1 << 16
    }
}

/// Memory of this process only.
pub struct Anonymous;

impl Memory for Anonymous {
    fn source(&self, _part: Part) -> Result<Source, OutOfMemory> {
        Ok(Source::anonymous())
    }
}
