//! All counters of brickmoon and of Linux that may count a lost packet of the stream.
//!
//! Losses of other loads are left out: packets of the scan have no neighbor, and those for the link that flaps cannot
//! be sent.

use bm_tests::lab::{Lab, Side};
use bm_tests::netns::Namespace;
use bm_tests::subject::Router;
use std::collections::BTreeMap;

/// Counters by name.
pub type Counters = BTreeMap<String, u64>;

/// Reasons for which brickmoon drops packets of other loads.
const OF_OTHERS: [&str; 4] = ["neighbor_unresolved", "neighbor_queue_full", "interface_down", "filter"];
/// Linux's counters of packets that it drops or refuses in forwarding.
const OF_LINUX: [&str; 8] = [
    "InHdrErrors",
    "InDiscards",
    "OutDiscards",
    "FragFails",
    "Ip6InHdrErrors",
    "Ip6InDiscards",
    "Ip6OutDiscards",
    "Ip6InTruncatedPkts",
];

/// All counters now.
pub fn all(lab: &Lab, router: &Router) -> Counters {
    let mut all = Counters::new();
    let drops = router.json(&["show", "drops"]);
    for drop in drops["drops"].as_array().into_iter().flatten() {
        let reason = drop["reason"].as_str().unwrap_or_default();
        if !OF_OTHERS.contains(&reason) {
            *all.entry(format!("brickmoon {reason}")).or_default() +=
                drop["frames"].as_u64().unwrap_or_default();
        }
    }
    for (namespace, interface) in [
        (&lab.src, Side::Src.host()),
        (&lab.rtr, Side::Src.router()),
        (&lab.rtr, Side::Snk.router()),
        (&lab.snk, Side::Snk.host()),
    ] {
        all.extend(of_interface(namespace, interface));
    }
    all.extend(of_linux(&lab.rtr));
    all.insert("Linux: backlog of a processor full (softnet_stat)".into(), backlog());
    all
}

/// How much each counter has increased; those that have not are left out.
pub fn since(before: &Counters, now: &Counters) -> Counters {
    let added =
        |name: &String, value: &u64| value.saturating_sub(before.get(name).copied().unwrap_or_default());
    now.iter()
        .map(|(name, value)| (name.clone(), added(name, value)))
        .filter(|(_, added)| *added > 0)
        .collect()
}

/// The most lost packets that these counters can explain. Both ends of a wire count what one of them refuses.
pub fn explained(added: &Counters) -> u64 {
    let of = |name: &str| added.get(name).copied().unwrap_or_default();
    let twice = |[from, to]: [&str; 2]| {
        of(&format!("{from}: dropped at sending")).min(of(&format!("{to}: dropped at receiving")))
    };
    let wires = [[Side::Src.host(), Side::Src.router()], [Side::Snk.router(), Side::Snk.host()]];
    added.values().sum::<u64>() - wires.map(twice).iter().sum::<u64>()
}

fn read(namespace: &Namespace, file: &str) -> String {
    namespace.within(|| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).expect("counters"))
}

/// Errors and drops that `/proc/net/dev` shows.
fn of_interface(namespace: &Namespace, interface: &str) -> Counters {
    let text = read(namespace, "dev");
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{interface}:")));
    let fields: Vec<u64> =
        line.unwrap_or_default().split_whitespace().filter_map(|field| field.parse().ok()).collect();
    let names = [
        (2, "received with errors"),
        (3, "dropped at receiving"),
        (10, "sent with errors"),
        (11, "dropped at sending"),
    ];
    let value = |at: usize| fields.get(at).copied().unwrap_or_default();
    names.into_iter().map(|(at, what)| (format!("{interface}: {what}"), value(at))).collect()
}

/// The counters [`OF_LINUX`] in the router's namespace.
fn of_linux(router: &Namespace) -> Counters {
    let ipv4 = read(router, "snmp");
    let mut lines = ipv4.lines().filter(|line| line.starts_with("Ip:")).map(str::split_whitespace);
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let ipv6 = read(router, "snmp6");
    let ipv6 = ipv6.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let pairs = names.zip(values).chain(ipv6.map(|(name, value)| (name, value.trim())));
    let wanted = pairs.filter(|(name, _)| OF_LINUX.contains(name));
    wanted.map(|(name, value)| (format!("Linux: {name}"), value.parse().unwrap_or_default())).collect()
}

/// Frames that did not fit into a CPU's backlog queue, in all namespaces.
fn backlog() -> u64 {
    let text = std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let dropped = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    text.lines().filter_map(dropped).sum()
}

#[test]
fn only_counters_that_increased_are_reported() {
    let counters = |list: &[(&str, u64)]| -> Counters {
        list.iter().map(|(name, value)| ((*name).into(), *value)).collect()
    };
    let before = counters(&[("a", 1), ("b", 5), ("c", 9)]);
    let now = counters(&[("a", 1), ("b", 7), ("c", 3), ("d", 2)]);
    assert_eq!(since(&before, &now), counters(&[("b", 2), ("d", 2)]));
    let of_a_wire =
        [("r1: dropped at sending", 7), ("k0: dropped at receiving", 5), ("Linux: InDiscards", 2)];
    assert_eq!(explained(&counters(&of_a_wire)), 9);
}
