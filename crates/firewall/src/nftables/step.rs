//! The steps of a rule, as flows meet them.

use super::verdict::{Object, Verdict};

/// States of connections, a bit for each, numbered as `ct state` does (`NF_CT_STATE_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States(u8);

impl States {
    pub const NONE: Self = Self(0);
    pub const ESTABLISHED: Self = Self(2);
    pub(crate) const UNTRACKED: Self = Self(64);
    pub const ALL: Self = Self(1 | 2 | 4 | 8 | 64);
    /// All that flows have once connections have been looked up.
    pub(crate) const OF_FLOWS: Self = Self(2 | 64);
    /// All of packets that belong to a connection.
    pub(crate) const TRACKED: Self = Self(2 | 4 | 8);

    /// The states of which this holds; each is given as the number that `ct state` loads.
    pub fn those(holds: impl Fn(u32) -> bool) -> Self {
        let bits = (0..8).map(|bit| 1 << bit).filter(|bit| Self::ALL.0 & bit != 0 && holds(u32::from(*bit)));
        Self(bits.sum())
    }

    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// What is met at a place in a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A match that has the same result for all packets of a flow. In the states `some` packets may pass it, in those of
    /// `all` each packet does.
    Passes {
        some: States,
        all: States,
    },
    /// A match that one packet of a flow may pass and another not.
    Varies,
    /// A statement that treats each packet on its own, or may end the rule for some.
    EachPacket,
    /// A log: it tells of each packet, whose way it does not change.
    Logs,
    /// A statement that does the same to all packets of a flow.
    Acts,
    /// A counter.
    Counts,
    /// A lookup of a route or of the type of an address.
    Routes,
    /// The packet's state becomes another.
    Retracks,
    /// The lookup of this number in the rule.
    Lookup(usize),
    /// A named object.
    Object(Object),
    Verdict(Verdict),
}

impl Step {
    /// A match that packets of any state may pass.
    pub(crate) const SOME: Self = Self::Passes { some: States::ALL, all: States::NONE };
    /// A match that no plain packet passes.
    pub const NONE: Self = Self::Passes { some: States::NONE, all: States::NONE };

    /// A match of the state alone.
    pub const fn within(states: States) -> Self {
        Self::Passes { some: states, all: states }
    }
}

/// What a lookup is by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// `ct state`.
    State,
    /// Which protocol the packet is of: `meta l4proto`, `ip protocol`.
    Protocol,
    /// Something that is the same in all packets of a flow.
    Same,
    /// Something that may differ.
    Varies,
}

/// A chain that a rule leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub chain: Box<str>,
    /// The packet does not come back to the rule's own chain.
    pub goes: bool,
    /// States in which packets may go there.
    pub some: States,
    /// States in which all packets do.
    pub all: States,
}

impl Target {
    /// To a chain, for a reason that is not known yet.
    pub(crate) fn anyhow(chain: &str) -> Self {
        Self { chain: chain.into(), goes: false, some: States::ALL, all: States::NONE }
    }
}

/// In which states packets of flows may meet something in a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encounters {
    /// What treats each packet on its own, or a verdict that depends on the packet.
    pub each_packet: States,
    /// Something that counts packets.
    pub counter: States,
    /// Something that concerns the packet.
    pub effect: States,
    /// A lookup of routes.
    pub routes: States,
    /// The states in which the rule's chain is over for all packets.
    pub end: States,
    /// A return.
    pub back: States,
}
