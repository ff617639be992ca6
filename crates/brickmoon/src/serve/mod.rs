//! The API server, which the daemon and Lua programs share, and what they answer from.
//!
//! ```text
//! socket, metrics address ─► connections ─► rights ─► server ─► Answers: the daemon, or a Lua program
//! web page's address ──────► connections ─► web ──────►┘           └─ report: counters ─► accounts, drops, links
//! ```
//!
//! Nothing here knows the daemon or Lua programs: they implement [`Answers`].

mod answers;
pub mod app_report;
pub mod connections;
pub mod program_socket;
pub mod report;
pub mod rights;
pub mod server;
pub mod socket;
#[cfg(test)]
mod testing;
pub mod web;

pub use answers::{Answers, AnswersOfDaemon};
