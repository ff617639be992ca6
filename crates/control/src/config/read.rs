//! Reads TOML into a [`Config`], and keeps the line of every value for error messages.
//!
//! Each key is read by one call, which also registers it as known; all other keys are reported as unknown. So the list
//! of known keys always matches the keys that are read.

mod apps;
mod cluster;
mod export;
mod filter;
mod hooks;
mod ipsec;
mod serve;
mod switches;

use super::error::Key;
use super::filter::SOURCE_RULES;
use super::firewall::FIREWALL_MODES;
use super::*;
use bm_wire::prefix::Address;
use std::ops::RangeInclusive;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

type Table<'t> = DeTable<'t>;

/// Parses a configuration, or returns all errors in it. Files with keys and tokens are looked for in `folder`.
pub(super) fn config(text: &str, folder: &Path) -> Result<Config, Vec<Problem>> {
    let mut report = Report::new(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let at = error.span().map_or(0, |span| span.start);
        report.add(at, ProblemKind::Syntax(error.message().into()));
    }
    // Text after a syntax error is read only in part, so further errors would be misleading.
    if !errors.is_empty() {
        return Err(report.problems);
    }
    let config = read_all(document.get_ref(), folder, &mut report);
    report.problems.sort_by_key(|problem| problem.line);
    if report.problems.is_empty() { Ok(config) } else { Err(report.problems) }
}

fn read_all(document: &Table<'_>, folder: &Path, report: &mut Report) -> Config {
    let mut config = Config::default();
    let mut top = Section { name: "", table: document, known: Vec::new(), report };
    top.read("daemon", "[daemon]", |section| daemon(section, folder, &mut config.daemon));
    config.ports = ports(&mut top);
    top.read("fib", "[fib]", |section| fib(section, &mut config.fib));
    top.read("slow_path", "[slow_path]", |section| slow_path(section, &mut config.slow_path));
    top.read("neighbors", "[neighbors]", |section| neighbors(section, &mut config.neighbors));
    top.read("mirror", "[mirror]", |section| mirror(section, &mut config.mirror));
    top.read("lua", "[lua]", |section| lua(section, &mut config.lua));
    config.hooks = hooks::hooks(&mut top);
    config.apps = apps::apps(&mut top);
    config.links = apps::links(&mut top, &config.ports);
    config.claims = filter::claims(&mut top);
    config.switches = switches::switches(&mut top, &config.ports);
    top.read("cluster", "[cluster]", |section| {
        config.cluster = Some(cluster::cluster(section, &config.ports))
    });
    top.read("filter", "[filter]", |section| filter::filter(section, &mut config.filter, &config.claims));
    top.read("firewall", "[firewall]", |section| firewall(section, &mut config.firewall));
    top.read("ipsec", "[ipsec]", |section| ipsec::ipsec(section, (folder, &config.ports), &mut config.ipsec));
    export::export(&mut top, &mut config.export);
    top.finish();
    config
}

const PATHS: [(&str, PathChoice); 3] =
    [("auto", PathChoice::Auto), ("user", PathChoice::User), ("kernel", PathChoice::Kernel)];
const ATTACH: [(&str, AttachChoice); 3] =
    [("auto", AttachChoice::Auto), ("xdp", AttachChoice::Xdp), ("tc", AttachChoice::Tc)];
const SWITCH: [(&str, Switch); 3] = [("auto", Switch::Auto), ("on", Switch::On), ("off", Switch::Off)];

