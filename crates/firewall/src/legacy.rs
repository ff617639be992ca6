//! The legacy tables of iptables and ip6tables, which exist in the kernel besides nftables, and for which there are
//! no events.
//!
//! Files under `/proc` name the existing tables; only those are read, since querying another would create it. Reading
//! copies the whole table, so it is polled, and less often the longer it takes.
//!
//! Each of their rules counts the packets that match. So a rule concerns its packets whatever its target is, and the
//! chains that it leads to matter only if they concern connections.

mod parse;

use super::condition::{Condition, Families};
use super::entries::{Entries, REASSEMBLES, TRANSLATES};
use super::names::Names;
use super::part::{Part, Unreadable};
use super::{Feature, Repeats};
use bm_netlink::error::Error;
use bm_netlink::legacy_tables;
use bm_wire::Family;
use std::time::Duration;

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(50);

/// The chain that only ICMP errors about routed packets pass.
const OUTPUT: &str = "OUTPUT";

/// A chain in the way of routed packets, or of ICMP errors about them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Chain {
    name: &'static str,
    drops: bool,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rule {
    condition: Condition,
    target: Box<str>,
    /// What about it, or a rule that it leads to, concerns connections.
    stateful: Option<Box<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Table {
    family: Family,
    name: Box<str>,
    chains: Vec<Chain>,
    /// What in any of its chains may require connection tracking.
    tracks: Option<Box<str>>,
}

/// All tables.
#[derive(Debug, Default)]
pub(super) struct Legacy {
    tables: Vec<Table>,
}

impl Part for Legacy {
    fn feature(&self) -> Feature {
        Feature::Iptables
    }

    fn title(&self) -> &'static str {
        "the legacy tables of iptables"
    }

    fn poll_interval(&self) -> Option<Duration> {
        Some(EVERY)
    }

    fn read(&mut self, _: &Names) -> Result<bool, Unreadable> {
        let mut tables = Vec::new();
        for family in Family::BOTH {
            for name in legacy_tables::names(family) {
                let read = legacy_tables::read(family, &name)?;
                let (chains, tracks) = parse::chains(family, &read).ok_or_else(|| Error::System {
                    doing: "parse a legacy iptables table",
                    source: std::io::ErrorKind::InvalidData.into(),
                })?;
                tables.push(Table { family, name: name.into(), chains, tracks });
            }
        }
        let changed = self.tables != tables;
        self.tables = tables;
        Ok(changed)
    }

    fn analyse(&self, names: &Names, entries: &mut Entries) {
        self.tables.iter().for_each(|table| analyse_table(table, names, entries));
        self.tables
            .iter()
            .filter(|table| &*table.name == "nat")
            .for_each(|table| self.add_translated(table, entries));
    }
}

impl Legacy {
    /// Adds the packets of connections that may be translated because there is a table for it. It stays when its rules go.
    fn add_translated(&self, nat: &Table, entries: &mut Entries) {
        let all = Families::only(nat.family).all();
        let tracks = self.tables.iter().any(|table| table.family == nat.family && table.tracks.is_some());
        if tracks && !entries.has(Repeats::EachPacket, Feature::Iptables, &all) {
            entries
                .add(Feature::Iptables, all, || format!("legacy {} table nat: {TRANSLATES}", command(nat)));
        }
    }
}

/// Adds the packets that a given table concerns; none if its bytes are invalid.
pub(super) fn from_table(
    family: Family,
    read: &legacy_tables::LegacyTable,
    names: &Names,
    entries: &mut Entries,
) -> Option<()> {
    let (chains, tracks) = parse::chains(family, read)?;
    analyse_table(&Table { family, name: "filter".into(), chains, tracks }, names, entries);
    Some(())
}

fn analyse_table(table: &Table, names: &Names, entries: &mut Entries) {
    for chain in &table.chains {
        analyse_chain(table, chain, names, entries);
    }
    if let Some(what) = &table.tracks {
        entries.add(Feature::Iptables, Families::only(table.family).fragments(), || {
            format!("{what} in legacy {} table {}: {REASSEMBLES}", command(table), table.name)
        });
    }
}

fn command(table: &Table) -> &'static str {
    match table.family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

fn analyse_chain(table: &Table, chain: &Chain, names: &Names, entries: &mut Entries) {
    let families = Families::only(table.family);
    let title = || format!("chain {} of legacy {} table {}", chain.name, command(table), table.name);
    let whole = if chain.name == OUTPUT { families.errors() } else { families.all() };
    if chain.drops {
        entries.add(Feature::Iptables, whole.clone(), || format!("{} has policy DROP", title()));
    }
    for (number, rule) in (1..).zip(&chain.rules) {
        let (traffic, what) = match &rule.stateful {
            Some(what) => (Some(whole.clone()), what),
            // Where rules match errors is not looked at.
            None if chain.name == OUTPUT => (Some(whole.clone()), &rule.target),
            None => (rule.condition.traffic(families, names), &rule.target),
        };
        if let Some(traffic) = traffic {
            entries.add(Feature::Iptables, traffic, || format!("rule {number} of {}: {what}", title()));
        }
    }
}
