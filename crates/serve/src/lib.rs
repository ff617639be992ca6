//! The API server, which the daemon and Lua programs share, and what they answer from; and the client of commands.
//!
//! ```text
//! client ─► socket ───────► connections ─► rights ─► server ─► Answers: the daemon, or a Lua program
//! metrics address ────────► connections ────────────►┤           └─ report: counters ─► accounts, drops, links
//! web page's address ─────► connections ─► web ─────►┘           └─ metrics: counters ─► text for Prometheus
//! ```
//!
//! Nothing here knows the daemon or Lua programs: they fill [`Answers`].

#![forbid(unsafe_code)]

mod answers;
pub mod app_report;
pub mod causes;
pub mod client;
pub mod connections;
pub mod metrics;
pub mod program_socket;
pub mod report;
pub mod rights;
pub mod server;
pub mod socket;
pub mod web;

pub use answers::Answers;
