//! Benches and the demo: what brickmoon measures itself with.
//!
//! The program `brickmoon-bench`, which `brickmoon bench ...` and `brickmoon demo` start, is a thin shell over this crate:
//! functions with option structs, no command line of its own. Tables, namespaces and traffic come from `bm-testbed`.
//! Everything is made from seeds, and every figure names what it was measured against in the same run.
//!
//! ```text
//! bm-testbed ──► measure ──► bench ─┬─► alternate ──► report (table, JSON, SVG)
//!                        └─► demo ──┘
//! ```
//!
//! Absent on purpose: anything the router itself needs. Only `brickmoon-bench` may use this crate.

pub mod alternate;
pub mod bench;
pub mod demo;
mod measure;
mod program;
pub mod report;
