//! A client of etcd's JSON gateway (version 3 of its API): keys with their revisions, leases, watches.
//!
//! ```text
//! Client ─ one request after the other ─► HTTP/1.1, with TLS for https ─► etcd     the next endpoint, if one fails
//! Watch  ─ a connection of its own ◄── an answer that does not end: one line for each change
//! ```
//!
//! Every request has a time limit, except for the next change of a watch. After an error the connection is closed; the
//! next request opens one to the next endpoint. No request is repeated here: only the caller knows whether that is safe.
//!
//! Absent on purpose: gRPC, which would need a second HTTP stack, and whatever of etcd a cluster's membership does not
//! need.

#![forbid(unsafe_code)]

mod base64;
mod client;
mod connection;
mod error;
mod settings;
mod tls;
mod watch;

#[cfg(test)]
mod tests;

pub use client::{Client, Entry, Range};
pub use error::EtcdError;
pub use settings::{BadEndpoint, Endpoint, Settings};
pub use watch::Watch;
