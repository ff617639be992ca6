//! Filters and the reverse path filter on the fast path: packets fare as in the stages, and count as there.

use std::sync::Arc;

use bm_filter::{Action, Filters, Flat, Rate, Rule, Tree, UNMATCHED};
use bm_stats::Reason;
use bm_wire::ReversePath;
use proptest::prelude::*;

use super::frames::{V4, V6};
use super::random::{Idle, mostly_plain, padded};
use super::{LEFT, LINES, RIGHT};
use crate::filter::{FilterSet, RuleCounts};
use crate::testing::Lab;

/// What a router checks besides routes.
#[derive(Clone, Debug)]
struct Checks {
    rules: Vec<Rule>,
    linux_only: Vec<Rule>,
    drop_unmatched: bool,
    by_filters: ReversePath,
    /// In the configuration of the left interface.
    reverse_path: &'static str,
}

/// Counters of the rules.
fn counters(rules: usize) -> impl Iterator<Item = u16> {
    (0..rules as u16).chain([UNMATCHED])
}

impl Checks {
    fn lines(&self) -> String {
        let left = "interface left 0 02:00:00:00:00:01 ";
        LINES.replace(left, &format!("{left}{} ", self.reverse_path))
    }

    /// The filters; or such that look at packets one by one: a rate, but nowhere to count sources.
    fn set(&self, one_by_one: bool) -> Arc<FilterSet> {
        let flat = self.rules.iter().zip(0u16..).flat_map(|(rule, at)| Flat::from_rule(rule, at, None));
        let tree = Tree::grow(flat.collect()).unwrap();
        let linux_only = self.linux_only.iter().flat_map(|rule| Flat::may_match(rule, None)).collect();
        let tree = tree.with_linux_only(linux_only).unwrap();
        let rate = one_by_one.then_some(Rate { packets: 1, burst: 1, lengths: [32, 64] });
        let filters = Filters { tree, rate, drop_unmatched: self.drop_unmatched, ..Filters::default() };
        Arc::new(FilterSet {
            filters: Arc::new(filters),
            checks: vec![self.by_filters],
            unknown: [false; 2],
            ports: vec![true; 3],
            counts: Arc::new(RuleCounts::new().unwrap()),
            rates: None,
        })
    }
}

fn rule() -> impl Strategy<Value = Rule> {
    let prefix = |of: &'static [&'static str]| {
        let some = prop::sample::select(of).prop_map(|text| text.parse().ok());
        prop_oneof![2 => Just(None), 1 => some]
    };
    let source = prefix(&["192.0.2.9/32", "77.0.0.0/8", "2001:db8:1::/64", "8.0.0.0/8"]);
    let destination = prefix(&["8.8.0.0/16", "9.0.0.0/8", "192.0.2.1/32", "2001:db8:8::/48"]);
    let ports = prop::option::of(prop::sample::select(vec![53..=53u16, 1..=40000, 0..=0]));
    let protocol = prop::sample::select(vec![None, Some(6), Some(17), Some(1)]);
    (source, destination, protocol, ports, any::<bool>()).prop_filter_map(
        "of one family",
        |(source, destination, protocol, ports, drops)| {
            let families: [Option<bm_filter::AnyPrefix>; 2] = [source, destination];
            if families[0].zip(families[1]).is_some_and(|(a, b)| a.is_ipv6() != b.is_ipv6()) {
                return None;
            }
            let action = if drops { Action::Drop } else { Action::Accept };
            let destination_ports = ports.filter(|_| matches!(protocol, Some(6 | 17)));
            Some(Rule { action, source, destination, protocol, destination_ports, ..Rule::default() })
        },
    )
}

fn checks() -> impl Strategy<Value = Checks> {
    let by_filters = prop::sample::select(vec![
        ReversePath::Off,
        ReversePath::Off,
        ReversePath::Strict,
        ReversePath::Loose,
    ]);
    (
        prop::collection::vec(rule(), 0..12),
        prop::collection::vec(rule(), 0..2),
        prop::bool::weighted(0.2),
        by_filters,
        prop::sample::select(vec!["", "strict", "loose"]),
    )
        .prop_map(|(rules, linux_only, drop_unmatched, by_filters, reverse_path)| Checks {
            rules,
            linux_only,
            drop_unmatched,
            by_filters,
            reverse_path,
        })
}

