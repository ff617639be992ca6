//! Routes, rules, next-hop objects.

use super::{Undoable, some};
use crate::model::step::{Kind, Step, Tool};
use bm_tests::rulesets::Random;

const PREFIXES4: &[&str] = &[
    "10.20.0.0/16",
    "10.20.1.0/24",
    "10.20.1.0/24",
    "10.20.1.128/25",
    "10.20.1.200/32",
    "10.1.1.0/24",
    "default",
    "172.16.128.0/17",
];
const PREFIXES6: &[&str] = &[
    "2001:db8:a020::/48",
    "2001:db8:a020:1::/64",
    "2001:db8:a020:1::/64",
    "2001:db8:a020:1:8000::/65",
    "2001:db8:a020:1::200/128",
    "2001:db8:a101::/48",
    "default",
    "2001:db8:c008::/45",
];
const HOPS4: &[&str] = &[
    "via 198.51.100.2",
    "via 198.51.100.3",
    "via 198.51.100.4 dev r1",
    "via 203.0.113.2",
    "via 203.0.113.3 dev r2",
    "via 192.0.2.3",
    "dev r1",
    "dev r2",
    "via inet6 fe80::3 dev r1",
    "via inet6 2001:db8:2::4",
    "via 10.99.9.9 dev r1 onlink",
    "nhid 11",
    "nhid 12",
    "nhid 13",
];
const HOPS6: &[&str] = &[
    "via 2001:db8:2::2",
    "via 2001:db8:2::3",
    "via fe80::4 dev r1",
    "via 2001:db8:3::2",
    "via fe80::3 dev r2",
    "via 2001:db8:1::3",
    "dev r1",
    "dev r2",
    "nhid 14",
    "nhid 15",
];
const ATTRIBUTES4: &[&[&str]] = &[
    &["metric 5", "metric 9", "metric 4000000000"],
    &["tos 0x10", "tos 0x08"],
    &["proto 98", "proto 99", "proto static"],
    &["scope link", "scope global"],
    &["src 198.51.100.1", "src 192.0.2.1"],
    &["mtu 1400", "mtu 900", "mtu lock 1200", "mtu 600"],
    &["advmss 900", "advmss 901"],
    &["realm 5", "realm 6"],
    &["table 100", "table 101", "table local", "table default"],
];
const ATTRIBUTES6: &[&[&str]] = &[
    &["metric 5", "metric 9", "metric 1024"],
    &["proto 98", "proto 99", "proto ra"],
    &["src 2001:db8:1::1"],
    &["mtu 1400", "mtu 1280"],
    &["advmss 900", "advmss 901"],
    &["pref low", "pref high", "pref medium"],
    &["expires 3600"],
    &["table 100", "table 101", "table local"],
];

/// A route of either family.
pub(super) fn route(random: &mut Random, six: bool) -> Undoable {
    let (kind, tool) = if six { (Kind::Route6, Tool::Ip6) } else { (Kind::Route4, Tool::Ip) };
    let (prefixes, hops, attributes) =
        if six { (PREFIXES6, HOPS6, ATTRIBUTES6) } else { (PREFIXES4, HOPS4, ATTRIBUTES4) };
    let prefix = random.choice(prefixes);
    let types: &[&str] = &["blackhole", "unreachable", "prohibit", "throw", "local", "broadcast"];
    let (what, hop) = if random.one_in(3) {
        let kind = random.choice(if six { &types[..5] } else { types });
        let hop =
            if kind == "local" || kind == "broadcast" { random.choice(&["dev lo", "dev r1"]) } else { "" };
        (format!("{kind} {prefix}"), hop)
    } else {
        (prefix.to_owned(), random.choice(hops))
    };
    let given = some(random, 5, attributes);
    let verb =
        random.choice(&["add", "add", "append", "append", "prepend", "replace", "replace", "change", "del"]);
    // IPv6 would make several next hops of both routes, and which flow takes which is each router's own choice.
    let becomes_multipath = six && hop.starts_with("via") && matches!(verb, "append" | "prepend");
    let verb = if becomes_multipath { "replace" } else { verb };
    let step = |verb: &str, hop: &str, given| {
        Step::by(kind, tool, format!("route {verb} {what} {hop}").trim_end()).with(given)
    };
    if verb == "del" {
        let hop = if random.one_in(2) { hop } else { "" };
        return (step("del", hop, given), Vec::new());
    }
    // Often less exact than what was added, as people delete routes.
    let mut less = given.clone();
    less.retain(|attribute| attribute.starts_with("table") || random.one_in(2));
    let undo = step("del", if random.one_in(2) { hop } else { "" }, less);
    // The kernel has what was there before under this prefix, since the routes of the lab are others.
    (step(verb, hop, given), vec![undo])
}

