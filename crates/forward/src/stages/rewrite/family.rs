//! The differences between IPv4 and IPv6 when a packet is rewritten.

use bm_stats::Reason;
use bm_wire::Family;
use bm_wire::ethernet::ethertype;
use bm_wire::flow;
use bm_wire::ipv4::{self, Ipv4};
use bm_wire::ipv6::{self, Ipv6};

use super::fits;
use crate::compiled::{Egress, WorkerTables};
use crate::stages::Facts;

/// An address family whose packets are rewritten.
pub(crate) trait RewriteFamily {
    const IP_VERSION: Family;
    const ETHERTYPE: u16;
    /// Length of the IP header, without options.
    const HEADER_LEN: usize;
    /// Offset in the header of [`Facts::ttl_word`], the word with the TTL.
    const TTL_WORD: usize;
    /// Why a frame is dropped that is too short for the header.
    const SHORT: Reason;

    /// Whether the packet may be forwarded (TTL above 1) and fits the interface and the route; 0 for a route without an
    /// MTU.
    fn fits(facts: Facts, egress: &Egress, route_mtu: u16) -> bool;

    /// The hash of a packet's flow, by which one of several next hops is chosen; `None` if it is malformed.
    fn flow_hash(compiled: &WorkerTables, packet: &[u8]) -> Option<u32>;
}

impl RewriteFamily for u32 {
    const IP_VERSION: Family = Family::V4;
    const ETHERTYPE: u16 = ethertype::IPV4;
    const HEADER_LEN: usize = ipv4::HEADER_LEN;
    const TTL_WORD: usize = 8;
    const SHORT: Reason = Reason::Ipv4Short;

    #[inline(always)]
    fn fits(facts: Facts, egress: &Egress, route_mtu: u16) -> bool {
        fits(facts, egress.mtu, route_mtu)
    }

    #[inline(always)]
    fn flow_hash(compiled: &WorkerTables, packet: &[u8]) -> Option<u32> {
        let by = compiled.flow_ipv4;
        Ipv4::parse(packet).ok().map(|ip| flow::ipv4(&ip, by.policy).hash(by.seed))
    }
}

impl RewriteFamily for u128 {
    const IP_VERSION: Family = Family::V6;
    const ETHERTYPE: u16 = ethertype::IPV6;
    const HEADER_LEN: usize = ipv6::HEADER_LEN;
    const TTL_WORD: usize = 4;
    const SHORT: Reason = Reason::Ipv6Short;

    #[inline(always)]
    fn fits(facts: Facts, egress: &Egress, route_mtu: u16) -> bool {
        fits(facts, egress.mtu, route_mtu)
    }

    #[inline(always)]
    fn flow_hash(compiled: &WorkerTables, packet: &[u8]) -> Option<u32> {
        let by = compiled.flow_ipv6;
        Ipv6::parse(packet).ok().map(|ip| flow::ipv6(&ip, by.policy).hash(by.seed))
    }
}
