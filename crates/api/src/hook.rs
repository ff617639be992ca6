//! `show hooks`: Lua on the router's stages.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All hooks, in the order they run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hooks {
    /// The hooks.
    pub hooks: Vec<Hook>,
}

/// A hook; figures are summed over all threads and versions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hook {
    /// Name.
    pub name: String,
    /// Lua file.
    pub file: String,
    /// Stages that it runs at.
    pub stages: Vec<String>,
    /// `active`, `failed`, `ejected` or `hung`: how the newest version is.
    pub state: String,
    /// The newest version: how often hooks have been loaded.
    pub version: u64,
    /// The version that runs; absent if none does.
    pub running: Option<u64>,
    /// Bursts that it was called for.
    pub calls: u64,
    /// Frames in them.
    pub frames: u64,
    /// Processor cycles that a frame took.
    pub cycles_per_frame: f64,
    /// Cycles a frame that it may take; 0 for any number.
    pub budget: u64,
    /// Errors that it did not catch.
    pub errors: u64,
    /// Times that it was ejected for its cost.
    pub ejections: u64,
    /// Times that it was broken off.
    pub hangs: u64,
    /// Frames dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Its own counters.
    pub counters: BTreeMap<String, u64>,
    /// The last error, with its traceback.
    pub last_error: Option<String>,
}
