//! Where tables lie: in this process, or where others read them too.

use bm_fib::memory::{OutOfMemory, Part, Source};

/// Gives memory for a table each time that one is made.
pub trait Memory: Send + Sync {
    /// For next hops, once; for routes of the main VRF, each time that its table is made anew.
    ///
    /// # Errors
    /// If there is none; the implementer says why in the log.
    fn source(&self, part: Part) -> Result<Source, OutOfMemory>;

    /// How many interfaces whoever reads there can tell apart; a multiple of 64.
    fn interfaces(&self) -> usize {
        1 << 16
    }
}

/// Memory of this process alone.
pub struct Anonymous;

impl Memory for Anonymous {
    fn source(&self, _part: Part) -> Result<Source, OutOfMemory> {
        Ok(Source::anonymous())
    }
}
