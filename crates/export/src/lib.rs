//! Samples of packets and counters of ports, as datagrams for collectors: sFlow version 5 and IPFIX.
//!
//! ```text
//! PacketSample ─┬─► Sflow: flow samples ──────────┐
//! PortCounters ─┤           counter samples        ├─► datagrams ─► Collector: a UDP socket that never waits
//!               └─► Ipfix: a flow record per sample┘                           what it could not send is counted
//! ```
//!
//! No threads and no clock: time is an argument. Nothing here knows where samples come from.

#![forbid(unsafe_code)]

mod bytes;
mod collector;
mod headers;
mod ipfix;
mod sflow;

use std::net::IpAddr;

pub use collector::{Collector, Tallies, Tally};
pub use ipfix::Ipfix;
pub use sflow::Sflow;

/// Bytes of a datagram at most: it fits into an Ethernet frame with a tunnel's headers around it.
const DATAGRAM_MAX: usize = 1400;

/// A time, as the formats want it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Since the exporter has started.
    pub uptime_ms: u32,
    /// Since 1970.
    pub unix_ms: u64,
}

/// What became of a sampled packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardingStatus {
    /// It left through this interface.
    Sent(u32),
    Dropped(DropCause),
    /// Linux or a worker got it.
    Unknown,
}

/// Why a sampled packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropCause {
    /// A filter rule.
    Filter,
    /// A check of the reverse path.
    ReversePath,
    /// More packets than are allowed in a time.
    RateLimit,
    /// A blackhole route.
    Blackhole,
}

/// A received packet that was sampled.
#[derive(Clone, Copy, Debug)]
pub struct PacketSample<'a> {
    /// Index of the interface in Linux.
    pub ifindex: u32,
    pub forwarding: ForwardingStatus,
    /// Of the frame, without its check sequence.
    pub length: u32,
    /// The first bytes of the frame.
    pub header: &'a [u8],
    /// One packet in so many is sampled.
    pub one_in: u32,
    /// Packets received there since sampling began, sampled or not.
    pub pool: u32,
    /// Samples there that were lost.
    pub lost: u32,
}

/// What an interface has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Index of the interface in Linux.
    pub ifindex: u32,
    /// Whether it is up as configured, and whether it has a carrier.
    pub status: [bool; 2],
    pub rx: Traffic,
    pub tx: Traffic,
}

/// What is counted in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub packets: u64,
    pub bytes: u64,
    pub errors: u64,
    pub dropped: u64,
}

/// A format.
pub trait Encoder: Send {
    /// Adds a sample; returns whether the format has a place for it.
    fn add_packet(&mut self, sample: &PacketSample<'_>, now: Now) -> bool;

    /// Sets the address by which collectors know this router, if the format has it.
    fn set_agent(&mut self, _agent: IpAddr) {}

    /// Adds the counters of an interface, if the format has them.
    fn add_counters(&mut self, _counters: &PortCounters, _now: Now) {}

    /// The datagrams that are complete, and with `all` also the one that is not full yet.
    fn take(&mut self, all: bool, now: Now) -> Vec<Vec<u8>>;
}
