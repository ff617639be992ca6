//! Next hops without duplicates: what routes lead to, with a count of users and an action that is kept up to date.
//!
//! ```text
//! fib_info, neighbor entry ──► Target ──► next hop   adjacency   one action: MAC, host, resolve, unreachable
//!                                                  group       members, without dead ones
//!                                                  object      whatever the kernel's object is at present
//! ```
//!
//! A change of a neighbor, a link or an object is handled here and touches no route. An object that becomes another
//! hop turns its next hop into a group of one, since the gateway of a next hop never changes.
//! [`Targets::sweep`] removes unused targets, after the routes that used them are gone.

mod refresh;

use super::view::{Adjacency, View};
use bm_fib::NextHop;
use bm_fib::next_hop::{Action, Gateway, NextHopError, NextHopWriter};
use bm_netlink::{Family, Hop, Via};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// A destination of routes, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target(u32);

/// The properties that distinguish targets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shape {
    /// An action that never changes.
    Fixed(FixedTarget),
    /// A neighbor or a link.
    Adjacency(Adjacency),
    /// Several hops with weights, as in a multipath route.
    Group { family: Family, members: Box<[(Adjacency, u16)]> },
    /// A nexthop object of the kernel, for routes of one family and MTU.
    Object { family: Family, id: u32, mtu: u16 },
}

impl Shape {
    /// ID of the kernel's nexthop object, if it is one.
    pub fn object(&self) -> Option<u32> {
        match self {
            Self::Object { id, .. } => Some(*id),
            _ => None,
        }
    }
}

/// Targets that never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FixedTarget {
    /// To Linux.
    Host,
    /// Dropped silently.
    Blackhole,
    /// Dropped; host unreachable.
    Unreachable,
    /// Dropped; prohibited.
    Prohibit,
    /// Dropped; no route.
    NoRoute,
    /// To Linux, which does not forward it: addresses of this machine, broadcasts.
    Local,
}

impl FixedTarget {
    pub(super) const ALL: [Self; 6] =
        [Self::Host, Self::Blackhole, Self::Unreachable, Self::Prohibit, Self::NoRoute, Self::Local];

    fn action(self) -> Action {
        match self {
            Self::Host | Self::Local => Action::Host,
            Self::Blackhole => Action::Blackhole,
            Self::Unreachable => Action::Unreachable,
            Self::Prohibit => Action::Prohibit,
            Self::NoRoute => Action::None,
        }
    }

    /// Its target; these are created first, in order.
    pub fn target(self) -> Target {
        Target(Self::ALL.iter().position(|fixed| *fixed == self).unwrap_or_default() as u32)
    }
}

#[derive(Debug)]
pub(super) struct Entry {
    pub hop: NextHop,
    /// Number of fib_infos, neighbor entries and groups that use it.
    pub users: u32,
    pub shape: Shape,
    pub state: State,
    /// The adjacency that defines the gateway of the next hop.
    born: Option<Adjacency>,
    /// Groups that have it as a member.
    groups: BTreeSet<Target>,
    /// A group with a member on a link where only Linux may send: then Linux chooses among all members.
    linux_only: bool,
    /// Why it leads to Linux instead of its destination.
    pub error: Option<NextHopError>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A single adjacency.
    Plain(Adjacency),
    /// A group. Only its living members get packets.
    Members(Vec<Member>),
    /// Independent of links and neighbors.
    Still(Action),
}

/// A member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub target: Target,
    pub weight: u16,
    /// Its weight, and those of members whose packets it gets; 0 if it gets none.
    pub share: u32,
    /// The hop as in the route or the object, for its flags.
    hop: Hop,
}

/// All targets, and the writer of their next hops.
#[derive(Debug)]
pub struct Targets {
    writer: NextHopWriter,
    entries: Vec<Option<Entry>>,
    free: Vec<Target>,
    by_shape: HashMap<Shape, Target>,
    /// Single adjacencies, by link and neighbor.
    by_place: BTreeMap<u32, BTreeMap<Option<IpAddr>, BTreeSet<Target>>>,
    by_object: BTreeMap<u32, BTreeSet<Target>>,
    by_hop: Vec<Option<Target>>,
    /// By interface, the next hop of group members while Linux chooses among them.
    linux_only: BTreeMap<u16, NextHop>,
    /// Targets that are left to Linux because there was no room.
    waiting_for_room: BTreeSet<Target>,
    /// Targets that lost their last user, to check later.
    unused: Vec<Target>,
}

