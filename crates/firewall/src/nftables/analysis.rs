//! From a ruleset to the packets that it can drop, change or count, and to what flows meet on the way.

use super::step::States;
use super::{Base, DeviceName, Flowtable, Place, Rule, Ruleset, TableName, title};
use crate::condition::{Condition, Families};
use crate::entries::{Entries, TRANSLATES};
use crate::names::{Device, NamedInterface, Names};
use crate::{Counters, Feature, Repeats, RulesetFacts, Traffic};
use std::fmt::Write;

/// The maximum depth of chains that lead to chains: the kernel's limit.
const DEPTH_MAX: usize = 16;
/// The most rules that are visited for one base chain; one that is reached in several ways counts several times.
const VISITS_MAX: usize = 50_000;

/// Adds the packets that the ruleset concerns, and what flows depend on.
pub fn analyse(ruleset: &Ruleset, names: &Names, entries: &mut Entries) {
    for Flowtable { table, name, devices } in &ruleset.flowtables {
        let why = format!("flowtable {name} of {}", table.title());
        for device in devices {
            of_device(&Place::Ingress(Vec::new()), device, names, entries, &why);
        }
    }
    let has_timeouts = ruleset.has_timeouts || ruleset.chains.values().flatten().any(|rule| rule.has_timeout);
    let mut facts = RulesetFacts { has_timeouts, untracked: true, ..RulesetFacts::default() };
    for base in &ruleset.bases {
        match &base.place {
            Place::Input(_) => {}
            Place::Ip(families) => {
                let forks = Vec::new();
                let chain =
                    ChainEntries { base, families: *families, names, entries, facts: &mut facts, forks };
                chain.of_ip(ruleset);
            }
            Place::Output(families) => {
                if let Some(why) = why_linux(ruleset, base) {
                    entries.add(Feature::Nftables, families.errors(), || why);
                }
            }
            Place::Ingress(devices) | Place::Egress(devices) => {
                let Some(why) = why_linux(ruleset, base) else { continue };
                for device in devices {
                    of_device(&base.place, device, names, entries, &why);
                }
            }
        }
    }
    entries.facts = Some(facts);
    ruleset.bases.iter().for_each(|base| add_translated(base, entries));
}

/// Adds the packets of connections that may be translated because there is a chain of type nat.
fn add_translated(base: &Base, entries: &mut Entries) {
    let (Place::Ip(families) | Place::Input(families) | Place::Output(families)) = &base.place else {
        return;
    };
    if base.is_nat && !entries.has(Repeats::EachFlow, Feature::Nftables, &families.all()) {
        entries.add_that(Repeats::EachFlow, Feature::Nftables, families.all(), || {
            format!("{} has type nat: {TRANSLATES}", base.title())
        });
    }
}

/// What is found in a chain in the way of routed packets.
struct ChainEntries<'a> {
    base: &'a Base,
    families: Families,
    names: &'a Names,
    entries: &'a mut Entries,
    facts: &'a mut RulesetFacts,
    /// Rules that accept some packets of a flow, or lead them elsewhere: they matter once a later rule has an effect.
    forks: Vec<Fork>,
}

/// A rule that matches some packets of a flow, and has no effect itself.
struct Fork {
    traffic: Option<Traffic>,
    why: String,
    /// Whether packets of connections meet it, or only such that are not tracked.
    tracked: bool,
}

impl ChainEntries<'_> {
    fn of_ip(mut self, ruleset: &Ruleset) {
        let (base, all) = (self.base, self.families.all());
        if base.drops {
            self.entries.add_that(Repeats::EachFlow, Feature::Nftables, all.clone(), || {
                format!("{} has policy drop", base.title())
            });
        }
        let mut walk = Walk::new(ruleset, base, |visit: &Visit<'_>| self.add(visit));
        if !walk.whole() {
            self.entries.add(Feature::Nftables, all, || {
                format!("{} leads to more than {VISITS_MAX} rules", base.title())
            });
        }
    }

    fn add(&mut self, visit: &Visit<'_>) {
        let Visit { rule, states, .. } = visit;
        let met = &rule.met;
        let counted = if self.entries.counters == Counters::Exact { met.counter } else { States::NONE };
        let apart = met.each_packet.or(counted).and(*states);
        let tracked = apart.meets(States::ESTABLISHED) || self.base.is_early() && !apart.is_empty();
        let only_untracked = apart.meets(States::UNTRACKED) && !tracked;
        self.facts.looks_up_routes |= met.routes.meets(*states);
        if met.effect.meets(*states) {
            self.decide(rule.stateful.is_some());
        }
        let Some(effect) = &rule.effect else {
            if !apart.is_empty() {
                let traffic = visit.condition.traffic(self.families, self.names);
                let why = rule_title(&self.base.table, visit, "matches some packets of a flow");
                self.forks.push(Fork { traffic, why, tracked });
            }
            if self.base.drops {
                self.decide(false);
            }
            return;
        };
        self.facts.untracked &= !only_untracked;
        let repeats = if tracked { Repeats::EachPacket } else { Repeats::EachFlow };
        // The policy has an entry for all that repeats.
        if self.base.drops && !tracked {
            return;
        }
        let traffic = match rule.stateful {
            Some(_) => Some(self.families.all()),
            None => visit.condition.traffic(self.families, self.names),
        };
        if let Some(traffic) = traffic {
            self.entries.add_that(repeats, Feature::Nftables, traffic, || {
                rule_title(&self.base.table, visit, effect)
            });
        }
    }

    /// Something happens to packets that get as far: which do, depends on the rules before. If it concerns connections, it
    /// does so for both directions.
    fn decide(&mut self, stateful: bool) {
        for Fork { traffic, why, tracked } in std::mem::take(&mut self.forks) {
            self.facts.untracked &= tracked;
            let traffic = if stateful { Some(self.families.all()) } else { traffic };
            if let (Some(traffic), true) = (traffic, tracked) {
                self.entries.add(Feature::Nftables, traffic, || why);
            }
        }
    }
}

