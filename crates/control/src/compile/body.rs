//! Route bodies as compiled: where each leads, worked out once for all routes that share it.
//!
//! A full table has a million prefixes and some hundred bodies, so this is where the work is saved: a
//! route costs a look into an array. A body holds its target as long as the mirror has it.

use super::targets::{Fixed, Target, Targets};
use super::view::{Adjacency, View};
use bm_fib::memory::Part;
use bm_fib::next_hop::NextHopError;
use bm_netlink::{BodyId, Ip, Mirror, RouteBody, RouteKind, Routes};
use std::collections::BTreeSet;
use std::fmt;

/// A family of addresses, with its part of the mirror.
pub trait Side: Ip {
    /// What memory its tables ask for.
    const PART: Part;
    /// What memory its tables of sources ask for.
    const SOURCES: Part;
    /// Its routes.
    fn routes(mirror: &Mirror) -> &Routes<Self>;
    /// The number of an address, if it is of this family.
    fn number(address: std::net::IpAddr) -> Option<Self>;
    /// Whether an address never leaves its link.
    fn link_local(self) -> bool;
}

impl Side for u32 {
    const PART: Part = Part::Ipv4;
    const SOURCES: Part = Part::Sources4;
    fn routes(mirror: &Mirror) -> &Routes<Self> {
        mirror.ipv4()
    }
    fn number(address: std::net::IpAddr) -> Option<Self> {
        match address {
            std::net::IpAddr::V4(address) => Some(address.into()),
            std::net::IpAddr::V6(_) => None,
        }
    }
    fn link_local(self) -> bool {
        false
    }
}

impl Side for u128 {
    const PART: Part = Part::Ipv6;
    const SOURCES: Part = Part::Sources6;
    fn routes(mirror: &Mirror) -> &Routes<Self> {
        mirror.ipv6()
    }
    fn number(address: std::net::IpAddr) -> Option<Self> {
        match address {
            std::net::IpAddr::V4(_) => None,
            std::net::IpAddr::V6(address) => Some(address.into()),
        }
    }
    fn link_local(self) -> bool {
        self >> 118 == 0xfe80 >> 6
    }
}

/// Where a body leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nowhere now: the kernel goes on to the next route.
    Inactive,
    /// Out of its table, to the next one.
    Throw,
    /// There.
    To(Target),
}

/// Why Linux forwards packets of a route that it could leave to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is for some packets only, by type of service or by source.
    Selects,
    /// It names an object that the mirror does not have.
    UnknownObject(u32),
    /// There is no room for its next hop.
    NextHop(NextHopError),
}

impl Why {
    /// Whether it is a fault, and not just something that only Linux does.
    pub fn is_fault(&self) -> bool {
        !matches!(self, Self::Selects)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Selects => f.write_str("it is only for some types of service or sources"),
            Self::UnknownObject(id) => write!(f, "unknown nexthop object {id}"),
            Self::NextHop(why) => write!(f, "{why}"),
        }
    }
}

#[derive(Debug)]
struct State {
    body: RouteBody,
    outcome: Outcome,
    /// The link, if it leads to one whose destinations are neighbours.
    on_link: Option<Adjacency>,
    /// Our interfaces that its hops are on, whether they take packets or not.
    ways: Box<[u16]>,
    why: Option<Why>,
}

/// The bodies of a family.
#[derive(Debug, Default)]
pub(super) struct Bodies {
    states: Vec<Option<State>>,
    /// Those that are not what they should be, for want of room.
    troubled: BTreeSet<BodyId>,
}

impl Bodies {
    /// Where a body leads.
    pub fn outcome<A: Side>(&mut self, id: BodyId, view: View<'_>, targets: &mut Targets) -> Outcome {
        if let Some(Some(state)) = self.states.get(id.index()) {
            return state.outcome;
        }
        self.assess::<A>(id, view, targets);
        self.states.get(id.index()).and_then(Option::as_ref).map_or(Outcome::Inactive, |state| state.outcome)
    }

    /// Our interfaces that a body's hops are on, whether they take packets now or not; in order, each once.
    pub fn ways<A: Side>(&mut self, id: BodyId, view: View<'_>, targets: &mut Targets) -> &[u16] {
        self.outcome::<A>(id, view, targets);
        self.states.get(id.index()).and_then(Option::as_ref).map_or(&[], |state| &state.ways)
    }

    /// Why Linux has a body's packets though it need not, if that is so.
    pub fn why(&self, id: BodyId) -> Option<Why> {
        self.states.get(id.index())?.as_ref()?.why
    }

