//! The router app: fast path, slow path, host path.

#![forbid(unsafe_code)]

pub mod tables;
