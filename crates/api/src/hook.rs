//! `show hooks`: the Lua hooks of the router.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All hooks, in the order they run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Hooks {
    pub hooks: Vec<Hook>,
}

/// A hook. Counters are summed over all threads and versions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Hook {
    pub name: String,
    /// Path of its Lua file.
    pub file: String,
    /// Stages that it runs at.
    pub stages: Vec<String>,
    /// State of the newest version: `active`, `failed`, `ejected` or `hung`.
    pub state: String,
    /// Number of the newest version; increases each time hooks are loaded.
    pub version: u64,
    /// The version that runs; `null` if none does.
    pub running: Option<u64>,
    /// Calls, one per burst.
    pub calls: u64,
    /// Frames in these bursts.
    pub frames: u64,
    /// Average processor cycles per frame.
    pub cycles_per_frame: f64,
    /// Maximum cycles per frame, in CPU time; 0 for no limit.
    pub budget: u64,
    /// The share of a core, in percent, below which it may take more.
    pub budget_percent: u64,
    /// What happens to its packets while none of its versions runs: `pass`, `drop` or `linux`.
    pub on_failure: String,
    /// Errors that the hook did not catch.
    pub errors: u64,
    /// How often it was ejected for exceeding its budget.
    pub ejections: u64,
    /// How often it was aborted because it hung.
    pub hangs: u64,
    /// Frames that it dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Its own counters.
    pub counters: BTreeMap<String, u64>,
    /// The last error, with its traceback.
    pub last_error: Option<String>,
}