    /// Works out anew where `ids` lead. Those whose routes have to be looked at again are added to
    /// `flipped`: they are the same routes, and lead elsewhere.
    pub fn reassess<A: Side>(
        &mut self,
        ids: impl IntoIterator<Item = BodyId>,
        view: View<'_>,
        targets: &mut Targets,
        flipped: &mut BTreeSet<BodyId>,
    ) {
        for id in ids {
            let Some(before) = self.states.get_mut(id.index()).and_then(Option::take) else { continue };
            self.assess::<A>(id, view, targets);
            if let Outcome::To(target) = before.outcome {
                targets.release(target);
            }
            if let Some(Some(now)) = self.states.get(id.index())
                && now.body.same_route(&before.body)
                && (now.outcome, now.on_link, &now.ways) != (before.outcome, before.on_link, &before.ways)
            {
                flipped.insert(id);
            }
        }
    }

    /// Those whose next hop found no room, to try again.
    pub fn troubled(&self, most: usize) -> Vec<BodyId> {
        self.troubled.iter().take(most).copied().collect()
    }

    /// How many there are.
    pub fn without_room(&self) -> usize {
        self.troubled.len()
    }

    /// Gives back every target.
    pub fn clear(&mut self, targets: &mut Targets) {
        for state in self.states.drain(..).flatten() {
            if let Outcome::To(target) = state.outcome {
                targets.release(target);
            }
        }
        self.troubled.clear();
    }

    /// The target of each body that has one.
    #[cfg(test)]
    pub fn targets(&self) -> impl Iterator<Item = Target> + '_ {
        self.states.iter().flatten().filter_map(|state| match state.outcome {
            Outcome::To(target) => Some(target),
            Outcome::Inactive | Outcome::Throw => None,
        })
    }

    fn assess<A: Side>(&mut self, id: BodyId, view: View<'_>, targets: &mut Targets) {
        self.troubled.remove(&id);
        let Some(body) = A::routes(view.mirror).body(id) else { return };
        let (outcome, why) = assessed::<A>(body, view, targets);
        if matches!(why, Some(Why::NextHop(_))) {
            self.troubled.insert(id);
        }
        let on_link = match outcome {
            Outcome::To(target) => targets.on_link(target),
            Outcome::Inactive | Outcome::Throw => None,
        };
        if self.states.len() <= id.index() {
            self.states.resize_with(id.index() + 1, || None);
        }
        self.states[id.index()] =
            Some(State { body: body.clone(), outcome, on_link, ways: ways(body, view), why });
    }
}

/// Where a body leads, with one more user of the target.
fn assessed<A: Side>(body: &RouteBody, view: View<'_>, targets: &mut Targets) -> (Outcome, Option<Why>) {
    if !active::<A>(body, view) {
        return (Outcome::Inactive, None);
    }
    let mut fixed = |fixed: Fixed, why| {
        targets.retain(fixed.target());
        (Outcome::To(fixed.target()), why)
    };
    if body.tos != 0 || body.source.is_some() {
        return fixed(Fixed::Host, Some(Why::Selects));
    }
    match body.kind {
        RouteKind::Unicast => {}
        RouteKind::Throw => return (Outcome::Throw, None),
        RouteKind::Blackhole => return fixed(Fixed::Blackhole, None),
        RouteKind::Unreachable => return fixed(Fixed::Unreachable, None),
        RouteKind::Prohibit => return fixed(Fixed::Prohibit, None),
        _ => return fixed(Fixed::Host, None),
    }
    match targets.of_via(view, A::FAMILY, &body.via, body.mtu) {
        Ok(target) => (Outcome::To(target), unknown(body, view)),
        Err(why) => {
            targets.retain(Fixed::Host.target());
            (Outcome::To(Fixed::Host.target()), Some(Why::NextHop(why)))
        }
    }
}

fn ways(body: &RouteBody, view: View<'_>) -> Box<[u16]> {
    let interface = |hop: &bm_netlink::Hop| view.interfaces.index_of(hop.ifindex);
    let mut ways: Vec<u16> = match &body.via {
        bm_netlink::Via::Object(_) => view.mirror.paths(body).hops.iter().filter_map(interface).collect(),
        via => via.hops().iter().filter_map(interface).collect(),
    };
    ways.sort_unstable();
    ways.dedup();
    ways.into()
}

fn unknown(body: &RouteBody, view: View<'_>) -> Option<Why> {
    match body.via {
        bm_netlink::Via::Object(_) => view.mirror.paths(body).unknown.map(Why::UnknownObject),
        _ => None,
    }
}

/// Whether the kernel would use the body now, and not go on to the next route.
fn active<A: Side>(body: &RouteBody, view: View<'_>) -> bool {
    if body.kind.refuses() || body.kind == RouteKind::Local {
        return true;
    }
    let usable = |hop| view.mirror.usable(A::FAMILY, hop);
    match &body.via {
        bm_netlink::Via::Object(_) => {
            let paths = view.mirror.paths(body);
            // An object that we do not know of cannot be called dead: Linux has the word.
            paths.blackhole || paths.unknown.is_some() || paths.hops.iter().any(usable)
        }
        via => via.hops().iter().any(usable),
    }
}
