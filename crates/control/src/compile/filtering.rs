//! Compiles `[filter]`: rules to a tree, interface names to indexes, rule names to counters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bm_api::{Filter, Filters as Shown};
use bm_filter::{Action, Filters, Flat, ROOM_RULES, Rate, Rule, TooMany, Tree, UNMATCHED};
use bm_wire::ReversePath;

use super::{Compiler, Interfaces};
use crate::config::{self, Config, SourceRule};
use crate::nftables;
use bm_fib::memory::OutOfMemory;
use bm_forward::Outcome;
use bm_forward::filter::{FilterSet, FilterVerdict, RuleCounts, SourceRates};
use bm_port::Unattended;
use bm_stats::Reason;

/// The configuration of filters, and what was last compiled from it.
#[derive(Default)]
pub(super) struct Filtering {
    config: config::Filter,
    claims: Vec<Rule>,
    /// Whether filters drop anything that Linux would route.
    drops: bool,
    /// What each port of workers does with packets that no worker fetches.
    unattended: Vec<Unattended>,
    /// Source checks of ports, with their names.
    sources: Vec<(String, SourceRule)>,
    /// The counter of each rule name, which is kept as long as a rule has the name.
    counters: BTreeMap<String, u16>,
    /// Number of counters used so far.
    fresh: u16,
    made: Option<CompiledFilters>,
    /// The configuration has changed since the last compilation.
    changed: bool,
}

/// Compiled filters, and the interfaces that port names in rules stood for.
struct CompiledFilters {
    interfaces: Vec<Option<u16>>,
    /// The filters of the configuration only.
    configured: Arc<Filters>,
    /// Rules for packets that only Linux may handle, included in `filters`.
    linux_only: Vec<Flat>,
    filters: Arc<Filters>,
}

impl CompiledFilters {
    /// Adds rules for packets that only Linux may handle to those of the configuration.
    fn add_linux_only(&mut self, linux_only: &[Flat]) -> Result<(), TooMany> {
        self.filters = Arc::clone(&self.configured);
        self.linux_only.clear();
        if !linux_only.is_empty() {
            let tree = self.configured.tree.with_linux_only(linux_only.to_vec())?;
            self.filters = Arc::new(Filters { tree, ..Filters::clone(&self.configured) });
            self.linux_only = linux_only.to_vec();
        }
        Ok(())
    }
}

impl Filtering {
    /// Sets the configuration. Returns the counters that must be cleared, since other rules have counted with
    /// them.
    pub fn set(&mut self, config: &Config) -> Vec<u16> {
        self.sources.clear();
        for port in &config.ports {
            let name = port.device.interface().map_or_else(|| port.device.to_string(), Into::into);
            self.sources.push((name, config.source_rule(port)));
        }
        self.drops = config.filters_drop();
        self.unattended = (0..config.ports.len()).map(|index| nftables::unattended(config, index)).collect();
        if self.config == config.filter && self.claims == config.claims && !self.counters.is_empty() {
            return Vec::new();
        }
        self.config = config.filter.clone();
        self.claims.clone_from(&config.claims);
        self.changed = true;
        let claims = self.claims.iter().map(counter_of_claim);
        let names: BTreeSet<String> =
            self.config.rules.iter().map(|rule| rule.name.clone()).chain(claims).collect();
        self.counters.retain(|name, _| names.contains(name));
        let known: BTreeSet<u16> = self.counters.values().copied().collect();
        let mut free = (0..self.fresh).filter(|counter| !known.contains(counter));
        let mut used = Vec::new();
        for name in names {
            if self.counters.contains_key(&name) {
                continue;
            }
            // Counts of an earlier rule must not appear in this one.
            let counter = if usize::from(self.fresh) < ROOM_RULES {
                self.fresh += 1;
                self.fresh - 1
            } else {
                let Some(counter) = free.next() else { break };
                used.push(counter);
                counter
            };
            self.counters.insert(name, counter);
        }
        used
    }

    /// Source check of a port.
    pub fn source_rule(&self, port: u16) -> SourceRule {
        self.sources.get(usize::from(port)).map(|(_, rule)| *rule).unwrap_or_default()
    }

    /// Whether there are any filters.
    fn is_on(&self) -> bool {
        self.drops || !self.claims.is_empty()
    }

