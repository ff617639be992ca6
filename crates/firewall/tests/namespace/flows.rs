//! Which decisions of rulesets hold for all packets of a flow, as nft and iptables write them.

use super::netns::Namespace;
use bm_firewall::{Counters, LinuxOnlyOptions, LinuxOnlyWatch, Repeats, Traffic};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long it may take to notice a change.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

/// Rulesets, each below what is to come of it.
const RULESETS: &str = include_str!("flows.txt");

/// A ruleset, and what comes of it: what is decided for whole flows, what for each packet, the facts.
struct Case {
    what: &'static str,
    rules: String,
    wanted: [&'static str; 3],
}

fn cases() -> Vec<Case> {
    let read = |text: &'static str| {
        let (head, rules) = text.split_once('\n').unwrap();
        let mut parts = head.split('|').map(str::trim);
        let mut part = || parts.next().unwrap_or_default();
        let (what, wanted) = (part(), [part(), part(), part()]);
        let rules = rules.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
        Case { what, rules, wanted }
    };
    RULESETS.split("\n## ").skip(1).map(read).collect()
}

/// Packets in a word.
fn word(traffic: &Traffic) -> Option<&'static str> {
    Some(match traffic {
        Traffic::All { ipv4: true, ipv6: true } => "all",
        Traffic::All { ipv4: true, .. } => "ipv4",
        Traffic::All { .. } => "ipv6",
        Traffic::In(_) => "in",
        Traffic::Out(_) => "out",
        Traffic::Matching(_) => "some",
        Traffic::Fragments { .. } | Traffic::Errors { .. } => return None,
    })
}

/// What is listed of one kind, in words.
fn words(watch: &LinuxOnlyWatch, repeats: Repeats) -> String {
    let of_kind = watch.list().iter().filter(|entry| entry.repeats == repeats);
    let words: BTreeSet<_> = of_kind.filter_map(|entry| word(&entry.traffic)).collect();
    words.into_iter().collect::<Vec<_>>().join(",")
}

fn facts_in_words(watch: &LinuxOnlyWatch) -> String {
    let facts = watch.facts();
    let words = [
        (facts.looks_up_routes, "routes"),
        (facts.has_timeouts, "timeouts"),
        (!facts.untracked, "tracked only"),
    ];
    words.into_iter().filter(|(holds, _)| *holds).map(|(_, word)| word).collect::<Vec<_>>().join(",")
}

/// Loads a ruleset; whether this machine could.
fn load(namespace: &Namespace, rules: &str) -> bool {
    let flush = "nft flush ruleset";
    match rules.strip_prefix("iptables\n") {
        Some(text) => namespace.shell(&format!("{flush} && iptables-nft-restore <<'END'\n{text}\nEND")),
        None => namespace.shell(&format!("{flush} && nft -f - <<'END'\n{rules}\nEND")),
    }
}

#[test]
fn decisions_that_hold_for_flows() {
    let Some(namespace) = Namespace::new("flow-rules").map(Namespace::with_links) else { return };
    namespace.ip("link add name docker0 type veth peer name docker1");
    namespace.enter();
    let (mut wrong, mut skipped) = (Vec::new(), 0);
    let cases = cases();
    for Case { what, rules, wanted } in &cases {
        if !load(&namespace, rules) {
            println!("skipped: {what}, which this machine cannot load");
            skipped += 1;
            continue;
        }
        let watch = LinuxOnlyWatch::open(LinuxOnlyOptions::default()).unwrap();
        let [by_flow, each] = [Repeats::EachFlow, Repeats::EachPacket].map(|repeats| words(&watch, repeats));
        let found = [by_flow, each, facts_in_words(&watch)];
        if found != *wanted {
            wrong.push(format!("{what}: {found:?}, not {wanted:?}: {:#?}", watch.list()));
        }
    }
    assert_eq!(wrong.len(), 0, "{}", wrong.join("\n"));
    assert!(skipped * 4 <= cases.len(), "{skipped} of {} were skipped", cases.len());
    println!("{} rulesets, {skipped} skipped", cases.len());
}

