//! Groups A to E of docs/conformance.md, packet by packet: Linux is compared with the RFCs, brickmoon with Linux.
//!
//! Each module holds the cases of one group; a case names its check. Cases of one test share a lab and a daemon, and
//! undo their changes.

mod fragments;
mod icmp4;
mod icmp6;
mod ipv4_forwarding;
mod ipv4_options;
mod ipv4_validation;
mod ipv6;
mod layer2;
mod next_hops;
mod settings;
mod sources;
mod upper;

use bm_tests::case::Case;
use bm_tests::differential;

type Cases = fn() -> Vec<Case>;

/// All groups, by the name that appears in their namespaces.
const GROUPS: [(&str, Cases); 12] = [
    ("a-valid", ipv4_validation::cases),
    ("a-forward", ipv4_forwarding::cases),
    ("a-options", ipv4_options::cases),
    ("layer2", layer2::cases),
    ("b-fragment", fragments::cases),
    ("c-icmp4", icmp4::cases),
    ("d-ipv6", ipv6::cases),
    ("d-icmp6", icmp6::cases),
    ("e-nexthop", next_hops::cases),
    ("settings", settings::cases),
    ("sources", sources::cases),
    ("upper", upper::cases),
];

fn run(name: &str) {
    let (_, cases) = GROUPS.iter().find(|(group, _)| *group == name).expect("the group is in the list");
    differential::run(name, &cases());
}

#[test]
fn ipv4_validation() {
    run("a-valid");
}

#[test]
fn ipv4_forwarding() {
    run("a-forward");
}

#[test]
fn ipv4_options() {
    run("a-options");
}

#[test]
fn layer2() {
    run("layer2");
}

#[test]
fn fragmentation_and_path_mtu() {
    run("b-fragment");
}

#[test]
fn icmp4() {
    run("c-icmp4");
}

#[test]
fn ipv6_forwarding() {
    run("d-ipv6");
}

#[test]
fn icmp6() {
    run("d-icmp6");
}

#[test]
fn next_hops() {
    run("e-nexthop");
}

#[test]
fn settings() {
    run("settings");
}

#[test]
fn sources() {
    run("sources");
}

#[test]
fn upper_interfaces() {
    run("upper");
}

#[test]
fn the_list_of_differences_is_true() {
    let all: Vec<Case> = GROUPS.iter().flat_map(|(_, cases)| cases()).collect();
    differential::assert_list_is_true(&all);
    let mut names: Vec<_> = all.iter().map(|case| case.name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all.len(), "two cases have one name");
}
