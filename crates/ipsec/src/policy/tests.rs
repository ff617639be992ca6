//! The database against a look at each policy.

use super::*;
use crate::key::key;
use crate::testing::{ipv4_udp, ipv6_udp};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn policy(priority: u32, selector: Selector, action: Action) -> Policy {
    Policy { at: 0, direction: Direction::Out, priority, if_id: 0, selector, action }
}

fn to(destination: &str) -> Selector {
    Selector { destination: Some(destination.parse().unwrap()), ..Selector::default() }
}

#[test]
fn lowest_priority_decides() {
    let sa = SaId { spi: 256, destination: "192.0.2.2".parse().unwrap() };
    let dns = Selector { protocol: Some(17), destination_ports: Some(53..=53), ..to("10.2.0.0/16") };
    let policies = Policies::new(vec![
        policy(30, Selector::default(), Action::Discard),
        policy(10, dns, Action::Bypass),
        policy(20, to("10.2.0.0/16"), Action::Protect(sa)),
        Policy { direction: Direction::In, ..policy(1, Selector::default(), Action::Discard) },
    ])
    .unwrap();
    let find =
        |packet: &[u8]| policies.find(Direction::Out, &key(packet).unwrap()).map(|policy| policy.action);
    assert_eq!(find(&ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [4000, 53], 8)), Some(Action::Bypass));
    assert_eq!(find(&ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [4000, 54], 8)), Some(Action::Protect(sa)));
    assert_eq!(find(&ipv4_udp([10, 1, 0, 1], [10, 3, 0, 1], [4000, 54], 8)), Some(Action::Discard));
    assert_eq!(find(&ipv6_udp(1, 2, [1, 2], 8)), Some(Action::Discard));
    let mut later = ipv4_udp([10, 1, 0, 1], [10, 2, 0, 1], [4000, 53], 8);
    later[6..8].copy_from_slice(&[0, 9]);
    // A later fragment has no ports: it must not leave in clear because a part of its traffic may.
    assert_eq!(find(&later), Some(Action::Protect(sa)));
    assert_eq!(Policies::new(Vec::new()).unwrap().find(Direction::Out, &key(&later).unwrap()), None);
}

proptest! {
    #[test]
    fn tree_finds_what_a_look_at_each_finds(
        wanted in prop::collection::vec((0u32..4, 0u8..4, 0u8..25, 0u8..3, 0u16..3), 1..40),
        packets in prop::collection::vec((0u8..4, 0u8..4, 0u16..4), 1..60),
    ) {
        let policies: Vec<Policy> = wanted.iter().map(|&(priority, net, length, action, port)| {
            let prefix = bm_wire::prefix::Ipv4Prefix::containing(0x0a00_0000 | u32::from(net) << 8, length);
            let ports = (port > 0).then_some(port..=port);
            let selector = Selector {
                destination: prefix.map(bm_filter::AnyPrefix::V4),
                protocol: ports.as_ref().map(|_| 17),
                destination_ports: ports,
                ..Selector::default()
            };
            let sa = SaId { spi: 300, destination: [192, 0, 2, 1].into() };
            let action = [Action::Discard, Action::Bypass, Action::Protect(sa)][usize::from(action)];
            policy(priority, selector, action)
        }).collect();
        let built = Policies::new(policies).unwrap();
        for (third, last, port) in packets {
            let packet = ipv4_udp([10, 9, 9, 9], [10, 0, third, last], [9, port], 8);
            let destination = 0x0a00_0000 | u32::from(third) << 8 | u32::from(last);
            let by_hand = built.all().into_iter().find(|policy| {
                let Some(bm_filter::AnyPrefix::V4(prefix)) = policy.selector.destination else { return true };
                let ports = policy.selector.destination_ports.as_ref();
                prefix.contains(destination) && ports.is_none_or(|ports| ports.contains(&port))
            });
            prop_assert_eq!(built.find(Direction::Out, &key(&packet).unwrap()), by_hand);
        }
    }
}

