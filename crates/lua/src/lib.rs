//! LuaJIT embedded: Snabb's modules, rewritten on brickmoon's frames and links, and the programs that use them.
//!
//! ```text
//! brickmoon run PROGRAM.lua      Program ─► State (one a thread) ─► core.startup ─► the program
//! brickmoon snabb -t MODULE                   │
//!                                             └ modules: the user's trees ─► ours, from the binary
//! ```
//!
//! Lua sources are in `lua/` and part of the binary. `core.*` always comes from there; any other module is searched
//! for in the user's folders first. Foreign types (`lua_State`) do not leave this crate.

pub mod apps;
mod bridge;
mod esp;
mod filter;
pub mod hook;
mod links;
mod modules;
mod natives;
mod pool;
mod program;
mod report;
mod ring;
mod runtime;
mod shown;
mod state;
mod thread;
mod world;

pub use filter::BpfFilter;
pub use hook::guard::limit_loading;
pub use modules::{Tree, embedded};
pub use natives::{AppRequest, NativeApp, Natives, NoNatives};
pub use program::{Outcome, Program, ProgramSource};
pub use report::{AppReport, JitReport, LinkReport, Report, ReportSlots};
pub use runtime::{end_on_signals, interrupt, interrupted};
pub use state::{LuaError, PreparedFunction, State};
pub use world::{PAYLOAD, World};
