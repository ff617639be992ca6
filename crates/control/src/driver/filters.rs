//! `[filter]` for the kernel path: rules into a tree, interfaces into numbers, names into counters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bm_api::{Filter, Filters as Shown};
use bm_fastpath::{Filters, Kernel, Rate, SourceCheck};
use bm_filter::{Action, Flat, ROOM_RULES, Rule, Tree};

use crate::compile::Interfaces;
use crate::config::{self, Config, SourceRule};

/// What the configuration says, and what was made of it last.
pub(super) struct Filtering {
    config: config::Filter,
    /// By port, with its name.
    sources: Vec<(String, SourceRule)>,
    /// The counter of each name. A name keeps it as long as any rule has that name.
    counters: BTreeMap<String, u16>,
    /// Counters that no rule has had.
    fresh: u16,
    made: Option<Made>,
}

/// Filters, and the interfaces that ports in rules were taken for.
struct Made {
    interfaces: Vec<Option<u16>>,
    filters: Arc<Filters>,
}

impl Filtering {
    pub fn new(config: &Config) -> Self {
        let mut filtering = Self {
            config: config::Filter::default(),
            sources: Vec::new(),
            counters: BTreeMap::new(),
            fresh: 0,
            made: None,
        };
        filtering.set(config, None);
        filtering
    }

    /// Goes by another configuration from now on.
    pub fn set(&mut self, config: &Config, kernel: Option<&Kernel>) {
        let source = |port: &config::Port| {
            let name = port.device.interface().map_or_else(|| port.device.to_string(), Into::into);
            (name, config.source_rule(port))
        };
        self.sources = config.ports.iter().map(source).collect();
        if self.config == config.filter && !self.counters.is_empty() {
            return;
        }
        self.config = config.filter.clone();
        self.made = None;
        let names: BTreeSet<&str> = self.config.rules.iter().map(|rule| rule.name.as_str()).collect();
        self.counters.retain(|name, _| names.contains(name.as_str()));
        let known: BTreeSet<u16> = self.counters.values().copied().collect();
        let mut free = (0..self.fresh).filter(|counter| !known.contains(counter));
        for name in names {
            if self.counters.contains_key(name) {
                continue;
            }
            // What an earlier rule has counted is no matter of this one.
            let counter = if usize::from(self.fresh) < ROOM_RULES {
                self.fresh += 1;
                self.fresh - 1
            } else {
                let Some(counter) = free.next() else { break };
                let cleared = kernel.map_or(Ok(()), |kernel| kernel.clear_rule_count(counter));
                if let Err(error) = cleared {
                    tracing::warn!(%error, rule = name, "its counter begins with that of an earlier rule");
                }
                counter
            };
            self.counters.insert(name.into(), counter);
        }
    }

    /// How sources are checked on a port.
    pub fn source_rule(&self, port: u16) -> SourceRule {
        self.sources.get(usize::from(port)).map(|(_, rule)| *rule).unwrap_or_default()
    }

    /// Whether anything is filtered.
    fn is_on(&self) -> bool {
        let checks = |(_, rule): &(String, SourceRule)| check_of(*rule) != SourceCheck::None;
        self.config.drops() || self.sources.iter().any(checks)
    }

    /// What the program is to do, where interfaces are as they are now.
    pub fn filters(&mut self, interfaces: &Interfaces) -> Option<Arc<Filters>> {
        if !self.is_on() {
            self.made = None;
            return None;
        }
        let index = |rule: &Rule| interface_called(interfaces, rule.port.as_deref()?);
        let now: Vec<_> = self.config.rules.iter().map(index).collect();
        let made = self.made.take().filter(|made| made.interfaces == now);
        let made = made.unwrap_or_else(|| {
            let filters = Arc::new(self.make(&now));
            Made { interfaces: now, filters }
        });
        let filters = Arc::clone(&made.filters);
        self.made = Some(made);
        Some(filters)
    }

    fn make(&self, interfaces: &[Option<u16>]) -> Filters {
        let of_rule = |(rule, interface): (&Rule, &Option<u16>)| {
            // A port that is not there now lets nothing in.
            let off = rule.port.is_some() && interface.is_none();
            let counter = self.counters.get(&rule.name).copied().filter(|_| !off);
            counter.into_iter().flat_map(|counter| Flat::of(rule, counter, *interface)).collect::<Vec<_>>()
        };
        let flat = self.config.rules.iter().zip(interfaces).flat_map(of_rule).collect();
        let tree = Tree::grow(flat).unwrap_or_else(|error| {
            tracing::error!(%error, "rules are not carried out");
            Tree::default()
        });
        let config = &self.config;
        Filters {
            tree,
            drop_unmatched: config.unmatched == Action::Drop,
            drop_tiny_fragments: config.tiny_fragments == Action::Drop,
            rate: config.rate_packets.map(|packets| Rate {
                packets,
                burst: config.rate_burst.unwrap_or(packets),
                lengths: [config.rate_ipv4_length, config.rate_ipv6_length].map(|length| length as u8),
            }),
        }
    }

