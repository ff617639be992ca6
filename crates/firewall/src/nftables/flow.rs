//! What a rule does to packets of flows: in which states of their connection they meet its statements.
//!
//! ```text
//! counter ip dscp ef ct state { established, related } limit rate 5/second accept
//! Counts  Varies     Lookup                            EachPacket          Verdict     steps, as the rule is read
//! all     all        established, related              the same            the same    states that get there
//! ```
//!
//! The steps are kept until all sets are known. For each it is counted in which states packets may get there, and
//! in which of these all of them do: only an accept that all packets of a state meet ends a chain for them.

use super::elements::{Mapping, Set};
use super::verdict::{Object, Verdict};
use super::{Lookup, LookupKind};

/// States of connections, a bit for each, numbered as `ct state` does (`NF_CT_STATE_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States(u8);

impl States {
    pub const NONE: Self = Self(0);
    pub const ESTABLISHED: Self = Self(2);
    pub const UNTRACKED: Self = Self(64);
    pub const ALL: Self = Self(1 | 2 | 4 | 8 | 64);
    /// Those of flows, once connections are tracked.
    pub(crate) const OF_FLOWS: Self = Self(2 | 64);
    /// Those of packets that belong to a connection.
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

    fn add(&mut self, other: Self) {
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
    pub const SOME: Self = Self::Passes { some: States::ALL, all: States::NONE };
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
    /// The protocol.
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
    /// A counter.
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

/// What packets of flows meet in a rule with these steps and lookups, and where it leads them.
pub fn evaluate<'a>(
    steps: &[Step],
    lookups: &[Lookup],
    set: impl Fn(&str) -> Option<&'a Set>,
) -> (Encounters, Vec<Target>) {
    let mut way = Way::default();
    for step in steps {
        match step {
            Step::Lookup(number) => {
                if let Some(lookup) = lookups.get(*number) {
                    way.lookup(lookup, set(&lookup.set));
                }
            }
            step => way.step(step),
        }
    }
    way.keep();
    (way.met, way.targets)
}

/// The way through a rule.
struct Way {
    /// States in which packets may have got this far, and those in which all have.
    some: States,
    all: States,
    /// Whether that depends on the packet.
    varies: bool,
    /// States in which they have been logged or counted since the last match. If all of these packets are dropped, none
    /// of their flows is ever anything but Linux's.
    logged: States,
    counted: States,
    met: Encounters,
    targets: Vec<Target>,
}

impl Default for Way {
    fn default() -> Self {
        let (some, all) = (States::ALL, States::ALL);
        let (logged, counted) = (States::NONE, States::NONE);
        Self { some, all, varies: false, logged, counted, met: Encounters::default(), targets: Vec::new() }
    }
}

impl Way {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Passes { some, all } => self.pass(*some, *all),
            Step::Varies => self.vary(),
            Step::EachPacket => {
                self.each_packet();
                self.pass(States::ALL, States::NONE);
            }
            Step::Acts => self.act(self.some),
            Step::Logs => {
                self.logged.add(self.some);
                self.met.effect.add(self.some);
            }
            Step::Counts => self.counted.add(self.some),
            Step::Routes => self.met.routes.add(self.some),
            Step::Retracks => {
                if !self.some.is_empty() {
                    self.some = States::ALL;
                }
                if self.all != States::ALL {
                    self.all = States::NONE;
                }
            }
            Step::Object(object) => self.object(Some(*object)),
            Step::Verdict(verdict) => self.verdict(verdict, self.some, self.all),
            Step::Lookup(_) => {}
        }
    }

    fn pass(&mut self, some: States, all: States) {
        self.keep();
        (self.some, self.all) = (self.some.and(some), self.all.and(all));
    }

    fn vary(&mut self) {
        self.keep();
        (self.varies, self.all) = (true, States::NONE);
    }

    /// Packets that were logged or counted may go on.
    fn keep(&mut self) {
        self.met.each_packet.add(std::mem::take(&mut self.logged));
        self.met.counter.add(std::mem::take(&mut self.counted));
    }

    fn each_packet(&mut self) {
        self.met.each_packet.add(self.some);
        self.met.effect.add(self.some);
    }

    fn act(&mut self, some: States) {
        self.met.effect.add(some);
        self.decide(some);
    }

    /// Something happens to packets of these states, if they have got this far.
    fn decide(&mut self, some: States) {
        if self.varies {
            self.met.each_packet.add(some);
        }
    }

    fn verdict(&mut self, verdict: &Verdict, some: States, all: States) {
        if *verdict != Verdict::Drop || some != self.some {
            self.keep();
        }
        match verdict {
            Verdict::Continue => {}
            Verdict::Accept => self.met.end.add(all),
            Verdict::Return => {
                self.met.end.add(all);
                self.met.back.add(some);
            }
            Verdict::Drop => {
                self.met.effect.add(some);
                self.met.end.add(all);
                (self.logged, self.counted) = (States::NONE, States::NONE);
            }
            Verdict::Queue | Verdict::Unknown => {
                self.met.effect.add(some);
                self.met.each_packet.add(some);
            }
            Verdict::Jump(chain) | Verdict::Goto(chain) => {
                let goes = matches!(verdict, Verdict::Goto(_));
                self.targets.push(Target { chain: chain.clone(), goes, some, all });
            }
        }
        self.decide(some);
    }

    fn object(&mut self, object: Option<Object>) {
        match object {
            Some(Object::Plain("counter")) => self.counted.add(self.some),
            // Confirmed connections keep theirs.
            Some(Object::Tracked("ct helper" | "ct timeout")) => self.act(self.some),
            _ => self.step(&Step::EachPacket),
        }
    }

    fn lookup(&mut self, lookup: &Lookup, set: Option<&Set>) {
        self.keep();
        let Some(set) = set else { return self.step(&Step::EachPacket) };
        if set.elements.each_packet {
            self.step(&Step::EachPacket);
        }
        if set.elements.counts {
            self.met.counter.add(self.some);
        }
        if lookup.key == Key::Varies || set.changes_by_itself() {
            self.vary();
        }
        match lookup.kind {
            LookupKind::Value => {
                if let Step::Passes { some, all } = match_of(lookup, set) {
                    self.pass(some, all);
                }
            }
            LookupKind::Object => {
                self.object(set.object);
                self.pass(States::ALL, States::NONE);
            }
            LookupKind::Verdict => self.verdicts(lookup, set),
        }
    }

    /// The verdict that a map has for the packet.
    fn verdicts(&mut self, lookup: &Lookup, set: &Set) {
        let (some, all) = (self.some, self.all);
        let length = if lookup.key == Key::State { 4 } else { 1 };
        match (lookup.key, set.keys(length)) {
            (Key::State, Some(keys)) => {
                for Mapping { key, verdict } in keys {
                    let states = States::those(|state| state.to_ne_bytes() == key[..]);
                    self.maps_to(verdict.as_ref(), some.and(states), all.and(states));
                }
            }
            (Key::Protocol, Some(keys)) => {
                for Mapping { key, verdict } in keys {
                    let some = if is_plain(key) { some } else { States::NONE };
                    self.maps_to(verdict.as_ref(), some, States::NONE);
                }
            }
            _ => {
                for verdict in &set.elements.verdicts {
                    self.verdict(verdict, some, States::NONE);
                }
            }
        }
        self.all = States::NONE;
    }

    fn maps_to(&mut self, verdict: Option<&Verdict>, some: States, all: States) {
        if let Some(verdict) = verdict {
            self.verdict(verdict, some, all);
        }
    }
}

/// What a lookup in a set comes to as a match.
fn match_of(lookup: &Lookup, set: &Set) -> Step {
    let length = if lookup.key == Key::State { 4 } else { 1 };
    match (lookup.key, set.keys(length)) {
        (Key::State, Some(keys)) => {
            let has = |state: u32| keys.iter().any(|of| state.to_ne_bytes() == of.key[..]);
            Step::within(States::those(|state| has(state) != lookup.inverted))
        }
        (Key::Protocol, Some(keys)) if !lookup.inverted && !keys.iter().any(|of| is_plain(&of.key)) => {
            Step::NONE
        }
        _ => Step::SOME,
    }
}

/// Whether plain packets have this protocol: TCP or UDP.
pub(super) fn is_plain(protocol: &[u8]) -> bool {
    [[libc::IPPROTO_TCP as u8], [libc::IPPROTO_UDP as u8]].iter().any(|plain| plain == protocol)
}
