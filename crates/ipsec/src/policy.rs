//! The policy database (RFC 4301 4.4.1): which packets are discarded, bypass IPsec, or are protected, by which SA.
//!
//! As in Linux, the policy with the lowest priority that matches decides, and packets that no policy matches are not
//! concerned. RFC 4301 discards these: add a policy for everything with the action `Discard`.
//!
//! ```text
//! find ─► tree of most policies ─► tree of newer ones ─► a few, one after the other        the first of all that match
//!         '- without those that were removed since -'
//! ```
//!
//! A tree takes long to build, so a new policy is one of the few at first. Those become a tree when there are too many, and
//! later a part of the large tree, which is built rarely: a change costs little on average. Each change makes a new database,
//! which shares the trees with the one before, so that workers use either. [`Policies::settled`] makes one tree of all.
//!
//! Policies of an interface are a database of their own (interfaces.rs): packets of an interface are compared with no others,
//! and other packets with none of them.

mod interfaces;
mod layer;

use std::collections::BTreeMap;
use std::sync::Arc;

use bm_filter::{Flat, Key, ROOM_RULES, TooMany};

use crate::sa::{Direction, SaId};
use crate::selector::{LaterFragments, Selector};
use crate::template::Template;
use layer::{Layer, Rank, Ranked};

/// The most rules that are compared one after the other.
const FEW: usize = 64;
/// The large tree is built again once this many policies are in the other tree, or were removed; or this part of the large
/// tree's own policies, if that is more.
const CHANGED: usize = 1024;
const CHANGED_PART: usize = 8;

/// What happens to packets of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// They are dropped.
    Discard,
    /// They pass as they are.
    Bypass,
    /// Outbound: they are encrypted with this SA. Inbound: they must have come out of it.
    Protect(SaId),
    /// [`Protect`](Self::Protect) with several SAs, by the number of their list. Outbound: each worker uses one. Inbound:
    /// any of them.
    OneOf(u32),
    /// [`Protect`](Self::Protect) with any SA that the template takes. For outbound packets the number tells workers which
    /// SA to use.
    Template(u32, Template),
}

/// What happens to the packets that a selector matches (RFC 4301 4.4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Where it is configured, for errors: whatever the caller uses, such as an offset in a file.
    pub at: usize,
    /// Which packets it is compared with.
    pub direction: Direction,
    /// Lower ones are compared first.
    pub priority: u32,
    /// The number of the interface whose packets it is for; 0 for packets of no such interface.
    pub if_id: u32,
    /// Which packets it is for.
    pub selector: Selector,
    /// What happens to them.
    pub action: Action,
}

/// All policies, as they are looked up.
#[derive(Clone, Debug)]
pub struct Policies {
    /// Most policies, and newer ones.
    layers: [Arc<Layer>; 2],
    /// For each layer, its policies that were removed, in their order.
    removed: [Vec<Rank>; 2],
    /// In their order: policies that were added lately, and policies of the layers that a removed one may have hidden
    /// there.
    recent: Vec<Ranked>,
    /// By [`Direction`], the rules of the recent policies, with their places there.
    few: [Vec<(Flat, usize)>; 2],
    /// Whether the first layer has all policies.
    is_settled: bool,
    /// How many rules there are, by [`Direction`], and how many policies.
    rules: [usize; 2],
    count: usize,
    /// The policies of interfaces, by the interface's number; they are in none of the fields above.
    of_interfaces: BTreeMap<u32, Arc<Policies>>,
}

impl Default for Policies {
    fn default() -> Self {
        Self {
            layers: Default::default(),
            removed: Default::default(),
            recent: Vec::new(),
            few: Default::default(),
            is_settled: true,
            rules: [0; 2],
            count: 0,
            of_interfaces: BTreeMap::new(),
        }
    }
}

impl Policies {
    /// The database of these policies, whose [`problems`](crate::problems()) have been checked. Where priorities are
    /// equal, the first ones decide.
    ///
    /// # Errors
    /// [`TooMany`] for more than the tree of `bm-filter` can hold.
    pub fn new(policies: Vec<Policy>) -> Result<Self, TooMany> {
        Self::with_orders((0..).zip(policies))
    }

