//! `[[hook]]`: a Lua file on the router's stages.

use std::path::PathBuf;
use std::time::Duration;

/// Where in the router a hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookStage {
    /// On frames as they came in.
    Ingress,
    /// On packets whose next hop is found.
    Lookup,
    /// On frames as they leave.
    Egress,
    /// On the slow path.
    Slow,
}

/// A hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// What counters and `show hooks` call it; the file's name without its ending unless it is given.
    pub name: String,
    /// The Lua file; a relative name begins at the configuration file's folder.
    pub file: PathBuf,
    /// Its stage; `None` for all that the file has functions for.
    pub stage: Option<HookStage>,
    /// What the file gets as `...`: a table, or nothing.
    pub arguments: serde_json::Value,
    /// Cycles of the processor's clock a frame; 0 for any number.
    pub budget: u32,
    /// For how long it may take more.
    pub patience: Duration,
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
            patience: Duration::from_millis(1000),
            line: 0,
        }
    }
}
