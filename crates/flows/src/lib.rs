//! The table of flows that Linux has decided about: one writer, readers in BPF programs and workers.
//!
//! A *flow* is one direction of a connection, as its packets arrive: addresses, ports, protocol, interface. Linux
//! forwards its first packets; how they left is what the table repeats for the others.
//!
//! ```text
//! thread for flows ── Table: insert, remove, void ──► [ head | buckets | entries ]     one area of memory, often a BPF map
//!                       ▲                                        │
//!                       └── packets, bytes, used_at, ended ──────┤
//!                                                                ├─► BPF programs (flow_table.h)
//!                                                                └─► workers: Lookup::find
//!
//! Key ──hash──► two buckets of eight slots, in one of which is the number of the flow's entry: the key again, and the Action
//! ```
//!
//! Readers never wait, and never see half an entry: it is complete before its number is in a slot, and written anew
//! only after a grace period has passed since the number was taken out ([`Table::mark`], [`Table::reuse`]). A reader
//! may miss a flow that is there, for the moment in which the writer moves its number to the other bucket; Linux
//! forwards the packet then, as it does whenever something is not in the table.
//!
//! Absent on purpose: connections, rules, packets. Which flows fare alike is for `control` to decide, and when a grace
//! period has passed for the caller to know.

mod end;
mod entry;
mod hash;
mod key;
mod layout;
mod lookup;
#[cfg(test)]
mod random;
mod table;

pub use end::EndReason;
pub use key::{Action, Connection, Key};
pub use layout::{FlowIndex, buckets, bytes};
pub use lookup::{Hit, Lookup};
pub use table::{FlowRecord, Insert, MAX, Table};

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The limit is outside of what entries can be numbered with.
    #[error("a table of {0} flows is not possible: give a number from 1 to {MAX}")]
    Max(usize),
    /// The memory is too small.
    #[error("a table of {max} flows needs {} bytes of memory, not {given}", bytes(*.max))]
    Memory {
        /// Flows that it was to hold.
        max: usize,
        /// Bytes that there are.
        given: usize,
    },
    /// The system gave no random numbers.
    #[error("no random key for the table of flows: {0}")]
    Key(std::io::Error),
}
