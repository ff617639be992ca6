//! Reads `[filter]` and its rules, and `[[claim]]`.

use super::{DeValue, ProblemKind, Section};
use crate::config::declare::Declared;
use crate::config::filter::{ACTIONS, Filter};
use bm_filter::{AnyPrefix, Flat, Ports, ROOM_RULES, Rule};

/// Protocols: name, number, and whether they have ports.
const PROTOCOLS: [(&str, u8, bool); 12] = [
    ("tcp", 6, true),
    ("udp", 17, true),
    ("sctp", 132, true),
    ("dccp", 33, true),
    ("udplite", 136, true),
    ("icmp", 1, false),
    ("icmpv6", 58, false),
    ("gre", 47, false),
    ("esp", 50, false),
    ("ah", 51, false),
    ("ospf", 89, false),
    ("vrrp", 112, false),
];

/// Reads `[filter]`; the limit on rules includes `claims`.
pub(super) fn filter(section: &mut Section<'_, '_>, filter: &mut Filter, claims: &[Rule]) {
    filter.read(section);
    filter.rules = rules(section);
    if !filter.rules.is_empty() {
        check_room(section, "rule", filter.rules.iter().chain(claims));
    }
}

/// Reports too many rules; one rule may become several flat ones.
fn check_room<'r>(section: &mut Section<'_, '_>, key: &'static str, rules: impl Iterator<Item = &'r Rule>) {
    let rules = rules.map(|rule| Flat::from_rule(rule, 0, None).count()).sum();
    if rules > ROOM_RULES {
        section.report(key, ProblemKind::ManyRules { rules, most: ROOM_RULES });
    }
}

fn rules(filter: &mut Section<'_, '_>) -> Vec<Rule> {
    let mut rules = Vec::new();
    for (start, table) in filter.tables("rule", "[[filter.rule]] with action = \"drop\" below it") {
        let mut section = filter.element("[[filter.rule]]", table);
        rules.push(rule(&mut section, start, rules.len() + 1));
        section.finish();
    }
    rules
}

/// Reads all `[[claim]]` tables.
pub(super) fn claims(top: &mut Section<'_, '_>) -> Vec<Rule> {
    let mut claims = Vec::new();
    for (start, table) in top.tables("claim", "[[claim]] with protocol = \"udp\" below it") {
        let mut section = top.element("[[claim]]", table);
        let mut claim = Rule { name: format!("claim-{}", claims.len() + 1), ..Rule::default() };
        if let Some((_, name)) = section.text("name", "\"dns\"") {
            claim.name = name.into();
        }
        matches(&mut section, start, &mut claim);
        section.finish();
        claims.push(claim);
    }
    check_room(top, "claim", claims.iter());
    claims
}

fn rule(section: &mut Section<'_, '_>, start: usize, number: usize) -> Rule {
    let mut rule = Rule { name: format!("rule-{number}"), ..Rule::default() };
    if let Some((_, name)) = section.text("name", "\"no-telnet\"") {
        rule.name = name.into();
    }
    section.choice("action", &ACTIONS, &mut rule.action);
    if !section.table.contains_key("action") {
        section.report.add(start, ProblemKind::NoAction);
    }
    matches(section, start, &mut rule);
    rule
}

/// Reads what a rule matches.
fn matches(section: &mut Section<'_, '_>, start: usize, rule: &mut Rule) {
    rule.port = section.text("port", "\"eth0\"").map(|(_, port)| port.into());
    rule.source = section.prefix("source");
    rule.destination = section.prefix("destination");
    let has_ports = protocol(section, &mut rule.protocol);
    rule.source_ports = section.ports("source_ports");
    rule.destination_ports = section.ports("destination_ports");
    if (rule.source_ports.is_some() || rule.destination_ports.is_some()) && !has_ports {
        section.report.add(start, ProblemKind::PortsOfNothing);
    }
    if let (Some(source), Some(destination)) = (rule.source, rule.destination)
        && source.is_ipv6() != destination.is_ipv6()
    {
        section.report("destination", ProblemKind::TwoFamilies { source, destination });
    }
}

/// Reads the protocol; returns whether it has ports.
pub(super) fn protocol(section: &mut Section<'_, '_>, target: &mut Option<u8>) -> bool {
    let Some(value) = section.table.get("protocol") else {
        section.know("protocol");
        return false;
    };
    if let DeValue::Integer(_) = value.get_ref() {
        let mut number = 0;
        section.number("protocol", 0..=255, &mut number);
        *target = Some(number as u8);
    } else {
        let choices = PROTOCOLS.map(|(name, number, _)| (name, number));
        let mut number = u8::MAX;
        section.choice("protocol", &choices, &mut number);
        *target = Some(number);
    }
    PROTOCOLS.iter().any(|(_, number, ports)| Some(*number) == *target && *ports)
}

impl Section<'_, '_> {
    pub(super) fn prefix(&mut self, key: &'static str) -> Option<AnyPrefix> {
        let (at, text) = self.text(key, "\"192.0.2.0/24\"")?;
        let read = text.parse().ok();
        if read.is_none() {
            let kind = ProblemKind::Prefix { key: self.key(key), found: text.into() };
            self.report.add(at, kind);
        }
        read
    }

    /// A port, or a range such as `1024-65535`.
    pub(super) fn ports(&mut self, key: &'static str) -> Option<Ports> {
        let value = self.table.get(key);
        if let Some(DeValue::Integer(_)) = value.map(|value| value.get_ref()) {
            let mut port = 0;
            self.number(key, 0..=65_535, &mut port);
            return Some(port as u16..=port as u16);
        }
        let (at, text) = self.text(key, "\"1024-65535\"")?;
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse(), last.trim().parse()) {
            (Ok(first), Ok(last)) if first <= last => Some(first..=last),
            _ => {
                let kind = ProblemKind::Ports { key: self.key(key), found: text.into() };
                self.report.add(at, kind);
                None
            }
        }
    }
}
