//! Reads `[ipsec]`: SAs, their keys, and policies.

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;

use bm_ipsec::{
    Action, Df, Direction, Dscp, Ecn, Limit, Mode, Policy, Sa, SaId, Secret, Selector, Suite, UdpPorts, What,
};

use super::filter::protocol;
use super::*;
use crate::config::daemon::OFF_ON;

const DIRECTIONS: [(&str, Direction); 2] = [("out", Direction::Out), ("in", Direction::In)];
const MODES: [(&str, Mode); 2] = [("tunnel", Mode::Tunnel), ("transport", Mode::Transport)];
const DF: [(&str, Df); 3] = [("copy", Df::Copy), ("set", Df::Set), ("clear", Df::Clear)];
const ECN: [(&str, Ecn); 2] = [("normal", Ecn::Normal), ("compatibility", Ecn::Compatibility)];
/// The port of UDP encapsulation where no NAT has changed it.
const NAT_TRAVERSAL: u32 = 4500;
/// The largest number of TOML.
const NUMBER_MAX: u64 = i64::MAX as u64;
/// The longest lifetime: a hundred years, in seconds.
const SECONDS_MAX: u64 = 100 * 365 * 86_400;
/// The most bytes of a file with a key; the longest key has 64 digits.
const KEY_FILE_MAX: u64 = 1024;
/// The longest path of a socket.
const SOCKET_MAX: usize = 80;
/// The longest name of an SA.
const NAME_MAX: usize = 63;
/// The longest name of an interface (`IFNAMSIZ`, without its end).
const DEVICE_MAX: usize = 15;

/// What `action` can be; the SA of `protect` is read apart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ActionWord {
    Protect,
    Discard,
    Bypass,
}

const ACTIONS: [(&str, ActionWord); 3] =
    [("protect", ActionWord::Protect), ("discard", ActionWord::Discard), ("bypass", ActionWord::Bypass)];

/// Reads the section. Files with keys are looked for in `folder`.
pub(super) fn ipsec(section: &mut Section<'_, '_>, folder: &Path, ports: &[Port], ipsec: &mut Ipsec) {
    let before = section.report.problems.len();
    let mut lines = Vec::new();
    ipsec.read(section);
    if let Some((at, path)) = section.text("xfrm_socket", "\"/run/brickmoon/xfrm.sock\"") {
        // What fits `struct sockaddr_un`, with the name that it has until it is ready.
        if path.len() > SOCKET_MAX || !path.starts_with('/') {
            section.invalid("xfrm_socket", at, path, "must be an absolute path of at most 80 bytes");
        }
        ipsec.xfrm_socket = Some(path.into());
    }
    for (start, table) in section.tables("interface", "[[ipsec.interface]] with device and if_id below it") {
        let mut part = section.element("[[ipsec.interface]]", table);
        interface(&mut part, start, ports, &mut lines, &mut ipsec.interfaces);
        part.finish();
    }
    // Problems name an SA or a policy by where its table is.
    let mut tables = Vec::new();
    for (start, table) in section.tables("sa", "[[ipsec.sa]] with name, spi and so on below it") {
        let mut part = section.element("[[ipsec.sa]]", table);
        let sa = sa(&mut part, folder, &ipsec.interfaces, start);
        ipsec.has_keys_here |=
            ["encryption_key", "integrity_key"].iter().any(|key| table.get(*key).is_some());
        part.finish();
        tables.push((start, table));
        let Some((at, name, sa)) = sa else { continue };
        match ipsec.names.iter().position(|other| *other == name) {
            Some(first) => {
                let first = section.report.line(ipsec.sas[first].at);
                section.report.add(at, ProblemKind::Again { what: format!("SA \"{name}\""), first });
            }
            None => {
                ipsec.names.push(name);
                ipsec.sas.push(sa);
            }
        }
    }
    let sas = section.report.problems.len();
    for (start, table) in section.tables("policy", "[[ipsec.policy]] with direction and action below it") {
        let mut part = section.element("[[ipsec.policy]]", table);
        // Where an SA has a problem, a policy for it would be reported as well.
        let known = (sas == before).then_some(&*ipsec);
        let policy = policy(&mut part, known, &ipsec.interfaces, start);
        part.finish();
        tables.push((start, table));
        if let Some((policy, list)) = policy {
            ipsec.policies.push(policy);
            ipsec.lists.extend(list);
        }
    }
    if section.report.problems.len() == before {
        check(section.report, ipsec, &tables);
    }
    ipsec.sas.iter_mut().for_each(|sa| sa.at = section.report.line(sa.at));
    ipsec.policies.iter_mut().for_each(|policy| policy.at = section.report.line(policy.at));
}

