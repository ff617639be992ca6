//! Traffic through a test bed: a generator that is faster than the router, and a sink that checks every packet.
//!
//! ```text
//! Generator (live frames, one core) ─► s0 ─ r0 │router│ r1 ─ k0 ─► Sink: counts, checks each packet
//! Paced (a socket, exact gaps)      ─┘                             order, gaps and delays on request
//! ```
//!
//! Every packet carries a sequence number, the time it was sent, and its next hop according to the table. So
//! the sink knows whether a packet was lost, late, out of order, or sent to the wrong neighbor. IPv4
//! frames have at least 60 bytes and IPv6 frames 78, since headers and payload need that much.

mod generator;
pub mod host;
mod layout;
mod mapped;
mod paced;
mod program;
mod sink;

use bm_wire::Family;
use bm_wire::prefix::{Address, Prefix};

use crate::addresses::{FCS_BYTES, Sizes};
use crate::oracle::Oracle;
use crate::tables::{self, Space};
pub use generator::{Generator, SendCount};
use layout::Destination;
pub use paced::{Paced, PacedSent, packet_socket};
pub use program::{Programs, attach, system};
pub use sink::{Arrived, FlowStatistics, Sink, SinkMode};

/// Generated from `bpf/traffic.bpf.c` during the build.
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/traffic.skel.rs"));
}

/// Maximum number of destinations of a stream.
pub const DESTINATIONS_MAX: usize = 1 << 20;
/// Maximum number of destinations of a stream whose order is tracked.
pub const TRACKED_MAX: usize = 1 << 16;

/// Which packets to send.
#[derive(Clone, Debug)]
pub struct Stream {
    destinations: Vec<Destination>,
    family: Family,
    /// Frame sizes in memory, used in turn.
    sizes: Vec<u16>,
    rate: Option<f64>,
    is_bridged: bool,
}

impl Stream {
    /// Packets to IPv4 addresses in turn, with the given sizes, as fast as possible.
    pub fn ipv4(destinations: &[u32], sizes: Sizes) -> Self {
        let addresses = destinations.iter().map(|address| {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.to_be_bytes());
            octets
        });
        Self::new(addresses, Family::V4, sizes.in_memory(layout::IPV4_BYTES_MIN))
    }

    /// Packets of IPv6 to these destinations.
    pub fn ipv6(destinations: &[u128], sizes: Sizes) -> Self {
        let addresses = destinations.iter().map(|address| address.to_be_bytes());
        Self::new(addresses, Family::V6, sizes.in_memory(layout::IPV6_BYTES_MIN))
    }

    fn new(destinations: impl Iterator<Item = [u8; 16]>, family: Family, sizes: Vec<u16>) -> Self {
        let destinations: Vec<Destination> =
            destinations.map(|address| Destination { address, ..Destination::default() }).collect();
        assert!(
            (1..=DESTINATIONS_MAX).contains(&destinations.len()),
            "a stream has 1 to {DESTINATIONS_MAX} destinations"
        );
        Self { destinations, family, sizes, rate: None, is_bridged: false }
    }

    /// Sends this many packets a second.
    pub fn at_rate(mut self, packets_per_second: f64) -> Self {
        self.rate = Some(packets_per_second);
        self
    }

    /// Whether it has a rate.
    pub fn has_rate(&self) -> bool {
        self.rate.is_some()
    }

    /// Sets the next hops that IPv4 packets must take, which the sink checks.
    pub fn expecting_ipv4(mut self, oracle: &Oracle<u32>) -> Self {
        let address =
            |to: &Destination| u32::from_be_bytes([0, 1, 2, 3].map(|index: usize| to.address[index]));
        self.destinations.iter_mut().for_each(|to| to.expect(oracle.next_hop(address(to))));
        self
    }

    /// Sets the next hops that IPv6 packets must take, which the sink checks.
    pub fn expecting_ipv6(mut self, oracle: &Oracle<u128>) -> Self {
        for to in &mut self.destinations {
            to.expect(oracle.next_hop(u128::from_be_bytes(to.address)));
        }
        self
    }

    /// Sends packets directly to the MACs of these next hops in turn, as through a switch.
    pub fn bridged(mut self, next_hops: u16) -> Self {
        let numbers = (1..=next_hops.max(1)).cycle();
        self.destinations.iter_mut().zip(numbers).for_each(|(to, number)| to.expect(number));
        self.is_bridged = true;
        self
    }

    /// Packets may take any next hop.
    pub fn expecting_any(mut self) -> Self {
        self.destinations.iter_mut().for_each(|to| to.expect(0));
        self
    }

    /// Mean size of a frame, counted with the frame check sequence.
    pub fn frame_bytes_mean(&self) -> f64 {
        let sum: f64 = self.sizes.iter().map(|&size| f64::from(size + FCS_BYTES)).sum();
        sum / self.sizes.len() as f64
    }

    /// Number of destinations.
    pub fn destinations(&self) -> usize {
        self.destinations.len()
    }
}

/// An address family, for code that measures both.
pub trait Traffic: Space + Address {
    /// The name in cases: `ipv4` or `ipv6`.
    const NAME: &'static str;
    /// The shortest frame, counted with the frame check sequence.
    const FRAME_BYTES_MIN: u16;
    /// Whether a router may forward packets to this address.
    fn is_forwardable(self) -> bool;
    /// A stream to these destinations that checks next hops against the table.
    fn stream(destinations: &[Self], sizes: Sizes, oracle: &Oracle<Self>) -> Stream;
}

impl Traffic for u32 {
    const NAME: &'static str = "ipv4";
    const FRAME_BYTES_MIN: u16 = layout::IPV4_BYTES_MIN + FCS_BYTES;
    fn is_forwardable(self) -> bool {
        !tables::is_reserved(&Prefix::host(self))
    }
    fn stream(destinations: &[Self], sizes: Sizes, oracle: &Oracle<Self>) -> Stream {
        Stream::ipv4(destinations, sizes).expecting_ipv4(oracle)
    }
}

impl Traffic for u128 {
    const NAME: &'static str = "ipv6";
    const FRAME_BYTES_MIN: u16 = layout::IPV6_BYTES_MIN + FCS_BYTES;
    fn is_forwardable(self) -> bool {
        // Global unicast as assigned so far (RFC 4291 2.4); a table's other addresses must not be sent to.
        self >> 125 == 1 && !tables::is_reserved(&Prefix::host(self))
    }
    fn stream(destinations: &[Self], sizes: Sizes, oracle: &Oracle<Self>) -> Stream {
        Stream::ipv6(destinations, sizes).expecting_ipv6(oracle)
    }
}

#[cfg(test)]
mod tests;