/// A policy for UDP, of a small world in which many overlap.
fn some((priority, net, length, action, port): (u32, u8, u8, u8, u16)) -> Policy {
    let prefix = bm_wire::prefix::Ipv4Prefix::containing(0x0a00_0000 | u32::from(net) << 8, length);
    let ports = (port > 0).then_some(port..=port);
    let selector = Selector {
        destination: prefix.filter(|_| length > 0).map(bm_filter::AnyPrefix::V4),
        protocol: ports.as_ref().map(|_| 17),
        destination_ports: ports,
        ..Selector::default()
    };
    // A half of them, with the same selectors.
    let if_id = u32::from(length & 1) * u32::from(1 + net % 2);
    let sa = SaId { spi: 300, destination: [192, 0, 2, 1].into() };
    let action = [Action::Discard, Action::Bypass, Action::Protect(sa)][usize::from(action)];
    let direction = if net & 4 == 0 { Direction::Out } else { Direction::In };
    Policy { direction, if_id, ..policy(priority, selector, action) }
}

/// A packet to 10.0.`net`.`host`, or a later fragment of one.
fn some_packet((net, host, port, is_later): (u8, u8, u16, bool)) -> Vec<u8> {
    let mut packet = ipv4_udp([10, 9, 9, 9], [10, 0, net, host], [9, port], 8);
    if is_later {
        packet[6..8].copy_from_slice(&[0, 9]);
    }
    packet
}

