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
use super::plain::is_plain;
use super::step::{Encounters, Key, States, Step, Target};
use super::verdict::{Object, Verdict};
use super::{Lookup, LookupKind};

/// What packets of flows meet in a rule with these steps and lookups, and where it leads them.
pub fn evaluate<'a>(
    steps: &[Step],
    lookups: &[Lookup],
    set: impl Fn(&str) -> Option<&'a Set>,
) -> (Encounters, Vec<Target>) {
    let mut progress = Progress::default();
    for step in steps {
        match step {
            Step::Lookup(number) => {
                if let Some(lookup) = lookups.get(*number) {
                    progress.lookup(lookup, set(&lookup.set));
                }
            }
            step => progress.step(step),
        }
    }
    progress.keep();
    (progress.met, progress.targets)
}

/// How far packets get in a rule.
struct Progress {
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

impl Default for Progress {
    fn default() -> Self {
        let (some, all) = (States::ALL, States::ALL);
        let (logged, counted) = (States::NONE, States::NONE);
        Self { some, all, varies: false, logged, counted, met: Encounters::default(), targets: Vec::new() }
    }
}

impl Progress {
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
            let found = States::those(|state| keys.iter().any(|of| state.to_ne_bytes() == of.key[..]));
            Step::within(if lookup.inverted { States::ALL.without(found) } else { found })
        }
        (Key::Protocol, Some(keys)) if !lookup.inverted && !keys.iter().any(|of| is_plain(&of.key)) => {
            Step::NONE
        }
        _ => Step::SOME,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::Condition;

    const ESTABLISHED: States = States::ESTABLISHED;
    const ACCEPT: Step = Step::Verdict(Verdict::Accept);
    const DROP: Step = Step::Verdict(Verdict::Drop);

    fn of(steps: &[Step]) -> Encounters {
        evaluate(steps, &[], |_| None).0
    }

    #[test]
    fn only_an_accept_that_all_meet_ends_the_chain() {
        assert_eq!(of(&[ACCEPT]).end, States::ALL);
        assert_eq!(of(&[Step::Counts, Step::within(ESTABLISHED), ACCEPT]).end, ESTABLISHED);
        for uncertain in [Step::SOME, Step::Varies, Step::EachPacket] {
            assert_eq!(of(&[uncertain, Step::within(ESTABLISHED), ACCEPT]).end, States::NONE);
        }
        let back = of(&[Step::SOME, Step::Verdict(Verdict::Return)]);
        assert_eq!((back.back, back.end), (States::ALL, States::NONE));
    }

    #[test]
    fn what_is_behind_a_match_is_met_in_its_states() {
        let met = |steps: &[Step]| of(steps).each_packet;
        assert_eq!(met(&[Step::within(ESTABLISHED), Step::EachPacket]), ESTABLISHED);
        assert_eq!(met(&[Step::NONE, Step::EachPacket, DROP]), States::NONE);
        assert_eq!(met(&[Step::Varies, Step::within(ESTABLISHED), DROP]), ESTABLISHED);
        assert_eq!(met(&[Step::Varies, Step::within(ESTABLISHED)]), States::NONE, "nothing depends on it");
        assert_eq!(met(&[Step::within(ESTABLISHED), Step::Retracks, Step::EachPacket]), States::ALL);
    }

    #[test]
    fn logged_packets_matter_unless_all_are_dropped() {
        let met = |steps: &[Step]| of(steps).each_packet;
        assert_eq!(met(&[Step::SOME, Step::Logs, DROP]), States::NONE);
        assert_eq!(of(&[Step::SOME, Step::Counts, DROP]).counter, States::NONE);
        for between in [Step::SOME, Step::EachPacket, Step::Varies, ACCEPT] {
            assert_eq!(met(&[Step::Logs, between, DROP]), States::ALL);
        }
        assert_eq!(met(&[Step::Varies, Step::Logs, DROP]), States::ALL);
        assert_eq!(met(&[Step::Logs]), States::ALL);
    }

    #[test]
    fn an_unknown_set_may_do_anything() {
        let lookup = Lookup {
            set: "s".into(),
            condition: Condition::default(),
            kind: LookupKind::Value,
            key: Key::State,
            inverted: false,
        };
        let (met, _) = evaluate(&[Step::Lookup(0)], &[lookup], |_| None);
        assert_eq!(met.each_packet, States::ALL);
    }
}
