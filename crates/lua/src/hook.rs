//! Hooks in Lua on the router's stages.
//!
//! ```text
//! HookSet ── start, reload ──► a state for each hook and thread ──► ThreadHooks: StageHook ──► Router, SlowPath
//!    ▲ supervise: what hangs is interrupted, old versions are closed            │ one protected call a burst
//!    └────────────── Version: good, failed, ejected, hung ◄─────────────────────┘
//! ```
//!
//! The burst is one C struct that Lua reads and writes in its traces (`burst`, `lua/brickmoon/hook.lua`). A hook that
//! fails has no effect on the current burst, which its last good version gets instead. If there is none, the hook's
//! `on_failure` says what happens to its packets, beginning with that burst.

mod burst;
mod counters;
pub(crate) mod guard;
mod loaded;
mod meter;
mod published;
mod set;
mod version;
mod worker;

pub use guard::{HANGS_AFTER, OnHang};
pub use meter::Budget;
pub use set::{HookNews, HookReport, HookSet, HookWorld, check};
pub use version::{Health, HookSpec, OnFailure};
