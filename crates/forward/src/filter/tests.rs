//! Filters in a router; what they say of each frame is compared with the kernel path in crates/control/tests.

use std::sync::Arc;

use super::*;
use crate::stages::input;
use crate::testing::Lab;
use bm_filter::{Action, Flat, Rate, Rule, Tree};

const TWO: &str = "
    interface a 0 02:00:00:00:00:01 192.0.2.1/24
    interface b 1 02:00:00:00:00:02 198.51.100.1/24
    neighbor 192.0.2.9 a 02:00:00:00:01:09
    neighbor 198.51.100.9 b 02:00:00:00:02:09
    route 10.0.0.0/8 via 198.51.100.9 b
    route 172.16.0.0/12 via 192.0.2.9 a";

/// UDP between these, to the interface `a`.
fn udp(source: [u8; 4], destination: [u8; 4], port: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 9, 8, 0];
    let mut packet = vec![0x45, 0, 0, 28, 0, 1, 0, 0, 9, 17, 0, 0];
    packet.extend(source.into_iter().chain(destination));
    let sum = bm_wire::checksum::checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(packet);
    frame.extend([[0x12, 0x34], port.to_be_bytes(), [0, 8], [0, 0]].concat());
    frame
}

fn set(rules: &[Rule], more: impl FnOnce(&mut FilterSet)) -> FilterSet {
    let flat = rules.iter().zip(0u16..).flat_map(|(rule, at)| Flat::from_rule(rule, at, None));
    let filters = Filters { tree: Tree::grow(flat.collect()).unwrap(), ..Filters::default() };
    let mut set = FilterSet {
        filters: Arc::new(filters),
        checks: Vec::new(),
        unknown: [false; 2],
        ports: vec![true; 2],
        counts: Arc::new(RuleCounts::new().unwrap()),
        rates: None,
    };
    more(&mut set);
    set
}

fn no_dns() -> Rule {
    Rule { action: Action::Drop, protocol: Some(17), destination_ports: Some(53..=53), ..Rule::default() }
}

#[test]
fn a_burst_goes_on_without_what_is_dropped() {
    let mut lab = Lab::new(TWO);
    let filters = Arc::new(set(&[no_dns()], |_| {}));
    lab.filter(Arc::clone(&filters));
    let ports = [53, 80, 53, 53, 81, 82, 53];
    ports.into_iter().for_each(|port| lab.send(0, &udp([172, 16, 0, 1], [10, 0, 0, 7], port)));
    lab.run();
    let out: Vec<u8> = lab.take(1).iter().map(|frame| frame[37]).collect();
    assert_eq!(out, [80, 81, 82], "in order");
    assert_eq!((lab.dropped(Reason::Filter), filters.counts.count(0)), (4, 4));
    assert_eq!(filters.counts.count(UNMATCHED), 3);
    lab.check();
}

#[test]
fn what_is_for_this_machine_goes_to_linux() {
    let mut lab = Lab::new(TWO);
    lab.filter(Arc::new(set(&[no_dns()], |_| {})));
    lab.send(0, &udp([172, 16, 0, 1], [192, 0, 2, 1], 53));
    lab.run();
    assert_eq!((lab.take_host(0).len(), lab.dropped(Reason::Filter)), (1, 0));
    lab.check();
}

#[test]
fn frames_to_any_mac_are_filtered() {
    let lab = Lab::new(TWO);
    let tables = lab.tables().with_filters(Some(Arc::new(set(&[no_dns()], |_| {}))));
    let filter = PortFilter::of(&tables, 0, 0, 0).unwrap();
    let takes = |mac: [u8; 6], destination, port| {
        let mut frame = udp([172, 16, 0, 1], destination, port);
        frame[..6].copy_from_slice(&mac);
        filter.takes(&frame)
    };
    // Of an interface on the port, and of a group.
    for mac in [[2, 0, 0, 0, 0, 0x77], [0xff; 6]] {
        assert_eq!(takes(mac, [10, 0, 0, 7], 53), Some(FilterVerdict::Drop(Reason::Filter)));
        assert_eq!(takes(mac, [10, 0, 0, 7], 54), None);
        assert_eq!(takes(mac, [192, 0, 2, 1], 53), None, "for this machine");
        assert_eq!(takes(mac, [224, 0, 0, 251], 53), None, "for a group");
    }
}

