//! Packets at the ports of a router, for `brickmoon capture` and `brickmoon trace`.
//!
//! ```text
//! a frame ─► before ─► program of the port ─► after ─► redirect, Linux, a worker, dropped
//!              │                                │
//!              └─────► events (a perf buffer) ◄─┘
//!                          │
//!              Taps::poll ─┴─► Join ─► Packet ─► pcapng::Writer, a line, a trace
//! ```
//!
//! The command does all of this, in a process of its own: the daemon does not take part, so it cannot be slowed down, and
//! the kernel removes the programs when the command ends, in whatever way. Without such a command nothing of this is
//! loaded.
//!
//! Nothing here changes a packet or a table.

#![forbid(unsafe_code)]

mod error;
mod filter;
mod join;
mod line;
mod options;
pub mod pcapng;
mod port;
mod record;
mod tap;
mod taps;

pub use error::CaptureError;
pub use filter::{Filter, TooLong};
pub use join::{Join, Outcome, Packet, Sender};
pub use line::summary;
pub use options::Options;
pub use port::{Directions, Port, Program};
pub use taps::Taps;