    /// Each name with what its rules ask for and have matched.
    pub fn shown(&self, kernel: &Kernel) -> Shown {
        let mut filters: Vec<Filter> = Vec::new();
        let mut places = BTreeMap::new();
        for rule in &self.config.rules {
            match places.get(rule.name.as_str()) {
                Some(place) => {
                    let shown: &mut Filter = &mut filters[*place];
                    shown.rules += 1;
                }
                None => {
                    places.insert(rule.name.as_str(), filters.len());
                    let counter = self.counters.get(&rule.name).copied();
                    let packets = counter.and_then(|counter| kernel.rule_count(counter).ok()).unwrap_or(0);
                    let (name, asks) = (rule.name.clone(), rule.to_string());
                    filters.push(Filter { name, action: rule.action.to_string(), asks, rules: 1, packets });
                }
            }
        }
        let unmatched = self.config.unmatched.to_string();
        let unmatched_packets = kernel.unmatched_count().unwrap_or(0);
        let set = self.sources.iter().filter(|(_, rule)| *rule != SourceRule::Kernel);
        let source = |(port, rule): &(String, SourceRule)| bm_api::SourceCheck {
            port: port.clone(),
            check: rule.to_string(),
        };
        Shown { filters, unmatched, unmatched_packets, sources: set.map(source).collect() }
    }
}

/// What filters have to do for a rule about sources.
pub(super) fn check_of(rule: SourceRule) -> SourceCheck {
    match rule {
        SourceRule::Kernel | SourceRule::Off => SourceCheck::None,
        SourceRule::Strict => SourceCheck::Strict,
        SourceRule::Feasible => SourceCheck::Feasible,
        SourceRule::Loose => SourceCheck::Loose,
    }
}

/// Our index of the interface of a port.
fn interface_called(interfaces: &Interfaces, name: &str) -> Option<u16> {
    let named = |interface: &bm_forward::tables::Interface| {
        interface.name == name && interface.ifindex != 0 && interface.vlan.is_none()
    };
    interfaces.list.iter().position(named).map(|index| index as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn read(text: &str) -> Config {
        Config::parse(Path::new("test.toml"), text).unwrap()
    }

    #[test]
    fn names_keep_their_counters() {
        let rules = |names: &[&str]| {
            let rule = |name: &&str| format!("[[filter.rule]]\naction = 'drop'\nname = '{name}'\n");
            read(&names.iter().map(rule).collect::<String>())
        };
        let mut filtering = Filtering::new(&rules(&["a", "b", "a", "c"]));
        assert_eq!(filtering.counters.len(), 3);
        let before = filtering.counters.clone();
        filtering.set(&rules(&["c", "d", "a"]), None);
        assert_eq!((filtering.counters["a"], filtering.counters["c"]), (before["a"], before["c"]));
        assert!(!before.values().any(|counter| *counter == filtering.counters["d"]), "a fresh one");
    }

    #[test]
    fn nothing_is_made_of_nothing() {
        let interfaces = Interfaces::default();
        assert_eq!(Filtering::new(&read("")).filters(&interfaces), None);
        let mut strict = Filtering::new(&read("[[port]]\ndevice = 'eth0'\nreverse_path = 'strict'\n"));
        let filters = strict.filters(&interfaces).unwrap();
        assert_eq!((filters.tree.rules.len(), strict.source_rule(0)), (0, SourceRule::Strict));
        let again = strict.filters(&interfaces).unwrap();
        assert!(Arc::ptr_eq(&filters, &again), "made once");
    }

    #[test]
    fn a_rule_for_a_port_that_is_not_there_matches_nothing() {
        let config =
            read("[[filter.rule]]\naction = 'drop'\nport = 'eth9'\n[[filter.rule]]\naction = 'drop'\n");
        let filters = Filtering::new(&config).filters(&Interfaces::default()).unwrap();
        assert_eq!(filters.tree.rules.len(), 1);
    }
}
