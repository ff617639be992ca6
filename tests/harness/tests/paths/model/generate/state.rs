//! Addresses, neighbors and settings.

use super::{Undoable, some};
use crate::model::step::{Kind, Step, Tool};
use bm_tests::lab::{Ends, Lab, SIDES, Side};
use bm_tests::rulesets::Random;

/// Addresses of both families.
pub(super) fn address(random: &mut Random) -> Undoable {
    let kind = Kind::Address;
    let device = random.choice(&["r0", "r1", "r2", "lo"]);
    if random.one_in(2) {
        let address = random.choice(&[
            "10.77.1.2/24",
            "10.77.1.3/24",
            "10.20.1.5/24",
            "10.20.1.5/32",
            "10.20.1.200/32",
            "10.77.1.2 peer 10.20.1.9/32",
            "10.77.1.2 peer 10.21.0.1/32",
            "198.51.100.9/24",
            "192.0.2.9/32",
            "192.0.2.77/24",
            "10.97.0.1/16",
        ]);
        let given = some(
            random,
            4,
            &[
                &["scope link", "scope host"],
                &["metric 50"],
                &["noprefixroute"],
                &["brd +", "brd 10.20.1.9"],
                &["preferred_lft 0 valid_lft 3600"],
            ],
        );
        let verb = random.choice(&["add", "add", "replace"]);
        let undo = Step::ip(kind, format!("addr del {address} dev {device}"));
        if random.one_in(8) {
            let side = random.choice(&SIDES);
            let (own, name) = (side.v4(1), side.router());
            // Its neighbors and routes are gone with it.
            let again = Step::ip(kind, Lab::port_lines(side, Ends::Silent));
            return (Step::ip(kind, format!("addr del {own}/24 dev {name}")), vec![again]);
        }
        return (Step::ip(kind, format!("addr {verb} {address} dev {device}")).with(given), vec![undo]);
    }
    let address = random.choice(&[
        "2001:db8:77::2/64",
        "2001:db8:a020:1::5/128",
        "2001:db8:a020:1::5/64",
        "fe80::5/64",
        "2001:db8:77::2 peer 2001:db8:a020:1::9/128",
        "2001:db8:1::77/64",
        "2001:db8:a020:1::200/128",
    ]);
    let given = some(
        random,
        4,
        &[&["noprefixroute"], &["metric 50"], &["preferred_lft 0 valid_lft 3600"], &["home", "anycast"]],
    );
    let undo = Step::by(kind, Tool::Ip6, format!("addr del {address} dev {device}"));
    (Step::by(kind, Tool::Ip6, format!("addr add {address} dev {device} nodad")).with(given), vec![undo])
}

/// Neighbors, proxies.
pub(super) fn neighbor(random: &mut Random) -> Undoable {
    let kind = Kind::Neighbor;
    let (side, number) =
        (random.choice(&[Side::Snk, Side::Snk, Side::Low, Side::Src]), 2 + random.below(6) as u8);
    let name = side.router();
    let (address, tool) = match random.below(3) {
        0 => (side.v6(number), Tool::Ip6),
        1 => (format!("fe80::{number}"), Tool::Ip6),
        _ => (side.v4(number), Tool::Ip),
    };
    let usual = format!("neigh replace {address} lladdr {} dev {name} nud permanent", side.mac(number));
    let mac = random.choice(&[
        "02:00:00:00:09:01",
        "02:00:00:00:09:02",
        "ff:ff:ff:ff:ff:ff",
        "01:00:5e:00:00:01",
        "00:00:00:00:00:00",
    ]);
    let step = |text: String| Step::by(kind, tool, text);
    let text = match random.below(8) {
        0 => format!("neigh del {address} dev {name}"),
        1 => format!("neigh replace {address} dev {name} nud failed"),
        2 => format!("neigh replace {address} lladdr {mac} dev {name} nud noarp"),
        3 => format!("neigh replace {address} lladdr {mac} dev {name} nud reachable"),
        4 => format!("neigh replace {address} lladdr {mac} dev {name} nud stale"),
        5 => {
            let proxy =
                random.choice(&["198.51.100.77", "10.20.1.9", "2001:db8:2::77", "2001:db8:a020:1::9"]);
            let tool = if proxy.contains(':') { Tool::Ip6 } else { Tool::Ip };
            let undo = Step::by(kind, tool, format!("neigh del proxy {proxy} dev {name}"));
            return (Step::by(kind, tool, format!("neigh add proxy {proxy} dev {name}")), vec![undo]);
        }
        6 => {
            let device = random.choice(&["r1", "r2"]);
            let own = random.choice(&["10.20.1.5", "198.51.100.77", "203.0.113.77"]);
            let undo = Step::ip(kind, format!("neigh del {own} dev {device}"));
            return (
                Step::ip(kind, format!("neigh replace {own} lladdr {mac} dev {device} nud permanent")),
                vec![undo],
            );
        }
        _ => format!("neigh replace {address} lladdr {mac} dev {name} nud permanent"),
    };
    (step(text), vec![step(usual)])
}

