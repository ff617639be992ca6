//! The handling of IPv6 packets that are not of the common kind.

use bm_frame::Frame;
use bm_stats::Reason;
use bm_wire::Family;
use bm_wire::icmpv6::{self, problem};
use bm_wire::ipv6::{self, Ipv6};
use bm_wire::prefix::Address as _;

use super::onward::onward;
use super::{Core, Decision, Now};
use crate::route;
use crate::stages::hop_by_hop::{self, HopByHop};
use crate::stages::validate;
use crate::tables::Tables;
use crate::verdict::{Refusal, Verdict};

impl Core {
    /// Decides on the IPv6 packet at the frame's network offset.
    pub(super) fn decide_ipv6(&mut self, tables: &Tables, frame: &Frame, now: Now) -> Decision {
        let packet = frame.data().get(usize::from(frame.meta().network)..).unwrap_or(&[]);
        let verdict = match validate::ipv6(packet) {
            Ok(_) => None,
            Err(Refusal::Slow(verdict @ (Verdict::SourceScope | Verdict::HopByHop))) => Some(verdict),
            Err(refusal) => return refusal.into(),
        };
        let Ok(ip) = Ipv6::parse(packet) else { return Decision::Drop(Reason::Ipv6Short) };
        let vrf = tables.compiled.ingress.get(usize::from(frame.meta().interface)).map_or(0, |on| on.vrf);
        let way = route::of_packet(tables, frame.meta(), vrf, ip.destination().show(), packet);
        match (way, verdict) {
            _ if route::is_linuxs(tables, Family::V6, frame.meta().interface, &way) => return Decision::Host,
            (_, Some(Verdict::SourceScope)) => return beyond_scope(&ip),
            (_, Some(Verdict::HopByHop)) => match process_hop_by_hop(&ip) {
                Err(fate) => return fate,
                Ok(true) if self.may_alert(tables, packet, way, now) => return Decision::Host,
                Ok(_) => {}
            },
            _ => {}
        }
        onward(tables, packet, way, self.encrypts)
    }
}

/// A link-local source, or none. The first is for Linux to answer: it knows the links and their neighbors, and never
/// lets such a packet leave its link (RFC 4291 2.5.6).
fn beyond_scope(ip: &Ipv6<&[u8]>) -> Decision {
    if ipv6::is_link_local(ip.source()) { Decision::Host } else { Decision::Drop(Reason::Ipv6Source) }
}

/// The effect of hop-by-hop options on a packet; returns whether one is a Router Alert.
fn process_hop_by_hop(ip: &Ipv6<&[u8]>) -> Result<bool, Decision> {
    let problem = |code, at| Decision::Tell(icmpv6::parameter_problem(code, at).into(), Reason::Ipv6Options);
    match hop_by_hop::examine(ip) {
        HopByHop::Skip => Ok(false),
        HopByHop::Alert => Ok(true),
        HopByHop::Linux => Err(Decision::Host),
        HopByHop::Discard => Err(Decision::Drop(Reason::Ipv6Options)),
        HopByHop::Unknown { at } => Err(problem(problem::OPTION, at)),
        HopByHop::Field { at } => Err(problem(problem::FIELD, at)),
        HopByHop::Jumbo => Err(Decision::Drop(Reason::Ipv6PayloadLength)),
    }
}
