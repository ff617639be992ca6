//! Linux as several crates use it, with the proofs for `unsafe` in one place.
//!
//! ```text
//! Map    memory that the kernel maps: files and BPF maps that others share, huge pages, anonymous memory
//! memfd  files in memory
//! ```
//!
//! Everything here is safe to call. A [`Map`] gives its address, checked places in it and slices of atomics; what else
//! lies in shared memory is read through pointers by the crate that knows its layout, because that crate alone knows
//! who writes there, and when (`docs/decisions/0020-memory-that-others-see.md`).
//!
//! Absent on purpose: names of ports, messages for users, anything of BPF or netlink. Callers add what they were doing
//! to the `io::Error` that they get.

mod file;
mod map;

pub use file::{allocate, memfd};
pub use map::{Access, Atomic, Commit, HUGE_PAGE, Map, advise_huge};
