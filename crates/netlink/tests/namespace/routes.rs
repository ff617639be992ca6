//! Routes, next-hop objects, rules and settings.

use super::netns::Namespace;
use super::support::{agrees, alone, settle, watch};
use bm_netlink::route::TABLE_MAIN;
use bm_netlink::{Family, Mirror, Object, RouteKind, Routes, Watch};
use bm_wire::prefix::{Address, Ipv4Prefix, Ipv6Prefix, Prefix};

fn via<A: Address>(mirror: &Mirror, routes: &Routes<A>, prefix: Prefix<A>) -> Vec<String> {
    let Some((_, body)) = mirror.active(routes, TABLE_MAIN, prefix) else { return Vec::new() };
    let name = |ifindex| mirror.link(ifindex).map_or("?", |link| &link.name);
    let show = |hop: &bm_netlink::Hop| {
        format!(
            "{} {} {}",
            hop.gateway.map_or("-".into(), |gateway| gateway.to_string()),
            name(hop.ifindex),
            hop.weight
        )
    };
    mirror.paths(body).hops.iter().map(show).collect()
}

/// The hops of the active IPv4 route, as `GATEWAY LINK WEIGHT`.
fn via4(watch: &Watch, prefix: &str) -> Vec<String> {
    let mirror = watch.mirror();
    via(mirror, mirror.ipv4(), prefix.parse::<Ipv4Prefix>().unwrap())
}

fn via6(watch: &Watch, prefix: &str) -> Vec<String> {
    let mirror = watch.mirror();
    via(mirror, mirror.ipv6(), prefix.parse::<Ipv6Prefix>().unwrap())
}

fn kind4(watch: &Watch, prefix: &str) -> Option<RouteKind> {
    let (mirror, prefix) = (watch.mirror(), prefix.parse::<Ipv4Prefix>().unwrap());
    mirror.active(mirror.ipv4(), TABLE_MAIN, prefix).map(|(_, body)| body.kind)
}

/// Runs the commands, and compares with a fresh dump after each.
fn each(namespace: &Namespace, watch: &mut Watch, commands: &[&str]) {
    for command in commands {
        namespace.ip(command);
        agrees(watch, command);
    }
}

#[test]
fn metrics_types_and_replacements() {
    let Some(namespace) = Namespace::new("metrics").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut watch = watch(alone());
    let p = "203.0.113.0/24";
    each(
        &namespace,
        &mut watch,
        &[
            "route add 203.0.113.0/24 via 192.0.2.2 metric 20",
            "route add 203.0.113.0/24 via 198.51.100.2 metric 10",
            "route add 203.0.113.0/24 via 192.0.2.9 tos 0x10",
            "route append 203.0.113.0/24 via 192.0.2.3 metric 10",
            "route prepend 203.0.113.0/24 via 192.0.2.4 metric 10",
        ],
    );
    assert_eq!(via4(&watch, p), ["192.0.2.4 a 1"]);
    each(
        &namespace,
        &mut watch,
        &[
            "route del 203.0.113.0/24 via 192.0.2.4",
            "route replace 203.0.113.0/24 via 192.0.2.5 metric 10 mtu lock 1280",
        ],
    );
    assert_eq!(via4(&watch, p), ["192.0.2.5 a 1"]);
    each(
        &namespace,
        &mut watch,
        &["route flush 203.0.113.0/24", "route add 203.0.113.0/24 via inet6 2001:db8:a::2 dev a"],
    );
    assert_eq!(via4(&watch, p), ["2001:db8:a::2 a 1"]);
    for (word, kind) in [
        ("blackhole", RouteKind::Blackhole),
        ("unreachable", RouteKind::Unreachable),
        ("prohibit", RouteKind::Prohibit),
        ("throw", RouteKind::Throw),
    ] {
        each(
            &namespace,
            &mut watch,
            &[
                &format!("route replace {word} 203.0.113.0/24"),
                &format!("-6 route replace {word} 2001:db8:f::/48"),
            ],
        );
        assert_eq!(kind4(&watch, p), Some(kind));
    }
    each(
        &namespace,
        &mut watch,
        &[
            "route add table 77 default via 192.0.2.2",
            "-6 route add 2001:db8:e::/48 from 2001:db8:d::/48 via 2001:db8:a::2",
        ],
    );
    assert_eq!(watch.mirror().ipv4().table(77).map(|table| table.len()), Some(1));
    assert!(via6(&watch, "2001:db8:e::/48").is_empty(), "a route for some sources must not be used for all");
}

