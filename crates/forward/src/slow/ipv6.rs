//! The handling of IPv6 packets that are not of the common kind.

use std::net::IpAddr;

use bm_frame::Frame;
use bm_stats::Reason;
use bm_wire::icmpv6::{self, exceeded, problem, unreachable};
use bm_wire::ipv6::{self, Ipv6};

use super::tell::Error;
use super::{Core, Fate, Now};
use crate::hop_by_hop::{self, HopByHop};
use crate::rewrite;
use crate::route::{self, Way};
use crate::tables::Tables;
use crate::validate;
use crate::verdict::{Refusal, Verdict};

impl Core {
    /// Decides on the IPv6 packet at the frame's network offset.
    pub(super) fn decide_ipv6(&mut self, tables: &Tables, frame: &Frame, now: Now) -> Fate {
        let packet = frame.data().get(usize::from(frame.meta().network)..).unwrap_or(&[]);
        let verdict = match validate::ipv6(packet) {
            Ok(_) => None,
            Err(Refusal::Slow(verdict @ (Verdict::SourceScope | Verdict::HopByHop))) => Some(verdict),
            Err(refusal) => return refusal.into(),
        };
        let Ok(ip) = Ipv6::parse(packet) else { return Fate::Drop(Reason::Ipv6Short) };
        let vrf = tables.compiled.ingress.get(usize::from(frame.meta().interface)).map_or(0, |on| on.vrf);
        let hash = || rewrite::hash_ipv6(tables.compiled.flow_ipv6, packet).unwrap_or(0);
        let way = route::ipv6(tables, vrf, ip.destination(), hash);
        let way = route::chosen(tables, frame.meta(), way, IpAddr::V6(ip.destination().into()), hash);
        match (way, verdict) {
            (Way::Host, _) => return Fate::Host,
            (_, Some(Verdict::SourceScope)) => return beyond_scope(&ip),
            (_, Some(Verdict::HopByHop)) => match process_hop_by_hop(&ip) {
                Err(fate) => return fate,
                Ok(true) if self.may_alert(now) => return Fate::Host,
                Ok(_) => {}
            },
            _ => {}
        }
        onward(tables, &ip, way)
    }
}

/// A link-local source, or none. The first is for Linux to answer: it knows the links and their neighbors, and never
/// lets such a packet leave its link (RFC 4291 2.5.6).
fn beyond_scope(ip: &Ipv6<&[u8]>) -> Fate {
    if ipv6::is_link_local(ip.source()) { Fate::Host } else { Fate::Drop(Reason::Ipv6Source) }
}

/// The effect of hop-by-hop options on a packet; returns whether one is a Router Alert.
fn process_hop_by_hop(ip: &Ipv6<&[u8]>) -> Result<bool, Fate> {
    let problem = |code, at| tell(icmpv6::parameter_problem(code, at), Reason::Ipv6Options);
    match hop_by_hop::examine(ip) {
        HopByHop::Skip => Ok(false),
        HopByHop::Alert => Ok(true),
        HopByHop::Discard => Err(Fate::Drop(Reason::Ipv6Options)),
        HopByHop::Unknown { at } => Err(problem(problem::OPTION, at)),
        HopByHop::Field { at } => Err(problem(problem::FIELD, at)),
        HopByHop::Jumbo => Err(Fate::Drop(Reason::Ipv6PayloadLength)),
    }
}

fn tell(problem: icmpv6::Problem, reason: Reason) -> Fate {
    Fate::Tell(Error::Ipv6 { problem }, reason)
}

/// The rest: route, hop limit, size, neighbor.
fn onward(tables: &Tables, ip: &Ipv6<&[u8]>, way: Way) -> Fate {
    let unreachable = |code, reason| tell(icmpv6::destination_unreachable(code), reason);
    let (hop, interface) = match way {
        Way::Host => return Fate::Host,
        Way::Blackhole => return Fate::Drop(Reason::Blackhole),
        Way::None => return unreachable(unreachable::NO_ROUTE, Reason::NoRoute),
        // As Linux: code 6 would be RFC 4443's.
        Way::Unreachable => return unreachable(unreachable::NO_ROUTE, Reason::Unreachable),
        Way::Prohibit => return unreachable(unreachable::PROHIBITED, Reason::Prohibit),
        Way::Forward { hop, entry } => (hop, entry.interface()),
        Way::Resolve { hop, neighbor } => (hop, neighbor.interface),
    };
    if ip.hop_limit() <= 1 {
        return tell(icmpv6::time_exceeded(exceeded::IN_TRANSIT), Reason::TtlExceeded);
    }
    let egress = match rewrite::egress(tables, interface) {
        Ok(egress) if egress.mtu > 0 => egress,
        Ok(_) => return Fate::Drop(Reason::InterfaceDown),
        Err(refusal) => return refusal.into(),
    };
    let mtu = rewrite::mtu_ipv6(rewrite::mtu(egress, tables.next_hops.mtu(hop)));
    match way {
        _ if ip.total_len() > mtu => tell(icmpv6::packet_too_big(mtu as u32), Reason::TooBig),
        Way::Resolve { neighbor, .. } => Fate::Hold(neighbor),
        Way::Forward { hop, entry } => Fate::Send(hop, entry),
        _ => Fate::Drop(Reason::NoRoute),
    }
}
