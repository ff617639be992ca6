//! The kernel's interface for IKE daemons, served by brickmoon: XFRM messages of netlink on a Unix socket.
//!
//! ```text
//! charon, ip xfrm ─ preload/preload.c ─► Server ─ bytes ─► read ─ Request ─► Database ─► Change ─► the daemon's workers
//!                                          ▲                                    │
//!                                          └───────── write ◄── answers, events ┘
//! ```
//!
//! [`Database`] has what the kernel would have: SAs, policies, reserved SPIs, lifetimes. It is a function of messages,
//! time and what SAs have been used for, and needs no socket; [`Server`] has the sockets. A request that cannot be
//! carried out is answered with an error number and a text, and changes nothing.
//!
//! [`KernelTables`] reads the same messages from the kernel's own tables, and finds out which SAs and policies workers can
//! use ([decision 62](../../../docs/decisions/0062-kernel-sas.md)).
//!
//! Absent on purpose: encryption (`bm-ipsec`), workers, and IKE. Keys leave this crate only in a [`Change`], and in the
//! answer to the process that has installed them.

#![forbid(unsafe_code)]

mod database;
mod entry;
mod expiry;
mod kernel;
mod layout;
mod mark;
mod message;
mod policies;
mod policy;
mod policy_requests;
mod read;
mod request_error;
mod sa;
mod selector;
mod server;
mod usage;
mod write;

pub use database::{Answer, Change, Client, Context, Database};
pub use kernel::{KernelTables, Listing, Update};
pub use message::{Messages, Raw};
pub use read::Request;
pub use request_error::RequestError;
pub use server::{RejectedClients, Server};
pub use usage::{Now, Usage};

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
