//! Routes to one prefix: which of them a message is about, and where a new one is inserted.
//!
//! IPv4 routes are identified by TOS and metric, and a message is about one of them. For IPv6, routes of equal metric
//! with gateways are combined into one with several hops: a message that adds a hop contains all hops (before Linux
//! 4.11, only the new one, marked as appended), one that removes a hop contains only that hop.

use super::body::{Bodies, BodyId};
use crate::hop::{Hop, Via};
use crate::route::{RouteBody, RouteEvent, RouteKind};
use bm_wire::Family;

/// Routes from router advertisements (`RTPROT_RA`) are never combined with others.
pub(super) const FROM_ADVERTISEMENT: u8 = 9;

/// Whether a message says by itself what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It is about one route, and there is no other that it could be about.
    Certain,
    /// It is about a route that is not in the list.
    Unmatched,
    /// Several routes look like that, or their order is not known any more.
    Ambiguous,
}

impl Fit {
    fn certain_if(certain: bool) -> Self {
        if certain { Self::Certain } else { Self::Ambiguous }
    }
}

/// Inserts a new route into the list, and removes what it replaces. `new` is already counted as used by a route. IDs
/// that lost a route are added to `released`.
pub(super) fn put(
    family: Family,
    list: &mut Vec<BodyId>,
    bodies: &mut Bodies,
    event: RouteEvent,
    new: BodyId,
    released: &mut Vec<BodyId>,
) -> Fit {
    match family {
        Family::V4 => put4(list, bodies, event, new, released),
        Family::V6 => put6(list, bodies, event, new, released),
    }
}

fn put4(
    list: &mut Vec<BodyId>,
    bodies: &Bodies,
    event: RouteEvent,
    new: BodyId,
    released: &mut Vec<BodyId>,
) -> Fit {
    let body = bodies.body(new);
    let rank = |id: BodyId| bodies.body(id).rank();
    let first_of_rank = first(list, |id| rank(id) == body.rank());
    // A list of the kernel may have two that look alike.
    let same = match event {
        RouteEvent::Listed => None,
        _ => first(list, |id| id == new || bodies.body(id).same_route(body)),
    };
    if let Some(same) = same {
        let moves = event == RouteEvent::Replaced && !body.via.is_object();
        let victim = first_of_rank.filter(|&at| at < same && moves);
        released.push(std::mem::replace(&mut list[same], new));
        if let Some(victim) = victim {
            // A dump has shown the result already, and an event before it has put back what it replaced. A route with
            // an object is also announced like this when only its object has changed.
            released.push(list.remove(victim));
        }
        return Fit::certain_if(event == RouteEvent::Replaced && victim.is_none());
    }
    if let (RouteEvent::Replaced, Some(at)) = (event, first_of_rank) {
        released.push(std::mem::replace(&mut list[at], new));
        return Fit::Certain;
    }
    list.insert(
        first(list, |id| match event {
            RouteEvent::Added => rank(id) >= body.rank(),
            _ => rank(id) > body.rank(),
        })
        .unwrap_or(list.len()),
        new,
    );
    // It has replaced one that is not here.
    Fit::certain_if(event != RouteEvent::Replaced)
}

fn put6(
    list: &mut Vec<BodyId>,
    bodies: &mut Bodies,
    event: RouteEvent,
    new: BodyId,
    released: &mut Vec<BodyId>,
) -> Fit {
    let body = bodies.body(new);
    let peer = |id| peers(bodies.body(id), body);
    let alike = |id| peer(id) && joins(bodies.body(id)) == joins(body);
    let same = first(list, |id| peer(id) && bodies.body(id).via.same_places(&body.via));
    // Whether Linux combines a route from an advertisement with others depends on who has added it, which the message
    // does not say.
    let advertised = list.iter().any(|&id| {
        let protocols = [bodies.body(id).protocol, body.protocol];
        peer(id) && id != new && protocols.contains(&FROM_ADVERTISEMENT)
    });
    let (at, certain) = match event {
        RouteEvent::Listed => (first(list, |id| alike(id) && joins(body)), true),
        RouteEvent::Replaced => {
            let victim = first(list, alike).or_else(|| first(list, peer));
            // It has either replaced the first of its kind, or says that something else of a route has changed: the
            // preference of a router, or the content of an object.
            let renewed = same.filter(|_| !joins(body) && (advertised || body.via.is_object()));
            (renewed.or(victim), same.is_none_or(|same| Some(same) == victim) && victim.is_some())
        }
        // What is combined is one route of that metric, and except for a single appended hop the message contains all
        // of it.
        _ if joins(body) => (first(list, alike), true),
        _ => (same, same.is_none()),
    };
    match at {
        Some(at) if event == RouteEvent::Appended && !within(bodies.body(list[at]), body) => {
            let both = joined(bodies.body(list[at]), body);
            released.push(new);
            released.push(std::mem::replace(&mut list[at], bodies.intern(both)));
        }
        Some(at) => released.push(std::mem::replace(&mut list[at], new)),
        None => {
            // Routes for some sources are in trees of their own, so they have no order among others.
            let behind = first(list, |id| {
                let other = bodies.body(id);
                (other.source, other.priority) > (body.source, body.priority)
            });
            list.insert(behind.unwrap_or(list.len()), new);
        }
    }
    Fit::certain_if(certain && (!advertised || event == RouteEvent::Listed))
}

