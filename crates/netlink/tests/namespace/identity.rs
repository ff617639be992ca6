//! Objects that differ in as little as Linux allows: after each few changes the mirror must equal a fresh dump.
//!
//! The commands take any subset of the attributes of a kind of object from a short list, so that most of them meet an
//! object that is nearly the same. A difference counts only where nothing was in doubt: packets of what is in doubt are
//! left to Linux.

use super::churn::Numbers;
use super::netns::Namespace;
use super::support::{alone, listed, watch};
use bm_netlink::Watch;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Seeds of one kind of object.
const SEEDS: u64 = 2;
/// Groups of changes for each seed, each followed by a comparison.
const GROUPS: usize = 30;
/// Most changes in a group.
const CHANGES: u64 = 4;

/// Each of `options` with a probability of a quarter.
fn some(numbers: &mut Numbers, options: &[&[&str]]) -> String {
    let mut text = String::new();
    for values in options {
        if numbers.below(4) == 0 {
            text.push(' ');
            text.push_str(numbers.pick(values));
        }
    }
    text
}

fn rule(numbers: &mut Numbers, six: bool) -> String {
    let verb = numbers.pick(&["add", "add", "add", "del"]);
    let net = if six { "2001:db8:7::/48" } else { "203.0.113.0/24" };
    let action = numbers.pick(&["prohibit", "blackhole", "lookup 7", "lookup main", "unreachable", ""]);
    let protocol = numbers.pick(&["protocol 98", "protocol 99", ""]);
    let options = some(
        numbers,
        &[
            &["iif a", "iif b"],
            &["oif a"],
            &["fwmark 1", "fwmark 1/0xff"],
            &["tos 0x10"],
            &["ipproto tcp", "ipproto udp"],
        ],
    );
    let to = if numbers.below(2) == 0 { format!("to {net}") } else { String::new() };
    format!("rule {verb} pref {} {to}{options} {action} {protocol}", 100 + numbers.below(2))
}

fn route4(numbers: &mut Numbers) -> String {
    let verb = numbers.pick(&["add", "append", "append", "prepend", "replace", "change", "del", "del"]);
    let prefix = numbers.pick(&["203.0.113.0/24", "203.0.112.0/23"]);
    let to = numbers.pick(&[
        "via 192.0.2.2",
        "via 192.0.2.2",
        "via 192.0.2.3",
        "via 192.0.2.2 onlink dev a",
        "dev a",
        "nexthop via 192.0.2.2 nexthop via 192.0.2.3 weight 2",
        "nexthop via 192.0.2.2 weight 2 nexthop via 192.0.2.3",
        "nexthop via 192.0.2.2 realm 3 nexthop via 192.0.2.3",
        "nhid 10",
        "nhid 20",
    ]);
    let options = some(
        numbers,
        &[
            &["proto 98", "proto 99"],
            &["metric 1", "metric 2"],
            &["tos 0x10", "tos 0x08"],
            &["mtu 1300", "mtu lock 1300", "mtu 1301"],
            &["advmss 900", "advmss 901"],
            &["realm 5", "realm 6"],
            &["window 1000"],
            &["rtt lock 90"],
            &["initcwnd 9"],
            &["congctl reno"],
            &["src 192.0.2.1"],
            &["table 7"],
            &["scope link"],
        ],
    );
    match numbers.below(5) {
        0 => format!(
            "route {verb} {} {prefix}{options}",
            numbers.pick(&["blackhole", "prohibit", "throw", "local"])
        ),
        // `ip` takes what follows a next hop for a part of it.
        _ => format!("route {verb} {prefix}{options} {to}"),
    }
}

fn route6(numbers: &mut Numbers) -> String {
    let verb = numbers.pick(&["add", "append", "append", "replace", "change", "del", "del"]);
    let prefix = numbers.pick(&["2001:db8:7::/48", "2001:db8:6::/47"]);
    let to = numbers.pick(&[
        "via 2001:db8:a::2",
        "via 2001:db8:a::3",
        "via 2001:db8:b::2",
        "via fe80::2 dev a",
        "via fe80::2 dev b",
        "dev a",
        "dev b",
        "nexthop via 2001:db8:a::2 nexthop via 2001:db8:a::3",
        "nexthop via 2001:db8:a::2 nexthop via 2001:db8:b::2",
        "nhid 12",
        "nhid 22",
    ]);
    let options = some(
        numbers,
        &[
            &["proto 98", "proto ra"],
            &["metric 1", "metric 2"],
            &["pref high", "pref low", "pref medium"],
            &["mtu 1300", "mtu lock 1301"],
            &["advmss 900"],
            &["expires 900", "expires 1"],
            &["src 2001:db8:a::1"],
            &["table 7"],
            &["from 2001:db8:d::/48"],
        ],
    );
    match numbers.below(5) {
        0 => format!("route {verb} {} {prefix}{options}", numbers.pick(&["blackhole", "prohibit", "throw"])),
        // `ip` takes what follows a next hop for a part of it.
        _ => format!("route {verb} {prefix}{options} {to}"),
    }
}

