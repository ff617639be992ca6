//! The text output of the commands, one file per screen.
//!
//! Every function takes a reply of the daemon and returns the text for people. `--json` prints the reply itself, so
//! every figure is also available to programs. This crate depends on `bm-api` only.

#![forbid(unsafe_code)]

mod cluster;
mod collectors;
mod drops;
mod explain;
mod failure;
mod filters;
mod firewall;
mod flows;
mod hooks;
mod ipsec;
mod nexthops;
mod number;
mod ports;
mod routes;
mod since;
mod status;
mod switches;
pub mod table;
mod verify;
mod workers;

pub use cluster::cluster;
pub use collectors::collectors;
pub use drops::{BY_LINUX_COLUMNS, CAUSE_COLUMNS, DROP_COLUMNS, LEFT_COLUMNS, causes, drops};
pub use explain::explanation;
pub use failure::Failure;
pub use filters::filters;
pub use flows::{flows, flows_cleared};
pub use hooks::hooks;
pub use ipsec::{policies, sas};
pub use nexthops::{neighbors, nexthops};
pub use number::{bytes, count, counted, counted_as, rate};
pub use ports::{ACCOUNT_COLUMNS, PORT_COLUMNS, accounts, port_details, ports};
pub use routes::routes;
pub use since::{cleared, counted_since, drops_since, ports_since};
pub use status::{reloaded, status};
pub use switches::{macs, switches};
pub use table::{Align, Table};
pub use verify::verify;
pub use workers::{apps, links, workers};
