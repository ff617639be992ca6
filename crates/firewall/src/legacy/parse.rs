//! The parsed entries of a table: `struct ipt_entry` or `ip6t_entry`, one after the other.

use super::{Chain, OUTPUT, Rule};
use crate::condition::Condition;
use crate::names::Device;
use crate::xt;
use bm_netlink::attribute;
use bm_netlink::legacy_tables::LegacyTable;
use bm_wire::Family;
use std::collections::BTreeMap;

/// Hooks of routed packets and of ICMP errors about them, by number.
const HOOKS: [(usize, &str); 4] = [(0, "PREROUTING"), (2, "FORWARD"), (3, OUTPUT), (4, "POSTROUTING")];
/// Header of a match or target: its size, its name, its revision.
const EXTENSION: usize = 32;
/// The name of the target that starts a user-defined chain.
const CHAIN_HEAD: &str = "ERROR";
/// Flags for inverted matches.
mod invert {
    pub const INPUT: u8 = 1;
    pub const OUTPUT: u8 = 2;
    pub const SOURCE: u8 = 8;
    pub const DESTINATION: u8 = 0x10;
    pub const PROTOCOL: u8 = 0x40;
}
/// The flag that the protocol of an IPv6 entry is compared.
const HAS_PROTOCOL: u8 = 1;

/// Where things are in an entry.
struct Layout {
    /// Bytes of an address; the entry begins with source, destination and their masks.
    address: usize,
    /// Protocol, flags and what is inverted.
    protocol: usize,
    flags: usize,
    inverted: usize,
    /// Two numbers: where the target is, and where the next entry is.
    offsets: usize,
    /// Where the matches begin.
    matches: usize,
    /// Where the addresses are in a packet.
    source: usize,
    destination: usize,
}

const IPV4: Layout = Layout {
    address: 4,
    protocol: 80,
    flags: 82,
    inverted: 83,
    offsets: 88,
    matches: 112,
    source: 12,
    destination: 16,
};
const IPV6: Layout = Layout {
    address: 16,
    protocol: 128,
    flags: 131,
    inverted: 132,
    offsets: 140,
    matches: 168,
    source: 8,
    destination: 24,
};

/// An entry, with where it leads.
struct Entry {
    rule: Rule,
    next: usize,
    /// The verdict of a target without a name: where it jumps to, or a negative number.
    verdict: Option<i32>,
    /// What in it may require connection tracking.
    tracks: Option<Box<str>>,
}

/// The chains at these hooks, and the first match or target in any chain that may require connection
/// tracking; `None` if the bytes are invalid.
pub fn chains(family: Family, read: &LegacyTable) -> Option<(Vec<Chain>, Option<Box<str>>)> {
    let layout = if family == Family::V4 { &IPV4 } else { &IPV6 };
    let mut entries = BTreeMap::new();
    let mut at = 0;
    while at < read.entries.len() {
        let entry = entry(family, layout, read.entries.get(at..)?)?;
        let next = at + entry.next;
        entries.insert(at, entry);
        at = next;
    }
    let present = HOOKS.into_iter().filter(|(hook, _)| read.hooks & 1 << hook != 0);
    let chains = present.map(|(hook, name)| chain(&entries, name, read.first[hook], read.policy[hook]));
    let tracks = entries.values().find_map(|entry| entry.tracks.clone());
    Some((chains.collect::<Option<_>>()?, tracks))
}

fn chain(entries: &BTreeMap<usize, Entry>, name: &'static str, first: u32, policy: u32) -> Option<Chain> {
    // -1 is drop, -2 accept.
    let drops = entries.get(&(policy as usize))?.verdict != Some(-2);
    // A chain that ends before it starts is invalid; none of its rules must be missed.
    if first > policy {
        return None;
    }
    let own = entries.range(first as usize..policy as usize).map(|(_, entry)| entry);
    let rules = own.map(|entry| Rule {
        stateful: entry.rule.stateful.clone().or_else(|| reached_state(entries, entry.verdict)),
        ..entry.rule.clone()
    });
    Some(Chain { name, drops, rules: rules.collect() })
}

/// What concerns connections in the chain that a verdict leads to, or in one that this leads to, and so on.
fn reached_state(entries: &BTreeMap<usize, Entry>, verdict: Option<i32>) -> Option<Box<str>> {
    let mut chains: Vec<usize> = chain_of(verdict).into_iter().collect();
    let mut next = 0;
    while let Some(&first) = chains.get(next) {
        next += 1;
        let chain = entries.range(first..).map(|(_, entry)| entry);
        for entry in chain.take_while(|entry| &*entry.rule.target != CHAIN_HEAD) {
            if entry.rule.stateful.is_some() {
                return entry.rule.stateful.clone();
            }
            chains.extend(chain_of(entry.verdict).filter(|chain| !chains.contains(chain)));
        }
    }
    None
}

