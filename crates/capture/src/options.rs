//! Which packets are shown, and how much of each.

use std::os::unix::fs::MetadataExt;

use crate::filter::Filter;

/// Bytes of a packet that fit into a record of the kernel's buffer.
const SNAP_LENGTH_MAX: u32 = 65_000;

/// Which packets are shown, and how much of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub filter: Filter,
    /// Bytes of each packet.
    pub snap_length: u32,
    /// Only one of so many packets that match.
    pub one_in: u32,
    /// Whether packets are also shown as they leave.
    pub rewritten: bool,
    /// The inode of this thread's network namespace.
    pub(crate) namespace: u32,
    /// The number of the object file that is loaded next: part of the numbers that it gives to packets.
    pub(crate) tap: u32,
}

impl Options {
    /// Options for the ports of this thread's network namespace.
    pub fn new(filter: Filter, snap_length: u32, one_in: u32, rewritten: bool) -> Self {
        let namespace = std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |of_it| of_it.ino() as u32);
        Self { filter, snap_length: snap_length.min(SNAP_LENGTH_MAX), one_in, rewritten, namespace, tap: 0 }
    }
}
