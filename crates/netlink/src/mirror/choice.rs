//! Which of several routes to one prefix Linux takes.
//!
//! IPv4 takes the first that is usable, in the order of the list. IPv6 (`rt6_select`) looks among the routes of the
//! lowest metric for the one with the highest router preference, and takes the first of those, or one over the link by
//! which the packet has come in; only if none of them is usable, it does the same with all others together, whatever their metrics. If the machine does not forward on all
//! interfaces, the state of the routers' neighbor entries counts as well, and routers take turns.
//!
//! What no message tells makes the choice unknown: then it is Linux that has to make it.

use super::order::{FROM_ADVERTISEMENT, joins, peers};
use super::{BodyId, Mirror, Routes};
use crate::hop::Via;
use crate::netconf;
use crate::next_hop::Object;
use crate::route::RouteBody;
use bm_wire::Family;
use bm_wire::prefix::{self, Prefix};
use std::collections::BTreeSet;

/// Which of several routes is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// None is usable: Linux continues with a shorter prefix.
    Nothing,
    /// The one with this body, of those in the list.
    Route(BodyId),
    /// It depends on something that only Linux knows.
    Unknown,
}

impl Mirror {
    /// Sets whether the kernel knows router preferences (`CONFIG_IPV6_ROUTER_PREF`).
    pub(crate) fn set_router_preference(&mut self, known: bool) {
        self.no_router_preference = !known;
    }

    /// Chooses among the routes to a prefix, given which of them are usable.
    pub fn choose<A: prefix::Address>(
        &self,
        routes: &Routes<A>,
        table: u32,
        prefix: Prefix<A>,
        list: &[BodyId],
        mut usable: impl FnMut(BodyId) -> bool,
    ) -> Choice {
        if routes.in_doubt(table, prefix) {
            return Choice::Unknown;
        }
        if A::FAMILY == Family::V6 {
            return self.choose6(routes, prefix, list, usable);
        }
        list.iter().find(|id| usable(**id)).map_or(Choice::Nothing, |id| Choice::Route(*id))
    }

    fn choose6<A: prefix::Address>(
        &self,
        routes: &Routes<A>,
        prefix: Prefix<A>,
        list: &[BodyId],
        mut usable: impl FnMut(BodyId) -> bool,
    ) -> Choice {
        let body = |id: BodyId| routes.bodies.body(id);
        if let &[id] = list {
            return match usable(id) {
                _ if changes_silently(body(id), prefix) => Choice::Unknown,
                true => Choice::Route(id),
                false => Choice::Nothing,
            };
        }
        let live: Vec<BodyId> = list.iter().copied().filter(|id| usable(*id)).collect();
        let metric = list.first().map_or(0, |&id| body(id).priority);
        let lowest: Vec<BodyId> = live.iter().copied().filter(|&id| body(id).priority == metric).collect();
        let among = if lowest.is_empty() { &live } else { &lowest };
        let score = |id: BodyId| score(body(id).preference);
        // Of several with the same, the first.
        let best = among.iter().copied().reduce(|best, id| if score(id) > score(best) { id } else { best });
        let Some(best) = best else { return Choice::Nothing };
        let unknown = list.iter().any(|&id| {
            let body = body(id);
            changes_silently(body, prefix) || self.is_blackhole(body) || hides_others(routes, list, id)
        }) || self.no_router_preference && among.iter().any(|&id| score(id) != score(best))
            || among.len() > 1 && !self.netconf_of(Family::V6, netconf::ALL).forwarding
            || self.leave_by_several_links(
                among.iter().filter(|&&id| score(id) == score(best)).map(|&id| body(id)),
            );
        if unknown { Choice::Unknown } else { Choice::Route(best) }
    }

    /// Whether there are several routes, over different links. If nothing else distinguishes them, Linux prefers one over
    /// the link by which the packet has come in.
    fn leave_by_several_links<'b>(&self, bodies: impl Iterator<Item = &'b RouteBody>) -> bool {
        let links: Vec<BTreeSet<u32>> =
            bodies.map(|body| self.paths(body).hops.iter().map(|hop| hop.ifindex).collect()).collect();
        links.len() > 1 && (links[0].len() > 1 || links.iter().any(|of_body| *of_body != links[0]))
    }

    /// An object that drops packets ends the search wherever it stands.
    fn is_blackhole(&self, body: &RouteBody) -> bool {
        let Via::Object(id) = body.via else { return false };
        self.next_hops.get(&id).is_some_and(|next_hop| next_hop.object == Object::Blackhole)
    }
}

/// Whether Linux changes the preference and the lifetime of a route without a message: those from the route
/// information of advertisements (RFC 4191), unlike default routes.
fn changes_silently<A: prefix::Address>(body: &RouteBody, prefix: Prefix<A>) -> bool {
    body.protocol == FROM_ADVERTISEMENT
        && prefix.length() > 0
        && body.via.hops().iter().any(|hop| hop.gateway.is_some())
}

/// Whether a route has several hops, and others have its metric. Linux keeps them mixed, and a list that it makes
/// contains nothing between the first and the last of these hops.
pub(super) fn hides_others<A: prefix::Address>(routes: &Routes<A>, list: &[BodyId], id: BodyId) -> bool {
    let body = routes.bodies.body(id);
    joins(body)
        && body.via.hops().len() > 1
        && list.iter().filter(|other| peers(routes.bodies.body(**other), body)).count() > 1
}

/// Order of router preferences: low (3), medium (0), high (1).
fn score(preference: u8) -> u8 {
    preference & 3 ^ 2
}