    /// Compiles the filters for the current interfaces, with these rules for packets that only Linux may handle.
    ///
    /// # Errors
    /// If there is no room for the rules in addition to those of the configuration.
    pub fn filters(
        &mut self,
        interfaces: &Interfaces,
        linux_only: &[Flat],
    ) -> Result<Option<Arc<Filters>>, TooMany> {
        if !self.is_on() && linux_only.is_empty() {
            self.made = None;
            return Ok(None);
        }
        let rules = self.config.rules.iter().chain(&self.claims);
        let interfaces: Vec<_> =
            rules.map(|rule| interface_called(interfaces, rule.port.as_deref()?)).collect();
        let before = self.made.take();
        let mut made = match before {
            Some(made) if !self.changed && made.interfaces == interfaces => made,
            before => {
                let configured = self.make(&interfaces).map(Arc::new).unwrap_or_else(|error| {
                    tracing::error!(%error, "cannot apply the new filter rules; the previous ones stay");
                    before.map(|made| made.configured).unwrap_or_default()
                });
                let filters = Arc::clone(&configured);
                CompiledFilters { interfaces, configured, linux_only: Vec::new(), filters }
            }
        };
        self.changed = false;
        let beside = match made.linux_only == linux_only {
            true => Ok(()),
            false => made.add_linux_only(linux_only),
        };
        let filters = Arc::clone(&made.filters);
        self.made = Some(made);
        beside.map(|()| Some(filters))
    }

    /// # Errors
    /// If there are too many rules, which is checked when the configuration is read.
    fn make(&self, interfaces: &[Option<u16>]) -> Result<Filters, TooMany> {
        let (of_rules, of_claims) = interfaces.split_at(self.config.rules.len().min(interfaces.len()));
        let rules = self.config.rules.iter().zip(of_rules);
        let rules = rules.flat_map(|(rule, interface)| self.flat(rule, &rule.name, *interface)).collect();
        let claims = self.claims.iter().zip(of_claims);
        let claims = claims
            .flat_map(|(claim, interface)| self.flat(claim, &counter_of_claim(claim), *interface))
            .collect();
        let tree = Tree::grow_with(rules, claims)?;
        let config = &self.config;
        Ok(Filters {
            tree,
            drop_unmatched: config.unmatched == Action::Drop,
            drop_tiny_fragments: config.tiny_fragments == Action::Drop,
            rate: config.rate_packets.map(|packets| Rate {
                packets,
                burst: config.rate_burst.unwrap_or(packets),
                lengths: [config.rate_ipv4_length, config.rate_ipv6_length].map(|length| length as u8),
            }),
        })
    }

    /// A rule as the tree has it: several, or none if its port is missing.
    fn flat(&self, rule: &Rule, name: &str, interface: Option<u16>) -> Vec<Flat> {
        if rule.port.is_some() && interface.is_none() {
            return Vec::new();
        }
        let Some(counter) = self.counters.get(name) else { return Vec::new() };
        Flat::from_rule(rule, *counter, interface).collect()
    }

    /// Names with their rules and matches; `count` reads a counter.
    pub fn shown(&self, count: impl Fn(u16) -> u64) -> Shown {
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
                    let packets = counter.map_or(0, &count);
                    let (name, expression) = (rule.name.clone(), rule.to_string());
                    filters.push(Filter {
                        name,
                        action: rule.action.to_string(),
                        expression,
                        rules: 1,
                        packets,
                    });
                }
            }
        }
        let claims = self.claims.iter().map(|claim| Filter {
            name: claim.name.clone(),
            action: "claim".into(),
            expression: claim.to_string(),
            rules: 1,
            packets: self.counters.get(&counter_of_claim(claim)).map_or(0, |counter| count(*counter)),
        });
        let unmatched = self.config.unmatched.to_string();
        let unmatched_packets = count(UNMATCHED);
        let configured = self.sources.iter().filter(|(_, rule)| *rule != SourceRule::Kernel);
        let sources = configured
            .map(|(port, rule)| bm_api::SourceCheck { port: port.clone(), check: rule.to_string() });
        let (claims, sources) = (claims.collect(), sources.collect());
        Shown { filters, claims, unmatched, unmatched_packets, sources }
    }
}

impl Compiler {
    /// Sets, by port, whether workers filter its packets. Takes effect with the next [`Self::apply`].
    pub fn set_worker_ports(&mut self, ports: Vec<bool>) {
        self.reshape |= self.worker_ports != ports;
        self.worker_ports = ports;
    }

