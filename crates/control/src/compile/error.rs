//! Why tables cannot be created.

use std::fmt;

use bm_fib::TableFull;
use bm_fib::memory::OutOfMemory;
use bm_fib::next_hop::NextHopError;

/// Why tables cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// No memory for next hops.
    Memory(OutOfMemory),
    /// No room even for the fixed next hops.
    NextHops(NextHopError),
    /// No memory for an IPv4 table.
    Ipv4(TableFull<u32>),
    /// No memory for an IPv6 table.
    Ipv6(TableFull<u128>),
    /// No memory for the counters of filters.
    Filters(OutOfMemory),
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(why) => write!(f, "cannot allocate the table of next hops: {why}"),
            Self::NextHops(why) => write!(f, "cannot create the table of next hops: {why}"),
            Self::Ipv4(why) => write!(f, "cannot create an IPv4 table: {why}"),
            Self::Ipv6(why) => write!(f, "cannot create an IPv6 table: {why}"),
            Self::Filters(why) => write!(f, "cannot filter packets: {why}"),
        }
    }
}

impl std::error::Error for CompileError {}
