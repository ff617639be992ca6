//! Which nodes belong to the cluster: a number of the state (epoch) in every frame, and the changes from one to the next.
//!
//! ```text
//!           Join           Ready           Drain           Leave
//! (absent) ─────► joining ───────► active ───────► draining ─────► (absent)
//!     ▲              │ Leave          │ Dead            │ Dead
//!     └──────────────┘                └────► dead ◄─────┘ ─ Join ─► joining
//! ```
//!
//! An active node is input, output and intermediate. A draining one is no intermediate any more; a joining one is none of
//! the three yet. While membership is frozen, since the store of the cluster's state cannot be reached, nothing changes
//! and everything goes on.
//!
//! Each change is a new epoch. An output node keeps a table for the epoch that is current and for the one before, and
//! reads a frame with the table of its own epoch, so that an index that means another neighbor now is never
//! misunderstood.

use std::fmt;

use crate::address::Node;

pub use crate::epoch::Epoch;

/// What a node is in the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// No member.
    #[default]
    Absent,
    /// Admitted, but its tables are not complete.
    Joining,
    /// A full member.
    Active,
    /// About to leave: it forwards for itself but not for others.
    Draining,
    /// A member that has failed.
    Dead,
}

/// What happens to the membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node asks to become a member.
    Join(Node),
    /// Its tables are complete.
    Ready(Node),
    /// It is to leave without loss.
    Drain(Node),
    /// It leaves.
    Leave(Node),
    /// It has failed.
    Dead(Node),
}

/// Why a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoChange {
    /// The store of the cluster's state cannot be reached.
    Frozen,
    /// The node is in this state, in which the change makes no sense.
    In(State),
    /// The cluster has no room for a node with this number.
    Unknown,
}

impl fmt::Display for NoChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frozen => {
                f.write_str("membership is frozen until the cluster's store can be reached again")
            }
            Self::In(State::Absent) => f.write_str("the node is not a member"),
            Self::In(State::Joining) => f.write_str("the node is still joining"),
            Self::In(State::Active) => f.write_str("the node is active; drain it before it leaves"),
            Self::In(State::Draining) => f.write_str("the node is draining"),
            Self::In(State::Dead) => f.write_str("the node has failed; it has to join again"),
            Self::Unknown => f.write_str("the cluster has no node with this number"),
        }
    }
}

impl std::error::Error for NoChange {}

/// All nodes with their states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    epoch: Epoch,
    states: Vec<State>,
    frozen: bool,
}

impl Membership {
    /// A cluster with room for this many nodes, of which none is a member.
    pub fn new(nodes: usize) -> Self {
        Self { epoch: Epoch::default(), states: vec![State::Absent; nodes], frozen: false }
    }

    /// A cluster from a static file: all nodes are active.
    pub fn fixed(nodes: usize) -> Self {
        Self { states: vec![State::Active; nodes], ..Self::new(nodes) }
    }

    /// Makes a change and returns the new epoch.
    pub fn apply(&mut self, change: Change) -> Result<Epoch, NoChange> {
        use State::{Absent, Active, Dead, Draining, Joining};
        let (Change::Join(node)
        | Change::Ready(node)
        | Change::Drain(node)
        | Change::Leave(node)
        | Change::Dead(node)) = change;
        let state = self.states.get_mut(node.index()).ok_or(NoChange::Unknown)?;
        let new = match (change, *state) {
            (Change::Join(_), Absent | Dead) => Joining,
            (Change::Ready(_), Joining) => Active,
            (Change::Drain(_), Active) => Draining,
            (Change::Leave(_), Draining | Joining) => Absent,
            (Change::Dead(_), Joining | Active | Draining) => Dead,
            (_, state) => return Err(NoChange::In(state)),
        };
        if self.frozen {
            return Err(NoChange::Frozen);
        }
        *state = new;
        self.epoch = self.epoch.next();
        Ok(self.epoch)
    }

    /// Freezes the membership, or lets it change again.
    pub fn freeze(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    /// Whether it is frozen.
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// The current epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The state of a node.
    pub fn state(&self, node: Node) -> State {
        self.states.get(node.index()).copied().unwrap_or_default()
    }

    /// Whether packets may leave by this node's ports.
    pub fn is_output(&self, node: Node) -> bool {
        matches!(self.state(node), State::Active | State::Draining)
    }

    /// Whether it may be an intermediate.
    pub fn is_intermediate(&self, node: Node) -> bool {
        self.state(node) == State::Active
    }
}

/// The tables by which an output node reads frames: of the current epoch, and for a while of the one before.
#[derive(Clone, Debug)]
pub struct Accepted<T> {
    current: (Epoch, T),
    before: Option<(Epoch, T)>,
    refused: u64,
}

impl<T> Accepted<T> {
    /// With the table of one epoch.
    pub fn new(epoch: Epoch, table: T) -> Self {
        Self { current: (epoch, table), before: None, refused: 0 }
    }

