//! The errors that are reported to the source of a packet.

use bm_wire::Family;
use bm_wire::icmp::{self, exceeded, unreachable};
use bm_wire::icmpv6;

use super::option::Echo;

/// An error to report.
pub(super) enum Error {
    /// By ICMP. Errors caused by routes have one more limit; `options` are the error's own.
    Ipv4 { problem: icmp::Problem, by_route: bool, options: Echo },
    /// By ICMPv6.
    Ipv6 { problem: icmpv6::Problem },
}

impl From<icmp::Problem> for Error {
    fn from(problem: icmp::Problem) -> Self {
        Self::Ipv4 { problem, by_route: false, options: Echo::default() }
    }
}

impl From<icmpv6::Problem> for Error {
    fn from(problem: icmpv6::Problem) -> Self {
        Self::Ipv6 { problem }
    }
}

impl Error {
    /// The family of the packet that it is about.
    pub fn family(&self) -> Family {
        match self {
            Self::Ipv4 { .. } => Family::V4,
            Self::Ipv6 { .. } => Family::V6,
        }
    }

    /// No route leads to the destination.
    pub fn no_route(family: Family) -> Self {
        Self::by_route(family, unreachable::NETWORK, icmpv6::unreachable::NO_ROUTE)
    }

    /// The route is of type unreachable.
    pub fn unreachable(family: Family) -> Self {
        // ICMPv6 as Linux: code 6 would be RFC 4443's.
        Self::by_route(family, unreachable::HOST, icmpv6::unreachable::NO_ROUTE)
    }

    /// The route is of type prohibit.
    pub fn prohibited(family: Family) -> Self {
        Self::by_route(family, unreachable::ADMINISTRATIVELY_PROHIBITED, icmpv6::unreachable::PROHIBITED)
    }

    fn by_route(family: Family, code: u8, code_ipv6: u8) -> Self {
        match family {
            Family::V4 => Self::Ipv4 {
                problem: icmp::destination_unreachable(code, 0),
                by_route: true,
                options: Echo::default(),
            },
            Family::V6 => icmpv6::destination_unreachable(code_ipv6).into(),
        }
    }

    /// The next hop, or the destination on its link, does not answer.
    pub fn neighbor_unresolved(family: Family) -> Self {
        match family {
            Family::V4 => icmp::destination_unreachable(unreachable::HOST, 0).into(),
            Family::V6 => icmpv6::destination_unreachable(icmpv6::unreachable::ADDRESS).into(),
        }
    }

    /// TTL or hop limit exceeded in transit.
    pub fn time_exceeded(family: Family) -> Self {
        match family {
            Family::V4 => icmp::time_exceeded(exceeded::IN_TRANSIT).into(),
            Family::V6 => icmpv6::time_exceeded(icmpv6::exceeded::IN_TRANSIT).into(),
        }
    }

    /// The packet is larger than `mtu`, and may not be fragmented here.
    pub fn too_big(family: Family, mtu: usize) -> Self {
        match family {
            Family::V4 => {
                let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
                icmp::destination_unreachable(unreachable::FRAGMENTATION_NEEDED, mtu).into()
            }
            Family::V6 => icmpv6::packet_too_big(mtu as u32).into(),
        }
    }
}