fn address4(numbers: &mut Numbers) -> String {
    let verb = numbers.pick(&["add", "add", "replace", "change", "del"]);
    let device = numbers.pick(&["a", "b"]);
    let options = some(
        numbers,
        &[
            &["scope link", "scope host"],
            &["noprefixroute"],
            &["metric 5"],
            &["broadcast 192.0.2.99"],
            &["valid_lft 900 preferred_lft 0", "valid_lft 900 preferred_lft 800"],
        ],
    );
    let address = numbers.pick(&[
        "192.0.2.1/24",
        "192.0.2.1/32",
        "192.0.2.7/24",
        "192.0.2.8/24",
        "192.0.2.1 peer 10.9.0.1/32",
        "192.0.2.1 peer 10.9.0.2/32",
        "192.0.2.1 peer 10.9.0.1/24",
    ]);
    format!("addr {verb} {address} dev {device}{}", if verb == "del" { String::new() } else { options })
}

fn address6(numbers: &mut Numbers) -> String {
    let verb = numbers.pick(&["add", "add", "replace", "change", "del"]);
    let device = numbers.pick(&["a", "b"]);
    let options = some(
        numbers,
        &[
            &["home"],
            &["noprefixroute"],
            &["metric 5"],
            &["valid_lft 900 preferred_lft 0", "valid_lft 900 preferred_lft 800", "valid_lft forever"],
        ],
    );
    let address = numbers.pick(&[
        "2001:db8:c::1/64",
        "2001:db8:c::1/128",
        "2001:db8:c::2/64",
        "2001:db8:c::1 peer 2001:db8:c::9/128",
        "2001:db8:c::1 peer 2001:db8:c::8/64",
    ]);
    format!(
        "addr {verb} {address} dev {device}{}",
        if verb == "del" { String::new() } else { format!(" nodad{options}") }
    )
}

fn neighbor(numbers: &mut Numbers, six: bool) -> String {
    let verb = numbers.pick(&["add", "replace", "change", "del"]);
    let address = match six {
        true => numbers.pick(&["2001:db8:a::2", "2001:db8:a::3", "fe80::2"]),
        false => numbers.pick(&["192.0.2.2", "192.0.2.3"]),
    };
    let device = numbers.pick(&["a", "b"]);
    let mac = numbers.pick(&["02:00:00:00:00:01", "02:00:00:00:00:02"]);
    let state = numbers.pick(&["permanent", "noarp", "stale", "reachable", "failed"]);
    let options = some(numbers, &[&["router"], &["extern_learn"], &["protocol 98"]]);
    match (verb, numbers.below(4)) {
        (_, 0) => format!("neigh {verb} proxy {address} dev {device}"),
        ("del", _) => format!("neigh del {address} dev {device}"),
        _ => format!("neigh {verb} {address} lladdr {mac} nud {state} dev {device}{options}"),
    }
}

fn next_hop(numbers: &mut Numbers, six: bool) -> String {
    let verb = numbers.pick(&["add", "replace", "replace", "del"]);
    let id = 10 + numbers.below(3);
    let gateways = if six { ["2001:db8:a::2", "2001:db8:a::3"] } else { ["192.0.2.2", "192.0.2.3"] };
    let via = numbers.pick(&gateways);
    let options = some(numbers, &[&["protocol 98"], &["onlink"]]);
    match (verb, numbers.below(4)) {
        ("del", _) => format!("nexthop del id {}", if numbers.below(2) == 0 { id } else { id + 10 }),
        (_, 0) => format!("nexthop {verb} id {} group {}/{id}{options}", id + 10, 10 + numbers.below(3)),
        (_, 1) => format!("nexthop {verb} id {id} {}{options}", numbers.pick(&["blackhole", "dev a"])),
        _ => format!("nexthop {verb} id {id} via {via} dev a{options}"),
    }
}

