//! What routes have in common, as Linux's `fib_info`: the destination of each is computed once for all routes that share
//! it.
//!
//! A full table has a million prefixes and a few hundred of these, so this saves most of the work: a route costs one
//! array lookup. A fib_info holds its target as long as it is in the mirror, which calls it a body.

use super::targets::{FixedTarget, Target, Targets};
use super::view::{Adjacency, View};
use bm_fib::memory::Part;
use bm_fib::next_hop::NextHopError;
use bm_netlink::{BodyId, Mirror, RouteBody, RouteKind, Routes};
use bm_wire::prefix::Address;
use std::collections::BTreeSet;
use std::fmt;

/// An address family, with its part of the mirror.
pub trait RouteFamily: Address {
    /// The memory part for its tables.
    const PART: Part;
    /// The memory part for its tables of sources.
    const SOURCES: Part;
    fn routes(mirror: &Mirror) -> &Routes<Self>;
    /// An address as a number, if it is of this family.
    fn number(address: std::net::IpAddr) -> Option<Self>;
    /// Whether an address is never forwarded off its link.
    fn link_local(self) -> bool;
}

impl RouteFamily for u32 {
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

impl RouteFamily for u128 {
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
    /// Nowhere at present: the kernel continues with the next route.
    Inactive,
    /// Out of its table, to the next table (`throw`).
    Throw,
    /// To this target.
    To(Target),
}

/// Why Linux forwards packets of a route that brickmoon could forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinuxReason {
    /// The route is only for some packets, by type of service or source.
    Selects,
    /// It uses a nexthop object that the mirror does not have.
    UnknownObject(u32),
    /// There is no room for its next hop.
    NextHop(NextHopError),
}

impl LinuxReason {
    /// Whether it is a fault, rather than a feature that only Linux supports.
    pub fn is_fault(&self) -> bool {
        !matches!(self, Self::Selects)
    }
}

impl fmt::Display for LinuxReason {
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
    /// The link, if destinations are on the link.
    on_link: Option<Adjacency>,
    /// Our interfaces of its hops, whether they are alive or not.
    interfaces: Box<[u16]>,
    why: Option<LinuxReason>,
}

/// All of a family.
#[derive(Debug, Default)]
pub(super) struct FibInfos {
    states: Vec<Option<State>>,
    /// Those that lead to Linux because there was no room.
    waiting_for_room: BTreeSet<BodyId>,
}

impl FibInfos {
    /// Where a fib_info leads.
    pub fn outcome<A: RouteFamily>(&mut self, id: BodyId, view: View<'_>, targets: &mut Targets) -> Outcome {
        if let Some(Some(state)) = self.states.get(id.index()) {
            return state.outcome;
        }
        self.compile::<A>(id, view, targets);
        self.states.get(id.index()).and_then(Option::as_ref).map_or(Outcome::Inactive, |state| state.outcome)
    }

    /// Our interfaces of its hops, whether they are alive or not; sorted, without duplicates.
    pub fn interfaces<A: RouteFamily>(
        &mut self,
        id: BodyId,
        view: View<'_>,
        targets: &mut Targets,
    ) -> &[u16] {
        self.outcome::<A>(id, view, targets);
        self.states.get(id.index()).and_then(Option::as_ref).map_or(&[], |state| &state.interfaces)
    }

    /// Why its packets are left to Linux unnecessarily, if so.
    pub fn why(&self, id: BodyId) -> Option<LinuxReason> {
        self.states.get(id.index())?.as_ref()?.why
    }

    /// Computes again where `ids` lead. Those whose routes must be compiled again are added to `moved`: the routes have not
    /// changed, but lead elsewhere.
    pub fn update<A: RouteFamily>(
        &mut self,
        ids: impl IntoIterator<Item = BodyId>,
        view: View<'_>,
        targets: &mut Targets,
        moved: &mut BTreeSet<BodyId>,
    ) {
        for id in ids {
            let Some(before) = self.states.get_mut(id.index()).and_then(Option::take) else { continue };
            self.compile::<A>(id, view, targets);
            if let Outcome::To(target) = before.outcome {
                targets.release(target);
            }
            if let Some(Some(now)) = self.states.get(id.index())
                && now.body.same_route(&before.body)
                && (now.outcome, now.on_link, &now.interfaces)
                    != (before.outcome, before.on_link, &before.interfaces)
            {
                moved.insert(id);
            }
        }
    }

    /// Those whose next hop found no room, to try again.
    pub fn waiting_for_room(&self, most: usize) -> Vec<BodyId> {
        self.waiting_for_room.iter().take(most).copied().collect()
    }

    /// Number of those whose next hop found no room.
    pub fn without_room(&self) -> usize {
        self.waiting_for_room.len()
    }

    /// Releases all targets.
    pub fn clear(&mut self, targets: &mut Targets) {
        for state in self.states.drain(..).flatten() {
            if let Outcome::To(target) = state.outcome {
                targets.release(target);
            }
        }
        self.waiting_for_room.clear();
    }