    /// Sets the configuration of filters. Takes effect with the next [`Self::apply`]. Returns the counters of rules that must
    /// be cleared in the kernel path; those of workers are cleared here.
    pub fn set_filters(&mut self, config: &Config) -> Vec<u16> {
        self.reshape = true;
        let used = self.filtering.set(config);
        if let Some(counts) = &self.counts {
            used.iter().for_each(|counter| counts.clear(*counter));
        }
        used
    }

    /// The compiled filters; `None` without any.
    pub fn filters(&self) -> Option<&Arc<Filters>> {
        self.state.filters.as_ref()
    }

    /// Whether filters drop anything that Linux would route.
    pub fn filters_drop(&self) -> bool {
        self.filtering.drops
    }

    /// What a port of workers does with packets that no worker fetches.
    pub fn unattended(&self, port: u16) -> Unattended {
        self.filtering.unattended.get(usize::from(port)).copied().unwrap_or_default()
    }

    /// Source check of a port.
    pub fn source_rule(&self, port: u16) -> SourceRule {
        self.filtering.source_rule(port)
    }

    /// The source check for filters. Without memory for feasible reverse paths, all sources pass a check of them.
    pub fn source_check(&self, rule: SourceRule) -> ReversePath {
        match rule.own() {
            ReversePath::Feasible if self.lacks_sources() => ReversePath::Off,
            check => check,
        }
    }

    /// Whether there is no memory for feasible reverse paths although they are needed.
    pub fn lacks_sources(&self) -> bool {
        self.ipv4.lacks_sources() || self.ipv6.lacks_sources()
    }

    /// Filter rules with their matches; `others` reads the counters of the kernel path.
    pub fn shown_filters(&self, others: impl Fn(u16) -> u64) -> bm_api::Filters {
        self.filtering.shown(|counter| {
            let workers = self.counts.as_ref().map_or(0, |counts| counts.count(counter));
            workers + others(counter)
        })
    }

    /// Creates the state of workers' filters when there are filters for the first time.
    pub(super) fn prepare_filters(&mut self) -> Result<(), OutOfMemory> {
        let Some(filters) = self.state.filters.as_ref().filter(|_| self.worker_ports.contains(&true)) else {
            return Ok(());
        };
        if self.counts.is_none() {
            self.counts = Some(Arc::new(RuleCounts::new()?));
        }
        if filters.rate.is_some() && self.rates.is_none() {
            let seed = u64::from(self.choices.hash_seed) << 32 | u64::from(!self.choices.hash_seed);
            self.rates = Some(Arc::new(SourceRates::new(seed)?));
        }
        Ok(())
    }

    /// The filters as one packet is compared with them, also where workers have none; their counters are its own.
    pub(super) fn filters_of_one(&self) -> Result<Option<FilterSet>, OutOfMemory> {
        let Some(filters) = self.state.filters.as_ref() else { return Ok(None) };
        Ok(Some(FilterSet {
            filters: Arc::clone(filters),
            checks: self.state.rules.iter().map(|rule| self.source_check(*rule)).collect(),
            unknown: self.state.linux_only,
            ports: Vec::new(),
            counts: Arc::new(RuleCounts::new()?),
            rates: None,
        }))
    }

    /// What the rules of the configuration do with a packet, in words.
    pub(crate) fn filters_on(&self, outcome: &Outcome) -> String {
        let shown = self.filtering.shown(|counter| outcome.matched(counter).into());
        let rule = shown.filters.iter().find(|rule| rule.packets > 0);
        let named = rule.map(|rule| format!("{} ({})", rule.name, rule.expression));
        match (outcome.filtered, named) {
            (Some(FilterVerdict::Drop(Reason::Filter)), Some(rule)) => format!("dropped by rule {rule}"),
            (Some(FilterVerdict::Drop(Reason::Filter)), None) if shown.unmatched_packets > 0 => {
                "dropped: no rule matches, and unmatched packets are dropped".into()
            }
            (Some(FilterVerdict::Drop(reason)), _) => format!("dropped: {}", reason.meaning()),
            (_, Some(rule)) => format!("passed by rule {rule}"),
            (_, None) if self.filtering.drops => "passed: no rule matches".into(),
            (_, None) => "none".into(),
        }
    }