/// Reports what cannot work, on the line of the key that says it.
fn check(report: &mut Report, ipsec: &Ipsec, tables: &[(usize, &Table<'_>)]) {
    for bm_ipsec::Problem { at, what } in bm_ipsec::problems(&ipsec.sas, &ipsec.policies, &ipsec.lists) {
        let table = tables.iter().find(|(start, _)| *start == at).map(|(_, table)| table);
        let keys = keys_of(&what);
        let value = table.and_then(|table| keys.iter().find_map(|key| table.get(*key)));
        let first = match what {
            What::Duplicate { first, .. } | What::Overlap { first, .. } | What::OtherPlace { first, .. } => {
                Some(report.line(first))
            }
            _ => None,
        };
        let at = value.map_or(at, |value| value.span().start);
        report.add(at, ProblemKind::Ipsec { what, first });
    }
}

/// The keys that a problem can be about, the likeliest first.
fn keys_of(what: &What) -> &'static [&'static str] {
    match what {
        What::Spi(_) | What::Duplicate { .. } => &["spi"],
        What::KeyLength { key: "integrity_key", .. }
        | What::NoIntegrityKey(_)
        | What::ZeroKey("integrity_key") => &["integrity_key", "integrity_key_file"],
        What::KeyLength { .. } | What::ZeroKey(_) => &["encryption_key", "encryption_key_file"],
        What::Window(_) | What::EsnWithoutWindow => &["replay_window", "esn"],
        What::Families { .. } | What::Address(_) => &["source"],
        What::ZeroLifetime("bytes") | What::SoftLifetime("bytes") => &["soft_bytes", "hard_bytes"],
        What::ZeroLifetime("packets") | What::SoftLifetime("packets") => &["soft_packets", "hard_packets"],
        What::ZeroLifetime(_) | What::SoftLifetime(_) => &["soft_s", "hard_s"],
        What::Dscp(_) => &["dscp"],
        What::Ttl => &["ttl"],
        What::PathMtu { .. } => &["path_mtu"],
        What::UdpPort => &["udp_source_port", "udp_destination_port"],
        What::SelectorFamilies => &["destination"],
        What::SelectorPorts => &["source_ports", "destination_ports"],
        What::Overlap { .. } => &["priority"],
        What::NoSa(_) | What::OtherDirection(_) => &["sa"],
        What::Twice(_) | What::OtherEnds { .. } | What::OtherPlace { .. } => &["sa"],
        What::OtherInterface(_) => &["interface", "sa"],
        What::InterfaceTransport => &["mode"],
        What::ManyPolicies(_) => &[],
    }
}

/// Adds an interface. `lines` has where the others are.
fn interface(
    section: &mut Section<'_, '_>,
    start: usize,
    ports: &[Port],
    lines: &mut Vec<usize>,
    known: &mut Vec<IpsecInterface>,
) {
    let device = section.required("device", "device = \"ipsec0\"");
    let if_id = section.value("if_id");
    if if_id.is_none() {
        section.missing("if_id", "if_id = 1");
    }
    let at = if_id.map_or(start, |value| value.span().start);
    let if_id = section.in_range("if_id", if_id, 1..=u32::MAX.into(), "a whole number", "if_id = 1".into());
    let (Some((device_at, device)), Some(if_id)) = (device, if_id) else { return };
    if device.is_empty() || device.len() > DEVICE_MAX || device.contains(['/', ' ']) {
        section.invalid("device", device_at, device, "must be the name of an interface of Linux");
        return;
    }
    if ports.iter().any(|port| port.device.interface() == Some(device)) {
        let why = "is a [[port]], which cannot be encrypted: use an interface of its own, such as one made with \
                   `ip tuntap add ipsec0 mode tun`";
        section.invalid("device", device_at, device, why);
        return;
    }
    let if_id = if_id as u32;
    for (other, first) in known.iter().zip(&*lines) {
        let (at, what) = if other.device == device {
            (device_at, format!("interface \"{device}\" in [ipsec]"))
        } else if other.if_id == if_id {
            (at, format!("if_id {if_id}"))
        } else {
            continue;
        };
        return section.report.add(at, ProblemKind::Again { what, first: *first });
    }
    lines.push(section.report.line(start));
    known.push(IpsecInterface { device: device.into(), if_id });
}

/// The number of the interface that an SA or a policy names; 0 if it names none.
fn interface_named(section: &mut Section<'_, '_>, interfaces: &[IpsecInterface]) -> Option<u32> {
    let Some((at, name)) = section.text("interface", "\"ipsec0\"") else { return Some(0) };
    let found = interfaces.iter().find(|interface| interface.device == name);
    if found.is_none() {
        section.invalid(
            "interface",
            at,
            name,
            "there is no [[ipsec.interface]] with this device: add it, with an if_id",
        );
    }
    found.map(|interface| interface.if_id)
}

/// An SA with its name, and where that is.
fn sa(
    section: &mut Section<'_, '_>,
    folder: &Path,
    interfaces: &[IpsecInterface],
    start: usize,
) -> Option<(usize, String, Sa)> {
    let name = name(section);
    let direction = chosen(section, "direction", "direction = \"out\"", &DIRECTIONS);
    let spi = section.value("spi");
    if spi.is_none() {
        section.missing("spi", "spi = 0x1001");
    }
    let spi = section.in_range("spi", spi, 0..=u32::MAX.into(), "a whole number", "spi = 0x1001".into());
    let source = address(section, "source", "source = \"192.0.2.1\"");
    let destination = address(section, "destination", "destination = \"198.51.100.1\"");
    let suite =
        chosen(section, "suite", "suite = \"aes128gcm16\"", &Suite::ALL.map(|suite| (suite.name(), suite)));
    let encryption_key = secret(section, folder, ["encryption_key", "encryption_key_file"]);
    let integrity_key = secret(section, folder, ["integrity_key", "integrity_key_file"]);
    let mut sa = Sa::new(
        direction.unwrap_or(Direction::Out),
        SaId { spi: spi.unwrap_or(0) as u32, destination: destination.unwrap_or(IpAddr::from([0; 4])) },
        source.unwrap_or(IpAddr::from([0; 4])),
        suite.unwrap_or(Suite::Aes128Gcm),
    );
    sa.at = start;
    let if_id = interface_named(section, interfaces);
    sa.if_id = if_id.unwrap_or(0);
    sa.encryption_key = encryption_key.unwrap_or_else(Secret::none);
    sa.integrity_key = integrity_key.unwrap_or_else(Secret::none);
    options(section, &mut sa);
    lifetimes(section, &mut sa);
    for (_, table) in section.tables("selector", "[[ipsec.sa.selector]] with source or destination below it")
    {
        let name = "[[ipsec.sa.selector]]";
        let mut part = section.element(name, table);
        sa.selectors.push(selector(&mut part));
        part.finish();
    }
    let (at, name) = name?;
    let ends = direction.is_some() && source.is_some() && destination.is_some();
    (ends && spi.is_some() && suite.is_some() && if_id.is_some()).then_some((at, name, sa))
}

/// What has a default.
fn options(section: &mut Section<'_, '_>, sa: &mut Sa) {
    section.choice("mode", &MODES, &mut sa.mode);
    section.choice("esn", &OFF_ON, &mut sa.esn);
    section.number("replay_window", 0..=u32::MAX.into(), &mut sa.replay_window);
    section.choice("df", &DF, &mut sa.df);
    section.choice("ecn", &ECN, &mut sa.ecn);
    let mut dscp = None;
    section.number_or("dscp", "copy", 0..=63, &mut dscp);
    sa.dscp = dscp.map_or(Dscp::Copy, |dscp| Dscp::Set(dscp as u8));
    let (mut ttl, mut path_mtu) = (u32::from(sa.ttl), u32::from(sa.path_mtu));
    section.number("ttl", 1..=255, &mut ttl);
    section.number("path_mtu", 576..=65_535, &mut path_mtu);
    (sa.ttl, sa.path_mtu) = (ttl as u8, path_mtu as u16);
    let (mut encapsulate, mut source, mut destination) = (false, NAT_TRAVERSAL, NAT_TRAVERSAL);
    section.choice("udp_encapsulation", &OFF_ON, &mut encapsulate);
    section.number("udp_source_port", 0..=65_535, &mut source);
    section.number("udp_destination_port", 0..=65_535, &mut destination);
    sa.udp = encapsulate.then_some(UdpPorts { source: source as u16, destination: destination as u16 });
}

fn lifetimes(section: &mut Section<'_, '_>, sa: &mut Sa) {
    let second_ns = 1_000_000_000;
    sa.limits.bytes = Limit {
        soft: lifetime(section, "soft_bytes", NUMBER_MAX),
        hard: lifetime(section, "hard_bytes", NUMBER_MAX),
    };
    sa.limits.packets = Limit {
        soft: lifetime(section, "soft_packets", NUMBER_MAX),
        hard: lifetime(section, "hard_packets", NUMBER_MAX),
    };
    sa.limits.time_ns = Limit {
        soft: lifetime(section, "soft_s", SECONDS_MAX).map(|seconds| seconds * second_ns),
        hard: lifetime(section, "hard_s", SECONDS_MAX).map(|seconds| seconds * second_ns),
    };
}

fn lifetime(section: &mut Section<'_, '_>, key: &'static str, most: u64) -> Option<u64> {
    let value = section.value(key);
    section.in_range(key, value, 0..=most, "a whole number", format!("{key} = 1000000"))
}

fn selector(section: &mut Section<'_, '_>) -> Selector {
    let mut of = Selector {
        source: section.prefix("source"),
        destination: section.prefix("destination"),
        ..Selector::default()
    };
    protocol(section, &mut of.protocol);
    of.source_ports = section.ports("source_ports");
    of.destination_ports = section.ports("destination_ports");
    of
}

/// A policy, and its SAs if it has several; `known` has those that it can name, if they are all right.
fn policy(
    section: &mut Section<'_, '_>,
    known: Option<&Ipsec>,
    interfaces: &[IpsecInterface],
    start: usize,
) -> Option<(Policy, Option<Vec<SaId>>)> {
    let direction = chosen(section, "direction", "direction = \"out\"", &DIRECTIONS);
    let action = chosen(section, "action", "action = \"protect\"", &ACTIONS);
    let mut priority = 100;
    section.number("priority", 0..=u32::MAX.into(), &mut priority);
    let if_id = interface_named(section, interfaces);
    let selector = selector(section);
    let (named, mut list) = (named(section), None);
    let action = match (action?, named) {
        (ActionWord::Protect, Some((at, names))) => {
            let known = known?;
            let ids: Option<Vec<SaId>> = names.iter().map(|name| sa_of(section, known, at, name)).collect();
            match &ids?[..] {
                [] => {
                    section.invalid("sa", at, "[]", "name at least one SA, or use action = \"discard\"");
                    return None;
                }
                [one] => Action::Protect(*one),
                several => {
                    list = Some(several.to_vec());
                    Action::OneOf(known.lists.len() as u32)
                }
            }
        }
        (ActionWord::Protect, None) => {
            if !section.table.contains_key("sa") {
                section
                    .report
                    .add(start, ProblemKind::Missing { key: section.key("sa"), example: "sa = \"to-b\"" });
            }
            return None;
        }
        (_, Some((at, names))) => {
            section.invalid(
                "sa",
                at,
                &names.join(", "),
                "only policies with action = \"protect\" have an SA: remove it",
            );
            return None;
        }
        (ActionWord::Discard, None) => Action::Discard,
        (ActionWord::Bypass, None) => Action::Bypass,
    };
    Some((Policy { at: start, direction: direction?, priority, if_id: if_id?, selector, action }, list))
}

/// The names of `sa`, one or a list, and where they are.
fn named<'s>(section: &mut Section<'s, '_>) -> Option<(usize, Vec<&'s str>)> {
    let value = section.table.get("sa").map(|value| value.get_ref());
    if matches!(value, Some(DeValue::Array(_))) {
        return section.texts("sa", "[\"to-b-0\", \"to-b-1\"]");
    }
    section.text("sa", "\"to-b\"").map(|(at, name)| (at, vec![name]))
}

