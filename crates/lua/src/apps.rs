//! Apps in Lua between a daemon's ports and its router.
//!
//! ```text
//!             worker's engine (bm-graph)                     one state a worker (core.part)
//! eth0.output ─► lua ─► router.eth0            [ eth0 ─► guard ─► router ]   in brackets: Lua's own engine
//!                 └── Part: moves packets in and out, one guarded call a breath
//! AppSet ── start, reload ─► Part        supervise: what hangs is interrupted; failures are reported
//! ```
//!
//! For the worker all apps in Lua are one app, so that an error or a hang in any of them leaves ports and router
//! unharmed. A part that has failed does nothing more, and reports that; the daemon restarts its workers, with the version
//! before it if there is one (`versions`).

mod loaded;
mod part;
mod set;
mod spec;
mod versions;

pub use part::Part;
pub use set::{AppNews, AppSet, AppWorld, CoreApps, check};
pub use spec::{AppLink, AppSpec, AppsSpec, Module};
