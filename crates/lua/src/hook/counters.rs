//! What is counted of a hook in one thread: by us, by its own names, and by LuaJIT.
//!
//! ```text
//! calls frames .. | drop/REASON ..  | count/NAME ..      | jit/traces ..
//! all hooks       | what it declares as reasons and counters | all hooks
//! ```

use bm_stats::{Block, CounterKind};

use crate::report::JitReport;
use crate::state::LuaError;

bm_stats::counter_kind! {
    /// What is counted of every hook.
    pub enum HookCounter {
        /// Calls.
        Calls = "calls",
        /// Frames that it was called with.
        Frames = "frames",
        /// Cycles of the CPU's clock that calls took.
        Cycles = "cycles",
        /// Calls that ended with an error.
        Errors = "errors",
        /// Versions that were taken out for taking longer than their budget.
        Ejections = "ejections",
        /// Versions that were broken off, since a call did not return.
        Hangs = "hangs",
    }
}

/// What LuaJIT did in a hook's state, in the order of [`HookCounters::set_jit`].
const JIT: [&str; 5] = ["traces", "aborts", "flushes", "code_bytes", "heap_bytes"];

/// The counters of a hook in one thread.
pub struct HookCounters {
    block: Block,
    /// How many reasons it declares.
    reasons: usize,
    /// What stood in each of its own counters when it was loaded: an earlier version may have counted.
    before: Vec<u64>,
}

impl HookCounters {
    /// Opens those of a hook that declares these reasons and counters; `open` takes the names of all.
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

    /// Counts a frame that it dropped for the reason with this number, from 1 on.
    pub fn drop(&self, reason: u16) {
        self.block.add(HookCounter::NAMES.len() + usize::from(reason) - 1, 1);
    }

    /// Shows what the hook has counted itself, by its counters' numbers.
    pub fn set_own(&self, count: impl Fn(usize) -> u64) {
        let first = HookCounter::NAMES.len() + self.reasons;
        for (at, before) in self.before.iter().enumerate() {
            self.block.set(first + at, before + count(at));
        }
    }

    /// Shows what LuaJIT did in its state.
    pub fn set_jit(&self, jit: &JitReport) {
        let first = HookCounter::NAMES.len() + self.reasons + self.before.len();
        let JitReport { traces, aborts, flushes, code_bytes, heap_bytes } = *jit;
        let values = [traces, aborts, flushes, code_bytes, heap_bytes];
        values.into_iter().enumerate().for_each(|(at, value)| self.block.set(first + at, value));
    }
}
