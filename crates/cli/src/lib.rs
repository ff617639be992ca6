//! What the commands print: one screen or verb a file.
//!
//! Every function here takes a reply of the daemon and gives the text that a person reads. `--json` prints
//! the reply itself, so nothing here is the only place where a figure can be had. This crate sees
//! `bm-api` and no table.

#![forbid(unsafe_code)]

mod drops;
mod filters;
mod firewall;
mod hooks;
mod nexthops;
mod number;
mod ports;
mod routes;
mod status;
mod switches;
mod table;
mod verify;
mod workers;

pub use drops::drops;
pub use filters::filters;
pub use hooks::hooks;
pub use nexthops::{neighbors, nexthops};
pub use number::{bytes, count};
pub use ports::ports;
pub use routes::routes;
pub use status::{reloaded, status};
pub use switches::{stations, switches};
pub use table::{Align, Table};
pub use verify::verify;
pub use workers::{apps, links, workers};
