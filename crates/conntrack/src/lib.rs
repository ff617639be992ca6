//! The kernel's connection tracking (conntrack), by netlink (ctnetlink).
//!
//! ```text
//! Conntrack ── list, get ─────────────► connections as the kernel has them
//!           ── update: many at once ──► their timeouts, TCP windows and status
//! Settings  ◄── /proc/sys/net/netfilter
//! ```
//!
//! It is for a program that forwards packets of tracked connections past conntrack: the kernel does not see these packets, so
//! the program refreshes the timeout of a connection that is used, and makes TCP windows liberal, because sequence numbers go
//! on unseen.
//!
//! Everything is about the network namespace of the thread that opens it.
//!
//! Absent on purpose: events, whose mere subscription makes each new connection of the machine cost more; creating
//! connections, expectations, helpers, labels, NAT, counters.

#![forbid(unsafe_code)]

mod client;
mod connection;
mod layout;
mod settings;
mod tuple;
mod update;

pub use client::Conntrack;
pub use connection::{Connection, status};
pub use settings::Settings;
pub use tuple::Tuple;
pub use update::Update;