/// A setting below `/proc/sys/net` with its usual value and others. `IF` stands for a port, `all` or `default`.
const SETTINGS: &[(&str, &str, &[&str])] = &[
    ("ipv4/ip_forward", "1", &["0"]),
    ("ipv4/conf/IF/forwarding", "1", &["0"]),
    ("ipv4/conf/IF/rp_filter", "0", &["1", "2"]),
    ("ipv4/conf/IF/accept_source_route", "0", &["1"]),
    ("ipv4/conf/IF/send_redirects", "0", &["1"]),
    ("ipv4/conf/IF/ignore_routes_with_linkdown", "0", &["1"]),
    ("ipv4/conf/IF/proxy_arp", "0", &["1"]),
    ("ipv4/conf/IF/route_localnet", "0", &["1"]),
    ("ipv4/conf/IF/accept_local", "0", &["1"]),
    ("ipv4/conf/IF/bc_forwarding", "0", &["1"]),
    ("ipv4/conf/IF/src_valid_mark", "0", &["1"]),
    ("ipv4/conf/IF/log_martians", "0", &["1"]),
    ("ipv4/conf/IF/drop_unicast_in_l2_multicast", "0", &["1"]),
    ("ipv4/ip_forward_use_pmtu", "0", &["1"]),
    ("ipv4/ip_default_ttl", "64", &["33", "255"]),
    ("ipv4/icmp_errors_use_inbound_ifaddr", "0", &["1"]),
    ("ipv4/icmp_echo_ignore_all", "0", &["1"]),
    ("ipv4/fib_multipath_hash_policy", "0", &["1", "2"]),
    ("ipv4/fib_multipath_use_neigh", "0", &["1"]),
    ("ipv4/nexthop_compat_mode", "1", &["0"]),
    ("ipv4/fwmark_reflect", "0", &["1"]),
    ("ipv6/conf/all/forwarding", "1", &["0"]),
    ("ipv6/conf/PORT/forwarding", "1", &["0"]),
    ("ipv6/conf/IF/disable_ipv6", "0", &["1"]),
    ("ipv6/conf/IF/accept_source_route", "0", &["1"]),
    ("ipv6/conf/IF/ignore_routes_with_linkdown", "0", &["1"]),
    ("ipv6/conf/IF/proxy_ndp", "0", &["1"]),
    ("ipv6/conf/PORT/mtu", "1500", &["1280", "1400"]),
    ("ipv6/conf/PORT/hop_limit", "64", &["33"]),
    ("ipv6/conf/IF/drop_unicast_in_l2_multicast", "0", &["1"]),
    ("ipv6/conf/IF/force_forwarding", "0", &["1"]),
    ("ipv6/fib_multipath_hash_policy", "0", &["1"]),
    ("ipv6/icmp/echo_ignore_all", "0", &["1"]),
    ("ipv6/icmp/ratemask", "0-1,3-127", &["1", "0-255"]),
    ("ipv6/max_hbh_opts_number", "8", &["0", "1"]),
    ("ipv6/max_dst_opts_number", "8", &["0", "1"]),
    ("ipv6/flowlabel_consistency", "1", &["0"]),
];

/// One of them.
pub(super) fn setting(random: &mut Random) -> Undoable {
    let (file, usual, values) = random.choice(SETTINGS);
    let any = random.choice(&["all", "default", "r0", "r1", "r2"]);
    let port = random.choice(&["r0", "r1"]);
    let file = format!("net/{}", file.replace("IF", any).replace("PORT", port));
    let value = random.choice(values);
    let set = |value: &str| Step::by(Kind::Setting, Tool::Set, format!("{file} {value}"));
    let mut undo = vec![set(usual)];
    if file.ends_with("disable_ipv6") {
        // The addresses, neighbors and routes are gone.
        for side in SIDES {
            undo.push(Step::ip(Kind::Link, Lab::port_lines(side, Ends::Silent)));
        }
    }
    (set(value), undo)
}
