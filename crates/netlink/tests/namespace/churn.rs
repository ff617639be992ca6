//! Long sequences of random changes to all kinds of objects; at the end the mirror must show what `ip` shows.

use super::netns::Namespace;
use super::support::{agrees, alone, settle, watch};
use bm_netlink::{Mirror, Options, Watch};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Pseudo-random numbers, the same for the same seed.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
    pub fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len() as u64) as usize]
    }
}

/// A random command for `ip -batch`; many fail, which is intended.
fn command(numbers: &mut Numbers) -> String {
    let verb = numbers.pick(&["add", "add", "replace", "append", "prepend", "del", "del"]);
    let (x, metric) = (numbers.below(12), numbers.below(3));
    let gateway = numbers.pick(&["192.0.2.2", "192.0.2.3", "198.51.100.2", "198.51.100.3"]);
    let six = numbers.pick(&["2001:db8:a::2", "2001:db8:a::3", "2001:db8:b::2", "2001:db8:b::3"]);
    let id = 1 + numbers.below(6);
    match numbers.below(25) {
        0..8 => format!("route {verb} 203.0.{x}.0/24 via {gateway} metric {metric}"),
        8..13 => format!("-6 route {verb} 2001:db8:{x}::/48 via {six} metric {}", metric + 1),
        13 => {
            format!("route {verb} 203.0.{x}.0/24 metric {metric} nexthop via 192.0.2.2 nexthop via {gateway}")
        }
        14 => {
            format!("-6 route {verb} 2001:db8:{x}::/48 metric 1 nexthop via {six} nexthop via 2001:db8:a::9")
        }
        15 => format!(
            "nexthop {} id {id} via {gateway} dev {}",
            numbers.pick(&["add", "replace", "del"]),
            device(gateway)
        ),
        16 => format!("nexthop replace id {} group {id}/{}", 10 + numbers.below(3), 1 + id % 6),
        17 => format!("route {verb} 203.0.{x}.0/24 metric {metric} nhid {}", 10 + numbers.below(3)),
        18 => format!("nexthop del id {}", 1 + numbers.below(12)),
        19 => {
            format!("route {verb} {} 203.0.{x}.0/24", numbers.pick(&["blackhole", "prohibit", "unreachable"]))
        }
        20 => {
            let state = numbers.pick(&["permanent", "stale", "reachable", "failed"]);
            format!("neigh replace 192.0.2.{x} lladdr 02:00:00:00:00:{x:02x} dev a nud {state}")
        }
        21 => format!("addr {} 192.0.2.{}/24 dev a", numbers.pick(&["add", "del"]), 100 + x),
        22 => format!(
            "link set dev {} {}",
            numbers.pick(&["a", "b", "a2", "b2"]),
            numbers.pick(&["down", "up", "up"])
        ),
        23 => {
            let dev = numbers.pick(&["a", "b"]);
            format!("addr add 2001:db8:{dev}::1/64 dev {dev} nodad")
        }
        _ => format!("route flush 203.0.{x}.0/24"),
    }
}

fn device(gateway: &str) -> &str {
    if gateway.starts_with("192") { "a" } else { "b" }
}

fn walk(namespace: &Namespace, seed: u64, steps: usize) {
    let mut numbers = Numbers(seed);
    let mut ip = Command::new("ip")
        .args(["-n", &namespace.name, "-force", "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = ip.stdin.take().unwrap();
    for _ in 0..steps {
        let command = command(&mut numbers);
        // Lines for `-batch` cannot have a family option; `ip` derives the family from the address.
        writeln!(input, "{}", command.trim_start_matches("-6 ")).unwrap();
    }
    drop(input);
    ip.wait().unwrap();
}

/// Table, prefix, metric and type of each route in the mirror, and how many there are.
fn ours(mirror: &Mirror) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    let mut note = |table: u32, address: IpAddr, length: u8, body: &bm_netlink::RouteBody| {
        let gateways =
            body.via.hops().iter().map(|hop| hop.gateway.map_or("-".into(), |gateway| gateway.to_string()));
        let hops = match body.via {
            bm_netlink::Via::Object(id) => format!("nhid {id}"),
            _ if body.kind.refuses() => String::new(),
            _ => sorted(gateways.collect()),
        };
        let text = format!("{table} {address}/{length} {} {} {hops}", body.priority, body.kind);
        *found.entry(text).or_insert(0) += 1;
    };
    for (table, routes) in mirror.ipv4().tables() {
        for (prefix, list) in routes.iter() {
            let bodies = list.iter().filter_map(|&id| mirror.ipv4().body(id));
            bodies.for_each(|body| note(table, IpAddr::V4(prefix.first().into()), prefix.length(), body));
        }
    }
    for (table, routes) in mirror.ipv6().tables() {
        for (prefix, list) in routes.iter() {
            let bodies = list.iter().filter_map(|&id| mirror.ipv6().body(id));
            bodies.for_each(|body| note(table, IpAddr::V6(prefix.first().into()), prefix.length(), body));
        }
    }
    found
}

fn sorted(mut list: Vec<String>) -> String {
    list.sort();
    list.join(",")
}

/// The same according to `ip -json`.
fn theirs(namespace: &Namespace) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for (family, width) in [("-4", 32), ("-6", 128)] {
        let printed = namespace.ip_output(&format!("-j -d -N {family} route show table all"));
        let Value::Array(routes) = serde_json::from_str(&printed).unwrap() else { panic!("{printed}") };
        for route in &routes {
            *found.entry(their_route(route, family, width)).or_insert(0) += 1;
        }
    }
    found
}

