//! Links, addresses, and the routes that the kernel deletes with them without events.

use super::netns::Namespace;
use super::support::{agrees, alone, settle, until, watch};
use bm_netlink::route::TABLE_MAIN;
use bm_netlink::{Family, Kind, Link, Watch};
use bm_wire::prefix::Ipv4Prefix;

fn routes_to(watch: &Watch, prefix: &str) -> usize {
    watch.mirror().ipv4().get(TABLE_MAIN, prefix.parse::<Ipv4Prefix>().unwrap()).len()
}

/// Number of usable hops of the active route.
fn usable(watch: &Watch, prefix: &str) -> usize {
    let (mirror, prefix) = (watch.mirror(), prefix.parse::<Ipv4Prefix>().unwrap());
    let Some((_, body)) = mirror.active(mirror.ipv4(), TABLE_MAIN, prefix) else { return 0 };
    mirror.paths(body).hops.iter().filter(|hop| mirror.usable(Family::V4, hop)).count()
}

const SHARED: &str = "route add 203.0.113.0/24 nexthop via 192.0.2.2 nexthop via 198.51.100.2";
const SHARED6: &str = "-6 route add 2001:db8:f::/48 nexthop via 2001:db8:a::2 nexthop via 2001:db8:b::2";

#[test]
fn links_are_those_of_the_threads_namespace() {
    let Some(namespace) = Namespace::new("list").map(Namespace::with_links) else { return };
    namespace.enter();
    let links = Link::list().unwrap();
    let names: Vec<_> = links.iter().map(|link| &*link.name).collect();
    let output = namespace.ip_output("-o link show");
    assert_eq!(names.len(), output.lines().count(), "{names:?}: {output}");
    let a = links.iter().find(|link| &*link.name == "a").unwrap();
    assert!(a.kind == Kind::Veth && output.contains(&format!("{}: a@", a.ifindex)), "{a:?}: {output}");
}

#[test]
fn down_and_up_again() {
    let Some(namespace) = Namespace::new("down").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut watch = watch(alone());
    namespace.ip(SHARED);
    namespace.ip(SHARED6);
    namespace.ip("route add 203.0.114.0/24 via 192.0.2.2");
    namespace.ip("nexthop add id 10 via 192.0.2.2 dev a");
    namespace.ip("route add 203.0.115.0/24 nhid 10");
    agrees(&mut watch, "the start");
    assert_eq!(usable(&watch, "203.0.113.0/24"), 2);

    namespace.ip("link set dev a down");
    settle(&mut watch);
    assert_eq!((routes_to(&watch, "203.0.114.0/24"), routes_to(&watch, "203.0.115.0/24")), (0, 0));
    assert_eq!((usable(&watch, "203.0.113.0/24"), routes_to(&watch, "192.0.2.0/24")), (1, 0));
    agrees(&mut watch, "a down");

    namespace.ip("link set dev a up");
    until(&mut watch, "carrier", |mirror| mirror.link_named("a").is_some_and(|link| link.running()));
    settle(&mut watch);
    assert_eq!((usable(&watch, "203.0.113.0/24"), routes_to(&watch, "192.0.2.0/24")), (2, 1));
    agrees(&mut watch, "a up");

    namespace.ip("link set dev a down");
    namespace.ip("link set dev b down");
    agrees(&mut watch, "both down");
    assert_eq!(routes_to(&watch, "203.0.113.0/24"), 0);
}

#[test]
fn carrier_lost_and_back() {
    let Some(namespace) = Namespace::new("carrier").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut watch = watch(alone());
    namespace.ip(SHARED);
    namespace.ip(SHARED6);
    namespace.ip("route add 203.0.114.0/24 via 192.0.2.2 metric 1");
    namespace.ip("route add 203.0.114.0/24 via 198.51.100.2 metric 2");
    namespace.ip("nexthop add id 10 via 192.0.2.2 dev a");
    namespace.ip("nexthop add id 20 group 10");
    namespace.ip("-6 route add 2001:db8:e::/48 via 2001:db8:a::2");
    agrees(&mut watch, "the start");
    let carrier = |wanted| {
        move |mirror: &bm_netlink::Mirror| mirror.link_named("a").is_some_and(|link| link.carrier() == wanted)
    };
    namespace.ip("link set dev a2 down");
    until(&mut watch, "no carrier", carrier(false));
    agrees(&mut watch, "carrier lost");
    assert!(watch.mirror().next_hop(10).is_none() && watch.mirror().next_hop(20).is_none());
    assert_eq!(usable(&watch, "203.0.113.0/24"), 2, "the kernel keeps using such hops");
    assert!(namespace.run("sysctl -qw net.ipv4.conf.all.ignore_routes_with_linkdown=1"));
    assert!(namespace.run("sysctl -qw net.ipv4.conf.a.ignore_routes_with_linkdown=1"));
    agrees(&mut watch, "such hops ignored");
    assert_eq!((usable(&watch, "203.0.113.0/24"), usable(&watch, "203.0.114.0/24")), (1, 1));
    namespace.ip("route add 203.0.115.0/24 via 192.0.2.2");
    agrees(&mut watch, "a route over a link without carrier");
    assert_eq!(usable(&watch, "203.0.115.0/24"), 0);
    namespace.ip("link set dev a2 up");
    until(&mut watch, "carrier", carrier(true));
    agrees(&mut watch, "carrier back");
    assert_eq!((usable(&watch, "203.0.113.0/24"), usable(&watch, "203.0.115.0/24")), (2, 1));
}