/// A rule that is met on the way through chains.
struct Visit<'a> {
    chain: &'a str,
    number: usize,
    rule: &'a Rule,
    /// All conditions on the way there, and its own.
    condition: Condition,
    /// States in which packets of flows may get there.
    states: States,
}

fn rule_title(table: &TableName, visit: &Visit<'_>, effect: &str) -> String {
    let Visit { chain, number, rule, .. } = visit;
    let mut text = format!("rule {number} (handle {}) of {}: ", rule.handle, title(table, chain));
    // The part that depends on connections determines the extent of the entry, so that is named.
    let _infallible = text.write_str(rule.stateful.as_deref().unwrap_or(effect));
    text
}

/// A walk through a base chain and those that it leads to. Calls `each` with every rule that has an effect, or that
/// treats packets of a flow apart.
struct Walk<'a, F> {
    ruleset: &'a Ruleset,
    base: &'a Base,
    visits: usize,
    each: F,
}

impl<'a, F: FnMut(&Visit<'a>)> Walk<'a, F> {
    fn new(ruleset: &'a Ruleset, base: &'a Base, each: F) -> Self {
        Self { ruleset, base, visits: 0, each }
    }

    /// Visits the rules. Returns whether these were all.
    fn whole(&mut self) -> bool {
        let base = self.base;
        self.chain(&base.name, &Condition::default(), base.states, 0).is_some()
    }

    /// Visits the rules of a chain that packets get to with this condition, those of flows in these states. Returns the
    /// states in which they may come back; none if there are too many rules.
    fn chain(
        &mut self,
        chain: &'a str,
        condition: &Condition,
        states: States,
        depth: usize,
    ) -> Option<States> {
        let Some(rules) = self.ruleset.chains.get(&(self.base.table.clone(), chain.into())) else {
            return Some(states);
        };
        let (mut here, mut back) = (states, States::NONE);
        for (number, rule) in (1..).zip(rules) {
            self.visits += 1;
            if self.visits > VISITS_MAX || depth > DEPTH_MAX {
                return None;
            }
            back = back.or(rule.met.back.and(here));
            let mut next = here.without(rule.met.end);
            let quiet = !rule.met.each_packet.or(rule.met.routes).meets(here);
            if rule.effect.is_some() || !rule.targets.is_empty() || !quiet {
                let condition = condition.and(&rule.condition);
                let visit = Visit { chain, number, rule, condition, states: here };
                (self.each)(&visit);
                for target in &rule.targets {
                    let there = self.base.settled(here.and(target.some));
                    let returned = self.chain(&target.chain, &visit.condition, there, depth + 1)?;
                    if target.goes {
                        back = back.or(returned);
                        next = next.without(target.all);
                    } else {
                        next = next.without(target.all.without(returned));
                    }
                }
            }
            here = self.base.settled(next);
        }
        Some(self.base.settled(here.or(back)))
    }
}

/// Why all packets that pass a chain are Linux's, if they are.
fn why_linux(ruleset: &Ruleset, base: &Base) -> Option<String> {
    if base.drops {
        return Some(format!("{} has policy drop", base.title()));
    }
    let mut why = None;
    let mut walk = Walk::new(ruleset, base, |visit: &Visit<'_>| {
        if let Some(effect) = &visit.rule.effect {
            why.get_or_insert_with(|| rule_title(&base.table, visit, effect));
        }
    });
    let whole = walk.whole();
    why.or_else(|| (!whole).then(|| format!("{} leads to more than {VISITS_MAX} rules", base.title())))
}

fn of_device(place: &Place, device: &DeviceName, names: &Names, entries: &mut Entries, why: &str) {
    let found = match device {
        DeviceName::Exactly(name) => names.find(&Device::Name(name.clone())),
        DeviceName::Prefix(_) => NamedInterface::Several,
    };
    let why = || why.to_owned();
    match (found, place) {
        (NamedInterface::Nothing, _) => {}
        (NamedInterface::Index(ifindex), Place::Egress(_)) => {
            entries.add_out(Feature::Nftables, names, ifindex, why)
        }
        (NamedInterface::Index(ifindex), _) => entries.add_in(Feature::Nftables, names, ifindex, why),
        (NamedInterface::Several, _) => {
            entries.add(Feature::Nftables, Traffic::All { ipv4: true, ipv6: true }, why);
        }
    }
}