fn daemon(section: &mut Section<'_, '_>, folder: &Path, daemon: &mut Daemon) {
    section.file("socket", &mut daemon.socket);
    section.name_or("read_group", "off", "adm", &mut daemon.read_group);
    section.choice("sandbox", &[("on", true), ("off", false)], &mut daemon.sandbox);
    serve::serve(section, folder, daemon);
    section.number_or("workers", "auto", 1..=1024, &mut daemon.workers);
    section.numbers("cores", 0..=4095, &mut daemon.cores);
    section.choice("rebalance", &[("off", false), ("on", true)], &mut daemon.rebalance);
    section.choice("path", &PATHS, &mut daemon.path);
    section.choice("attach", &ATTACH, &mut daemon.attach);
    section.duration("kernel_grace_s", Duration::from_secs, 0..=86_400, &mut daemon.kernel_grace);
    section.choice("idle", &[("sleep", IdleChoice::Sleep), ("busy", IdleChoice::Busy)], &mut daemon.idle);
    section.number_or("poll_us", "auto", 0..=1_000_000, &mut daemon.poll_us);
    section.number_or("priority", "auto", 0..=98, &mut daemon.priority);
    section.power_or("ring", "auto", 64..=65_536, &mut daemon.ring);
    section.number("slots", 1024..=4 << 20, &mut daemon.slots);
    section.power("slot_size", 2048..=16_384, &mut daemon.slot_size);
    section.choice("huge_pages", &SWITCH, &mut daemon.huge_pages);
    if daemon.idle == IdleChoice::Busy
        && let Some(priority) = daemon.priority.filter(|priority| *priority > 0)
    {
        section.report("priority", ProblemKind::BusyRealTime { priority });
    }
    if let Some(workers) = daemon.workers
        && !daemon.cores.is_empty()
        && daemon.cores.len() < workers as usize
    {
        section.report("cores", ProblemKind::FewCores { cores: daemon.cores.len(), workers });
    }
}

fn fib(section: &mut Section<'_, '_>, fib: &mut Fib) {
    section.choice("ipv4", &by_name(structure::IPV4), &mut fib.ipv4);
    section.choice("ipv6", &by_name(structure::IPV6), &mut fib.ipv6);
    section.number("next_hops", 1024..=1 << 24, &mut fib.next_hops);
    section.power("group_buckets", 1 << 12..=1 << 30, &mut fib.group_buckets);
    section.number_or("hash_seed", "random", 0..=u64::from(u32::MAX), &mut fib.hash_seed);
}

/// Lookup structures as choices.
fn by_name<A: Address>(structures: &[Structure<A>]) -> Vec<(&'static str, Structure<A>)> {
    structures.iter().map(|structure| (structure.name, *structure)).collect()
}

fn slow_path(section: &mut Section<'_, '_>, slow_path: &mut SlowPath) {
    section.power("ring", 64..=1 << 20, &mut slow_path.ring);
    section.number("queue_per_next_hop", 1..=65_536, &mut slow_path.queue_per_next_hop);
    section.number("queue", 1..=1 << 20, &mut slow_path.queue);
    section.duration("wait_ms", Duration::from_millis, 1..=60_000, &mut slow_path.wait);
    section.number_or("icmp_per_second", "kernel", 0..=1_000_000, &mut slow_path.icmp_per_second);
}

fn neighbors(section: &mut Section<'_, '_>, neighbors: &mut Neighbors) {
    section.duration("refresh_s", Duration::from_secs, 1..=3600, &mut neighbors.refresh);
    section.number("resolve_per_second", 1..=1_000_000, &mut neighbors.resolve_per_second);
    section.number("resolve_queue", 1..=1 << 20, &mut neighbors.resolve_queue);
}

fn mirror(section: &mut Section<'_, '_>, mirror: &mut Mirror) {
    section.duration("compare_s", Duration::from_secs, 0..=86_400, &mut mirror.compare);
    section.number("receive_buffer", 1 << 16..=1 << 30, &mut mirror.receive_buffer);
}

fn firewall(section: &mut Section<'_, '_>, firewall: &mut Firewall) {
    section.choice("nftables", &FIREWALL_MODES, &mut firewall.nftables);
    section.choice("netfilter", &FIREWALL_MODES, &mut firewall.netfilter);
    section.choice("xfrm", &FIREWALL_MODES, &mut firewall.xfrm);
    section.choice("shaping", &FIREWALL_MODES, &mut firewall.shaping);
    section.choice("tc_filters", &FIREWALL_MODES, &mut firewall.tc_filters);
}