/// Where the chain starts to which a verdict leads.
fn chain_of(verdict: Option<i32>) -> Option<usize> {
    verdict.and_then(|verdict| usize::try_from(verdict).ok())
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn entry(family: Family, layout: &Layout, bytes: &[u8]) -> Option<Entry> {
    let target = usize::from(number(bytes, layout.offsets)?);
    let next = usize::from(number(bytes, layout.offsets + 2)?);
    if !(layout.matches..=next).contains(&target) || next > bytes.len() {
        return None;
    }
    let mut rule = Rule { condition: addresses(layout, bytes), ..Rule::default() };
    interfaces(layout, bytes, &mut rule.condition);
    protocol(family, layout, bytes, &mut rule.condition)?;
    let (mut at, mut tracks) = (layout.matches, None);
    while at < target {
        let Extension { size, name, data } = extension(bytes.get(at..target)?)?;
        if xt::read_match(&name, data, &mut rule.condition) == xt::Sort::Stateful {
            rule.stateful.get_or_insert_with(|| format!("match {name}").into());
        }
        if xt::match_may_track(&name) {
            tracks = tracks.or_else(|| Some(format!("match {name}").into()));
        }
        at += size;
    }
    let Extension { name, data, .. } = extension(bytes.get(target..next)?)?;
    if xt::target_may_track(&name) {
        tracks = tracks.or_else(|| Some(name.clone()));
    }
    let mut verdict = None;
    if name.is_empty() {
        let code = i32::from_ne_bytes(data.get(..4)?.try_into().ok()?);
        verdict = Some(code);
        rule.target = title(code).into();
    } else {
        rule.stateful = rule.stateful.or_else(|| xt::is_stateful_target(&name).then(|| name.clone()));
        rule.target = name;
    }
    Some(Entry { rule, next, verdict, tracks })
}

/// A verdict as iptables prints it.
fn title(verdict: i32) -> &'static str {
    match verdict {
        -1 => "DROP",
        -2 => "ACCEPT",
        -4 => "QUEUE",
        -5 => "RETURN",
        _ => "counts packets",
    }
}

/// A match or target.
struct Extension<'a> {
    /// In bytes, with its header.
    size: usize,
    name: Box<str>,
    data: &'a [u8],
}

fn extension(bytes: &[u8]) -> Option<Extension<'_>> {
    let size = usize::from(number(bytes, 0)?);
    let data = bytes.get(EXTENSION..size)?;
    Some(Extension { size, name: attribute::text(&bytes[2..EXTENSION - 1]), data })
}

fn addresses(layout: &Layout, bytes: &[u8]) -> Condition {
    let mut condition = Condition::default();
    let inverted = bytes.get(layout.inverted).copied().unwrap_or(u8::MAX);
    let part = |index: usize| &bytes[layout.address * index..layout.address * (index + 1)];
    if inverted & invert::SOURCE == 0 {
        condition.network.set(layout.source, part(0), part(2));
    }
    if inverted & invert::DESTINATION == 0 {
        condition.network.set(layout.destination, part(1), part(3));
    }
    condition
}

fn interfaces(layout: &Layout, bytes: &[u8], condition: &mut Condition) {
    let (inverted, start) = (bytes[layout.inverted], 4 * layout.address);
    let [input, output] =
        [start, start + 16].map(|name| exact_name(&bytes[name..][..16], &bytes[name + 32..][..16]));
    condition.input = input.filter(|_| inverted & invert::INPUT == 0);
    condition.output = output.filter(|_| inverted & invert::OUTPUT == 0);
}

/// A full name: its mask includes the zero at its end. That of `eth+` does not.
fn exact_name(name: &[u8], mask: &[u8]) -> Option<Device> {
    let end = name.iter().position(|&byte| byte == 0)?;
    let whole = end > 0 && mask[end] == 0xff;
    std::str::from_utf8(&name[..end]).ok().filter(|_| whole).map(|name| Device::Name(name.into()))
}

fn protocol(family: Family, layout: &Layout, bytes: &[u8], condition: &mut Condition) -> Option<()> {
    let protocol = u8::try_from(number(bytes, layout.protocol)?).ok().filter(|&protocol| protocol != 0);
    let compared = family == Family::V4 || bytes[layout.flags] & HAS_PROTOCOL != 0;
    let straight = bytes[layout.inverted] & invert::PROTOCOL == 0;
    condition.protocol = protocol.filter(|_| compared && straight);
    Some(())
}