impl Targets {
    /// Creates only the fixed targets.
    pub(super) fn new(mut writer: NextHopWriter) -> Result<Self, NextHopError> {
        let hops = FixedTarget::ALL.map(|fixed| match fixed {
            FixedTarget::Local => writer.add_local(),
            other => writer.add(other.action(), Gateway::default(), 0),
        });
        let mut targets = Self {
            writer,
            entries: Vec::new(),
            free: Vec::new(),
            by_shape: HashMap::new(),
            by_place: BTreeMap::new(),
            by_object: BTreeMap::new(),
            by_hop: Vec::new(),
            linux_only: BTreeMap::new(),
            waiting_for_room: BTreeSet::new(),
            unused: Vec::new(),
        };
        for (fixed, hop) in FixedTarget::ALL.into_iter().zip(hops) {
            // The table itself is their first user, so that they stay.
            targets.enter(hop?, Shape::Fixed(fixed), State::Still(fixed.action()), None);
        }
        Ok(targets)
    }

    /// The writer, for its table and its use marks.
    pub fn writer(&mut self) -> &mut NextHopWriter {
        &mut self.writer
    }

    /// The next hops that workers read.
    pub fn table(&self) -> &std::sync::Arc<bm_fib::next_hop::NextHops> {
        self.writer.table()
    }

    /// The next hop of a target.
    pub fn hop(&self, target: Target) -> NextHop {
        self.get(target).hop
    }

    /// The target of a next hop.
    pub fn of_hop(&self, hop: NextHop) -> Option<Target> {
        self.by_hop.get(hop.index()).copied().flatten()
    }

    pub(super) fn get(&self, target: Target) -> &Entry {
        self.entries[target.0 as usize].as_ref().expect("a target is removed after its last user")
    }

    fn get_mut(&mut self, target: Target) -> &mut Entry {
        self.entries[target.0 as usize].as_mut().expect("a target is removed after its last user")
    }

