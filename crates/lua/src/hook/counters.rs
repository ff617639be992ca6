//! The counters of a hook in one thread.
//!
//! ```text
//! calls frames .. | drop/REASON ..     | count/NAME ..       | jit/traces ..
//! every hook      | reasons it declares  counters it declares | every hook
//! ```

use bm_stats::{Block, CounterKind};

use crate::report::JitReport;
use crate::state::LuaError;

bm_stats::counter_kind! {
    /// The counters that every hook has.
    pub enum HookCounter {
        /// Calls.
        Calls = "calls",
        /// Frames that it was called with.
        Frames = "frames",
        /// CPU cycles spent in calls.
        Cycles = "cycles",
        /// Calls that ended with an error.
        Errors = "errors",
        /// Versions that were disabled because they exceeded their budget.
        Ejections = "ejections",
        /// Versions that were interrupted because a call did not return.
        Hangs = "hangs",
    }
}

/// Statistics of LuaJIT in the hook's state, in the order of [`HookCounters::set_jit`].
const JIT: [&str; 5] = ["traces", "aborts", "flushes", "code_bytes", "heap_bytes"];

/// The counters of a hook in one thread.
pub struct HookCounters {
    block: Block,
    /// The number of reasons that it declares.
    reasons: usize,
    /// The values of its own counters when it was loaded: an earlier version may have used them.
    before: Vec<u64>,
}

impl HookCounters {
    /// Opens the counters of a hook that declares these reasons and counters; `open` gets all names.
    pub fn open(
        reasons: &[String],
        own: &[String],
        open: &dyn Fn(&[String]) -> Result<Block, LuaError>,
    ) -> Result<Self, LuaError> {
        let mut names: Vec<String> = HookCounter::NAMES.iter().map(|name| (*name).into()).collect();
        names.extend(reasons.iter().map(|name| format!("drop/{name}")));
        names.extend(own.iter().map(|name| format!("count/{name}")));
        names.extend(JIT.map(|name| format!("jit/{name}")));
        let (block, reasons) = (open(&names)?, reasons.len());
        let first = HookCounter::NAMES.len() + reasons;
        let before = (first..first + own.len()).map(|at| block.get(at)).collect();
        Ok(Self { block, reasons, before })
    }

    pub fn add(&self, counter: HookCounter, n: u64) {
        self.block.add(counter.index(), n);
    }

    /// Counts a frame dropped for the reason with this number; numbers start at 1.
    pub fn drop(&self, reason: u16) {
        self.block.add(HookCounter::NAMES.len() + usize::from(reason) - 1, 1);
    }

    /// Publishes the hook's own counters; `count` gives the value of each by its index.
    pub fn set_own(&self, count: impl Fn(usize) -> u64) {
        let first = HookCounter::NAMES.len() + self.reasons;
        for (at, before) in self.before.iter().enumerate() {
            self.block.set(first + at, before + count(at));
        }
    }

    /// Publishes the statistics of LuaJIT.
    pub(crate) fn set_jit(&self, jit: &JitReport) {
        let first = HookCounter::NAMES.len() + self.reasons + self.before.len();
        let JitReport { traces, aborts, flushes, code_bytes, heap_bytes } = *jit;
        let values = [traces, aborts, flushes, code_bytes, heap_bytes];
        values.into_iter().enumerate().for_each(|(at, value)| self.block.set(first + at, value));
    }
}
