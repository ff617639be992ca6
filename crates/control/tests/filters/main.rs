//! Compares the filters of both paths and of nftables: the same rules, the same frames, the same verdicts; and of both
//! paths the same counts.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod frames;
mod lab;
mod nftables;

use bm_fastpath::{Filters, Rate};
use bm_filter::{Flat, Rule, Tree, UNMATCHED};
use bm_forward::filter::{FilterVerdict, takes};
use bm_wire::ReversePath;
use frames::Dice;
use lab::FIREWALL;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// Port 0, its VLAN 7 as interface 1, port 1 as interface 2.
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const RULES: u16 = 24;
const LOCAL: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
const LOCAL6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0xfe);

fn run(arguments: &str) {
    assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
}

/// Environment variable, set in the program that runs inside the namespace.
const INSIDE: &str = "BM_FILTERS_INSIDE";

struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _gone = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Runs `body` in a network namespace: starts this program again, so that no thread has to change namespaces.
fn inside(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("skipped: {test} needs root for a network namespace and BPF");
        return;
    }
    let namespace = Namespace(format!("bm-filters-{}-{}", std::process::id(), test.replace("::", "-")));
    run(&format!("netns add {}", namespace.0));
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &namespace.0]).arg(std::env::current_exe().unwrap());
    let ended = command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").status().unwrap();
    assert!(ended.success(), "{test} failed inside its namespace");
}

#[test]
fn both_paths_decide_the_same_for_any_frame() {
    inside("both_paths_decide_the_same_for_any_frame", compare);
}

fn compare() {
    let mut lab = lab::lab();
    let rounds = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(48);
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let mut reader = lab.readers.register();
    let mut seen = std::collections::BTreeMap::<_, usize>::new();
    for round in 0..rounds {
        let rules = frames::rules(&mut dice);
        let flat = |rules: &[(Rule, Option<u16>)], first: u16| -> Vec<Flat> {
            let numbered = rules.iter().zip(first..);
            numbered.flat_map(|((rule, interface), at)| Flat::from_rule(rule, at, *interface)).collect()
        };
        // Claims, for which there are no workers, and a rate that no source exceeds: both change nothing.
        let claims = if dice.roll(2) == 0 { frames::rules(&mut dice) } else { Vec::new() };
        let plenty = Rate { packets: 10_000_000, burst: 10_000_000, lengths: [24, 48] };
        let linux_only = if dice.roll(2) == 0 { frames::rules(&mut dice) } else { Vec::new() };
        let of_linux = linux_only.iter().flat_map(|(rule, interface)| Flat::may_match(rule, *interface));
        let tree = Tree::grow_with(flat(&rules, 0), flat(&claims, RULES)).unwrap();
        let filters = Filters {
            tree: tree.with_linux_only(of_linux.collect()).unwrap(),
            drop_unmatched: dice.roll(4) == 0,
            drop_tiny_fragments: dice.roll(2) == 0,
            rate: (dice.roll(2) == 0).then_some(plenty),
        };
        const CHECKS: [ReversePath; 4] =
            [ReversePath::Off, ReversePath::Strict, ReversePath::Loose, ReversePath::Feasible];
        let checks = [0; 3].map(|_: u8| dice.one_of(&CHECKS));
        let unknown = [0; 2].map(|_: u8| dice.roll(6) == 0);
        let tables = lab.filter(filters, checks, unknown);
        for _ in 0..200 {
            let frame = frames::frame(&mut dice, 1);
            let in_kernel = lab.in_kernel(&frame);
            let by_worker = takes(&tables, 0, &frame, 0).map(|taken| match taken {
                FilterVerdict::Drop(reason) => reason.name(),
                FilterVerdict::LinuxOnly => FIREWALL,
            });
            assert_eq!(
                by_worker, in_kernel,
                "round {round}, {checks:?}, {unknown:?}: {frame:02x?}\n{rules:#?}"
            );
            *seen.entry(by_worker).or_default() += 1;
        }
        for counter in (0..rules.len() as u16).chain([UNMATCHED]) {
            let counted = (lab.counts.count(counter), lab.kernel.rule_count(counter).unwrap());
            assert_eq!(counted.0, counted.1, "round {round}, rule {counter}: {rules:#?}");
        }
        reader.quiescent();
    }
    for reason in [None, Some("filter"), Some(FIREWALL), Some("tiny_fragment"), Some("reverse_path")] {
        assert!(seen.get(&reason).is_some_and(|count| *count > rounds), "{reason:?}: {seen:?}");
    }
}