fn link(numbers: &mut Numbers) -> String {
    match numbers.below(6) {
        0 => format!("link set dev {} mtu {}", numbers.pick(&["a", "b"]), 1400 + 50 * numbers.below(3)),
        1 => format!("link set dev {} {}", numbers.pick(&["a", "a2"]), numbers.pick(&["down", "up"])),
        2 => format!("link {} name d type dummy", numbers.pick(&["add", "del"])),
        3 => format!("link set dev {} alias {}", numbers.pick(&["a", "d"]), numbers.pick(&["one", "two"])),
        _ => "link set dev a up".into(),
    }
}

/// Runs commands of one family, of which Linux may refuse some. `ip` must understand each, since it ends at one that it
/// does not, and reads no further.
fn run(namespace: &Namespace, six: bool, commands: &[String]) {
    let mut ip = Command::new("ip")
        .args([if six { "-6" } else { "-4" }, "-n", &namespace.name, "-force", "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    ip.stdin.take().unwrap().write_all((commands.join("\n") + "\n").as_bytes()).unwrap();
    assert_ne!(ip.wait().unwrap().code(), Some(255), "ip does not understand one of {commands:#?}");
}

/// Waits until no address is being checked for duplicates: Linux announces it when it can be used.
fn checked_for_duplicates(namespace: &Namespace) {
    while !namespace.ip_output("-6 addr show tentative -dadfailed").is_empty() {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(30));
}

/// Compares, with a look at what earlier comparisons in the background have found.
fn check(watch: &mut Watch, seed: u64, commands: &[String]) {
    watch.process(Instant::now()).unwrap();
    let audit = watch.compare().unwrap();
    assert_eq!(audit.findings.count, 0, "seed {seed}, after {commands:#?}: {}", listed(&audit.findings));
    assert_eq!(watch.statistics().differences, 0, "seed {seed}, in the background after {commands:#?}");
}

/// Random changes of one kind of object, for each seed in a new namespace.
fn walk(tag: &str, six: bool, command: impl Fn(&mut Numbers) -> String) {
    for seed in 1..=SEEDS {
        let Some(namespace) = Namespace::new(&format!("{tag}{seed}")).map(Namespace::with_links) else {
            return;
        };
        namespace.enter();
        for object in
            ["id 10 via 192.0.2.2 dev a", "id 12 via 2001:db8:a::2 dev a", "id 20 group 10", "id 22 group 12"]
        {
            namespace.ip(&format!("nexthop add {object}"));
        }
        std::thread::sleep(Duration::from_millis(50));
        let mut watch = watch(alone());
        let mut numbers = Numbers(seed);
        for _ in 0..GROUPS {
            let count = 1 + numbers.below(CHANGES);
            let commands: Vec<String> = (0..count).map(|_| command(&mut numbers)).collect();
            run(&namespace, six, &commands);
            if six {
                checked_for_duplicates(&namespace);
            }
            check(&mut watch, seed, &commands);
        }
        assert_eq!(watch.statistics().malformed, 0);
        println!("{tag}: {:?}", watch.statistics());
    }
}

#[test]
fn rules_that_differ_in_anything() {
    walk("rule4", false, |numbers| rule(numbers, false));
    walk("rule6", true, |numbers| rule(numbers, true));
}

#[test]
fn ipv4_routes_that_differ_in_anything() {
    walk("route4", false, route4);
}

#[test]
fn ipv6_routes_that_differ_in_anything() {
    walk("route6", true, route6);
}

#[test]
fn addresses_that_differ_in_anything() {
    walk("addr4", false, address4);
    walk("addr6", true, address6);
}

#[test]
fn neighbors_that_differ_in_anything() {
    walk("neigh4", false, |numbers| neighbor(numbers, false));
    walk("neigh6", true, |numbers| neighbor(numbers, true));
}

#[test]
fn next_hops_that_differ_in_anything() {
    walk("nexthop4", false, |numbers| next_hop(numbers, false));
    walk("nexthop6", true, |numbers| next_hop(numbers, true));
}

#[test]
fn all_kinds_together() {
    walk("all4", false, |numbers| match numbers.below(6) {
        0 => rule(numbers, false),
        1 => address4(numbers),
        2 => neighbor(numbers, false),
        3 => next_hop(numbers, false),
        4 => link(numbers),
        _ => route4(numbers),
    });
    walk("all6", true, |numbers| match numbers.below(6) {
        0 => rule(numbers, true),
        1 => address6(numbers),
        2 => neighbor(numbers, true),
        3 => next_hop(numbers, true),
        4 => link(numbers),
        _ => route6(numbers),
    });
}