    /// The claim that hands a packet of the kernel path to workers.
    pub(crate) fn claim_on(&self, outcome: &Outcome) -> Option<String> {
        let claim = outcome.claim?;
        let shown = self.filtering.shown(|counter| (counter == claim).into());
        let claim = shown.claims.into_iter().find(|claim| claim.packets > 0)?;
        Some(format!("{} ({}): workers get it", claim.name, claim.expression))
    }

    /// The filters of workers.
    pub(super) fn filter_set(&self) -> Option<Arc<FilterSet>> {
        let (filters, counts) = self.state.filters.as_ref().zip(self.counts.as_ref())?;
        Some(Arc::new(FilterSet {
            filters: Arc::clone(filters),
            checks: self.state.rules.iter().map(|rule| self.source_check(*rule)).collect(),
            unknown: self.state.linux_only,
            ports: self.state.worker_ports.clone(),
            counts: Arc::clone(counts),
            rates: self.rates.clone(),
        }))
    }
}

/// The name under which a claim is counted; no filter rule can have it.
fn counter_of_claim(claim: &Rule) -> String {
    format!("\0{}", claim.name)
}

/// Our index of the interface of a port.
fn interface_called(interfaces: &Interfaces, name: &str) -> Option<u16> {
    let index = interfaces
        .list
        .iter()
        .position(|interface| interface.name == name && interface.ifindex != 0 && interface.vlan.is_none());
    index.map(|index| index as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn filtering(config: &Config) -> Filtering {
        let mut filtering = Filtering::default();
        filtering.set(config);
        filtering
    }

    fn read(text: &str) -> Config {
        Config::parse(Path::new("test.toml"), text).unwrap()
    }

    #[test]
    fn names_keep_their_counters() {
        let rules = |names: &[&str]| {
            let rule = |name: &&str| format!("[[filter.rule]]\naction = 'drop'\nname = '{name}'\n");
            read(&names.iter().map(rule).collect::<String>())
        };
        let mut filtering = filtering(&rules(&["a", "b", "a", "c"]));
        assert_eq!(filtering.counters.len(), 3);
        let before = filtering.counters.clone();
        assert!(filtering.set(&rules(&["c", "d", "a"])).is_empty());
        assert_eq!((filtering.counters["a"], filtering.counters["c"]), (before["a"], before["c"]));
        assert!(!before.values().any(|counter| *counter == filtering.counters["d"]), "a fresh one");
    }

    #[test]
    fn no_rules_compile_to_no_filters() {
        let interfaces = Interfaces::default();
        assert_eq!(filtering(&read("")).filters(&interfaces, &[]), Ok(None));
        let mut strict = filtering(&read("[[port]]\ndevice = 'eth0'\nreverse_path = 'strict'\n"));
        let filters = strict.filters(&interfaces, &[]).unwrap().unwrap();
        assert_eq!(
            (filters.tree.rules.len(), strict.source_rule(0)),
            (0, SourceRule::Own(ReversePath::Strict))
        );
        let again = strict.filters(&interfaces, &[]).unwrap().unwrap();
        assert!(Arc::ptr_eq(&filters, &again), "made once");
    }

    #[test]
    fn rules_without_room_leave_those_before() {
        let mut config = read("[[filter.rule]]\naction = 'drop'\n");
        let (mut filtering, interfaces) = (filtering(&config), Interfaces::default());
        let before = filtering.filters(&interfaces, &[]).unwrap().unwrap();
        // Rejected when the configuration is read.
        config.filter.rules = vec![config.filter.rules[0].clone(); ROOM_RULES + 1];
        filtering.set(&config);
        let after = filtering.filters(&interfaces, &[]).unwrap().unwrap();
        assert!(Arc::ptr_eq(&before, &after) && after.tree.rules.len() == 1);
        config.filter.rules.truncate(2);
        filtering.set(&config);
        assert_eq!(filtering.filters(&interfaces, &[]).unwrap().unwrap().tree.rules.len(), 2);
    }

    #[test]
    fn a_rule_for_a_missing_port_matches_nothing() {
        let config =
            read("[[filter.rule]]\naction = 'drop'\nport = 'eth9'\n[[filter.rule]]\naction = 'drop'\n");
        let filters = filtering(&config).filters(&Interfaces::default(), &[]).unwrap().unwrap();
        assert_eq!(filters.tree.rules.len(), 1);
    }
}
