//! Benches and the demo.
//!
//! The program `brickmoon-bench`, which `brickmoon bench ...` and `brickmoon demo` start, calls this crate: functions
//! with option structs and no command line. Tables, namespaces and traffic come from `bm-testbed`.
//! Everything is generated from seeds, and every figure says what it was compared with in the same run.
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
