//! The policies of each interface, by its number: a database for each, which the database of all others has.
//!
//! A change of a policy makes a new database of its interface; those of other interfaces are shared.

use std::collections::BTreeMap;
use std::sync::Arc;

use bm_filter::TooMany;

use super::layer::{Rank, Ranked};
use super::{Policies, Policy};

impl Policies {
    /// The policies for packets of an interface; `None` if it has none.
    #[inline]
    pub fn of_interface(&self, if_id: u32) -> Option<&Self> {
        self.of_interfaces.get(&if_id).map(|of| &**of)
    }

    /// Whether there is room for a policy, once another one has been removed.
    pub fn has_room_for(&self, new: &Policy, removed: Option<&Policy>) -> bool {
        let removed = removed.filter(|removed| removed.if_id == new.if_id);
        match new.if_id {
            0 => self.has_room_beside(new, removed),
            if_id => self.of_interface(if_id).unwrap_or(&Self::default()).has_room_beside(new, removed),
        }
    }

    /// The database of policies of any interface.
    pub(super) fn of_all(all: Vec<Ranked>) -> Result<Self, TooMany> {
        let mut by_interface: BTreeMap<u32, Vec<Ranked>> = BTreeMap::new();
        all.into_iter().for_each(|ranked| by_interface.entry(ranked.policy.if_id).or_default().push(ranked));
        let mut policies = Self::of(by_interface.remove(&0).unwrap_or_default())?;
        for (if_id, all) in by_interface {
            policies.of_interfaces.insert(if_id, Self::of(all)?.into());
        }
        Ok(policies)
    }

    pub(super) fn with_of_interface(&self, order: u64, policy: Policy) -> Result<Self, TooMany> {
        let if_id = policy.if_id;
        let of = self.of_interface(if_id).unwrap_or(&Self::default()).adding(order, policy)?;
        Ok(self.replacing(if_id, of))
    }

    pub(super) fn without_of_interface(&self, if_id: u32, rank: Rank) -> Result<Self, TooMany> {
        let Some(of) = self.of_interface(if_id) else { return Ok(self.clone()) };
        let of = of.removing(rank)?;
        Ok(self.replacing(if_id, of))
    }

    /// The interface one of whose policies has this rank.
    pub(super) fn interface_with(&self, rank: Rank) -> Option<u32> {
        self.of_interfaces.iter().find(|(_, of)| of.has_rank(rank)).map(|(if_id, _)| *if_id)
    }

    fn has_rank(&self, rank: Rank) -> bool {
        self.recent.binary_search_by_key(&rank, Ranked::rank).is_ok()
            || self.layers.iter().zip(&self.removed).any(|(layer, removed)| {
                layer.position(rank).is_some() && removed.binary_search(&rank).is_err()
            })
    }

    pub(super) fn settled_of_interfaces(&self) -> Result<BTreeMap<u32, Arc<Self>>, TooMany> {
        let mut settled = self.of_interfaces.clone();
        for policies in settled.values_mut().filter(|policies| !policies.is_settled) {
            *policies = Arc::new(policies.settled()?);
        }
        Ok(settled)
    }

    fn replacing(&self, if_id: u32, of: Self) -> Self {
        let mut new = self.clone();
        if of.count == 0 {
            new.of_interfaces.remove(&if_id);
        } else {
            new.of_interfaces.insert(if_id, of.into());
        }
        new
    }
}
