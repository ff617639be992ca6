//! `[[hook]]`: a Lua file that runs at stages of the router.

use std::path::PathBuf;
use std::time::Duration;

use super::forms::{Choice, milliseconds, number};

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

const STAGES: [(&str, Option<HookStage>); 5] = [
    ("all", None),
    ("ingress", Some(HookStage::Ingress)),
    ("lookup", Some(HookStage::Lookup)),
    ("egress", Some(HookStage::Egress)),
    ("slow", Some(HookStage::Slow)),
];

const FAILURES: [(&str, Option<HookFailure>); 4] = [
    ("auto", None),
    ("pass", Some(HookFailure::Pass)),
    ("drop", Some(HookFailure::Drop)),
    ("linux", Some(HookFailure::Linux)),
];

settings! {
    /// One `[[hook]]` for each hook: Lua in the router's stages, on the user path. They run in this order.
    #[table("[[hook]]", "docs/hooks.md")]
    pub struct Hook {
        /// The file, relative to the folder of this file. `brickmoon reload` reads it again.
        #[by_hand(file = "acl.lua")]
        pub file: PathBuf,
        /// Its name in counters and `brickmoon show hooks`; by default the name of the file.
        #[by_hand(name = "acl")]
        pub name: String,
        /// Where its function runs: "ingress", "lookup", "egress" or "slow"; "all" if the file returns a table of
        /// functions.
        #[setting(stage = "all", Choice(&STAGES), Live)]
        pub stage: Option<HookStage>,
        /// A table that the file gets as `...`.
        #[by_hand(args = { denied = ["192.0.2.0/24"] })]
        pub arguments: serde_json::Value,
        /// How many processor cycles per frame it may take, in CPU time; 0 for no limit. If it takes more, and more than
        /// `budget_percent` of a core, for `budget_ms` milliseconds, it is deactivated.
        #[setting(budget = 5000, number(0..=1 << 30), Live)]
        pub budget: u32,
        /// The share of a core, in percent, below which its cycles do not matter.
        #[setting(budget_percent = 25, number(1..=100), Live)]
        pub budget_percent: u32,
        /// How long it may exceed the budget before it is deactivated, in milliseconds.
        #[setting(budget_ms = 1000, milliseconds(1..=3_600_000), Live)]
        pub patience: Duration,
        /// What happens to its packets while no version of it runs: "pass" (as if there were no such hook), "drop", or
        /// "linux" (as they came in). "auto" is "drop" for a hook that declares drop reasons, else "pass".
        #[setting(on_failure = "auto", Choice(&FAILURES), Live)]
        pub on_failure: Option<HookFailure>,
        /// Line of the file.
        pub line: usize,
    }
}
