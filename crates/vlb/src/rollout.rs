//! How a new epoch reaches all nodes without loss: first all learn to read its frames, then all send them.
//!
//! ```text
//! store            node
//! begin ─ Prepare ─► keeps the new table beside the old one ─ done ─► from all? ─ Use ─► sends with the new epoch ─ done ─► idle
//! ```
//!
//! So an output node never gets a frame of an epoch that it does not know, and gives up an old table only when nobody
//! uses it any more. A member that cannot be reached, but lives, holds back the next epoch: membership stands still and
//! traffic goes on. One that has failed is not waited for.

use crate::address::Node;
use crate::membership::Epoch;

/// What the nodes are to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Nothing: all use the current epoch.
    #[default]
    Idle,
    /// To accept frames of this epoch, and still send with the one before.
    Prepare(Epoch),
    /// To send with this epoch.
    Use(Epoch),
}

/// The state of a roll-out, where the cluster's state is kept.
#[derive(Clone, Debug, Default)]
pub struct Rollout {
    stage: Stage,
    waiting: Vec<bool>,
    left: usize,
    members: Vec<Node>,
}

impl Rollout {
    /// Begins an epoch with these members; only while idle.
    pub fn begin(&mut self, epoch: Epoch, members: Vec<Node>) -> bool {
        if self.stage != Stage::Idle {
            return false;
        }
        self.members = members;
        self.enter(Stage::Prepare(epoch));
        true
    }

    /// What nodes are to do now.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether this node has not done yet what the stage asks for.
    pub fn waits_for(&self, node: Node) -> bool {
        self.waiting.get(node.index()).copied().unwrap_or(false)
    }

    /// A node has done what this stage asks for. Returns whether the next stage has begun.
    pub fn done(&mut self, node: Node, stage: Stage) -> bool {
        if stage != self.stage || !self.waits_for(node) {
            return false;
        }
        self.waiting[node.index()] = false;
        self.left -= 1;
        self.go_on()
    }

    /// A node has failed. Returns whether the next stage has begun.
    pub fn failed(&mut self, node: Node) -> bool {
        self.members.retain(|member| *member != node);
        if !self.waits_for(node) {
            return false;
        }
        self.waiting[node.index()] = false;
        self.left -= 1;
        self.go_on()
    }

    fn go_on(&mut self) -> bool {
        if self.left > 0 {
            return false;
        }
        match self.stage {
            Stage::Prepare(epoch) => self.enter(Stage::Use(epoch)),
            Stage::Use(_) | Stage::Idle => self.stage = Stage::Idle,
        }
        true
    }

    fn enter(&mut self, stage: Stage) {
        let size = self.members.iter().map(|node| node.index() + 1).max().unwrap_or(0);
        self.waiting = vec![false; size];
        self.members.iter().for_each(|node| self.waiting[node.index()] = true);
        self.left = self.members.len();
        self.stage = if self.left == 0 { Stage::Idle } else { stage };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(numbers: &[u16]) -> Vec<Node> {
        numbers.iter().filter_map(|number| Node::new(*number)).collect()
    }

    #[test]
    fn all_can_read_before_anyone_sends() {
        let (epoch, mut rollout) = (Epoch::new(5), Rollout::default());
        let [one, three] = nodes(&[1, 3])[..] else { panic!("two nodes") };
        assert!(rollout.begin(epoch, nodes(&[1, 3])) && !rollout.begin(epoch.next(), nodes(&[1])));
        assert!(!rollout.done(one, Stage::Prepare(epoch)) && !rollout.done(one, Stage::Prepare(epoch)));
        assert!(!rollout.done(three, Stage::Use(epoch)), "an answer to something else");
        assert_eq!((rollout.stage(), rollout.waits_for(three)), (Stage::Prepare(epoch), true));
        assert!(rollout.done(three, Stage::Prepare(epoch)));
        assert_eq!(rollout.stage(), Stage::Use(epoch));
        assert!(!rollout.done(three, Stage::Use(epoch)) && rollout.done(one, Stage::Use(epoch)));
        assert_eq!(rollout.stage(), Stage::Idle);
    }

    #[test]
    fn a_failed_node_is_not_waited_for() {
        let (epoch, mut rollout) = (Epoch::new(5), Rollout::default());
        let [one, three] = nodes(&[1, 3])[..] else { panic!("two nodes") };
        rollout.begin(epoch, nodes(&[1, 3]));
        rollout.done(one, Stage::Prepare(epoch));
        assert!(rollout.failed(three), "the last one that was waited for");
        assert_eq!(rollout.stage(), Stage::Use(epoch));
        assert!(!rollout.waits_for(three) && rollout.done(one, Stage::Use(epoch)));
        assert!(rollout.begin(epoch.next(), Vec::new()) && rollout.stage() == Stage::Idle);
    }
}