    /// Where all of them lead, except those that lead nowhere.
    #[cfg(test)]
    pub fn targets(&self) -> impl Iterator<Item = Target> + '_ {
        self.states.iter().flatten().filter_map(|state| match state.outcome {
            Outcome::To(target) => Some(target),
            Outcome::Inactive | Outcome::Throw => None,
        })
    }

    fn compile<A: RouteFamily>(&mut self, id: BodyId, view: View<'_>, targets: &mut Targets) {
        self.waiting_for_room.remove(&id);
        let Some(body) = A::routes(view.mirror).body(id) else { return };
        let (outcome, why) = outcome_of::<A>(body, view, targets);
        if matches!(why, Some(LinuxReason::NextHop(_))) {
            self.waiting_for_room.insert(id);
        }
        let on_link = match outcome {
            Outcome::To(target) => targets.on_link(target),
            Outcome::Inactive | Outcome::Throw => None,
        };
        if self.states.len() <= id.index() {
            self.states.resize_with(id.index() + 1, || None);
        }
        self.states[id.index()] = Some(State {
            body: body.clone(),
            outcome,
            on_link,
            interfaces: feasible_interfaces(body, view),
            why,
        });
    }
}

/// Computes where a fib_info leads, and adds a user to the target.
fn outcome_of<A: RouteFamily>(
    body: &RouteBody,
    view: View<'_>,
    targets: &mut Targets,
) -> (Outcome, Option<LinuxReason>) {
    if !active::<A>(body, view) {
        return (Outcome::Inactive, None);
    }
    if body.tos != 0 || body.source.is_some() {
        return (Outcome::To(targets.retain_fixed(FixedTarget::Host)), Some(LinuxReason::Selects));
    }
    let fixed = match body.kind {
        RouteKind::Throw => return (Outcome::Throw, None),
        // Linux sends packets that are larger than the interface's own limit.
        RouteKind::Unicast if is_above_limit::<A>(body, view) => Some(FixedTarget::Host),
        RouteKind::Unicast => None,
        RouteKind::Blackhole => Some(FixedTarget::Blackhole),
        RouteKind::Unreachable => Some(FixedTarget::Unreachable),
        RouteKind::Prohibit => Some(FixedTarget::Prohibit),
        RouteKind::Local | RouteKind::Broadcast | RouteKind::Anycast | RouteKind::Multicast => {
            Some(FixedTarget::Local)
        }
        RouteKind::Other(_) => Some(FixedTarget::Host),
    };
    if let Some(fixed) = fixed {
        return (Outcome::To(targets.retain_fixed(fixed)), None);
    }
    match targets.of_via(view, A::FAMILY, &body.via, body.mtu) {
        Ok(target) => (Outcome::To(target), unknown(body, view)),
        Err(why) => (Outcome::To(targets.retain_fixed(FixedTarget::Host)), Some(LinuxReason::NextHop(why))),
    }
}

/// Whether the locked MTU of a route is above the limit of one of its interfaces.
fn is_above_limit<A: RouteFamily>(body: &RouteBody, view: View<'_>) -> bool {
    body.mtu_locked
        && body.mtu != 0
        && view
            .mirror
            .paths(body)
            .hops
            .iter()
            .any(|hop| (1..body.mtu).contains(&view.mtu_limit(A::FAMILY, hop.ifindex)))
}

/// Our interfaces of all hops.
fn feasible_interfaces(body: &RouteBody, view: View<'_>) -> Box<[u16]> {
    let paths;
    let hops = match &body.via {
        bm_netlink::Via::Object(_) => {
            paths = view.mirror.paths(body);
            &paths.hops[..]
        }
        via => via.hops(),
    };
    let mut interfaces: Vec<u16> =
        hops.iter().filter_map(|hop| view.interfaces.index_of(hop.ifindex)).collect();
    interfaces.sort_unstable();
    interfaces.dedup();
    interfaces.into()
}

fn unknown(body: &RouteBody, view: View<'_>) -> Option<LinuxReason> {
    match body.via {
        bm_netlink::Via::Object(_) => view.mirror.paths(body).unknown.map(LinuxReason::UnknownObject),
        _ => None,
    }
}

/// Whether the kernel would use such a route now, rather than continue with the next route.
fn active<A: RouteFamily>(body: &RouteBody, view: View<'_>) -> bool {
    if body.kind.refuses() || body.kind == RouteKind::Local {
        return true;
    }
    let paths;
    let hops = match &body.via {
        bm_netlink::Via::Object(_) => {
            paths = view.mirror.paths(body);
            // An unknown object cannot be considered dead: left to Linux.
            if paths.blackhole || paths.unknown.is_some() {
                return true;
            }
            &paths.hops[..]
        }
        via => via.hops(),
    };
    hops.iter().any(|hop| view.mirror.usable(A::FAMILY, hop))
}
