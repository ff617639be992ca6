//! Benches, the demo, seeded tables and traffic: what brickmoon measures itself with.
//!
//! `brickmoon bench ...` and `brickmoon demo` are thin shells over this crate: functions with option
//! structs, no command line of its own. Everything is made from seeds, and every figure names what it was
//! measured against in the same run.
//!
//! ```text
//! tables, rib ──► addresses ──► traffic (generator, sink) ─┐
//!             └─► testbed (namespaces, kernel routes) ─────┼─► demo
//!                 alternate ──► report (table, JSON, SVG) ◄┘
//! ```
//!
//! Absent on purpose: anything the router itself needs. No other crate but the binary may use this one.

pub mod addresses;
pub mod alternate;
pub mod bench;
pub mod demo;
pub mod interrupt;
pub mod oracle;
pub mod random;
pub mod report;
pub mod rib;
pub mod tables;
pub mod testbed;
pub mod traffic;
