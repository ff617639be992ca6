//! Filters of brickmoon's own configuration.

use super::Undoable;
use crate::model::step::{Kind, Step, Tool};
use bm_tests::rulesets::Random;

const SOURCES: [&[&str]; 2] = [
    &["172.16.0.0/18", "172.16.0.0/12", "192.0.2.2", "10.20.1.0/24", "198.51.100.0/24", "0.0.0.0/0"],
    &["2001:db8:c000::/48", "2001:db8:c009::9", "2001:db8:1::/64", "2001:db8::/32", "fe80::/10"],
];
const DESTINATIONS: [&[&str]; 2] = [
    &[
        "10.9.9.9",
        "10.0.0.0/8",
        "10.20.0.0/16",
        "10.20.1.0/24",
        "10.1.1.128/25",
        "10.20.1.200",
        "192.0.2.0/24",
        "198.51.100.0/24",
        "10.30.0.0/16",
        "0.0.0.0/0",
    ],
    &[
        "2001:db8:a000::/36",
        "2001:db8:a020::/48",
        "2001:db8:a020:1::/64",
        "2001:db8:a101:1::200",
        "2001:db8:1::/64",
        "2001:db8:a030::/48",
        "::/0",
    ],
];
const PROTOCOLS: &[&str] = &[
    "tcp",
    "udp",
    "icmp",
    "icmpv6",
    "udp destination_ports 53",
    "udp destination_ports 5000",
    "udp destination_ports 22",
    "udp source_ports 53",
    "udp source_ports 4000-5000",
    "tcp destination_ports 80",
    "tcp destination_ports 1-60",
    "tcp source_ports 1024 destination_ports 53",
];

/// Some rules, and what becomes of the other packets.
pub(super) fn filter(random: &mut Random) -> Undoable {
    let mut lines = Vec::new();
    if random.one_in(5) {
        lines.push("unmatched drop".to_owned());
    }
    for _ in 0..1 + random.below(4) {
        lines.push(rule(random));
    }
    let filter = |text: String| Step::by(Kind::Filter, Tool::Filter, text);
    (filter(lines.join("\n")), vec![filter(String::new())])
}

fn rule(random: &mut Random) -> String {
    let mut rule = random.choice(&["drop", "drop", "accept"]).to_owned();
    let family = random.below(2);
    for (key, lists) in [("source", SOURCES), ("destination", DESTINATIONS)] {
        if random.one_in(2) {
            rule += &format!(" {key} {}", random.choice(lists[family]));
        }
    }
    if random.one_in(2) {
        rule += &format!(" protocol {}", random.choice(PROTOCOLS));
    }
    if random.one_in(3) {
        rule += &format!(" port {}", random.choice(&["r0", "r0", "r1", "r2"]));
    }
    rule
}
