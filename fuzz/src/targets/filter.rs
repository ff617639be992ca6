//! Filter rules, and prefixes as text.
//!
//! Checks: for any rules, claims and traffic for Linux only, a tree finds what a linear search finds; and a prefix that
//! was read is printed in a form that reads back as the same prefix.

use bm_filter::{Action, AnyPrefix, Flat, Key, Kind, Rule, Tree};
use bm_wire::prefix::{Address, Prefix};
use std::net::IpAddr;

use crate::input::Input;

/// Looks up keys in rules.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    prefix(&String::from_utf8_lossy(input.counted()));
    let [rules, claims, linux_only] = [24, 8, 8].map(|most| rules(&mut input, most));
    let tree = Tree::grow_with(rules.clone(), claims.clone()).expect("there is room for a few");
    let tree = tree.with_linux_only(linux_only.clone()).expect("there is room for a few");
    // Keys at the edges of the rules, and random keys.
    let near: Vec<Key> = [&rules, &claims, &linux_only].into_iter().flatten().map(inside).collect();
    let mut keys = near.clone();
    while !input.is_empty() && keys.len() < 256 {
        keys.push(key(&mut input));
    }
    for key in &keys {
        assert_eq!(tree.find(key), linear(&rules, key), "{key:?} {rules:?}");
        assert_eq!(tree.find_claim(key), linear(&claims, key), "{key:?} {claims:?}");
        assert_eq!(tree.is_linux_only(key), linear(&linux_only, key).is_some(), "{key:?} {linux_only:?}");
    }
}

fn prefix(text: &str) {
    if let Ok(prefix) = text.parse::<AnyPrefix>() {
        assert_eq!(prefix.to_string().parse(), Ok(prefix), "{text:?}");
    }
}

fn linear<'a>(rules: &'a [Flat], key: &Key) -> Option<&'a Flat> {
    rules.iter().find(|rule| rule.matches(key))
}

fn rules(input: &mut Input<'_>, most: u8) -> Vec<Flat> {
    let count = input.byte() % (most + 1);
    (0..count).flat_map(|at| rule(input, u16::from(at))).collect()
}

fn rule(input: &mut Input<'_>, counter: u16) -> Vec<Flat> {
    let has = input.byte();
    let six = has & 1 != 0;
    let mut side = |asked: bool| asked.then(|| any_prefix(input, six)).flatten();
    let (source, destination) = (side(has & 2 != 0), side(has & 4 != 0));
    let mut ports = |asked: bool| {
        asked.then(|| {
            let (a, b) = (input.number(), input.number());
            a.min(b)..=a.max(b)
        })
    };
    let rule = Rule {
        source_ports: ports(has & 8 != 0),
        destination_ports: ports(has & 16 != 0),
        action: if has & 32 != 0 { Action::Drop } else { Action::Accept },
        protocol: (has & 64 != 0).then(|| input.byte()),
        source,
        destination,
        ..Rule::default()
    };
    let interface = (has & 128 != 0).then(|| u16::from(input.byte() & 3));
    match input.byte() & 1 {
        0 => Flat::from_rule(&rule, counter, interface).collect(),
        _ => Flat::may_match(&rule, interface).collect(),
    }
}

fn any_prefix(input: &mut Input<'_>, six: bool) -> Option<AnyPrefix> {
    let length = input.byte();
    if six {
        let address = u128::from_be_bytes(input.array());
        Prefix::containing(address, length % (u128::WIDTH + 1)).map(AnyPrefix::V6)
    } else {
        let address = u32::from_be_bytes(input.array());
        Prefix::containing(address, length % (u32::WIDTH + 1)).map(AnyPrefix::V4)
    }
}

fn key(input: &mut Input<'_>) -> Key {
    let how = input.byte();
    let mut address = || match how & 1 {
        0 => IpAddr::V4(u32::from_be_bytes(input.array()).into()),
        _ => IpAddr::V6(u128::from_be_bytes(input.array()).into()),
    };
    let addresses = [address(), address()];
    let kind = [Kind::Ports, Kind::Later, Kind::None][usize::from(how >> 1 & 3) % 3];
    let ports = (kind == Kind::Ports).then(|| (input.number(), input.number()));
    let key = Key::new(addresses, input.byte(), ports, kind, u16::from(how >> 4 & 3));
    if how & 0x81 == 0x81 { key.with_extensions() } else { key }
}

/// A key at the edge of a rule: its first addresses, ports and protocol.
fn inside(rule: &Flat) -> Key {
    let mut input = Input::new(&[]);
    let mut key = key(&mut input);
    key.0[0] = rule.first[0];
    key.0[4] = rule.first[2];
    key.0[8] = u32::from(rule.ports[0]) << 16 | u32::from(rule.ports[3]);
    key.0[9] = u32::from(rule.protocol[0]);
    key
}
