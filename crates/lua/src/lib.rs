//! LuaJIT embedded: Snabb's modules, written anew over our frames and links, and the programs that use them.
//!
//! ```text
//! brickmoon run PROGRAM.lua      Program ─► State (one a thread) ─► core.startup ─► the program
//! brickmoon snabb -t MODULE                   │
//!                                             └ modules: the user's trees ─► ours, from the binary
//! ```
//!
//! Lua sources lie under `lua/` and are part of the binary. `core.*` is always ours; any other module is looked
//! for in the user's trees first. Foreign types (`lua_State`) end here.

pub mod apps;
mod bridge;
pub mod hook;
mod links;
mod modules;
mod native;
mod pool;
mod program;
mod report;
mod ring;
mod runtime;
mod shown;
mod state;
mod world;

pub use hook::guard::limit_loading;
pub use modules::{Tree, embedded};
pub use native::{Natives, NoNatives, Opened, Wanted};
pub use program::{Outcome, Program, What};
pub use report::{AppReport, Desks, JitReport, LinkReport, Report};
pub use runtime::{end_on_signals, interrupt, interrupted};
pub use state::{LuaError, Prepared, State};
pub use world::{PAYLOAD, World};