/// Routes with several next hops, to prefixes of their own: which flow takes which is each router's own choice.
pub(super) fn multipath(random: &mut Random) -> Undoable {
    let kind = Kind::Multipath;
    let (prefix, tool, hops): (_, _, &[&str]) = if random.one_in(2) {
        (
            "10.30.0.0/16",
            Tool::Ip,
            &[
                "via 198.51.100.8",
                "via 198.51.100.9",
                "via 203.0.113.8",
                "via 203.0.113.9",
                "via inet6 fe80::8 dev r1",
            ],
        )
    } else {
        (
            "2001:db8:a030::/48",
            Tool::Ip6,
            &["via 2001:db8:2::8", "via 2001:db8:2::9", "via 2001:db8:3::8", "via fe80::9 dev r1"],
        )
    };
    let verb = random.choice(&["add", "append", "replace", "replace"]);
    let mut text = format!("route {verb} {prefix}");
    text += &some(random, 3, &[&["metric 5"], &["mtu 1400"]])
        .iter()
        .map(|word| format!(" {word}"))
        .collect::<String>();
    for _ in 0..2 + random.below(3) {
        text += &format!(" nexthop {}", random.choice(hops));
        text += random.choice(&["", "", " weight 3", " weight 200"]);
    }
    (Step::by(kind, tool, text), vec![Step::by(kind, tool, format!("route del {prefix}"))])
}

/// Next-hop objects and groups.
pub(super) fn next_hop(random: &mut Random) -> Undoable {
    let kind = Kind::NextHop;
    let step = |text: String| Step::ip(kind, text);
    let verb = random.choice(&["add", "replace", "replace"]);
    let (id, text) = match random.below(8) {
        0 => (
            21,
            random.choice(&[
                "group 11/12",
                "group 11,3/12",
                "group 12",
                "group 11/12 type resilient buckets 8",
            ]),
        ),
        1 => (22, random.choice(&["group 14/15", "group 15"])),
        2 => (13, random.choice(&["blackhole", "via 203.0.113.9 dev r2", "dev r1"])),
        3 | 4 => (
            11,
            random.choice(&[
                "via 198.51.100.8 dev r1",
                "via 198.51.100.9 dev r1",
                "via fe80::8 dev r1",
                "via 203.0.113.8 dev r2",
            ]),
        ),
        5 => (12, random.choice(&["via 198.51.100.9 dev r1", "via 203.0.113.8 dev r2"])),
        6 => (14, random.choice(&["via 2001:db8:2::8 dev r1", "via fe80::8 dev r1", "via fe80::9 dev r2"])),
        _ => (15, random.choice(&["via 2001:db8:2::9 dev r1", "via 2001:db8:3::9 dev r2"])),
    };
    match random.below(4) {
        0 => {
            let id = random.choice(&[11, 12, 13, 14, 15, 21, 22]);
            (step(format!("nexthop del id {id}")), Vec::new())
        }
        // Routes to the prefixes of several next hops by an object or group.
        1 => {
            let (prefix, tool, ids): (_, _, &[u8]) = if random.one_in(2) {
                ("10.30.1.0/24", Tool::Ip, &[11, 12, 13, 21])
            } else {
                ("2001:db8:a030:1::/64", Tool::Ip6, &[14, 15, 22, 13])
            };
            let text = format!("route replace {prefix} nhid {}", random.choice(ids));
            (Step::by(kind, tool, text), vec![Step::by(kind, tool, format!("route del {prefix}"))])
        }
        _ => (step(format!("nexthop {verb} id {id} {text}")), Vec::new()),
    }
}

/// Routing rules.
pub(super) fn rule(random: &mut Random) -> Undoable {
    let kind = Kind::Rule;
    let six = random.one_in(3);
    let tool = if six { Tool::Ip6 } else { Tool::Ip };
    if random.one_in(14) {
        let again = "rule add pref 32766 lookup main".to_owned();
        let step = Step::by(kind, tool, random.choice(&["rule flush", "rule del pref 32766"]));
        return (step, vec![Step::by(kind, tool, again)]);
    }
    let pref = random.choice(&[100, 100, 200, 32765]);
    let selectors4: &[&[&str]] = &[
        &["from 172.16.0.0/16", "from 172.16.0.0/12", "from 10.0.0.0/8"],
        &["to 10.20.0.0/16", "to 10.20.1.0/24", "to 10.9.9.9"],
    ];
    let selectors6: &[&[&str]] = &[
        &["from 2001:db8:c000::/36", "from 2001:db8:1::/64"],
        &["to 2001:db8:a020::/44", "to 2001:db8:a000::/48"],
    ];
    let common: &[&[&str]] = &[
        &["iif r0", "iif r1", "iif lo", "iif gone"],
        &["oif r1"],
        &["tos 0x10"],
        &["fwmark 7", "fwmark 7/0xff"],
        &["ipproto udp", "ipproto tcp"],
        &["protocol 98", "protocol 99"],
        &["suppress_prefixlength 0", "suppress_prefixlength 16"],
    ];
    let mut given = some(random, 2, if six { selectors6 } else { selectors4 });
    given.extend(some(random, 8, common));
    if random.one_in(12) {
        given.push(
            random
                .choice(&["dport 53", "sport 4000", "ipproto udp dport 53", "ipproto udp sport 1000-5000"])
                .to_owned(),
        );
    }
    let action = random.choice(&[
        "lookup 100",
        "lookup 100",
        "lookup 101",
        "lookup main",
        "lookup local",
        "prohibit",
        "unreachable",
        "blackhole",
        "goto 32766",
        "nop",
    ]);
    let not = if random.one_in(10) { "not " } else { "" };
    let base = |verb: &str, given| {
        Step::by(kind, tool, format!("rule {verb} {not}{action} pref {pref}")).with(given)
    };
    let undo = if random.one_in(3) {
        Step::by(kind, tool, format!("rule del pref {pref}"))
    } else {
        base("del", given.clone())
    };
    (base(if random.one_in(8) { "del" } else { "add" }, given), vec![undo])
}