#[test]
fn multipath_routes_of_both_families() {
    let Some(namespace) = Namespace::new("ecmp").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut watch = watch(alone());
    each(
        &namespace,
        &mut watch,
        &[
            "route add 203.0.113.0/24 nexthop via 192.0.2.2 weight 3 nexthop via 198.51.100.2",
            "-6 route add 2001:db8:f::/48 nexthop via 2001:db8:a::2 nexthop via 2001:db8:b::2 weight 2",
            "-6 route append 2001:db8:f::/48 via 2001:db8:a::3",
            "-6 route add 2001:db8:e::/48 via 2001:db8:a::2",
            "-6 route append 2001:db8:e::/48 via 2001:db8:b::2",
            "-6 route del 2001:db8:f::/48 via 2001:db8:a::2",
        ],
    );
    assert_eq!(via4(&watch, "203.0.113.0/24"), ["192.0.2.2 a 3", "198.51.100.2 b 1"]);
    assert_eq!(via6(&watch, "2001:db8:f::/48"), ["2001:db8:a::3 a 1", "2001:db8:b::2 b 2"]);
    assert_eq!(via6(&watch, "2001:db8:e::/48").len(), 2);
    each(
        &namespace,
        &mut watch,
        &[
            "-6 route replace 2001:db8:f::/48 nexthop via 2001:db8:a::7 nexthop via 2001:db8:a::8",
            "-6 route replace 2001:db8:f::/48 via 2001:db8:a::9",
            "-6 route add 2001:db8:f::/48 via 2001:db8:b::9 metric 5",
            "-6 route del 2001:db8:f::/48",
            "-6 route del 2001:db8:f::/48",
            "-6 route del 2001:db8:e::/48",
            "route del 203.0.113.0/24",
        ],
    );
    assert!(via6(&watch, "2001:db8:f::/48").is_empty() && via4(&watch, "203.0.113.0/24").is_empty());
}

#[test]
fn objects_groups_and_their_routes() {
    let Some(namespace) = Namespace::new("objects").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut watch = watch(alone());
    each(
        &namespace,
        &mut watch,
        &[
            "nexthop add id 10 via 192.0.2.2 dev a",
            "nexthop add id 11 via 198.51.100.2 dev b",
            "nexthop add id 12 via 2001:db8:a::2 dev a",
            "nexthop add id 13 blackhole",
            "nexthop add id 20 group 10,3/11",
            "nexthop add id 21 group 10/11 type resilient buckets 16 idle_timer 30",
            "nexthop add id 22 group 12",
            "route add 203.0.113.0/24 nhid 20",
            "route add 203.0.114.0/24 nhid 21",
            "route add 203.0.115.0/24 nhid 12",
            "route add 203.0.116.0/24 nhid 13",
            "-6 route add 2001:db8:f::/48 nhid 22",
        ],
    );
    assert_eq!(via4(&watch, "203.0.113.0/24"), ["192.0.2.2 a 3", "198.51.100.2 b 1"]);
    assert_eq!(via4(&watch, "203.0.115.0/24"), ["2001:db8:a::2 a 1"]);
    assert_eq!(via6(&watch, "2001:db8:f::/48"), ["2001:db8:a::2 a 1"]);
    let Some(Object::Group { resilient: Some(resilient), .. }) =
        watch.mirror().next_hop(21).map(|group| &group.object)
    else {
        panic!("no resilient group: {:?}", watch.mirror().next_hop(21));
    };
    assert_eq!(resilient.buckets, 16);
    each(
        &namespace,
        &mut watch,
        &[
            "nexthop replace id 20 group 11,7/10",
            "nexthop replace id 10 via 192.0.2.7 dev a",
            "nexthop del id 11",
        ],
    );
    assert_eq!(via4(&watch, "203.0.113.0/24"), ["192.0.2.7 a 1"]);
    each(&namespace, &mut watch, &["nexthop del id 12"]);
    assert!(watch.mirror().next_hop(22).is_none() && via6(&watch, "2001:db8:f::/48").is_empty());
    assert!(via4(&watch, "203.0.115.0/24").is_empty());
    // When objects are restored, routes can use them again (docs/conformance.md 75).
    each(
        &namespace,
        &mut watch,
        &[
            "nexthop del id 20",
            "nexthop add id 20 group 10",
            "route add 203.0.113.0/24 nhid 20",
            "nexthop flush",
        ],
    );
    assert!(watch.mirror().next_hops().next().is_none() && via4(&watch, "203.0.113.0/24").is_empty());
}

