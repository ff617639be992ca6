//! `[[hook]]`: a Lua file that runs at stages of the router.

use std::path::PathBuf;
use std::time::Duration;

/// The stage of the router at which a hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookStage {
    /// Received frames, before anything else.
    Ingress,
    /// Packets whose next hop has been found.
    Lookup,
    /// Frames before they are sent.
    Egress,
    /// Packets in the slow path.
    Slow,
}

/// What happens to the packets of a hook that does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookFailure {
    /// They continue as if there were no such hook.
    Pass,
    /// They are dropped.
    Drop,
    /// Linux gets them.
    Linux,
}

/// A `[[hook]]`: a Lua file for stages of the router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Name in counters and `show hooks`; by default the file name without its extension.
    pub name: String,
    /// The Lua file; a relative path starts at the directory of the configuration file.
    pub file: PathBuf,
    /// Its stage; `None` for all stages that the file has functions for.
    pub stage: Option<HookStage>,
    /// The table that the file gets as `...`; `Null` for nothing.
    pub arguments: serde_json::Value,
    /// Maximum processor cycles per frame, in CPU time; 0 for no limit.
    pub budget: u32,
    /// The share of a core below which its cycles do not matter.
    pub budget_percent: u32,
    /// How long it may exceed the budget before it is ejected.
    pub patience: Duration,
    /// What happens to its packets when it does not run; `None`: dropped if it declares a drop reason.
    pub on_failure: Option<HookFailure>,
    /// Line of the file.
    pub line: usize,
}

impl Default for Hook {
    fn default() -> Self {
        Self {
            name: String::new(),
            file: PathBuf::new(),
            stage: None,
            arguments: serde_json::Value::Null,
            budget: 5000,
            budget_percent: 25,
            patience: Duration::from_millis(1000),
            on_failure: None,
            line: 0,
        }
    }
}