fn lua(section: &mut Section<'_, '_>, lua: &mut Lua) {
    if let Some((at, path)) = section.texts("path", "[\"lua\", \"/usr/share/lua/site\"]") {
        lua.line = if path.is_empty() { 0 } else { section.report.line(at) };
        lua.path = path.into_iter().map(PathBuf::from).collect();
    }
    let choices = [("interrupt", HungCalls::Interrupt), ("restart", HungCalls::Restart)];
    section.choice("hung_calls", &choices, &mut lua.hung_calls);
}

fn ports(top: &mut Section<'_, '_>) -> Vec<Port> {
    let mut ports: Vec<(usize, Port)> = Vec::new();
    for (start, table) in top.tables("port", "[[port]] with device = \"xdp:eth0\" below it") {
        let mut section = Section { name: "[[port]]", table, known: Vec::new(), report: top.report };
        let port = port(&mut section, start);
        section.finish();
        let Some((at, port)) = port else { continue };
        match ports.iter().find(|(_, other)| same_device(&other.device, &port.device)) {
            Some((first, _)) => {
                let first = top.report.line(*first);
                top.report.add(at, ProblemKind::DeviceTwice { device: port.device.to_string(), first });
            }
            None => ports.push((at, port)),
        }
    }
    ports.into_iter().map(|(_, port)| port).collect()
}

/// A port and the position of its device.
fn port(section: &mut Section<'_, '_>, start: usize) -> Option<(usize, Port)> {
    let device = section.text("device", "\"xdp:eth0\"").map(|(at, text)| (at, text.parse::<Device>()));
    let mut port = Port::new(Device::Xdp(String::new()));
    section.number_or("queues", "all", 1..=4096, &mut port.queues);
    section.list("queue_workers", 0..=1023, false, &mut port.queue_workers);
    section.choice("zero_copy", &SWITCH, &mut port.zero_copy);
    section.choice("checksum_completion", &SWITCH, &mut port.checksum_completion);
    section.choice("path", &PATHS, &mut port.path);
    if section.table.contains_key("attach") {
        section.choice("attach", &ATTACH, port.attach.get_or_insert_default());
    }
    section.known.push("attach");
    if section.table.contains_key("reverse_path") {
        let reverse_path = port.reverse_path.get_or_insert_default();
        section.choice("reverse_path", &SOURCE_RULES, reverse_path);
    }
    section.known.push("reverse_path");
    match device {
        Some((at, Ok(device))) => Some((at, Port { device, ..port })),
        Some((at, Err(why))) => {
            section.report.add(at, ProblemKind::Device(why));
            None
        }
        None if !section.table.contains_key("device") => {
            section.report.add(start, ProblemKind::NoDevice);
            None
        }
        None => None,
    }
}

/// Whether two ports use the same interface or files.
fn same_device(one: &Device, two: &Device) -> bool {
    one == two || (one.interface().is_some() && one.interface() == two.interface())
}

struct Report {
    /// Offset of each line.
    lines: Vec<usize>,
    problems: Vec<Problem>,
}

impl Report {
    fn new(text: &str) -> Self {
        let behind = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { lines: std::iter::once(0).chain(behind).collect(), problems: Vec::new() }
    }

    /// The line, from 1, of an offset in the text.
    fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at)
    }

    fn add(&mut self, at: usize, kind: ProblemKind) {
        let line = self.line(at);
        self.problems.push(Problem { line, kind });
    }
}

/// A table of the file, and the keys that have been read.
struct Section<'s, 't> {
    name: &'static str,
    table: &'s Table<'t>,
    known: Vec<&'static str>,
    report: &'s mut Report,
}

