//! A cluster before it is built: simulated packet by packet, and planned from a list of servers.
//!
//! ```text
//! sources ─► Balancer ─► links, queues ─► transit::receive ─► output ports      (bm-vlb decides, this crate moves)
//!    ▲ matrix, flows        ▲ faults          └──► checks, account ─► report
//! seed, options
//! ```
//!
//! The simulator moves frames between nodes by discrete events; what happens to a frame is decided by the code of
//! `bm-vlb`, which the data path shares. The same seed gives the same run, bit for bit: there are no threads, no clocks and no
//! floating-point numbers in the simulation itself, only in its report.

#![forbid(unsafe_code)]

pub mod figures;
pub mod options;
pub mod plan;
pub mod report;

mod account;
mod control;
mod faults;
mod links;
mod random;
mod run;
mod server;
mod simulate;
mod traffic;
mod wheel;

pub use options::{Matrix, Options, Shape};
pub use report::Report;
pub use simulate::{SimulationError, simulate};
