//! Reads `[[switch]]`: names, patterns, VLANs and static entries.

use super::*;
use bm_switch::{Pattern, PortRule, Settings, Static, VLAN_MAX, Vlans};
use std::ops::RangeInclusive;

/// Maximum length of the names of a switch and its interface; the name of the other end is three longer.
const NAME_MAX: usize = 12;
/// Maximum length of an interface name.
const INTERFACE_MAX: usize = 15;
const VLANS: RangeInclusive<u64> = 1..=VLAN_MAX as u64;

/// Reads all switches; `ports` are the ports of the router, which a switch cannot have.
pub(super) fn switches(top: &mut Section<'_, '_>, ports: &[Port]) -> Vec<Settings> {
    let mut switches: Vec<(usize, Settings)> = Vec::new();
    for (start, table) in top.tables("switch", "[[switch]] with name = \"lan\" below it") {
        let mut section = top.element("[[switch]]", table);
        let switch = switch(&mut section);
        section.finish();
        let shares = switches.iter().find_map(|(at, other)| Some((shared(other, &switch)?, *at)));
        if let Some((what, at)) = shares {
            let first = top.report.line(at);
            top.report.add(start, ProblemKind::Again { what, first });
        }
        for port in ports {
            if let Some(name) = port.device.interface().filter(|name| switch.has(name)) {
                let kind = ProblemKind::Text {
                    key: Key { section: "[[switch]]", key: "ports" },
                    found: name.into(),
                    hint: "this is also a [[port]] of the router: remove one of the two, or give the switch an `interface` and use that as the port",
                };
                top.report.add(start, kind);
            }
        }
        switches.push((start, switch));
    }
    switches.into_iter().map(|(_, switch)| switch).collect()
}

/// A name, interface or port that two switches share.
fn shared(one: &Settings, two: &Settings) -> Option<String> {
    if one.name == two.name {
        return Some(format!("switch \"{}\"", one.name));
    }
    if one.interface.is_some() && one.interface == two.interface {
        return one.interface.as_ref().map(|name| format!("interface {name}"));
    }
    let names = two.ports.iter().filter_map(Pattern::name);
    let mut both = names.filter(|name| one.ports.iter().any(|other| other.name() == Some(name)));
    both.next().map(|name| format!("port {name}"))
}

fn switch(section: &mut Section<'_, '_>) -> Settings {
    let mut switch = Settings::new("");
    if let Some((at, name)) = section.required("name", "name = \"lan\"") {
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(is_plain) {
            section.invalid("name", at, name, "use 1 to 12 letters, digits, `-` or `_`");
        }
        switch.name = name.into();
    }
    switch.ports = section.patterns("ports", "ports = [\"veth*\", \"tap0\"]", true);
    switch.read(section);
    if let Some((at, name)) = section.text("interface", "\"lan0\"") {
        if !is_interface(name) || name.len() > NAME_MAX {
            section.invalid("interface", at, name, "use 1 to 12 bytes for the name of the new interface");
        }
        switch.interface = Some(name.into());
    }
    for (_, table) in section.tables("port", "[[switch.port]] with ports = \"veth1\" below it") {
        let mut section = section.element("[[switch.port]]", table);
        switch.rules.extend(rules(&mut section));
        section.finish();
    }
    for (_, table) in section.tables("static", "[[switch.static]] with mac and port below it") {
        let mut section = section.element("[[switch.static]]", table);
        switch.statics.extend(read_static(&mut section));
        section.finish();
    }
    switch
}

pub(super) fn is_interface(name: &str) -> bool {
    let is_odd = name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace());
    (1..=INTERFACE_MAX).contains(&name.len()) && !is_odd && name != "." && name != ".."
}

/// One rule for each pattern of a `[[switch.port]]`.
fn rules(section: &mut Section<'_, '_>) -> Vec<PortRule> {
    let ports = section.patterns("ports", "ports = \"veth1\"", true);
    let (mut access, mut native) = (None, None);
    section.number_or("access", "default", VLANS, &mut access);
    let tagged = section.vlans("trunk");
    section.number_or("native", "none", VLANS, &mut native);
    if access.is_some() && tagged.is_some() {
        let key = section.key("access");
        let hint = "a port with `trunk` needs `native` for its untagged VLAN instead";
        let found = access.map(|vlan| vlan.to_string()).unwrap_or_default();
        section.report("access", ProblemKind::Text { key, found, hint });
    }
    if native.is_some() && tagged.is_none() {
        section.report("native", ProblemKind::Missing { key: section.key("trunk"), example: "trunk = [20]" });
    }
    // The pattern is set for each of them below.
    let mut rule = PortRule::new(Pattern::new(""));
    rule.read(section);
    rule.vlans = match tagged {
        Some(tagged) => Some(Vlans::Trunk { tagged, native: native.map(|vlan| vlan as u16) }),
        None => access.map(|vlan| Vlans::Access(vlan as u16)),
    };
    ports.into_iter().map(|ports| PortRule { ports, ..rule.clone() }).collect()
}

