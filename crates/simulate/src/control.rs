//! What each node knows about the members: the store of the cluster's state, its messages to nodes, and their answers.
//!
//! Messages take time, may be lost, and are repeated. The decisions are those of `bm_vlb`: `Membership`
//! decides about changes, and `Rollout` brings a new epoch to all nodes.

use std::collections::VecDeque;

use bm_vlb::membership::State;
use bm_vlb::rollout::{Rollout, Stage};
use bm_vlb::{Change, Membership, Node};

/// The store, with the changes that nodes do not know yet.
pub struct Store {
    members: Membership,
    /// All memberships so far, by epoch.
    history: Vec<Membership>,
    rollout: Rollout,
    changes: VecDeque<Change>,
    nodes: u16,
}

impl Store {
    /// A store in which all nodes are members.
    pub fn new(nodes: u16) -> Self {
        let members = Membership::fixed(nodes.into());
        Self {
            history: vec![members.clone()],
            members,
            rollout: Rollout::default(),
            changes: VecDeque::new(),
            nodes,
        }
    }

    /// Freezes membership, or allows changes again. Returns whether there are messages for nodes.
    pub fn freeze(&mut self, frozen: bool) -> bool {
        self.members.freeze(frozen);
        self.go_on()
    }

    /// Records a change. Returns whether there are messages for nodes.
    pub fn change(&mut self, change: Change) -> bool {
        self.changes.push_back(change);
        let next = match change {
            Change::Dead(node) => self.rollout.failed(node),
            _ => false,
        };
        self.go_on() || next
    }

    /// A node has confirmed a message. Returns whether there are messages for nodes.
    pub fn done(&mut self, node: Node, stage: Stage) -> bool {
        let next = self.rollout.done(node, stage);
        self.go_on() || next
    }

    /// Begins the next change, if there is one and all nodes use the current epoch.
    fn go_on(&mut self) -> bool {
        while self.rollout.stage() == Stage::Idle && !self.members.is_frozen() {
            let Some(change) = self.changes.pop_front() else { return false };
            // A change that is no longer valid, such as draining a node that has failed, is skipped.
            let Ok(epoch) = self.members.apply(change) else { continue };
            self.history.push(self.members.clone());
            if self.rollout.begin(epoch, self.recipients()) {
                return self.rollout.stage() != Stage::Idle;
            }
        }
        false
    }

    /// The nodes that must know about an epoch.
    fn recipients(&self) -> Vec<Node> {
        let mut nodes: Vec<_> = (0..Node::COUNT).filter_map(Node::new).take(self.nodes.into()).collect();
        nodes.retain(|&node| {
            matches!(self.members.state(node), State::Joining | State::Active | State::Draining)
        });
        nodes
    }

    /// The current message to nodes.
    pub fn stage(&self) -> Stage {
        self.rollout.stage()
    }

    /// Whether the answer of a node is still missing.
    pub fn waits_for(&self, node: Node) -> bool {
        self.rollout.waits_for(node)
    }

    /// A membership by its index.
    pub fn at(&self, place: usize) -> &Membership {
        &self.history[place.min(self.history.len() - 1)]
    }

    /// The index of the current membership.
    pub fn current(&self) -> usize {
        self.history.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_applied_one_at_a_time() {
        let nodes: Vec<Node> = (0..3).filter_map(Node::new).collect();
        let mut store = Store::new(3);
        assert!(store.change(Change::Drain(nodes[1])));
        assert!(!store.change(Change::Drain(nodes[2])), "the change before is still under way");
        let first = store.stage();
        for stage in 0..2 {
            let stage_now = store.stage();
            assert!(nodes.iter().all(|node| store.waits_for(*node)), "stage {stage}");
            let next: Vec<bool> = nodes.iter().map(|node| store.done(*node, stage_now)).collect();
            assert_eq!(next, [false, false, true]);
        }
        assert!(store.stage() != first && store.current() == 2);
        assert!(store.at(1).is_intermediate(nodes[2]) && !store.at(2).is_intermediate(nodes[2]));
        store.freeze(true);
        assert!(!store.change(Change::Dead(nodes[0])));
    }
}