fn their_route(route: &Value, family: &str, width: u8) -> String {
    let text = |key: &str| match &route[key] {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => String::new(),
    };
    let zero = if family == "-4" { "0.0.0.0/0" } else { "::/0" };
    let destination = match text("dst").as_str() {
        "default" => zero.into(),
        whole if whole.contains('/') => whole.to_string(),
        host => format!("{host}/{width}"),
    };
    let table = match text("table").as_str() {
        "" | "main" => "254".into(),
        other => other.to_string(),
    };
    let kinds =
        ["", "unicast", "local", "broadcast", "anycast", "multicast", "blackhole", "unreachable", "prohibit"];
    let kind = match text("type").parse::<usize>() {
        Ok(number) => kinds[number].to_string(),
        Err(_) => text("type"),
    };
    let gateway = |hop: &Value| match (hop["gateway"].as_str(), hop["via"]["host"].as_str()) {
        (Some(gateway), _) | (None, Some(gateway)) => gateway.to_string(),
        _ => "-".into(),
    };
    let hops = match (&route["nhid"], &route["nexthops"]) {
        (Value::Number(id), _) => format!("nhid {id}"),
        _ if ["blackhole", "unreachable", "prohibit"].contains(&kind.as_str()) => String::new(),
        (_, Value::Array(hops)) => sorted(hops.iter().map(gateway).collect()),
        _ => gateway(route),
    };
    let metric = if text("metric").is_empty() { "0".into() } else { text("metric") };
    format!("{table} {destination} {metric} {kind} {hops}")
}

/// Compares several times, since duplicate address detection may end between reading both.
fn same_as_ip(watch: &mut Watch, namespace: &Namespace, seed: u64) {
    for last in [false, false, false, true] {
        settle(watch);
        let (ours, theirs) = (ours(watch.mirror()), theirs(namespace));
        let differ: Vec<_> = ours.iter().filter(|(route, count)| theirs.get(*route) != Some(count)).collect();
        let missing: Vec<_> = theirs.keys().filter(|route| !ours.contains_key(*route)).collect();
        if differ.is_empty() && missing.is_empty() {
            return;
        }
        assert!(!last, "seed {seed}: ours only {differ:?}, theirs only {missing:?}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn after_random_changes_the_mirror_equals_ip() {
    let Some(namespace) = Namespace::new("churn").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut watch = watch(alone());
    for seed in 1..=12 {
        walk(&namespace, seed, 400);
        settle(&mut watch);
        same_as_ip(&mut watch, &namespace, seed);
        agrees(&mut watch, &format!("seed {seed}"));
    }
    assert_eq!(watch.statistics().malformed, 0);
    assert!(watch.statistics().events > 2000, "{:?}", watch.statistics());
}

#[test]
fn comparisons_during_events_find_no_false_differences() {
    let Some(namespace) = Namespace::new("amid").map(Namespace::with_links) else { return };
    namespace.enter();
    let often = Duration::from_millis(1);
    let mut watch = watch(Options { audit_every: Some(often), audit_delay: often, ..Options::default() });
    std::thread::scope(|scope| {
        let walker = scope.spawn(|| (20..70).for_each(|seed| walk(&namespace, seed, 400)));
        while !walker.is_finished() {
            watch.wait(often).unwrap();
            watch.process(std::time::Instant::now()).unwrap();
            if let Some(audit) = watch.take_audit() {
                assert_eq!(audit.findings.count, 0, "{}", super::support::listed(&audit.findings));
            }
        }
    });
    println!("{:?}", watch.statistics());
    assert!(watch.statistics().audits >= 3, "{:?}", watch.statistics());
    agrees(&mut watch, "the walk");
}