/// The SA with a name.
fn sa_of(section: &mut Section<'_, '_>, known: &Ipsec, at: usize, name: &str) -> Option<SaId> {
    let found = known.names.iter().position(|other| other == name);
    if found.is_none() {
        let why = "there is no [[ipsec.sa]] with this name: add it, or use action = \"discard\"";
        section.invalid("sa", at, name, why);
    }
    found.map(|sa| known.sas[sa].id())
}

/// The name of an SA.
fn name(section: &mut Section<'_, '_>) -> Option<(usize, String)> {
    let (at, name) = section.required("name", "name = \"to-b\"")?;
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(|c| is_plain(c) || c == '.') {
        section.invalid("name", at, name, "use 1 to 63 letters, digits, `-`, `_` or `.`");
        return None;
    }
    Some((at, name.into()))
}

/// A required choice.
fn chosen<T: Copy>(
    section: &mut Section<'_, '_>,
    key: &'static str,
    example: &'static str,
    choices: &[(&'static str, T)],
) -> Option<T> {
    if !section.table.contains_key(key) {
        section.know(key);
        section.missing(key, example);
        return None;
    }
    let mut found = None;
    let choices: Vec<_> = choices.iter().map(|(word, value)| (*word, Some(*value))).collect();
    section.choice(key, &choices, &mut found);
    found
}

fn address(section: &mut Section<'_, '_>, key: &'static str, example: &'static str) -> Option<IpAddr> {
    let (at, text) = section.required(key, example)?;
    let read = text.parse().ok();
    if read.is_none() {
        section.invalid(key, at, text, "must be an IPv4 or IPv6 address, such as \"192.0.2.1\"");
    }
    read
}

/// A key in hexadecimal: in the configuration, or in a file that only its owner can read.
fn secret(
    section: &mut Section<'_, '_>,
    folder: &Path,
    [key, file_key]: [&'static str; 2],
) -> Option<Secret> {
    let (value, file) = (section.value(key), section.text(file_key, "\"to-b.key\""));
    match (value, file) {
        (Some(value), Some(_)) => {
            let why = format!("`{file_key}` is set as well: remove one of the two");
            section.bad_secret(key, value.span().start, why);
            None
        }
        (Some(value), None) => {
            let secret = match value.get_ref() {
                DeValue::String(text) => Secret::from_hex(text).map_err(|why| why.to_string()),
                _ => Err(format!("must be a string: write {key} = \"0x..\"")),
            };
            secret.map_err(|why| section.bad_secret(key, value.span().start, why)).ok()
        }
        (None, Some((at, file))) => from_file(&folder.join(file))
            .map_err(|why| section.bad_secret(file_key, at, format!("{file}: {why}")))
            .ok(),
        (None, None) => None,
    }
}

impl Section<'_, '_> {
    fn bad_secret(&mut self, key: &'static str, at: usize, why: String) {
        self.report.add(at, ProblemKind::Secret { key: self.key(key), why });
    }
}

/// Reads a key from a file.
fn from_file(file: &Path) -> Result<Secret, String> {
    let about = std::fs::metadata(file).map_err(unreadable)?;
    if about.mode() & 0o077 != 0 {
        return Err(format!("others than its owner can read it: `chmod 600 {}`", file.display()));
    }
    if !about.is_file() || about.len() > KEY_FILE_MAX {
        return Err("is not a file with a key in hexadecimal".into());
    }
    let text = Secret::new(&std::fs::read(file).map_err(unreadable)?);
    let text =
        std::str::from_utf8(text.bytes()).map_err(|_| "must be hexadecimal, two digits for each byte")?;
    Secret::from_hex(text.trim()).map_err(|why| why.to_string())
}

fn unreadable(error: std::io::Error) -> String {
    format!("cannot be read: {error}")
}
