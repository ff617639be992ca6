//! For any rules, a tree finds the same as a linear search.

use super::*;
use crate::{Action, AnyPrefix, Key, Kind, Rule, Tree};
use bm_wire::prefix::Prefix;
use proptest::prelude::*;
use std::net::IpAddr;

/// Packets that only Linux may handle are searched for separately; the search for rules is unchanged.
#[test]
fn several_trees_share_the_nodes_without_mixing() {
    let mut next = numbers(11);
    let [rules, claims, linux] = [700, 90, 300].map(|count| five_tuples(count, &mut next));
    let alone = Tree::grow_with(rules.clone(), claims.clone()).unwrap();
    let tree = alone.with_linux_only(linux.clone()).unwrap();
    assert_eq!(
        (&tree.words[..alone.words.len()], tree.root, tree.claims),
        (&alone.words[..], alone.root, alone.claims)
    );
    for _ in 0..3000 {
        let from = [&rules, &claims, &linux][next() as usize % 3];
        let key = key_in(&from[next() as usize % from.len()], &mut next);
        assert_eq!(tree.find(&key), linear(&rules, &key));
        assert_eq!(tree.find_claim(&key), linear(&claims, &key));
        assert_eq!(tree.is_linux_only(&key), linear(&linux, &key).is_some());
        let expected = if tree.is_linux_only(&key) { u8::MAX } else { 0 };
        assert_eq!(tree.are_linux_only(&[key; crate::TOGETHER]), expected);
    }
    assert_eq!(tree.with_linux_only(Vec::new()).unwrap().linux_only, None);
    assert!(alone.with_linux_only(vec![linux[0]; crate::ROOM_RULES]).is_err());
}

fn linear<'a>(rules: &'a [Flat], key: &Key) -> Option<&'a Flat> {
    rules.iter().find(|rule| {
        // All words of an IPv4 key that a rule could compare are zero.
        assert!(key.is_ipv6() || rule.matches_ipv4(key) == rule.matches_ipv6(key), "{rule:?} {key:?}");
        rule.matches(key)
    })
}