    /// Begins an epoch. One that is not after the current one is old news and changes nothing.
    pub fn advance(&mut self, epoch: Epoch, table: T) {
        if epoch.is_after(self.current.0) {
            self.before = Some(std::mem::replace(&mut self.current, (epoch, table)));
        }
    }

    /// Gives up the table of the epoch before, once all nodes have had time to use the current one.
    pub fn expire(&mut self) {
        self.before = None;
    }

    /// The table of a frame's epoch. A frame of any other epoch is counted.
    #[inline]
    pub fn find(&mut self, epoch: Epoch) -> Option<&T> {
        if self.current.0 == epoch {
            return Some(&self.current.1);
        }
        match &self.before {
            Some((before, table)) if *before == epoch => Some(table),
            _ => {
                self.refused += 1;
                None
            }
        }
    }

    /// The current epoch.
    pub fn epoch(&self) -> Epoch {
        self.current.0
    }

    /// How many frames of other epochs there were.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(number: u16) -> Node {
        Node::new(number).expect("a node")
    }

    #[test]
    fn a_node_joins_drains_and_leaves() {
        let one = node(1);
        let mut members = Membership::new(2);
        let steps = [
            (Change::Ready(one), Err(NoChange::In(State::Absent))),
            (Change::Join(one), Ok(1)),
            (Change::Drain(one), Err(NoChange::In(State::Joining))),
            (Change::Ready(one), Ok(2)),
            (Change::Leave(one), Err(NoChange::In(State::Active))),
            (Change::Drain(one), Ok(3)),
            (Change::Dead(one), Ok(4)),
            (Change::Leave(one), Err(NoChange::In(State::Dead))),
            (Change::Join(one), Ok(5)),
            (Change::Leave(one), Ok(6)),
            (Change::Join(node(2)), Err(NoChange::Unknown)),
        ];
        for (change, expected) in steps {
            assert_eq!(members.apply(change).map(Epoch::number), expected, "{change:?}");
        }
    }

    #[test]
    fn roles_by_state() {
        let mut members = Membership::fixed(2);
        let roles = |members: &Membership| (members.is_output(node(0)), members.is_intermediate(node(0)));
        assert_eq!(roles(&members), (true, true));
        members.apply(Change::Drain(node(0))).expect("active");
        assert_eq!(roles(&members), (true, false));
        members.apply(Change::Dead(node(0))).expect("draining");
        assert_eq!(roles(&members), (false, false));
        assert_eq!(members.state(node(9)), State::Absent);
    }

    #[test]
    fn nothing_changes_while_frozen() {
        let mut members = Membership::fixed(2);
        members.freeze(true);
        assert_eq!(members.apply(Change::Dead(node(0))), Err(NoChange::Frozen));
        assert!(members.is_frozen() && members.is_output(node(0)) && members.epoch() == Epoch::new(0));
        members.freeze(false);
        assert_eq!(members.apply(Change::Dead(node(0))), Ok(Epoch::new(1)));
    }

    #[test]
    fn old_epochs_are_counted_and_never_read() {
        let mut tables = Accepted::new(Epoch::new(254), "a");
        tables.advance(Epoch::new(255), "b");
        tables.advance(Epoch::new(254), "old news");
        assert_eq!(
            (tables.find(Epoch::new(254)).copied(), tables.find(Epoch::new(255)).copied()),
            (Some("a"), Some("b"))
        );
        tables.advance(Epoch::new(0), "c");
        assert_eq!(tables.find(Epoch::new(254)), None);
        tables.expire();
        assert_eq!(tables.find(Epoch::new(255)), None);
        assert_eq!(tables.find(Epoch::new(0)), Some(&"c"));
        assert_eq!(tables.find(Epoch::new(1)), None);
        assert_eq!(tables.refused(), 3);
    }

    proptest! {
        #[test]
        fn epochs_are_in_order(number: u8, changes in 1..128u8) {
            let (old, new) = (Epoch::new(number), Epoch::new(number.wrapping_add(changes)));
            prop_assert!(new.is_after(old) && !old.is_after(new) && !old.is_after(old));
        }

        /// Each change that is made is a new epoch, and no node is an intermediate without being an output.
        #[test]
        fn epochs_count_changes(steps in proptest::collection::vec((0..5u8, 0..4u16), 0..100)) {
            let mut members = Membership::new(4);
            for (kind, number) in steps {
                let make = [Change::Join, Change::Ready, Change::Drain, Change::Leave, Change::Dead][usize::from(kind)];
                let before = members.clone();
                match members.apply(make(node(number))) {
                    Ok(epoch) => prop_assert!(epoch == before.epoch().next() && members.states != before.states),
                    Err(_) => prop_assert_eq!(&members, &before),
                }
                prop_assert!((0..4).map(node).all(|node| members.is_output(node) || !members.is_intermediate(node)));
            }
        }
    }
}