    /// [`new`](Self::new) with a number for each policy: where priorities are equal, the lowest number decides. Each number
    /// is used once.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with_orders(policies: impl IntoIterator<Item = (u64, Policy)>) -> Result<Self, TooMany> {
        let all = policies.into_iter().map(|(order, policy)| Ranked { order, policy });
        Self::of_all(all.collect())
    }

    fn of(mut all: Vec<Ranked>) -> Result<Self, TooMany> {
        all.sort_by_key(Ranked::rank);
        all.dedup_by_key(|ranked| ranked.rank());
        let mut rules = [0; 2];
        all.iter().for_each(|Ranked { policy, .. }| rules[policy.direction as usize] += policy.rules());
        let count = all.len();
        let layers = [Layer::new(all)?.into(), Arc::default()];
        Ok(Self { layers, rules, count, ..Self::default() })
    }

    /// Whether [`new`](Self::new) can hold these policies together.
    pub fn have_room<'p>(mut policies: impl Iterator<Item = &'p Policy>) -> bool {
        let mut all: BTreeMap<u32, Self> = BTreeMap::new();
        policies.all(|policy| {
            let all = all.entry(policy.if_id).or_default();
            let has_room = all.has_room_beside(policy, None);
            all.rules[policy.direction as usize] += policy.rules();
            all.count += 1;
            has_room
        })
    }

    /// Whether there is room for a policy of the same interface, once another one has been removed.
    fn has_room_beside(&self, new: &Policy, removed: Option<&Policy>) -> bool {
        let freed = removed.filter(|removed| removed.direction == new.direction).map_or(0, Policy::rules);
        let count = self.count - usize::from(removed.is_some());
        count < usize::from(u16::MAX)
            && self.rules[new.direction as usize] - freed + new.rules() <= ROOM_RULES
    }

    /// These and another policy. Its number must not be that of one of them.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with(&self, order: u64, policy: Policy) -> Result<Self, TooMany> {
        match policy.if_id {
            0 => self.adding(order, policy),
            _ => self.with_of_interface(order, policy),
        }
    }

    fn adding(&self, order: u64, policy: Policy) -> Result<Self, TooMany> {
        let mut new = self.clone();
        new.rules[policy.direction as usize] += policy.rules();
        new.count += 1;
        new.add(Ranked { order, policy });
        new.changed()
    }

    /// These without the one with this priority and number.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn without(&self, priority: u32, order: u64) -> Result<Self, TooMany> {
        let rank = (priority, order);
        match self.interface_with(rank) {
            None => self.removing(rank),
            Some(if_id) => self.without_of_interface(if_id, rank),
        }
    }

    fn removing(&self, rank: Rank) -> Result<Self, TooMany> {
        let mut new = self.clone();
        let found = new.recent.binary_search_by_key(&rank, Ranked::rank);
        let mut gone = found.ok().map(|at| new.recent.remove(at));
        for (layer, index) in self.layers.iter().zip(0..) {
            let removed = &self.removed[index];
            let (Some(at), Err(place)) = (layer.position(rank), removed.binary_search(&rank)) else {
                continue;
            };
            // Where it matches, the tree may not have what comes after it.
            let hidden = layer.hidden_by(at).filter(|later| removed.binary_search(&later.rank()).is_err());
            hidden.for_each(|later| new.add(later.clone()));
            new.removed[index].insert(place, rank);
            gone = layer.policies.get(at).cloned();
        }
        if let Some(Ranked { policy, .. }) = gone {
            new.rules[policy.direction as usize] -= policy.rules();
            new.count -= 1;
        }
        new.changed()
    }

    fn add(&mut self, ranked: Ranked) {
        // One that is there already is the same: it was hidden by several.
        if let Err(at) = self.recent.binary_search_by_key(&ranked.rank(), Ranked::rank) {
            self.recent.insert(at, ranked);
        }
    }

    /// Builds trees if too much has changed for one after the other.
    fn changed(mut self) -> Result<Self, TooMany> {
        self.is_settled = false;
        // One that no packet of workers matches takes room in the list all the same.
        let few = self.recent.iter().map(|ranked| ranked.policy.rules().max(1)).sum::<usize>();
        let newer = self.layers[1].policies.len() + if few > FEW { self.recent.len() } else { 0 };
        let most = CHANGED.max(self.layers[0].policies.len() / CHANGED_PART);
        if newer.max(self.removed[0].len()) > most {
            let settled = Self::of(self.ranked().cloned().collect())?;
            return Ok(Self { of_interfaces: self.of_interfaces, ..settled });
        }
        if few > FEW {
            let mut newer: Vec<_> = self.live(1).chain(&self.recent).cloned().collect();
            newer.sort_by_key(Ranked::rank);
            newer.dedup_by_key(|ranked| ranked.rank());
            self.layers[1] = Layer::new(newer)?.into();
            self.removed[1].clear();
            self.recent.clear();
        }
        self.few = [Direction::Out, Direction::In].map(|direction| {
            let recent = self.recent.iter().enumerate();
            let of_direction = recent.filter(|(_, ranked)| ranked.policy.direction == direction);
            of_direction.flat_map(|(at, ranked)| ranked.policy.flat(0).map(move |flat| (flat, at))).collect()
        });
        Ok(self)
    }

    /// A copy with all policies in one tree, in which packets are looked up fastest.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn settled(&self) -> Result<Self, TooMany> {
        let mut settled =
            if self.is_settled { self.clone() } else { Self::of(self.ranked().cloned().collect())? };
        settled.of_interfaces = self.settled_of_interfaces()?;
        Ok(settled)
    }

    /// Whether packets are looked up in one tree.
    pub fn is_settled(&self) -> bool {
        self.is_settled && self.of_interfaces.values().all(|of| of.is_settled)
    }

    /// Policies of a layer that were not removed.
    fn live(&self, index: usize) -> impl Iterator<Item = &Ranked> {
        let removed = &self.removed[index];
        self.layers[index].policies.iter().filter(|ranked| removed.binary_search(&ranked.rank()).is_err())
    }

    /// All policies in any order, some of them twice.
    fn ranked(&self) -> impl Iterator<Item = &Ranked> {
        self.live(0).chain(self.live(1)).chain(&self.recent)
    }

    /// The policy for a packet that is not of an interface; `None` if no policy matches. For those of an interface, see
    /// [`of_interface`](Self::of_interface).
    #[inline]
    pub fn find(&self, direction: Direction, key: &Key) -> Option<&Policy> {
        let found = self.layers[0].find(direction, key);
        let found = if self.is_settled { found } else { self.find_changed(found, direction, key) };
        found.map(|ranked| &ranked.policy)
    }

    /// Of a policy of the first layer and all others, the first that matches.
    fn find_changed<'p>(
        &'p self,
        found: Option<&'p Ranked>,
        direction: Direction,
        key: &Key,
    ) -> Option<&'p Ranked> {
        let found = [found, self.layers[1].find(direction, key)];
        let live = found.into_iter().zip(&self.removed).filter_map(|(found, removed)| {
            found.filter(|found| removed.is_empty() || removed.binary_search(&found.rank()).is_err())
        });
        let found = live.min_by_key(|found| found.rank());
        for (flat, at) in &self.few[direction as usize] {
            let recent = &self.recent[*at];
            if found.is_some_and(|found| found.rank() < recent.rank()) {
                break;
            }
            if flat.matches(key) {
                return Some(recent);
            }
        }
        found
    }

    /// Whether there are policies of a direction for packets that are not of an interface.
    pub fn has(&self, direction: Direction) -> bool {
        self.rules[direction as usize] > 0
    }

    /// All policies, in the order in which they decide, those of interfaces last.
    pub fn all(&self) -> Vec<&Policy> {
        let of_interfaces = self.of_interfaces.values().flat_map(|of| of.all_of_one());
        self.all_of_one().into_iter().chain(of_interfaces).collect()
    }

    fn all_of_one(&self) -> Vec<&Policy> {
        let mut all: Vec<_> = self.ranked().collect();
        all.sort_by_key(|ranked| ranked.rank());
        all.dedup_by_key(|ranked| ranked.rank());
        all.into_iter().map(|ranked| &ranked.policy).collect()
    }
}

impl Policy {
    /// Its rules in a tree, which name it by this number.
    fn flat(&self, number: u16) -> impl Iterator<Item = Flat> + use<> {
        let later = match self.action {
            Action::Bypass => LaterFragments::Differ,
            Action::Discard | Action::Protect(_) | Action::OneOf(_) | Action::Template(..) => {
                LaterFragments::Match
            }
        };
        self.selector.flat(number, later)
    }

    fn rules(&self) -> usize {
        self.flat(0).count()
    }
}

#[cfg(test)]
mod tests;