    /// All targets in use.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Target, &Entry)> {
        let numbered = self.entries.iter().enumerate();
        numbered.filter_map(|(at, entry)| Some((Target(at as u32), entry.as_ref()?)))
    }

    /// The target of a neighbor, if there is one.
    pub(super) fn of_neighbor(&self, ifindex: u32, address: IpAddr) -> Option<Target> {
        self.by_place.get(&ifindex)?.get(&Some(address))?.first().copied()
    }

    /// The neighbors that next hops lead to, by the index of their link.
    pub(super) fn gateways(&self) -> impl Iterator<Item = (u32, IpAddr)> {
        let links = self.by_place.iter();
        links.flat_map(|(ifindex, of_link)| of_link.keys().flatten().map(|gateway| (*ifindex, *gateway)))
    }

    /// The adjacency of a target that is a link with destinations on it.
    pub(super) fn on_link(&self, target: Target) -> Option<Adjacency> {
        match &self.get(target).state {
            State::Plain(adjacency) => Some(*adjacency),
            State::Members(members) => match members.as_slice() {
                [only] => match &self.get(only.target).state {
                    State::Plain(adjacency) => Some(*adjacency),
                    _ => None,
                },
                _ => None,
            },
            State::Still(_) => None,
        }
        .filter(Adjacency::on_link)
    }

    /// Adds a user to a target.
    pub(super) fn retain(&mut self, target: Target) {
        self.get_mut(target).users += 1;
    }

    /// Adds a user to a fixed target.
    pub(super) fn retain_fixed(&mut self, fixed: FixedTarget) -> Target {
        self.retain(fixed.target());
        fixed.target()
    }

    /// Removes a user. The target stays until [`Self::sweep`].
    pub(super) fn release(&mut self, target: Target) {
        let entry = self.get_mut(target);
        entry.users -= 1;
        if entry.users == 0 {
            self.unused.push(target);
        }
    }

    /// The target of a route; adds a user.
    pub(super) fn of_via(
        &mut self,
        view: View<'_>,
        family: Family,
        via: &Via,
        mtu: u32,
    ) -> Result<Target, NextHopError> {
        match via {
            Via::Nowhere => Ok(self.retain_fixed(FixedTarget::Host)),
            Via::One(hop) => self.adjacency(view, view.adjacency(family, hop, mtu, false)),
            Via::Many(hops) => self.group(view, family, hops, mtu),
            Via::Object(id) => {
                let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
                let shape = Shape::Object { family, id: *id, mtu };
                self.shared(shape, |targets, shape| targets.make_object(view, shape, *id))
            }
        }
    }

    /// The target of an adjacency; adds a user.
    pub(super) fn adjacency(&mut self, view: View<'_>, adjacency: Adjacency) -> Result<Target, NextHopError> {
        self.shared(Shape::Adjacency(adjacency), |targets, shape| {
            let action = view.action(&adjacency);
            let hop = targets.writer.add(action, adjacency.as_gateway(), adjacency.mtu)?;
            Ok(targets.enter(hop, shape, State::Plain(adjacency), Some(adjacency)))
        })
    }

    fn group(
        &mut self,
        view: View<'_>,
        family: Family,
        hops: &[Hop],
        mtu: u32,
    ) -> Result<Target, NextHopError> {
        let members = hops.iter().map(|hop| (view.adjacency(family, hop, mtu, true), hop.weight)).collect();
        let shape = Shape::Group { family, members };
        let known = self.by_shape.get(&shape).copied();
        let target = self.shared(shape, |targets, shape| {
            let hop = targets.writer.add(Action::Host, Gateway::default(), 0)?;
            let target = targets.enter(hop, shape, State::Still(Action::Host), None);
            match targets.fill(view, family, target, hops, mtu) {
                Ok(()) => Ok(target),
                Err(why) => {
                    targets.release(target);
                    Err(why)
                }
            }
        })?;
        // The same hops with other flags: the latest route has the kernel's current flags.
        if known.is_some() {
            self.reflag(target, hops);
            self.revive(view, target);
        }
        Ok(target)
    }

    fn make_object(&mut self, view: View<'_>, shape: Shape, id: u32) -> Result<Target, NextHopError> {
        let Shape::Object { family, mtu, .. } = shape else { return Ok(FixedTarget::Host.target()) };
        let paths = view.mirror.paths(&bm_netlink::RouteBody { via: Via::Object(id), ..Default::default() });
        let born = match paths.hops.as_slice() {
            [hop] => Some(view.adjacency(family, hop, u32::from(mtu), false)),
            _ => None,
        };
        let gateway = born.map_or(Gateway::default(), |adjacency| adjacency.as_gateway());
        let hop = self.writer.add(Action::Host, gateway, mtu)?;
        let target = self.enter(hop, shape, State::Still(Action::Host), born);
        self.by_object.entry(id).or_default().insert(target);
        self.redefine(view, target);
        Ok(target)
    }

    /// The target of this shape, created by `make` if there is none; adds a user.
    fn shared(
        &mut self,
        shape: Shape,
        make: impl FnOnce(&mut Self, Shape) -> Result<Target, NextHopError>,
    ) -> Result<Target, NextHopError> {
        match self.by_shape.get(&shape) {
            Some(&target) => {
                self.retain(target);
                Ok(target)
            }
            None => make(self, shape),
        }
    }

    /// Registers a new target, with one user.
    fn enter(&mut self, hop: NextHop, shape: Shape, state: State, born: Option<Adjacency>) -> Target {
        let target = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            Target(self.entries.len() as u32 - 1)
        });
        if self.by_hop.len() <= hop.index() {
            self.by_hop.resize(hop.index() + 1, None);
        }
        self.by_hop[hop.index()] = Some(target);
        self.by_shape.insert(shape.clone(), target);
        let still = State::Still(Action::Host);
        let groups = BTreeSet::new();
        let entry =
            Entry { hop, users: 1, shape, state: still, born, groups, linux_only: false, error: None };
        self.entries[target.0 as usize] = Some(entry);
        self.change_state(target, state);
        target
    }

    /// Changes the state of a target, and updates the indexes.
    fn change_state(&mut self, target: Target, state: State) {
        let before = std::mem::replace(&mut self.get_mut(target).state, State::Still(Action::Host));
        match before {
            State::Plain(place) => self.remove_neighbor(target, &place),
            State::Members(members) => {
                for member in members {
                    self.get_mut(member.target).groups.remove(&target);
                    self.release(member.target);
                }
            }
            State::Still(_) => {}
        }
        match &state {
            State::Plain(place) => {
                let of_link = self.by_place.entry(place.ifindex).or_default();
                of_link.entry(place.gateway).or_default().insert(target);
            }
            State::Members(members) => {
                for member in members {
                    self.get_mut(member.target).groups.insert(target);
                }
            }
            State::Still(_) => {}
        }
        let entry = self.get_mut(target);
        (entry.state, entry.linux_only) = (state, false);
    }

    fn remove_neighbor(&mut self, target: Target, place: &Adjacency) {
        let Some(of_link) = self.by_place.get_mut(&place.ifindex) else { return };
        if let Some(there) = of_link.get_mut(&place.gateway) {
            there.remove(&target);
            if there.is_empty() {
                of_link.remove(&place.gateway);
            }
        }
        if of_link.is_empty() {
            self.by_place.remove(&place.ifindex);
        }
    }
}
