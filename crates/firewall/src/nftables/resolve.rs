//! Completes rules by what the elements of their sets do, once all of the ruleset has been read.

use super::elements::Set;
use super::flow::evaluate;
use super::verdict::Object;
use super::{Lookup, LookupKind, Rule, Ruleset};

/// What a lookup comes to.
#[derive(Debug, Default)]
struct Outcome {
    leads: bool,
    effect: Option<Box<str>>,
    stateful: Option<Box<str>>,
    tracks: Option<Box<str>>,
}

impl Outcome {
    /// Something that does not depend only on the packet.
    fn stateful(what: String) -> Self {
        Self { effect: Some(what.as_str().into()), stateful: Some(what.into()), ..Self::default() }
    }

    fn of(lookup: &Lookup, set: Option<&Set>) -> Self {
        let name = &lookup.set;
        let Some(set) = set else { return Self::stateful(format!("set {name}, which is unknown")) };
        let named = |what: &str| Box::<str>::from(format!("{what} in set {name}"));
        let elements = &set.elements;
        let by_elements = Self {
            leads: elements.verdicts.iter().any(|verdict| verdict.chain().is_some()),
            effect: elements.effect.as_deref().map(named),
            stateful: elements.stateful.as_deref().map(named),
            tracks: elements.tracks.then(|| named("ct count")),
        };
        match (lookup.kind, set.object) {
            (LookupKind::Object, Some(Object::Plain(what))) => {
                Self { effect: Some(named(what)), ..by_elements }
            }
            (LookupKind::Object, Some(Object::Tracked(what))) => {
                Self { tracks: Some(named(what)), ..Self::stateful(format!("{what} in set {name}")) }
            }
            (LookupKind::Object, _) => Self::stateful(format!("a named object in set {name}")),
            _ => by_elements,
        }
    }

    fn is_nothing(&self) -> bool {
        !self.leads && self.effect.is_none()
    }
}

/// Completes all rules.
pub fn resolve(ruleset: &mut Ruleset) {
    let Ruleset { chains, sets, .. } = ruleset;
    for ((table, _), rules) in chains {
        for rule in rules {
            let set = |name: &str| sets.get(&(table.clone(), name.into()));
            (rule.met, rule.targets) = evaluate(&std::mem::take(&mut rule.steps), &rule.lookups, set);
            complete(rule, set);
        }
    }
}

fn complete<'a>(rule: &mut Rule, set: impl Fn(&str) -> Option<&'a Set>) {
    let mut settled = None;
    for lookup in std::mem::take(&mut rule.lookups) {
        let outcome = Outcome::of(&lookup, set(&lookup.set));
        if outcome.is_nothing() {
            continue;
        }
        // What is matched later does not undo what the first of them has done.
        settled.get_or_insert(lookup.condition);
        let Outcome { effect, stateful, tracks, .. } = outcome;
        rule.effect = rule.effect.take().or(effect);
        rule.stateful = rule.stateful.take().or(stateful);
        rule.tracks = rule.tracks.take().or(tracks);
    }
    if let Some(condition) = settled {
        rule.condition = condition;
    }
}