impl<'s, 't> Section<'s, 't> {
    /// The tables of an array, with their positions.
    fn tables(&mut self, key: &'static str, example: &str) -> Vec<(usize, &'s Table<'t>)> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let mut found = Vec::new();
        let DeValue::Array(list) = value.get_ref() else {
            self.wrong_type(self.key(key), value, "an array of tables", example.into());
            return found;
        };
        for item in list {
            match item.get_ref() {
                DeValue::Table(table) => found.push((item.span().start, table)),
                _ => self.wrong_type(self.key(key), item, "an array of tables", example.into()),
            }
        }
        found
    }

    fn key(&self, key: &'static str) -> Key {
        Key { section: if self.name.is_empty() { "this file" } else { self.name }, key }
    }

    fn value(&mut self, key: &'static str) -> Option<&'s Spanned<DeValue<'t>>> {
        self.known.push(key);
        self.table.get(key)
    }

    fn section<'a>(&'a mut self, key: &'static str, name: &'static str) -> Option<Section<'a, 't>>
    where
        's: 'a,
    {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(Section { name, table, known: Vec::new(), report: self.report }),
            _ => {
                self.wrong_type(self.key(key), value, "a table", format!("{name} on a line of its own"));
                None
            }
        }
    }

    /// Reads a section, if there is one.
    fn read(&mut self, key: &'static str, name: &'static str, read: impl FnOnce(&mut Section<'_, '_>)) {
        if let Some(mut section) = self.section(key, name) {
            read(&mut section);
            section.finish();
        }
    }

    /// Reports unknown keys.
    fn finish(self) {
        for key in self.table.keys().filter(|key| !self.known.contains(&key.get_ref().as_ref())) {
            let (key, at) = (key.get_ref().to_string(), key.span().start);
            let known = self.known.clone();
            self.report.add(at, ProblemKind::UnknownKey { key, section: self.name, known });
        }
    }

    fn report(&mut self, key: &'static str, kind: ProblemKind) {
        let at = self.table.get(key).map_or(0, |value| value.span().start);
        self.report.add(at, kind);
    }

    fn wrong_type(&mut self, key: Key, value: &Spanned<DeValue<'_>>, wants: &'static str, example: String) {
        let found = described(value.get_ref());
        self.report.add(value.span().start, ProblemKind::Type { key, wants, found, example });
    }

    fn text(&mut self, key: &'static str, example: &str) -> Option<(usize, &'s str)> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::String(text) => Some((value.span().start, text)),
            _ => {
                let example = format!("{key} = {example}");
                self.wrong_type(self.key(key), value, "a string", example);
                None
            }
        }
    }

    /// A list of strings and its position.
    fn texts(&mut self, key: &'static str, example: &str) -> Option<(usize, Vec<&'s str>)> {
        const WANTS: &str = "a list of strings";
        let (value, example) = (self.value(key)?, format!("{key} = {example}"));
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong_type(self.key(key), value, WANTS, example);
            return None;
        };
        let mut texts = Vec::new();
        for item in items {
            match item.get_ref() {
                DeValue::String(text) => texts.push(text.as_ref()),
                _ => self.wrong_type(self.key(key), item, WANTS, example.clone()),
            }
        }
        Some((value.span().start, texts))
    }

    fn file(&mut self, key: &'static str, target: &mut PathBuf) {
        if let Some((_, text)) = self.text(key, &format!("\"{}\"", target.display())) {
            *target = text.into();
        }
    }

    /// A name, or the word for none.
    fn name_or(&mut self, key: &'static str, none: &str, example: &str, target: &mut Option<String>) {
        if let Some((_, text)) = self.text(key, &format!("\"{example}\"")) {
            *target = (text != none).then(|| text.into());
        }
    }

    fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&'static str, T)], target: &mut T) {
        let example = format!("\"{}\"", choices[0].0);
        let Some((at, text)) = self.text(key, &example) else { return };
        match choices.iter().find(|(word, _)| *word == text) {
            Some((_, choice)) => *target = *choice,
            None => {
                let known = choices.iter().map(|(word, _)| *word).collect();
                self.report.add(at, ProblemKind::Choice { key: self.key(key), found: text.into(), known });
            }
        }
    }

    fn number(&mut self, key: &'static str, range: RangeInclusive<u64>, target: &mut u32) {
        let example = format!("{key} = {target}");
        let value = self.value(key);
        if let Some(number) = self.in_range(key, value, range, "a whole number", example) {
            *target = number as u32;
        }
    }

    fn power(&mut self, key: &'static str, range: RangeInclusive<u64>, target: &mut u32) {
        let before = *target;
        self.number(key, range, target);
        if !target.is_power_of_two() {
            let kind = ProblemKind::PowerOfTwo { key: self.key(key), found: u64::from(*target) };
            self.report(key, kind);
            *target = before;
        }
    }

    fn number_or(
        &mut self,
        key: &'static str,
        word: &'static str,
        range: RangeInclusive<u64>,
        target: &mut Option<u32>,
    ) {
        let value = self.value(key);
        if let Some(DeValue::String(text)) = value.map(Spanned::get_ref)
            && text == word
        {
            *target = None;
            return;
        }
        let example = format!("{key} = \"{word}\" or {key} = {}", range.start().max(&1));
        if let Some(number) = self.in_range(key, value, range, "a whole number or a keyword", example) {
            *target = Some(number as u32);
        }
    }

    fn power_or(
        &mut self,
        key: &'static str,
        word: &'static str,
        range: RangeInclusive<u64>,
        target: &mut Option<u32>,
    ) {
        self.number_or(key, word, range, target);
        if let Some(found) = target.filter(|number| !number.is_power_of_two()) {
            let kind = ProblemKind::PowerOfTwo { key: self.key(key), found: found.into() };
            self.report(key, kind);
            *target = None;
        }
    }

    fn duration(
        &mut self,
        key: &'static str,
        unit: fn(u64) -> Duration,
        range: RangeInclusive<u64>,
        target: &mut Duration,
    ) {
        let value = self.value(key);
        let example = format!("{key} = {}", target.as_nanos() / unit(1).as_nanos());
        if let Some(number) = self.in_range(key, value, range, "a whole number", example) {
            *target = unit(number);
        }
    }

    /// A list of numbers without duplicates.
    fn numbers(&mut self, key: &'static str, range: RangeInclusive<u64>, target: &mut Vec<u32>) {
        self.list(key, range, true, target);
    }

    fn list(&mut self, key: &'static str, range: RangeInclusive<u64>, differ: bool, target: &mut Vec<u32>) {
        const WANTS: &str = "a list of whole numbers";
        let Some(value) = self.value(key) else { return };
        let example = format!("{key} = [0, 1]");
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong_type(self.key(key), value, WANTS, example);
            return;
        };
        for item in items {
            let number = self.in_range(key, Some(item), range.clone(), WANTS, example.clone());
            match number.map(|number| number as u32) {
                Some(number) if differ && target.contains(&number) => {
                    let kind = ProblemKind::Twice { key: self.key(key), found: u64::from(number) };
                    self.report.add(item.span().start, kind);
                }
                number => target.extend(number),
            }
        }
    }

    fn in_range(
        &mut self,
        key: &'static str,
        value: Option<&Spanned<DeValue<'_>>>,
        range: RangeInclusive<u64>,
        wants: &'static str,
        example: String,
    ) -> Option<u64> {
        let (value, key) = (value?, self.key(key));
        let DeValue::Integer(integer) = value.get_ref() else {
            self.wrong_type(key, value, wants, example);
            return None;
        };
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            let (least, most) = (*range.start(), *range.end());
            let kind = ProblemKind::Range { key, found: integer.to_string(), least, most };
            self.report.add(value.span().start, kind);
        }
        number
    }
}

fn described(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the string \"{text}\""),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(truth) => format!("the boolean {truth}"),
        DeValue::Datetime(time) => format!("the time {time}"),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a table".into(),
    }
}
