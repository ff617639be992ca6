//! Policies in their order, with the trees in which the first that matches a packet is found.

use bm_filter::{Key, TooMany, Tree};

use super::Policy;
use crate::sa::Direction;

/// Priority, then the number that decides between policies of equal priority.
pub(super) type Rank = (u32, u64);

/// A policy and its number.
#[derive(Clone, Debug)]
pub(super) struct Ranked {
    pub order: u64,
    pub policy: Policy,
}

impl Ranked {
    #[inline]
    pub fn rank(&self) -> Rank {
        (self.policy.priority, self.order)
    }
}

/// A layer of [`Policies`](super::Policies). It does not change any more.
#[derive(Debug, Default)]
pub(super) struct Layer {
    /// By [`Direction`].
    trees: [Tree; 2],
    pub policies: Vec<Ranked>,
}

impl Layer {
    /// The layer of policies that are in their order.
    pub fn new(policies: Vec<Ranked>) -> Result<Self, TooMany> {
        if policies.len() > usize::from(u16::MAX) {
            return Err(TooMany { rules: policies.len() });
        }
        let trees = [tree(&policies, Direction::Out)?, tree(&policies, Direction::In)?];
        Ok(Self { trees, policies })
    }

    #[inline]
    pub fn find(&self, direction: Direction, key: &Key) -> Option<&Ranked> {
        let found = self.trees[direction as usize].find(key)?;
        self.policies.get(usize::from(found.counter))
    }

    pub fn position(&self, rank: Rank) -> Option<usize> {
        self.policies.binary_search_by_key(&rank, Ranked::rank).ok()
    }

    /// Later policies that may match packets of this one: the trees do not have them where it matches all packets. Ports are
    /// not compared, since later fragments have none.
    pub(crate) fn hidden_by(&self, at: usize) -> impl Iterator<Item = &Ranked> {
        let (before, after) = self.policies.split_at((at + 1).min(self.policies.len()));
        let of = before.get(at).map(|ranked| &ranked.policy);
        after.iter().filter(move |later| {
            of.is_some_and(|of| {
                of.direction == later.policy.direction
                    && of.selector.overlaps_apart_from_ports(&later.policy.selector)
            })
        })
    }
}

/// The tree of all policies of a direction.
fn tree(policies: &[Ranked], direction: Direction) -> Result<Tree, TooMany> {
    let of_direction = policies.iter().enumerate().filter(|(_, ranked)| ranked.policy.direction == direction);
    Tree::grow(of_direction.flat_map(|(index, ranked)| ranked.policy.flat(index as u16)).collect())
}