/// Linux lists no weight for a single next hop of IPv6, but uses it again when another one joins.
#[test]
fn the_last_of_several_next_hops() {
    let Some(namespace) = Namespace::new("last").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut watch = watch(alone());
    let hops = "nexthop via 2001:db8:b::2 weight 3 nexthop via 2001:db8:a::2 weight 200";
    namespace.ip(&format!("-6 route add 2001:db8:f::/48 metric 5 {hops}"));
    agrees(&mut watch, "the start");
    namespace.ip("link del dev b");
    agrees(&mut watch, "b deleted");
    agrees(&mut watch, "a comparison");
    namespace.ip("-6 route append 2001:db8:f::/48 metric 5 via 2001:db8:a::3");
    agrees(&mut watch, "another next hop");
}

#[test]
fn addresses_deleted() {
    let Some(namespace) = Namespace::new("address").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut watch = watch(alone());
    namespace.ip("addr add 192.0.2.9/24 dev a");
    namespace.ip("addr add 10.9.9.1 peer 10.9.9.2/32 dev a");
    namespace.ip(SHARED);
    namespace.ip("route add 203.0.114.0/24 via 198.51.100.2 src 192.0.2.9");
    namespace.ip("route add table 77 203.0.114.0/24 via 198.51.100.2 src 192.0.2.9");
    namespace.ip("route add 203.0.115.0/24 via 192.0.2.2");
    agrees(&mut watch, "the start");
    namespace.ip("addr del 192.0.2.9/24 dev a");
    agrees(&mut watch, "the preferred source gone");
    assert_eq!((routes_to(&watch, "203.0.114.0/24"), routes_to(&watch, "203.0.115.0/24")), (0, 1));
    namespace.ip("-4 addr flush dev a");
    settle(&mut watch);
    assert_eq!((routes_to(&watch, "203.0.115.0/24"), usable(&watch, "203.0.113.0/24")), (0, 1));
    agrees(&mut watch, "all IPv4 addresses gone");
    namespace.ip("addr add 192.0.2.1/24 dev a");
    agrees(&mut watch, "an address again");
    assert_eq!(usable(&watch, "203.0.113.0/24"), 2);
    namespace.ip("-6 addr flush dev a");
    agrees(&mut watch, "all IPv6 addresses gone");
}

#[test]
fn deleted_renamed_and_moved_away() {
    let Some(namespace) = Namespace::new("gone").map(Namespace::with_links) else { return };
    let Some(other) = Namespace::new("other") else { return };
    namespace.enter();
    let mut watch = watch(alone());
    namespace.ip(SHARED);
    namespace.ip(SHARED6);
    namespace.ip("route add 203.0.114.0/24 via 192.0.2.2");
    namespace.ip("neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev a");
    namespace.ip("nexthop add id 10 via 192.0.2.2 dev a");
    agrees(&mut watch, "the start");
    let a = watch.mirror().link_named("a").unwrap().ifindex;
    namespace.ip(&format!("link set dev a netns {}", other.name));
    settle(&mut watch);
    assert!(watch.mirror().link(a).is_none() && watch.mirror().addresses(a).is_empty());
    assert!(watch.mirror().next_hops().next().is_none() && routes_to(&watch, "203.0.113.0/24") == 0);
    agrees(&mut watch, "a link moved away");
    other.ip(&format!("link set dev a netns {}", namespace.name));
    namespace.ip("link set dev a up");
    namespace.ip("addr add 192.0.2.1/24 dev a");
    agrees(&mut watch, "a link moved back");
    namespace.ip(SHARED);
    namespace.ip("link del dev a");
    agrees(&mut watch, "a link deleted");
    namespace.ip("link set dev b down");
    namespace.ip("link set dev b name c");
    namespace.ip("link set dev c mtu 1400 up");
    agrees(&mut watch, "a link renamed");
    assert_eq!(watch.mirror().link_named("c").map(|link| link.mtu), Some(1400));
}

#[test]
fn masters_vlans_and_vrfs() {
    let Some(namespace) = Namespace::new("kinds").map(Namespace::with_links) else { return };
    namespace.enter();
    let mut watch = watch(alone());
    assert_eq!(watch.mirror().link_named("a").map(|link| link.kind.clone()), Some(Kind::Veth));
    if namespace.try_ip("link add name bridge0 type bridge") {
        namespace.ip("link set dev b2 master bridge0");
        namespace.ip("link set dev bridge0 up");
        agrees(&mut watch, "a bridge");
        let bridge = watch.mirror().link_named("bridge0").unwrap().ifindex;
        assert_eq!(watch.mirror().link_named("b2").unwrap().master, Some(bridge));
        namespace.ip("link set dev b2 nomaster");
        agrees(&mut watch, "a port that left its bridge");
        assert!(watch.mirror().link_named("b2").is_some_and(|link| link.master.is_none()));
    } else {
        eprintln!("skipped: bridges, which this kernel does not support");
    }
    if namespace.try_ip("link add name a.5 link a type vlan id 5") {
        agrees(&mut watch, "a VLAN");
        let kind = watch.mirror().link_named("a.5").map(|link| link.kind.clone());
        assert_eq!(kind, Some(Kind::Vlan { id: 5, protocol: 0x8100 }));
    } else {
        eprintln!("skipped: VLANs, which this kernel does not support");
    }
    if namespace.try_ip("link add name red type vrf table 10") {
        namespace.ip("link set dev red up");
        namespace.ip("link set dev a master red");
        agrees(&mut watch, "a VRF");
        let a = watch.mirror().link_named("a").unwrap().ifindex;
        assert_eq!(watch.mirror().table_of(a), 10);
    } else {
        eprintln!("skipped: VRFs, which this kernel does not support");
    }
}