#[test]
fn counters_that_have_to_be_right_count_each_packet() {
    let Some(namespace) = Namespace::new("flow-counters").map(Namespace::with_links) else { return };
    namespace.enter();
    let counted = "table inet t { chain f { type filter hook forward priority 0; tcp dport 80 counter; ct state new counter;
                   ct state established counter accept; counter; }; }";
    assert!(load(&namespace, counted));
    let mut watch = LinuxOnlyWatch::open(LinuxOnlyOptions::default()).unwrap();
    assert_eq!(words(&watch, Repeats::EachPacket), "");
    assert!(watch.set_counters(Counters::Exact));
    assert_eq!(words(&watch, Repeats::EachPacket), "all,some");
    assert_eq!(words(&watch, Repeats::EachFlow), "all", "new connections, and what is not tracked");
    assert!(!watch.facts().untracked, "the last rule counts what is not tracked");
    assert!(!watch.set_counters(Counters::Exact));
    assert!(watch.set_counters(Counters::FirstPackets));
    assert_eq!(words(&watch, Repeats::EachPacket), "");
}

/// Waits until the facts have the generation that nft has made.
fn until_current(watch: &mut LinuxOnlyWatch) {
    let now = LinuxOnlyWatch::open(LinuxOnlyOptions::default()).unwrap().facts().generation;
    assert!(now.is_some());
    let start = Instant::now();
    while watch.facts().generation != now {
        assert!(start.elapsed() < SEEN_WITHIN, "{:?}, not {now:?}", watch.facts());
        watch.process(Instant::now());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_generation_follows_all_commits() {
    let Some(namespace) = Namespace::new("flow-generation").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut watch = LinuxOnlyWatch::open(LinuxOnlyOptions::default()).unwrap();
    let set = "table inet t { set s { type ipv4_addr; }; chain f { type filter hook forward priority 0; ip saddr @s drop; }; }";
    assert!(load(&namespace, set));
    until_current(&mut watch);
    let (list, reads) = (watch.list().to_vec(), watch.statistics().reads);
    assert_eq!(list.len(), 1);
    for element in ["10.0.0.1", "10.0.0.2", "10.0.0.3"] {
        let before = watch.facts().generation;
        assert!(namespace.shell(&format!("nft add element inet t s '{{ {element} }}'")));
        let start = Instant::now();
        while !watch.process(Instant::now()) {
            assert!(start.elapsed() < SEEN_WITHIN, "an element is a change of the facts");
        }
        assert_eq!(watch.facts().generation, before.map(|before| before + 1));
        until_current(&mut watch);
    }
    assert_eq!(watch.list(), list);
    println!("{} reads of all parts meanwhile", watch.statistics().reads - reads);
    assert!(
        namespace
            .shell("nft add rule inet t f ip daddr 10.0.0.9 drop && nft add element inet t s '{ 10.0.0.4 }'")
    );
    until_current(&mut watch);
    assert_eq!(watch.list().len(), 2);
    assert!(namespace.shell("nft flush ruleset"));
    until_current(&mut watch);
    assert_eq!(watch.list(), []);
}

/// Handles of sets are numbers within a table: one that is made again has other sets with the same ones.
#[test]
fn a_table_that_is_made_again_has_sets_of_its_own() {
    let Some(namespace) = Namespace::new("flow-again").map(Namespace::with_links) else { return };
    namespace.enter();
    let with = |rule: &str| {
        format!(
            "table inet t {{ chain f {{ type filter hook forward priority 0; {rule}; ct mark 1 log; }}; }}"
        )
    };
    assert!(load(&namespace, &with("iifname { lo, eth9 } ct state established accept")));
    let mut watch = LinuxOnlyWatch::open(LinuxOnlyOptions::default()).unwrap();
    let of_interfaces = words(&watch, Repeats::EachPacket);
    assert!(load(
        &namespace,
        &format!("flush ruleset; {}", with("ct state { established, related } accept"))
    ));
    until_current(&mut watch);
    assert_eq!(watch.audit().unwrap(), [""; 0]);
    let of_states = words(&watch, Repeats::EachPacket);
    assert_ne!(of_states, of_interfaces, "what is established does not get to the second rule");
}