/// Removes a route, or one hop of it, from the list.
pub(super) fn take(
    family: Family,
    list: &mut Vec<BodyId>,
    bodies: &mut Bodies,
    gone: &RouteBody,
    released: &mut Vec<BodyId>,
) -> Fit {
    let exact = |id: BodyId| bodies.body(id).same_route(gone);
    let found = first(list, exact).or_else(|| {
        // Linux distinguishes IPv6 routes by metric and next hop, and changes the rest without a message.
        first(list, |id| {
            let body = bodies.body(id);
            family == Family::V6 && peers(body, gone) && body.via.same_places(&gone.via)
        })
    });
    if let Some(at) = found {
        let others = list.iter().filter(|&&id| exact(id)).count();
        released.push(list.remove(at));
        return Fit::certain_if(others < 2);
    }
    if family == Family::V4 || gone.via.hops().is_empty() {
        return Fit::Unmatched;
    }
    let Some(at) = first(list, |id| {
        let body = bodies.body(id);
        peers(body, gone) && body.kind == gone.kind && within(gone, body)
    }) else {
        return Fit::Unmatched;
    };
    let body = bodies.body(list[at]);
    // The other hops stand where each of them was inserted, perhaps behind other routes of the metric.
    let alone = list.iter().filter(|&&id| peers(bodies.body(id), body)).count() < 2;
    let left = body.via.hops().iter().filter(|hop| !contains(gone.via.hops(), hop)).copied().collect();
    let rest = RouteBody { via: Via::from_hops(left), ..body.clone() };
    match rest.via {
        Via::Nowhere => released.push(list.remove(at)),
        _ => released.push(std::mem::replace(&mut list[at], bodies.intern(rest))),
    }
    Fit::certain_if(alone)
}

fn first(list: &[BodyId], wanted: impl Fn(BodyId) -> bool) -> Option<usize> {
    list.iter().position(|&id| wanted(id))
}

/// Whether one may replace the other: equal metric and sources.
pub(super) fn peers(one: &RouteBody, two: &RouteBody) -> bool {
    one.rank() == two.rank() && one.source == two.source
}

/// Whether an IPv6 route shares its prefix with others of its metric (`rt6_qualify_for_ecmp`).
pub(super) fn joins(body: &RouteBody) -> bool {
    let hops = body.via.hops();
    body.kind == RouteKind::Unicast
        && (body.protocol != FROM_ADVERTISEMENT || hops.len() > 1)
        && !hops.is_empty()
        && hops.iter().all(|hop| hop.gateway.is_some())
}

fn contains(hops: &[Hop], wanted: &Hop) -> bool {
    hops.iter().any(|hop| {
        (hop.gateway, hop.ifindex, hop.encap, hop.others)
            == (wanted.gateway, wanted.ifindex, wanted.encap, wanted.others)
    })
}

/// Whether `whole` contains all hops of `part`.
fn within(part: &RouteBody, whole: &RouteBody) -> bool {
    part.via.hops().iter().all(|hop| contains(whole.via.hops(), hop))
}

/// `ours` with the hops of `new` that it lacks.
fn joined(ours: &RouteBody, new: &RouteBody) -> RouteBody {
    let added = new.via.hops();
    // If the message contains a known hop, its state in the message is newer.
    let kept = ours.via.hops().iter().filter(|hop| !contains(added, hop));
    let mut hops: Vec<_> = kept.chain(added).copied().collect();
    hops.sort_unstable();
    RouteBody { via: Via::from_hops(hops), ..new.clone() }
}