#[test]
fn without_nexthop_compat_mode() {
    let Some(namespace) = Namespace::new("compat").map(Namespace::with_links) else { return };
    assert!(namespace.run("sysctl -qw net.ipv4.nexthop_compat_mode=0"));
    namespace.enter();
    let mut watch = watch(alone());
    each(
        &namespace,
        &mut watch,
        &[
            "nexthop add id 12 via 2001:db8:a::2 dev a",
            "nexthop add id 10 via 192.0.2.2 dev a",
            "-6 route add 2001:db8:f::/48 nhid 12",
            "route add 203.0.113.0/24 nhid 10",
            "nexthop replace id 10 via 192.0.2.3 dev a",
        ],
    );
    assert_eq!(via4(&watch, "203.0.113.0/24"), ["192.0.2.3 a 1"]);
    each(&namespace, &mut watch, &["nexthop del id 12", "nexthop del id 10"]);
    assert!(via6(&watch, "2001:db8:f::/48").is_empty());
}

#[test]
fn rules_and_settings() {
    let Some(namespace) = Namespace::new("rules").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut watch = watch(alone());
    assert!(Family::BOTH.iter().all(|&family| !watch.mirror().policy_routing(family)));
    each(&namespace, &mut watch, &["rule add l3mdev prio 1000", "-6 rule add l3mdev prio 1000"]);
    assert!(Family::BOTH.iter().all(|&family| !watch.mirror().policy_routing(family)));
    each(
        &namespace,
        &mut watch,
        &["rule add from 192.0.2.0/24 iif nowhere lookup 77 prio 50 suppress_prefixlength 0"],
    );
    assert!(watch.mirror().policy_routing(Family::V4) && !watch.mirror().policy_routing(Family::V6));
    each(&namespace, &mut watch, &["link add name nowhere type veth peer name nowhere2", "rule del prio 50"]);
    assert!(!watch.mirror().policy_routing(Family::V4));

    let a = watch.mirror().link_named("a").unwrap().ifindex;
    for setting in [
        "net.ipv4.conf.a.rp_filter=2",
        "net.ipv4.conf.all.forwarding=1",
        "net.ipv6.conf.all.forwarding=1",
        "net.ipv4.conf.a.ignore_routes_with_linkdown=1",
        "net.ipv4.fib_multipath_hash_policy=1",
        "net.ipv4.ip_default_ttl=77",
    ] {
        assert!(namespace.run(&format!("sysctl -qw {setting}")), "{setting}");
    }
    std::thread::sleep(alone().sysctl_every);
    agrees(&mut watch, "sysctl");
    let mirror = watch.mirror();
    assert!(mirror.forwards(Family::V4, a) && mirror.forwards(Family::V6, a));
    assert_eq!(mirror.rp_filter(a), 2);
    assert!(mirror.netconf(Family::V4, a).ignore_routes_with_linkdown);
    assert_eq!((mirror.sysctls().ipv4_multipath_hash_policy, mirror.sysctls().ip_default_ttl), (1, 77));
    settle(&mut watch);
}

/// Linux copies them to interfaces that have not been set themselves, and announces only the default.
#[test]
fn settings_for_new_interfaces() {
    let Some(namespace) = Namespace::new("copied").map(Namespace::with_links) else { return };
    assert!(namespace.run("ip link add name fresh type veth peer name fresh2"));
    namespace.enter();
    let mut watch = watch(alone());
    for value in ["1", "0"] {
        for setting in ["ignore_routes_with_linkdown", "rp_filter", "proxy_arp", "bc_forwarding"] {
            assert!(
                namespace.run(&format!("sysctl -qw net.ipv4.conf.default.{setting}={value}")),
                "{setting}"
            );
            agrees(&mut watch, setting);
        }
    }
    settle(&mut watch);
}