/// Asserts that policies find what a look at each of them finds.
fn assert_exact(policies: &Policies, all: &BTreeMap<(u32, u64), Policy>, packets: &[Vec<u8>]) {
    let mut sorted: Vec<_> = all.values().collect();
    sorted.sort_by_key(|policy| policy.if_id);
    assert_eq!(policies.all(), sorted);
    for packet in packets {
        let key = key(packet).unwrap();
        for (direction, if_id) in
            [Direction::Out, Direction::In].into_iter().flat_map(|of| [0, 1, 2, 3].map(|id| (of, id)))
        {
            let matches = |policy: &&Policy| {
                (policy.direction, policy.if_id) == (direction, if_id)
                    && policy.flat(0).any(|flat| flat.matches(&key))
            };
            let of = if if_id == 0 { Some(policies) } else { policies.of_interface(if_id) };
            let found = of.and_then(|of| of.find(direction, &key));
            assert_eq!(found, all.values().find(matches), "{key:?} {if_id}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn changes_one_by_one_find_what_a_look_at_each_finds(
        first in prop::collection::vec((0u32..5, 0u8..8, 0u8..25, 0u8..3, 0u16..3), 0..60),
        steps in prop::collection::vec((0u8..8, (0u32..5, 0u8..8, 0u8..25, 0u8..3, 0u16..3)), 1..250),
        packets in prop::collection::vec((0u8..8, 0u8..4, 0u16..4, any::<bool>()), 20),
    ) {
        let packets: Vec<_> = packets.into_iter().map(some_packet).collect();
        let first: Vec<_> = (0..).zip(first.into_iter().map(some)).collect();
        let mut order = first.len() as u64;
        let mut all: BTreeMap<(u32, u64), Policy> =
            first.iter().map(|(order, policy)| ((policy.priority, *order), policy.clone())).collect();
        let mut policies = Policies::with_orders(first).unwrap();
        for (step, (what, wanted)) in steps.into_iter().enumerate() {
            let chosen = all.keys().nth((step * 7919) % all.len().max(1)).copied();
            match (what, chosen) {
                (0..=2, Some(rank)) => {
                    policies = policies.without(rank.0, rank.1).unwrap();
                    all.remove(&rank);
                }
                // Another one in its place.
                (3, Some(rank)) => {
                    let new = Policy { priority: rank.0, ..some(wanted) };
                    policies = policies.without(rank.0, rank.1).unwrap().with(rank.1, new.clone()).unwrap();
                    all.insert(rank, new);
                }
                (4, _) if step % 5 == 0 => {
                    policies = policies.settled().unwrap();
                    prop_assert!(policies.is_settled());
                }
                _ => {
                    let new = some(wanted);
                    order += 1;
                    all.insert((new.priority, order), new.clone());
                    policies = policies.with(order, new).unwrap();
                }
            }
            assert_exact(&policies, &all, &packets);
        }
        let of_none = || all.values().filter(|policy| policy.if_id == 0);
        let has = |direction| of_none().any(|policy| policy.direction == direction);
        prop_assert_eq!([Direction::Out, Direction::In].map(|of| policies.has(of)), [Direction::Out, Direction::In].map(has));
        let rules = |direction| {
            of_none().filter(|policy| policy.direction == direction).map(Policy::rules).sum::<usize>()
        };
        prop_assert_eq!((policies.count, policies.rules), (of_none().count(), [Direction::Out, Direction::In].map(rules)));
    }
}

/// Networks of their own, as tunnels have them, and one policy for everything behind them.
fn many(number: u32) -> Policy {
    let source = format!("{}/24", std::net::Ipv4Addr::from(0x0a00_0000 | number << 8)).parse().ok();
    policy(100, Selector { source, ..to("172.16.0.0/12") }, Action::Discard)
}

#[test]
fn many_changes_build_few_trees() {
    const COUNT: u32 = 3000;
    let everything = policy(200, Selector::default(), Action::Discard);
    let mut policies = Policies::with_orders([(1 << 40, everything)]).unwrap();
    let trees = |policies: &Policies| policies.layers.each_ref().map(Arc::as_ptr);
    let (mut built, mut before) = (0, trees(&policies));
    let mut count = |policies: &Policies| {
        let now = trees(policies);
        let new = now.iter().zip(&before).zip(&policies.layers).filter(|((now, before), _)| now != before);
        built += new.map(|(_, layer)| layer.policies.len()).sum::<usize>();
        before = now;
        built
    };
    for number in 0..COUNT {
        policies = policies.with(number.into(), many(number)).unwrap();
        count(&policies);
    }
    let added = count(&policies);
    for number in 0..COUNT {
        policies = policies.without(100, number.into()).unwrap();
        count(&policies);
    }
    let removed = count(&policies) - added;
    assert_eq!(policies.all().len(), 1);
    // All of them each time would be COUNT * COUNT / 2.
    let most = (COUNT * 20) as usize;
    assert!(added < most && removed < most, "{added} and {removed} policies were put into trees");
}

#[test]
fn policies_have_room_until_the_trees_are_full() {
    let mut all: Vec<_> = (0..ROOM_RULES as u32).map(many).collect();
    assert!(Policies::have_room(all.iter()));
    let full = Policies::new(all.clone()).unwrap();
    let inbound = Policy { direction: Direction::In, ..many(1) };
    assert!(!full.has_room_for(&many(1), None) && full.has_room_for(&many(1), Some(&many(2))));
    assert!(full.has_room_for(&inbound, None) && !full.has_room_for(&many(1), Some(&inbound)));
    all.push(many(1));
    assert!(!Policies::have_room(all.iter()));
}

#[test]
fn thousands_of_changes_find_what_a_look_at_each_finds() {
    let mut random = 17u64;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let (mut policies, mut all) = (Policies::default(), BTreeMap::new());
    for step in 0..6000 {
        // Grows at first, shrinks later.
        let is_new = draw(100) < if step < 3500 { 85 } else { 25 };
        let chosen = all.keys().nth(draw(all.len().max(1) as u64) as usize).copied();
        if let Some((priority, order)) = chosen.filter(|_| !is_new) {
            policies = policies.without(priority, order).unwrap();
            all.remove(&(priority, order));
        } else {
            let (number, priority) = (draw(600) as u32, draw(50) as u32);
            let wide = some((priority, draw(8) as u8, draw(25) as u8, draw(3) as u8, draw(3) as u16));
            let new = if draw(20) == 0 { wide } else { Policy { priority, ..many(number) } };
            policies = policies.with(step, new.clone()).unwrap();
            all.insert((new.priority, step), new);
        }
        if step % 61 == 0 {
            let mut packets = Vec::new();
            for _ in 0..8 {
                packets.push(some_packet((draw(8) as u8, draw(4) as u8, draw(4) as u16, draw(4) == 0)));
                let source = (0x0a00_0000 | (draw(600) as u32) << 8 | 7).to_be_bytes();
                packets.push(ipv4_udp(source, [172, 16, 0, 9], [9, draw(4) as u16], 8));
            }
            assert_exact(&policies, &all, &packets);
        }
    }
    assert!(all.len() > 500 && !policies.is_settled());
    policies = policies.settled().unwrap();
    assert!(policies.is_settled() && policies.of_interface(1).is_some());
    assert_exact(&policies, &all, &[]);
}
