//! Vectors find the same as the tree, for all packets that they are for.

#![allow(unsafe_code)]

use super::*;
use crate::{Action, AnyPrefix, Key, Rule, Tree};
use bm_wire::prefix::Prefix;
use proptest::prelude::*;

/// A header of a packet from one address to another with these ports, or other bytes in their place.
fn header(addresses: [u32; 2], protocol: u8, ports: u32) -> Header {
    let mut header = [0x45, 0, 0, 46, 1, 2, 0x40, 0, 64, protocol, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    header[12..16].copy_from_slice(&addresses[0].to_be_bytes());
    header[16..20].copy_from_slice(&addresses[1].to_be_bytes());
    header[20..24].copy_from_slice(&ports.to_be_bytes());
    header
}

/// The same packet as the tree is searched for it.
fn key(header: &Header, interface: u16) -> Key {
    let word = |at: usize| u32::from_be_bytes(*header[at..].first_chunk().unwrap());
    let kind = Kind::of(header[9]);
    let ports = if kind == Kind::Ports { word(20) } else { 0 };
    let mut key = Key::ipv4([word(12), word(16)], header[9], ports, kind);
    key.set_interface(interface);
    key
}

fn by_tree(tree: &Tree, header: &Header, interface: u16) -> (Option<(bool, u16)>, bool) {
    let key = key(header, interface);
    (tree.find(&key).map(|rule| (rule.drops != 0, rule.counter)), tree.is_linux_only(&key))
}

fn by_vectors(
    tree: &Tree,
    headers: [&Header; TOGETHER],
    interface: u16,
) -> [(Option<(bool, u16)>, bool); TOGETHER] {
    let vectors = tree.vectors.as_ref().expect("few rules").on(interface);
    let found = vectors.find_each(headers);
    #[cfg(target_arch = "x86_64")]
    assert!(avx2(&vectors, headers).is_none_or(|by_avx2| by_avx2 == found));
    let is_set = |bits: u8, lane: usize| bits >> lane & 1 == 1;
    std::array::from_fn(|lane| {
        let rule =
            (!is_set(found.unmatched, lane)).then_some((is_set(found.drops, lane), found.counters[lane]));
        assert!(rule.is_some() || (found.counters[lane], is_set(found.drops, lane)) == (UNMATCHED, false));
        (rule, is_set(found.linux_only, lane))
    })
}

/// The same with AVX2, if the CPU has it.
#[cfg(target_arch = "x86_64")]
fn avx2(vectors: &VectorsOn<'_>, headers: [&Header; TOGETHER]) -> Option<Matches> {
    let word = |at: usize| {
        let column = headers.map(|header| u32::from_be_bytes(*header[at..].first_chunk().unwrap()));
        // SAFETY: both are 32 bytes, and any bits are a vector.
        unsafe { std::mem::transmute::<[u32; TOGETHER], std::arch::x86_64::__m256i>(column) }
    };
    let words: Words = std::array::from_fn(|number| word(4 * (FIRST_WORD + number)));
    // SAFETY: the CPU has AVX2.
    std::arch::is_x86_feature_detected!("avx2").then(|| unsafe { vectors.find_eight(words) })
}

/// Few values, so that rules and packets often have them in common.
fn address() -> impl Strategy<Value = u32> + Clone {
    prop_oneof![
        prop::sample::select(vec![0x0a00_0001, 0x0a00_0101, 0x0a01_0203, 0xc0a8_0001, 0xffff_ffff, 0]),
        any::<u32>()
    ]
}

fn port() -> impl Strategy<Value = u16> + Clone {
    prop_oneof![prop::sample::select(vec![0, 53, 80, 443, 1023, 1024, 0xffff]), any::<u16>()]
}

fn protocol() -> impl Strategy<Value = u8> + Clone {
    prop_oneof![prop::sample::select(vec![1, 6, 17, 33, 50, 132, 136]), any::<u8>()]
}

fn prefix() -> impl Strategy<Value = Option<AnyPrefix>> {
    let ipv4 = (address(), 0..=32u8)
        .prop_map(|(address, length)| Prefix::containing(address, length).map(AnyPrefix::V4));
    prop_oneof![2 => Just(None), 3 => ipv4]
}

fn rule() -> impl Strategy<Value = (Rule, Option<u16>)> {
    let ports = || prop::option::weighted(0.4, (port(), port()).prop_map(|(a, b)| a.min(b)..=a.max(b)));
    let interface = prop::option::weighted(0.2, 0..3u16);
    let ipv6 = prop::bool::weighted(0.1);
    (prefix(), prefix(), prop::option::of(protocol()), ports(), ports(), any::<bool>(), interface, ipv6)
        .prop_map(
            |(source, destination, protocol, source_ports, destination_ports, drops, interface, ipv6)| {
                let action = if drops { Action::Drop } else { Action::Accept };
                let six = "2001:db8::/32".parse().ok().filter(|_| ipv6);
                let (source, destination) = if ipv6 { (six, None) } else { (source, destination) };
                let rule = Rule {
                    action,
                    source,
                    destination,
                    protocol,
                    source_ports,
                    destination_ports,
                    ..Rule::default()
                };
                (rule, interface)
            },
        )
}

fn tree(rules: &[(Rule, Option<u16>)], linux_only: &[(Rule, Option<u16>)]) -> Tree {
    let flat = |(number, (rule, on)): (usize, &(Rule, Option<u16>))| {
        Flat::from_rule(rule, number as u16, *on).collect::<Vec<_>>()
    };
    let claims = rules.iter().take(3).enumerate().flat_map(flat).collect();
    let tree = Tree::grow_with(rules.iter().enumerate().flat_map(flat).collect(), claims).unwrap();
    let linux_only = linux_only.iter().flat_map(|(rule, on)| Flat::may_match(rule, *on)).collect();
    tree.with_linux_only(linux_only).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn vectors_find_what_the_tree_finds(
        rules in prop::collection::vec(rule(), 1..150),
        linux_only in prop::collection::vec(rule(), 0..8),
        packets in prop::collection::vec((address(), address(), protocol(), port(), port()), 8..64),
        interface in 0..4u16,
    ) {
        let tree = tree(&rules, &linux_only);
        // Only rules of IPv6, or so many scattered ones that there is no room for their tries.
        prop_assume!(tree.vectors.is_some());
        let headers: Vec<_> = packets
            .iter()
            .map(|&(from, to, protocol, source, destination)| {
                header([from, to], protocol, u32::from(source) << 16 | u32::from(destination))
            })
            .collect();
        for headers in headers.as_chunks::<TOGETHER>().0 {
            let expected = headers.each_ref().map(|header| by_tree(&tree, header, interface));
            prop_assert_eq!(by_vectors(&tree, headers.each_ref(), interface), expected);
            // With equal ones, all fields are looked up once.
            for header in headers {
                let expected = [by_tree(&tree, header, interface); TOGETHER];
                prop_assert_eq!(by_vectors(&tree, [header; TOGETHER], interface), expected);
            }
        }
    }
}

/// A rule for each of so many destinations.
fn destinations(count: u32) -> Vec<(Rule, Option<u16>)> {
    let destination = |number: u32| Some(AnyPrefix::V4(Prefix::containing(0x0a00_0000 | number, 32)?));
    (0..count)
        .map(|number| {
            (Rule { action: Action::Drop, destination: destination(number), ..Rule::default() }, None)
        })
        .collect()
}

#[test]
fn each_size_finds_its_first_and_last_rule() {
    for count in [1, 64, 65, 128, 129, 256, 257, 512] {
        let tree = tree(&destinations(count), &[]);
        let headers = [0, 1, count / 2, count - 1, count, 63, 64, 600]
            .map(|number| header([7, 0x0a00_0000 | number], 6, 0));
        let expected = headers.each_ref().map(|header| by_tree(&tree, header, 0));
        assert_eq!(by_vectors(&tree, headers.each_ref(), 0), expected, "{count} rules");
        assert_eq!(expected[3].0, Some((true, count as u16 - 1)));
        assert_eq!(expected[4].0, None);
    }
}

#[test]
fn many_or_scattered_rules_are_left_to_the_tree() {
    assert_eq!(Tree::grow(Vec::new()).unwrap().vectors, None);
    assert_eq!(tree(&destinations(513), &[]).vectors, None);
    let scattered = |number: u32| {
        let address = number.wrapping_mul(0x9e37_79b9);
        let destination = Prefix::containing(address, 32).map(AnyPrefix::V4);
        (Rule { destination, ..Rule::default() }, None)
    };
    assert_eq!(tree(&(0..500).map(scattered).collect::<Vec<_>>(), &[]).vectors, None);
    assert!(tree(&(0..100).map(scattered).collect::<Vec<_>>(), &[]).vectors.is_some());
}

#[test]
fn rules_for_later_fragments_do_not_count() {
    let ports = Rule { protocol: Some(17), destination_ports: Some(53..=53), ..Rule::default() };
    let tree = tree(&[(ports, None)], &[]);
    let headers = [header([1, 2], 17, 53), header([1, 2], 17, 54)];
    let each = std::array::from_fn(|lane| &headers[lane % 2]);
    let found = by_vectors(&tree, each, 0);
    assert_eq!((found[0], found[1]), ((Some((false, 0)), false), (None, false)));
}
