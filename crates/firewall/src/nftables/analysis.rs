//! From a ruleset to the packets that it can drop, change or count.

use super::{Base, DeviceName, Flowtable, Place, Rule, Ruleset, TableName, title};
use crate::condition::{Condition, Families};
use crate::entries::Entries;
use crate::names::{Device, NamedInterface, Names};
use crate::{Feature, Traffic};
use std::fmt::Write;

/// The maximum depth of chains that lead to chains: the kernel's limit.
const DEPTH_MAX: usize = 16;
/// The most rules that are visited for one base chain; one that is reached in several ways counts several times.
const VISITS_MAX: usize = 50_000;

/// Adds the packets that the ruleset concerns.
pub fn analyse(ruleset: &Ruleset, names: &Names, entries: &mut Entries) {
    for Flowtable { table, name, devices } in &ruleset.flowtables {
        let why = format!("flowtable {name} of {}", table.title());
        for device in devices {
            of_device(&Place::Ingress(Vec::new()), device, names, entries, &why);
        }
    }
    for base in &ruleset.bases {
        match &base.place {
            Place::Ip(families) => of_ip(ruleset, base, *families, names, entries),
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
}

/// A chain in the way of routed packets.
fn of_ip(ruleset: &Ruleset, base: &Base, families: Families, names: &Names, entries: &mut Entries) {
    if base.drops {
        entries.add(Feature::Nftables, families.all(), || format!("{} has policy drop", base.title()));
        return;
    }
    let table = &base.table;
    let mut visits = 0;
    let start = Condition::default();
    let whole =
        walk(ruleset, table, &base.name, &start, 0, &mut visits, &mut |chain, number, rule, condition| {
            let traffic = match rule.stateful {
                Some(_) => Some(families.all()),
                None => condition.traffic(families, names),
            };
            if let (Some(traffic), Some(effect)) = (traffic, &rule.effect) {
                entries.add(Feature::Nftables, traffic, || rule_title(table, chain, number, rule, effect));
            }
        });
    if !whole {
        entries.add(Feature::Nftables, families.all(), || {
            format!("{} leads to more than {VISITS_MAX} rules", base.title())
        });
    }
}

fn rule_title(table: &TableName, chain: &str, number: usize, rule: &Rule, effect: &str) -> String {
    let mut text = format!("rule {number} (handle {}) of {}: ", rule.handle, title(table, chain));
    // The part that depends on connections determines the extent of the entry, so that is named.
    let _infallible = text.write_str(rule.stateful.as_deref().unwrap_or(effect));
    text
}

/// Calls `each` with every rule of a chain that has an effect, and with those of chains that it leads to, together
/// with all conditions on the way there. Returns whether these were all.
fn walk(
    ruleset: &Ruleset,
    table: &TableName,
    chain: &str,
    condition: &Condition,
    depth: usize,
    visits: &mut usize,
    each: &mut impl FnMut(&str, usize, &Rule, &Condition),
) -> bool {
    let Some(rules) = ruleset.chains.get(&(table.clone(), chain.into())) else { return true };
    for (number, rule) in (1..).zip(rules) {
        *visits += 1;
        if *visits > VISITS_MAX || depth > DEPTH_MAX {
            return false;
        }
        if rule.effect.is_none() && rule.targets.is_empty() {
            continue;
        }
        let both = condition.and(&rule.condition);
        if rule.effect.is_some() {
            each(chain, number, rule, &both);
        }
        for target in &rule.targets {
            if !walk(ruleset, table, target, &both, depth + 1, visits, each) {
                return false;
            }
        }
    }
    true
}

/// Why all packets that pass a chain are Linux's, if they are.
fn why_linux(ruleset: &Ruleset, base: &Base) -> Option<String> {
    if base.drops {
        return Some(format!("{} has policy drop", base.title()));
    }
    let (mut visits, mut why) = (0, None);
    let (table, start) = (&base.table, Condition::default());
    let whole = walk(ruleset, table, &base.name, &start, 0, &mut visits, &mut |chain, number, rule, _| {
        let effect = rule.effect.as_deref().unwrap_or_default();
        why.get_or_insert_with(|| rule_title(table, chain, number, rule, effect));
    });
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
