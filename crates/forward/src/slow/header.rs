//! What the slow path asks of a packet of either family.

use std::net::IpAddr;

use bm_wire::Family;
use bm_wire::ethernet::ethertype;
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;
use bm_wire::prefix::Address as _;

/// The fields of a packet's header that decide where it goes, and whether it may.
pub(crate) struct Header {
    pub family: Family,
    pub destination: IpAddr,
    /// Bytes of the packet.
    pub length: usize,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Whether a router may fragment it; never for IPv6.
    pub may_be_cut: bool,
}

impl Header {
    /// `None` for what is neither an IPv4 nor an IPv6 packet.
    pub fn parse(packet: &[u8]) -> Option<Self> {
        match (Ipv4::parse(packet), Ipv6::parse(packet)) {
            (Ok(ip), _) => Some(Self {
                family: Family::V4,
                destination: ip.destination().show(),
                length: ip.total_len().into(),
                ttl: ip.ttl(),
                may_be_cut: !ip.dont_fragment(),
            }),
            (_, Ok(ip)) => Some(Self {
                family: Family::V6,
                destination: ip.destination().show(),
                length: ip.total_len(),
                ttl: ip.hop_limit(),
                may_be_cut: false,
            }),
            _ => None,
        }
    }

    /// The type that a frame with this packet has.
    pub fn ethertype(&self) -> u16 {
        match self.family {
            Family::V4 => ethertype::IPV4,
            Family::V6 => ethertype::IPV6,
        }
    }
}
