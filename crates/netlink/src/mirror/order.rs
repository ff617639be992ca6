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
const FROM_ADVERTISEMENT: u8 = 9;

/// Inserts a new route into the list, and removes what it replaces. `new` is already counted as used by a route. IDs
/// that lost a route are added to `released`.
pub(super) fn put(
    family: Family,
    list: &mut Vec<BodyId>,
    bodies: &mut Bodies,
    event: RouteEvent,
    new: BodyId,
    released: &mut Vec<BodyId>,
) {
    let body = bodies.body(new);
    if let Some(same) = list.iter().position(|&id| id == new || bodies.body(id).same_route(body)) {
        let victim = first(list, |id| bodies.body(id).rank() == body.rank()).filter(|&at| at < same);
        let moves = event == RouteEvent::Replaced && family == Family::V4 && !body.via.is_object();
        released.push(std::mem::replace(&mut list[same], new));
        if let Some(victim) = victim.filter(|_| moves) {
            // A dump has shown the result already, and an event before it has put back what it replaced. A route with
            // an object is also announced like this when only its object has changed.
            released.push(list.remove(victim));
        }
        return;
    }
    let replaced = match (family, event) {
        (Family::V4, RouteEvent::Replaced) => first(list, |id| bodies.body(id).rank() == body.rank()),
        (Family::V6, RouteEvent::Replaced) => {
            let peer = |id| peers(bodies.body(id), body);
            first(list, |id| peer(id) && joins(bodies.body(id)) == joins(body)).or_else(|| first(list, peer))
        }
        // What is combined is one route of that metric, and except for a single appended hop the message contains all
        // of it.
        (Family::V6, _) if joins(body) => {
            first(list, |id| peers(bodies.body(id), body) && joins(bodies.body(id)))
        }
        _ => None,
    };
    match replaced {
        Some(at) if event == RouteEvent::Appended && !within(bodies.body(list[at]), body) => {
            let both = joined(bodies.body(list[at]), body);
            released.push(new);
            released.push(std::mem::replace(&mut list[at], bodies.intern(both)));
        }
        Some(at) => released.push(std::mem::replace(&mut list[at], new)),
        None => {
            let before = |id: BodyId| match (family, event) {
                (Family::V4, RouteEvent::Added) => bodies.body(id).rank() >= body.rank(),
                _ => bodies.body(id).rank() > body.rank(),
            };
            list.insert(first(list, before).unwrap_or(list.len()), new);
        }
    }
}

/// Removes a route, or one hop of it, from the list. `false` if the message is about none of them.
pub(super) fn take(
    family: Family,
    list: &mut Vec<BodyId>,
    bodies: &mut Bodies,
    gone: &RouteBody,
    released: &mut Vec<BodyId>,
) -> bool {
    if let Some(at) = first(list, |id| bodies.body(id).same_route(gone)) {
        released.push(list.remove(at));
        return true;
    }
    if family == Family::V4 || gone.via.hops().is_empty() {
        return false;
    }
    let Some(at) = first(list, |id| {
        let body = bodies.body(id);
        peers(body, gone) && body.kind == gone.kind && within(gone, body)
    }) else {
        return false;
    };
    let body = bodies.body(list[at]);
    let left = body.via.hops().iter().filter(|hop| !contains(gone.via.hops(), hop)).copied().collect();
    let rest = RouteBody { via: Via::from_hops(left), ..body.clone() };
    match rest.via {
        Via::Nowhere => released.push(list.remove(at)),
        _ => released.push(std::mem::replace(&mut list[at], bodies.intern(rest))),
    }
    true
}

fn first(list: &[BodyId], wanted: impl Fn(BodyId) -> bool) -> Option<usize> {
    list.iter().position(|&id| wanted(id))
}

/// Whether one may replace the other: equal metric and sources.
pub(super) fn peers(one: &RouteBody, two: &RouteBody) -> bool {
    one.rank() == two.rank() && one.source == two.source
}

/// Whether an IPv6 route shares its prefix with others of its metric (`rt6_qualify_for_ecmp`).
fn joins(body: &RouteBody) -> bool {
    let hops = body.via.hops();
    body.kind == RouteKind::Unicast
        && body.protocol != FROM_ADVERTISEMENT
        && !hops.is_empty()
        && hops.iter().all(|hop| hop.gateway.is_some())
}

fn contains(hops: &[Hop], wanted: &Hop) -> bool {
    hops.iter().any(|hop| (hop.gateway, hop.ifindex) == (wanted.gateway, wanted.ifindex))
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