#[test]
fn stacked_tags_belong_to_no_interface() {
    let lab = Lab::new(TWO);
    let tables = lab.tables().with_filters(Some(Arc::new(set(&[], |_| {}))));
    let filter = PortFilter::of(&tables, 0, 0, 0).unwrap();
    let tagged = |tags: &[[u8; 4]]| {
        let mut frame = udp([172, 16, 0, 1], [10, 0, 0, 7], 80);
        frame.splice(12..12, tags.concat());
        let kind = u16::from_be_bytes([frame[12], frame[13]]);
        (
            filter.logical(&frame, kind),
            input::interface_of(filter.view, &frame).map(|(interface, _)| interface),
        )
    };
    assert_eq!(tagged(&[]), (0, Some(0)));
    assert_eq!(tagged(&[[0x81, 0, 0xe0, 0]]), (0, Some(0)));
    for outer in [[0x81, 0, 0, 0], [0x88, 0xa8, 0x20, 0], [0x81, 0, 0, 9]] {
        assert_eq!(tagged(&[outer, [0x81, 0, 0, 7]]), (NO_INTERFACE, None));
    }
}

#[test]
fn ports_of_others_are_left_alone() {
    let mut lab = Lab::new(TWO);
    lab.filter(Arc::new(set(&[no_dns()], |set| set.ports = vec![false, true])));
    lab.send(0, &udp([172, 16, 0, 1], [10, 0, 0, 7], 53));
    lab.run();
    assert_eq!(lab.take(1).len(), 1);
    lab.check();
}

#[test]
fn a_vrf_is_asked_for_its_own_ways_back() {
    let mut lab = Lab::new(
        "interface red 0 02:00:00:00:00:01 vrf 1 192.0.2.1/24
        interface out 1 02:00:00:00:00:02 vrf 1 198.51.100.1/24
        neighbor 198.51.100.9 out 02:00:00:00:02:09
        route 10.0.0.0/8 vrf 1 via 198.51.100.9 out
        route 172.16.0.0/12 vrf 1 via 192.0.2.9 red
        route 172.17.0.0/16 via 192.0.2.9 red",
    );
    let strict = |set: &mut FilterSet| set.checks = vec![ReversePath::Strict; 2];
    let passes = |lab: &mut Lab, source| {
        lab.send(0, &udp(source, [10, 0, 0, 7], 80));
        lab.run();
        lab.take(1).len() == 1
    };
    lab.filter(Arc::new(set(&[], strict)));
    assert_eq!([[172, 16, 0, 1], [10, 7, 7, 7]].map(|from| passes(&mut lab, from)), [true, false]);
    assert_eq!(lab.dropped(Reason::ReversePath), 1);
    // If only Linux knows the routes, sources are not checked.
    lab.filter(Arc::new(set(&[], |set| {
        strict(set);
        set.unknown = [true, false];
    })));
    assert!(passes(&mut lab, [10, 7, 7, 7]));
    lab.check();
}

#[test]
fn a_source_may_send_its_burst() {
    let mut lab = Lab::new(TWO);
    let rate = Rate { packets: 10, burst: 3, lengths: [32, 64] };
    lab.filter(Arc::new(set(&[], |set| {
        let filters = Filters { rate: Some(rate), ..Filters::clone(&set.filters) };
        set.filters = Arc::new(filters);
        set.rates = Some(Arc::new(SourceRates::new(1).unwrap()));
    })));
    let burst = |lab: &mut Lab| {
        (0..9).for_each(|_| lab.send(0, &udp([172, 16, 0, 1], [10, 0, 0, 7], 80)));
        lab.run();
        lab.take(1).len()
    };
    // One burst, so one time.
    assert_eq!((burst(&mut lab), lab.dropped(Reason::RateLimit)), (3, 6));
    lab.check();
}

