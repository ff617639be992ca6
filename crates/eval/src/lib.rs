//! Benches and the demo: what brickmoon measures itself with.
//!
//! `brickmoon bench ...` and `brickmoon demo` are thin shells over this crate: functions with option structs, no command
//! line of its own. Tables, namespaces and traffic come from `bm-testbed`.
//! Everything is made from seeds, and every figure names what it was measured against in the same run.
//!
//! ```text
//! bm-testbed ──► measure ──► bench ─┬─► alternate ──► report (table, JSON, SVG)
//!                        └─► demo ──┘
//! ```
//!
//! Absent on purpose: anything the router itself needs. No other crate but the binary may use this one.

pub mod alternate;
pub mod bench;
pub mod demo;
mod measure;
pub mod report;