fn read_static(section: &mut Section<'_, '_>) -> Option<Static> {
    let mac = section.required("mac", "mac = \"02:00:00:00:00:01\"");
    let port = section.required("port", "port = \"veth1\"");
    let mut addresses = Vec::new();
    for (at, text) in section
        .texts("addresses", "[\"192.0.2.10\"]")
        .into_iter()
        .flat_map(|(at, texts)| texts.into_iter().map(move |text| (at, text)))
    {
        match text.parse() {
            Ok(address) => addresses.push(address),
            Err(_) => section.invalid(
                "addresses",
                at,
                text,
                "must be an IPv4 or IPv6 address, such as \"192.0.2.10\"",
            ),
        }
    }
    let mut vlan = None;
    section.number_or("vlan", "untagged", VLANS, &mut vlan);
    let read = mac.and_then(|(at, text)| {
        let read = read_mac(text);
        if read.is_none() {
            let hint = "must be a unicast MAC address, such as \"02:00:00:00:00:01\"";
            section.invalid("mac", at, text, hint);
        }
        read
    });
    let (at, port) = port?;
    if !is_interface(port) || Pattern::new(port).name().is_none() {
        section.invalid("port", at, port, "must be the name of one interface");
    }
    Some(Static { mac: read?, vlan: vlan.unwrap_or(0) as u16, port: port.into(), addresses })
}

/// Parses a unicast MAC address.
fn read_mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = text.split(':').map(|part| {
        let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        digits.then(|| u8::from_str_radix(part, 16).ok()).flatten()
    });
    let mut mac = [0; 6];
    for byte in &mut mac {
        *byte = bytes.next()??;
    }
    (bytes.next().is_none() && mac[0] & 1 == 0 && mac != [0; 6]).then_some(mac)
}

impl<'s, 't> Section<'s, 't> {
    pub(super) fn required(&mut self, key: &'static str, example: &'static str) -> Option<(usize, &'s str)> {
        let found = self.text(key, example.split_once(" = ").map_or(example, |(_, value)| value));
        if !self.table.contains_key(key) {
            self.missing(key, example);
        }
        found
    }

    pub(super) fn missing(&mut self, key: &'static str, example: &'static str) {
        let kind = ProblemKind::Missing { key: self.key(key), example };
        // The position of the table is unknown; use that of its first key.
        let at = self.table.keys().map(|key| key.span().start).min().unwrap_or(0);
        self.report.add(at, kind);
    }

    /// One pattern, or a list of them.
    fn patterns(&mut self, key: &'static str, example: &'static str, needed: bool) -> Vec<Pattern> {
        let Some(value) = self.value(key) else {
            if needed {
                self.missing(key, example);
            }
            return Vec::new();
        };
        let items = match value.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            _ => vec![value],
        };
        let mut patterns = Vec::new();
        for item in items {
            match item.get_ref() {
                DeValue::String(text) if is_interface(text) => patterns.push(Pattern::new(text)),
                DeValue::String(text) => {
                    let hint = "must be the name of an interface, or a pattern such as \"veth*\"";
                    self.invalid(key, item.span().start, text, hint);
                }
                _ => self.wrong_type(
                    self.key(key),
                    item,
                    "a name or pattern, or a list of them",
                    example.into(),
                ),
            }
        }
        patterns
    }

    /// A list of VLAN IDs and ranges.
    fn vlans(&mut self, key: &'static str) -> Option<Vec<(u16, u16)>> {
        const WANTS: &str = "a list of VLAN IDs";
        let value = self.value(key)?;
        let example = format!("{key} = [20, \"30-39\"]");
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong_type(self.key(key), value, WANTS, example);
            return None;
        };
        let mut vlans = Vec::new();
        for item in items {
            if let DeValue::String(text) = item.get_ref() {
                match range(text) {
                    Some(range) => vlans.push(range),
                    None => self.invalid(key, item.span().start, text, "must be a range, such as \"30-39\""),
                }
                continue;
            }
            let one = self.in_range(key, Some(item), VLANS, WANTS, example.clone());
            vlans.extend(one.map(|vlan| (vlan as u16, vlan as u16)));
        }
        Some(vlans)
    }
}

fn range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-')?;
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first >= 1 && first <= last && last <= VLAN_MAX).then_some((first, last))
}