/// A generator of numbers with a seed (xorshift).
fn numbers(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

#[test]
fn masks_and_values_are_satisfiable() {
    let mut next = numbers(7);
    for _ in 0..20_000 {
        let (a, b) = (next() as u32 & 0xff, next() as u32 & 0xff);
        let mask = next() as u32 & 0xff;
        let value = next() as u32 & mask;
        let expected = (a.min(b)..=a.max(b)).any(|number| number & mask == value);
        assert_eq!(meets((a.min(b), a.max(b)), (mask, value)), expected, "{a} {b} {mask:x} {value:x}");
    }
}

fn key_in(flat: &Flat, next: &mut impl FnMut() -> u64) -> Key {
    let address = |side, next: &mut dyn FnMut() -> u64| {
        (0..4).fold(0u128, |sum, at| {
            let (address, mask) = flat.word(side, at);
            sum << 32 | u128::from(address | next() as u32 & !mask)
        })
    };
    let six = flat.families().0 == 1 || (flat.families().1 == 1 && next().is_multiple_of(2));
    let addresses = [address(0, next), address(1, next)].map(|address| match six {
        true => IpAddr::V6(address.into()),
        false => IpAddr::V4(((address >> 96) as u32).into()),
    });
    let mut between = |least: u16, greatest: u16| least + (next() % (u64::from(greatest - least) + 1)) as u16;
    let ports = (between(flat.ports[0], flat.ports[1]), between(flat.ports[2], flat.ports[3]));
    let kind = if flat.kinds & 9 != 0 { Kind::Ports } else { Kind::Later };
    let protocol = flat.protocol[0];
    Key::new(addresses, protocol, (kind == Kind::Ports).then_some(ports), kind, 1)
}

fn five_tuples(count: u32, next: &mut impl FnMut() -> u64) -> Vec<Flat> {
    let rule = |number: u32| {
        let prefix = |bits: u64, length| Prefix::containing(bits as u32, length).map(AnyPrefix::V4);
        Rule {
            action: if number.is_multiple_of(3) { Action::Accept } else { Action::Drop },
            source: prefix(next(), 32),
            destination: prefix(0x0a00_0000 | next() & 0x00ff_ffff, 24),
            protocol: Some(if number.is_multiple_of(2) { 6 } else { 17 }),
            destination_ports: Some(1..=1024),
            ..Rule::default()
        }
    };
    let rules: Vec<Rule> = (0..count).map(rule).collect();
    let number =
        |(number, rule): (usize, &Rule)| Flat::from_rule(rule, number as u16, None).collect::<Vec<_>>();
    rules.iter().enumerate().flat_map(number).collect()
}

#[test]
fn ten_thousand_rules_are_found_in_a_few_steps() {
    let mut next = numbers(1);
    let rules = five_tuples(10_000, &mut next);
    let tree = Tree::grow(rules).unwrap();
    let (deep, long) = tree.worst();
    assert!(deep <= 6 && long <= 8, "{deep} cuts, {long} rules in a leaf, {} words", tree.words.len());
    for at in (0..tree.rules.len()).step_by(7) {
        let key = key_in(&tree.rules[at], &mut next);
        assert_eq!(tree.find(&key), linear(&tree.rules, &key));
    }
}

#[test]
fn indistinguishable_rules_share_a_leaf() {
    // Ranges of ports that all overlap, no two alike.
    let rule = |n: u16| Rule {
        action: Action::Drop,
        source_ports: Some(1000 - n..=2000 + n),
        destination_ports: Some(n..=40_000 + n),
        ..Rule::default()
    };
    let rules: Vec<Flat> = (0..900).flat_map(|n| Flat::from_rule(&rule(n), n, None)).collect();
    let tree = Tree::grow(rules).unwrap();
    let mut next = numbers(3);
    for _ in 0..2000 {
        let ports = (next() as u16, next() as u16);
        let key =
            Key::new([(next() as u32).to_be_bytes().into(), [1; 4].into()], 17, Some(ports), Kind::Ports, 0);
        assert_eq!(tree.find(&key), linear(&tree.rules, &key));
    }
}

#[test]
fn an_empty_set_matches_nothing() {
    assert_eq!(Tree::grow(Vec::new()).unwrap().find(&Key::default()), None);
    let many = vec![Flat::default(); crate::ROOM_RULES + 1];
    assert!(Tree::grow(many).is_err());
}

fn prefix() -> impl Strategy<Value = Option<AnyPrefix>> {
    let four = (any::<u32>(), 0..=32u8).prop_map(|(a, length)| Prefix::containing(a & 0xc0a8_03ff, length));
    let six = (any::<u128>(), 0..=128u8)
        .prop_map(|(a, length)| Prefix::containing(a & 0x2001_0db8_0000_0003_0000_0000_0000_0003, length));
    prop_oneof![
        Just(None),
        four.prop_map(|prefix| prefix.map(AnyPrefix::V4)),
        six.prop_map(|prefix| prefix.map(AnyPrefix::V6)),
    ]
}

fn ports() -> impl Strategy<Value = Option<crate::Ports>> {
    prop::option::of((0..40u16, 0..4u16).prop_map(|(first, more)| first * 7..=first * 7 + more))
}

fn rule() -> impl Strategy<Value = (Rule, Option<u16>)> {
    let parts = (prefix(), prefix(), prop::option::of(5..8u8), ports(), ports(), any::<bool>());
    (parts, prop::option::of(0..3u16)).prop_map(|(parts, interface)| {
        let (source, destination, protocol, source_ports, destination_ports, drops) = parts;
        let action = if drops { Action::Drop } else { Action::Accept };
        let (name, port) = Default::default();
        (
            Rule { name, action, source, destination, protocol, source_ports, destination_ports, port },
            interface,
        )
    })
}

proptest! {
    #[test]
    fn the_tree_agrees_with_a_linear_search(rules in prop::collection::vec(rule(), 0..80), seed in 1..u64::MAX) {
        let flat = |(n, (rule, interface)): (usize, &(Rule, Option<u16>))| {
            let may = Flat::may_match(rule, *interface).map(|flat| Flat { counter: n as u16, ..flat });
            if n.is_multiple_of(3) { may.collect() } else { Flat::from_rule(rule, n as u16, *interface).collect::<Vec<_>>() }
        };
        let flat: Vec<Flat> = rules.iter().enumerate().flat_map(flat).collect();
        let tree = Tree::grow(flat).unwrap();
        let mut next = numbers(seed);
        let mut keys = Vec::new();
        for at in 0..tree.rules.len() {
            let mut key = key_in(&tree.rules[at], &mut next);
            key.0[crate::key::INTERFACE] = next() as u32 % 3;
            let flag = if key.is_ipv6() { crate::EXTENSIONS } else { crate::key::TRUNCATED };
            if next().is_multiple_of(4) {
                key.0[crate::key::KIND] |= u32::from(flag);
            }
            keys.push(key);
            key.0[(next() % 10) as usize] ^= 1 << (next() % 32);
            key.0[crate::key::PROTOCOL] &= 0xff;
            if !key.is_ipv6() {
                [1, 2, 3, 5, 6, 7].into_iter().for_each(|word| key.0[word] = 0);
            }
            keys.push(key);
        }
        for key in &keys {
            prop_assert_eq!(tree.find(key), linear(&tree.rules, key));
        }
        let (ipv6, ipv4): (Vec<Key>, Vec<Key>) = keys.into_iter().partition(Key::is_ipv6);
        for keys in ipv4.as_chunks().0.iter().chain(ipv6.as_chunks().0) {
            prop_assert_eq!(tree.find_each(keys), keys.each_ref().map(|key| tree.find(key)));
        }
    }
}

/// The kernel path has words of an earlier set behind those of a new one: a search must end before.
#[test]
fn an_empty_rule_list_makes_a_tree() {
    assert_eq!(Tree::default(), Tree::grow(Vec::new()).unwrap());
    assert_eq!(Tree::default().worst(), (0, 0));
}

/// Rules of IPv6 that differ in one word of one side alone: cuts are by that word, whichever it is.
#[test]
fn the_tree_cuts_every_word_of_an_address() {
    for shift in [0u32, 32, 64, 96] {
        for side in [0, 1] {
            let prefix = |number: u32| {
                let address = 0x2001_0db8_u128 << 96 ^ u128::from(number) << (shift + 3);
                Prefix::containing(address, 128).map(AnyPrefix::V6)
            };
            let rule = |number| match side {
                0 => Rule { source: prefix(number), ..Rule::default() },
                _ => Rule { destination: prefix(number), ..Rule::default() },
            };
            let flat: Vec<Flat> =
                (0..200).flat_map(|number| Flat::from_rule(&rule(number), number as u16, None)).collect();
            let tree = Tree::grow(flat.clone()).unwrap();
            let (deep, long) = tree.worst();
            assert!((1..=16).contains(&deep) && (1..=16).contains(&long), "{deep} {long}");
            let mut next = numbers(u64::from(shift) + 1);
            for rule in &flat {
                let key = key_in(rule, &mut next);
                assert_eq!(tree.find(&key), Some(rule), "word at {shift} of side {side}");
            }
        }
    }
}

/// Rules about sources, destinations and ports, as a firewall has them: no packet is compared with many of them.
#[test]
fn rules_about_different_fields_are_found_in_a_few_steps() {
    for count in [100u16, 400, 1000] {
        let rule = |number: u16| {
            let at = number / 4;
            let address =
                |network: &str, length| format!("{network}.{}.{}/{length}", at / 200, at % 200).parse().ok();
            let net = |network: &str| format!("{network}.{}.0/24", at % 250).parse().ok();
            match number % 4 {
                0 => Rule {
                    destination: address("192.0", 32),
                    protocol: Some(6),
                    destination_ports: Some(443..=443),
                    ..Rule::default()
                },
                1 => Rule { source: net("10.7"), ..Rule::default() },
                2 => Rule {
                    destination_ports: Some(1000 + number..=1010 + number),
                    protocol: Some(17),
                    ..Rule::default()
                },
                _ => Rule { source: net("172.16"), destination: net("198.51"), ..Rule::default() },
            }
        };
        let flat = (0..count).flat_map(|number| Flat::from_rule(&rule(number), number, None)).collect();
        let tree = Tree::grow(flat).unwrap();
        let (deep, long) = tree.worst();
        assert!(deep <= 12 && long <= 16, "{count}: {deep} cuts, {long} rules");
        assert!(tree.words.len() < 16_000, "{count}: {} words", tree.words.len());
        let mut next = numbers(u64::from(count));
        for at in 0..tree.rules.len() {
            let key = key_in(&tree.rules[at], &mut next);
            assert_eq!(tree.find(&key), linear(&tree.rules, &key));
        }
    }
}