/// What only Linux may handle goes there with a name, behind the filters' drops; the rest is forwarded.
#[test]
fn linux_gets_what_only_it_may_handle() {
    let mut lab = Lab::new(TWO);
    let web = Rule { protocol: Some(17), destination_ports: Some(80..=80), ..Rule::default() };
    lab.filter(Arc::new(set(&[no_dns()], |set| {
        let tree = set.filters.tree.with_linux_only(Flat::may_match(&web, Some(0)).collect()).unwrap();
        set.filters = Arc::new(Filters { tree, ..Filters::default() });
    })));
    let later = |frame: &[u8]| {
        let mut frame = frame.to_vec();
        frame[20..22].copy_from_slice(&[0, 8]);
        frame[24..26].fill(0);
        let sum = bm_wire::checksum::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    let ports = [53, 80, 81, 80];
    let mut frames: Vec<_> = ports.map(|port| udp([172, 16, 0, 1], [10, 0, 0, 7], port)).into();
    frames.push(later(&frames[2]));
    frames.iter().for_each(|frame| lab.send(0, frame));
    // It came in elsewhere.
    let mut other = udp([10, 0, 0, 7], [172, 16, 0, 1], 80);
    other[5] = 2;
    lab.send(1, &other);
    lab.run();
    assert_eq!(lab.take_host(0), [frames[1].clone(), frames[3].clone(), frames[4].clone()], "as they came");
    assert_eq!((lab.take(1).len(), lab.take(0).len()), (1, 1));
    assert_eq!((lab.dropped(Reason::Filter), lab.counter("linux_firewall")), (1, 3));
    lab.check();
}

#[test]
fn all_packets_are_linux_s_while_control_is_late() {
    let mut lab = Lab::new(TWO);
    let tables = lab.tables();
    let lease = Arc::clone(&tables.lease);
    lab.publish(tables);
    lease.expire();
    let frame = udp([172, 16, 0, 1], [10, 0, 0, 7], 80);
    lab.send(0, &frame);
    lab.run();
    assert_eq!((lab.take_host(0), lab.take(1).len()), (vec![frame.clone()], 0));
    lease.renew(u64::MAX);
    lab.send(0, &frame);
    lab.run();
    assert_eq!((lab.take_host(0).len(), lab.take(1).len()), (0, 1));
    lab.check();
}

/// Not a test of behaviour: `cargo test --release -p bm-forward what_filters_cost -- --ignored --nocapture`.
#[test]
#[ignore = "prints figures"]
fn what_filters_cost() {
    use crate::tables::Tables;
    let lab = Lab::new(TWO);
    let mut seed = 1u64;
    let mut byte = || {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (seed >> 56) as u8
    };
    let rules: Vec<Rule> = (0..10_000)
        .map(|_| Rule {
            source: Some(format!("10.{}.{}.{}", byte(), byte(), byte()).parse().unwrap()),
            destination: Some(format!("10.{}.{}.{}", byte(), byte(), byte()).parse().unwrap()),
            ..no_dns()
        })
        .collect();
    let frames: Vec<_> = (0..256).map(|last| udp([172, 16, 0, last as u8], [10, 0, 0, 7], 53)).collect();
    let cost = |set: FilterSet| {
        let tables: Tables = lab.tables().with_filters(Some(Arc::new(set)));
        let started = std::time::Instant::now();
        for now in 0..20_000 {
            let filter = PortFilter::of(&tables, 0, 0, now * 10_000).unwrap();
            frames.iter().for_each(|frame| assert_eq!(std::hint::black_box(filter.takes(frame)), None));
        }
        started.elapsed().as_nanos() as f64 / (20_000.0 * 256.0)
    };
    for round in 0..5 {
        let (empty, full) = (cost(set(&[], |_| {})), cost(set(&rules, |_| {})));
        let rate = cost(set(&[], |set| {
            let rate = Some(Rate { packets: 10_000_000, burst: 10_000_000, lengths: [32, 64] });
            set.filters = Arc::new(Filters { rate, ..Filters::default() });
            set.rates = Some(Arc::new(SourceRates::new(1).unwrap()));
        }));
        println!("round {round}: {empty:.1} ns with no rules, {full:.1} with 10,000, {rate:.1} with a rate");
    }
}

#[test]
fn frames_with_too_many_tags_are_dropped_if_any_may_be() {
    for (rules, drops) in [(vec![], false), (vec![Rule::default()], false), (vec![no_dns()], true)] {
        let mut lab = Lab::new(TWO);
        lab.filter(Arc::new(set(&rules, |_| {})));
        for tags in 0..=5 {
            let mut frame = udp([172, 16, 0, 1], [10, 0, 0, 7], 80);
            frame.splice(12..12, [0x81, 0, 0, 0].repeat(tags));
            lab.send(0, &frame);
        }
        lab.run();
        assert_eq!(lab.dropped(Reason::Filter), if drops { 3 } else { 0 }, "{rules:?}");
    }
}