/// Plain packets of several flows, some from where no route leads, or one through another interface.
fn flows() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let ipv4 = (
        prop::sample::select(vec![
            "192.0.2.9",
            "192.0.2.77",
            "77.1.1.1",
            "8.1.1.1",
            "198.51.100.7",
            "192.0.2.1",
        ]),
        prop::sample::select(vec!["8.8.8.8", "8.9.9.9", "9.9.9.9", "192.0.2.1", "198.51.100.50"]),
        prop::sample::select(vec![1u8, 6, 17, 132]),
        prop::sample::select(vec![53u16, 80, 50000]),
        0..30usize,
    )
        .prop_map(|(source, destination, protocol, port, more)| {
            let ports = [0x30, 0x39, (port >> 8) as u8, port as u8];
            let payload = [&ports[..], &vec![0; more]].concat();
            padded(V4 { source, protocol, payload, ..V4::to(destination) }.sent(), 0)
        });
    let ipv6 = (
        prop::sample::select(vec!["2001:db8:8::8", "2001:db8:9::9", "2001:db8:1::1"]),
        prop::sample::select(vec![6u8, 17, 58, 60]),
        prop::sample::select(vec![53u16, 80]),
    )
        .prop_map(|(destination, next_header, port)| {
            let payload = [&[17, 0][..], &port.to_be_bytes(), &[0, 20, 0, 0], &[1; 20]].concat();
            padded(V6 { next_header, payload, ..V6::to(destination) }.sent(), 0)
        });
    let both = prop_oneof![4 => prop::collection::vec(ipv4, 1..120), 1 => prop::collection::vec(ipv6, 1..60)];
    prop::collection::vec(both, 1..4).prop_map(|runs| runs.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn filtered_packets_fare_as_in_the_stages(
        checks in checks(),
        frames in prop_oneof![3 => flows(), 1 => mostly_plain()],
    ) {
        let text = checks.lines();
        let hooked = || Lab::with_hooks(&text, |_| [Some(Box::new(Idle)), None]);
        // Ahead of hooks, plain packets are filtered together, too, except with a rate.
        let stages = Lab::with_stages_only(&text);
        let mut labs = [(Lab::new(&text), false), (hooked(), false), (hooked(), true), (stages, false)];
        let sets = labs.each_mut().map(|(lab, one_by_one)| {
            let set = checks.set(*one_by_one);
            lab.filter(set.clone());
            for burst in frames.chunks(100) {
                burst.iter().for_each(|frame| lab.send(LEFT, frame));
                lab.run();
            }
            lab.check();
            counters(checks.rules.len()).map(|counter| set.counts.count(counter)).collect::<Vec<_>>()
        });
        let answers = labs.each_mut().map(|(lab, _)| {
            let mut answer = lab.answer();
            // Ahead of hooks, filters leave packets to Linux before the other stages do.
            answer.host.sort_unstable();
            (answer, lab.accounts())
        });
        let [found @ .., expected] = &answers;
        for found in found {
            prop_assert_eq!(&found.0.sent, &expected.0.sent);
            prop_assert_eq!(&found.0.host, &expected.0.host);
            prop_assert_eq!(&found.1, &expected.1);
        }
        prop_assert!(sets.iter().all(|set| *set == sets[3]), "{:?}", sets);
    }
}

#[test]
fn every_drop_of_a_burst_has_its_reason() {
    let no_web = Rule {
        action: Action::Drop,
        protocol: Some(17),
        destination_ports: Some(80..=80),
        ..Rule::default()
    };
    let checks = Checks {
        rules: vec![no_web],
        linux_only: Vec::new(),
        drop_unmatched: false,
        by_filters: ReversePath::Off,
        reverse_path: "strict",
    };
    let mut lab = Lab::new(&checks.lines());
    let set = checks.set(false);
    lab.filter(set.clone());
    for number in 0..90 {
        let source = if number % 3 == 1 { "8.1.1.1" } else { "192.0.2.9" };
        let port = if number % 3 == 2 { 80 } else { 53 };
        let payload = vec![0x30, 0x39, 0, port, 0, 30, 0, 0, number, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        lab.send(LEFT, &V4 { source, payload, ..V4::to("8.8.8.8") }.sent());
    }
    lab.run();
    lab.check();
    let sent: Vec<u8> = lab.take(RIGHT).iter().map(|frame| frame[42]).collect();
    assert_eq!(sent, (0..90).step_by(3).collect::<Vec<u8>>(), "in order");
    assert_eq!(lab.drops(), [(Reason::ReversePath, 30), (Reason::Filter, 30)]);
    assert_eq!([0, UNMATCHED].map(|counter| set.counts.count(counter)), [30, 60]);
}
