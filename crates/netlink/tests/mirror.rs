//! The mirror without a kernel: events in, changes and tables out.

#![allow(clippy::unwrap_used)]

use bm_netlink::mirror::Findings;
use bm_netlink::next_hop::{Member, Resilient};
use bm_netlink::{
    Address, Change, Difference, Family, Hop, HopFlags, Kind, Link, LinkSysctls, Message, Mirror, Neighbor,
};
use bm_netlink::{
    NextHop, Object, RouteBody, RouteEvent, RouteKind, RouteMessage, Rule, Via, neighbor::state,
};
use bm_wire::prefix::{self, Ipv4Prefix, Ipv6Prefix, Prefix};
use std::net::IpAddr;

const MAIN: u32 = 254;
const UP: u32 = 0x1_0043;
const NO_CARRIER: u32 = 0x3;
const DOWN: u32 = 0x2;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> Ipv4Prefix {
    text.parse().unwrap()
}

fn net6(text: &str) -> Ipv6Prefix {
    text.parse().unwrap()
}

fn link(ifindex: u32, flags: u32) -> Message {
    let name = format!("if{ifindex}").into();
    Message::Link(Link { ifindex, name, flags, mtu: 1500, hardware: 1, ..Link::default() })
}

fn address(ifindex: u32, local: &str) -> Address {
    Address { ifindex, local: ip(local), length: 24, peer: None, broadcast: None, scope: 0, flags: 0 }
}

fn body(priority: u32, via: Via) -> RouteBody {
    RouteBody { protocol: 3, priority, via, ..RouteBody::default() }
}

fn one(gateway: &str, ifindex: u32) -> Via {
    Via::One(Hop::via(ip(gateway), ifindex))
}

fn many(hops: &[(&str, u32)]) -> Via {
    Via::from_hops(hops.iter().map(|(gateway, ifindex)| Hop::via(ip(gateway), *ifindex)).collect())
}

fn route4(event: RouteEvent, prefix: &str, body: RouteBody) -> Message {
    Message::Route4(RouteMessage { event, table: MAIN, prefix: net(prefix), body, lifetime: 0 })
}

fn route6(event: RouteEvent, prefix: &str, body: RouteBody) -> Message {
    Message::Route6(RouteMessage { event, table: MAIN, prefix: net6(prefix), body, lifetime: 0 })
}

/// A mirror with two links that are up, and no pending changes.
fn two_links() -> Mirror {
    let mut mirror = Mirror::default();
    [link(2, UP), link(3, UP)].into_iter().for_each(|message| mirror.apply(message));
    mirror.take_changes();
    mirror
}

fn gateways<A: prefix::Address>(routes: &bm_netlink::Routes<A>, prefix: Prefix<A>) -> Vec<String> {
    let bodies = routes.get(MAIN, prefix).iter().map(|&id| routes.body(id).unwrap());
    bodies.map(|body| body.via.to_string()).collect()
}

fn gateways4(mirror: &Mirror, prefix: &str) -> Vec<String> {
    gateways(mirror.ipv4(), net(prefix))
}

fn gateways6(mirror: &Mirror, prefix: &str) -> Vec<String> {
    gateways(mirror.ipv6(), net6(prefix))
}

const P: &str = "198.51.100.0/24";
const P6: &str = "2001:db8:1::/48";

#[test]
fn the_route_with_the_lowest_metric_and_no_tos_is_active() {
    use RouteEvent::{Added, Appended, Deleted};
    let mut mirror = two_links();
    let low_delay = RouteBody { tos: 0x10, ..body(0, one("192.0.2.9", 2)) };
    for (event, body) in [
        (Added, body(20, one("192.0.2.2", 2))),
        (Added, body(10, one("192.0.2.3", 2))),
        (Added, low_delay.clone()),
        (Appended, body(10, one("192.0.2.4", 2))),
        (Added, body(10, one("192.0.2.5", 2))), // `ip route prepend`
    ] {
        mirror.apply(route4(event, P, body));
    }
    let order = ["192.0.2.9", "192.0.2.5", "192.0.2.3", "192.0.2.4", "192.0.2.2"];
    assert_eq!(gateways4(&mirror, P), order.map(|gateway| format!("via {gateway} dev 2")));
    let active = |mirror: &Mirror| mirror.active(mirror.ipv4(), MAIN, net(P)).map(|(_, body)| body.clone());
    assert_eq!(active(&mirror), Some(body(10, one("192.0.2.5", 2))));
    mirror.take_changes();
    mirror.apply(route4(Deleted, P, body(10, one("192.0.2.5", 2))));
    assert_eq!(active(&mirror), Some(body(10, one("192.0.2.3", 2))));
    let changes = mirror.take_changes();
    assert!(
        matches!(changes[..], [Change::Body(Family::V4, _), Change::Route4 { table: MAIN, .. }]),
        "{changes:?}"
    );
    assert!(!mirror.take_comparison_request());
    mirror.apply(route4(Deleted, P, body(10, one("192.0.2.77", 2))));
    assert_eq!(mirror.take_changes(), [Change::Route4 { table: MAIN, prefix: net(P) }]);
    assert!(mirror.take_reread_request(), "after a deletion of a route that is not here all are read again");
    assert!(mirror.ipv4().in_doubt(MAIN, net(P)) && active(&mirror).is_none(), "until then Linux forwards");
}

#[test]
fn a_replacement_replaces_the_first_route_of_its_metric() {
    use RouteEvent::{Added, Appended, Replaced};
    let mut mirror = two_links();
    mirror.apply(route4(Added, P, body(0, one("192.0.2.2", 2))));
    mirror.apply(route4(Appended, P, body(0, one("192.0.2.3", 2))));
    mirror.apply(route4(Added, P, body(5, one("192.0.2.4", 2))));
    mirror.apply(route4(Replaced, P, body(0, one("192.0.2.5", 2))));
    let expected = ["192.0.2.5", "192.0.2.3", "192.0.2.4"].map(|gateway| format!("via {gateway} dev 2"));
    assert_eq!(gateways4(&mirror, P), expected);
    mirror.take_changes();
    mirror.apply(route4(Replaced, P, body(0, one("192.0.2.5", 2))));
    assert!(mirror.take_changes().is_empty(), "the same route again must not be a change");
}

#[test]
fn ipv6_hops_join_in_one_message_or_in_one_each() {
    use RouteEvent::{Added, Appended, Deleted};
    let all = many(&[("fe80::1", 2), ("fe80::1", 3), ("fe80::2", 2)]);
    for messages in [
        vec![
            (Added, one("fe80::1", 2)),
            (Appended, many(&[("fe80::1", 2), ("fe80::1", 3)])),
            (Appended, all.clone()),
        ],
        vec![
            (Added, one("fe80::1", 2)),
            (Added, many(&[("fe80::1", 2), ("fe80::1", 3)])),
            (Added, all.clone()),
        ],
        // Linux before 4.11 sends a message for each hop.
        vec![(Added, one("fe80::1", 2)), (Appended, one("fe80::2", 2)), (Appended, one("fe80::1", 3))],
    ] {
        let mut mirror = two_links();
        for (event, via) in messages {
            mirror.apply(route6(event, P6, body(1024, via)));
        }
        assert_eq!(gateways6(&mirror, P6), [all.to_string()]);
        mirror.apply(route6(Deleted, P6, body(1024, one("fe80::1", 3))));
        assert_eq!(gateways6(&mirror, P6), [many(&[("fe80::1", 2), ("fe80::2", 2)]).to_string()]);
        mirror.apply(route6(Deleted, P6, body(1024, one("fe80::1", 2))));
        assert_eq!(gateways6(&mirror, P6), ["via fe80::2 dev 2"]);
        mirror.apply(route6(Deleted, P6, body(1024, one("fe80::2", 2))));
        assert!(gateways6(&mirror, P6).is_empty() && mirror.ipv6().is_empty());
        assert_eq!(mirror.ipv6().body_count(), 0);
        assert!(!mirror.take_comparison_request());
    }
}

#[test]
fn ipv6_routes_that_cannot_join_stay_separate() {
    use RouteEvent::{Added, Deleted, Replaced};
    let mut mirror = two_links();
    let local = "fe80::/64";
    mirror.apply(route6(Added, local, body(256, Via::One(Hop::link(2)))));
    mirror.apply(route6(Added, local, body(256, Via::One(Hop::link(3)))));
    assert_eq!(gateways6(&mirror, local), ["dev 2", "dev 3"]);
    mirror.apply(route6(Deleted, local, body(256, Via::One(Hop::link(2)))));
    assert_eq!(gateways6(&mirror, local), ["dev 3"]);
    // A replacement first looks for a route of its own kind: the joined hops, not the object.
    mirror.apply(route6(Added, P6, body(10, Via::Object(7))));
    mirror.apply(route6(Added, P6, body(10, many(&[("fe80::1", 2), ("fe80::2", 2)]))));
    mirror.apply(route6(Replaced, P6, body(10, one("fe80::3", 3))));
    assert_eq!(gateways6(&mirror, P6), ["nhid 7", "via fe80::3 dev 3"]);
}

#[test]
fn one_link_local_gateway_on_two_links_is_two_next_hops() {
    let mut mirror = two_links();
    mirror.apply(route6(RouteEvent::Added, P6, body(1024, many(&[("fe80::1", 2), ("fe80::1", 3)]))));
    let (_, body) = mirror.active(mirror.ipv6(), MAIN, net6(P6)).unwrap();
    assert_eq!(mirror.paths(body).hops.len(), 2);
}

#[test]
fn a_link_that_goes_down_removes_its_ipv4_routes() {
    let mut mirror = two_links();
    mirror.apply(Message::Address(address(2, "192.0.2.1")));
    let local = RouteBody { kind: RouteKind::Local, scope: 254, ..body(0, Via::One(Hop::link(2))) };
    let broadcast = RouteBody { kind: RouteKind::Broadcast, scope: 253, ..body(0, Via::One(Hop::link(2))) };
    for (prefix, body) in [
        ("192.0.2.0/24", body(0, Via::One(Hop::link(2)))),
        ("192.0.2.1/32", local),
        ("192.0.2.255/32", broadcast),
        (P, body(0, one("192.0.2.2", 2))),
        ("198.51.101.0/24", body(0, many(&[("192.0.2.2", 2), ("10.0.0.2", 3)]))),
        ("198.51.102.0/24", RouteBody { kind: RouteKind::Blackhole, ..body(0, Via::Nowhere) }),
    ] {
        mirror.apply(route4(RouteEvent::Added, prefix, body));
    }
    mirror.take_changes();
    mirror.apply(link(2, DOWN));
    assert!(mirror.take_comparison_request(), "what the mirror deduced must be compared");
    let left: Vec<_> =
        ["192.0.2.0/24", "192.0.2.1/32", "192.0.2.255/32", P, "198.51.101.0/24", "198.51.102.0/24"]
            .iter()
            .map(|prefix| gateways4(&mirror, prefix).len())
            .collect();
    assert_eq!(left, [0, 1, 0, 0, 1, 1]);
    let shared = mirror.ipv4().get(MAIN, net("198.51.101.0/24"))[0];
    let hops = mirror.ipv4().body(shared).unwrap().via.hops().to_vec();
    assert_eq!((hops[0].flags, hops[1].flags), (HopFlags(17), HopFlags(0)));
    assert!(!mirror.usable(Family::V4, &hops[0]) && mirror.usable(Family::V4, &hops[1]));
    let changes = mirror.take_changes();
    assert!(changes.contains(&Change::Body(Family::V4, shared)), "{changes:?}");
    assert!(
        !changes.contains(&Change::Route4 { table: MAIN, prefix: net("198.51.101.0/24") }),
        "{changes:?}"
    );
    mirror.apply(link(2, UP));
    assert_eq!(mirror.ipv4().body(shared).unwrap().via.hops()[0].flags, HopFlags(0));
    assert_eq!(mirror.ipv4().get(MAIN, net("198.51.101.0/24")), [shared], "its number must stay the same");
}

#[test]
fn without_carrier_the_next_metric_is_used_only_if_the_link_is_set_so() {
    let mut mirror = two_links();
    mirror.apply(route4(RouteEvent::Added, P, body(1, one("192.0.2.2", 2))));
    mirror.apply(route4(RouteEvent::Added, P, body(2, one("10.0.0.2", 3))));
    mirror.apply(link(2, NO_CARRIER));
    let active = |mirror: &Mirror| mirror.active(mirror.ipv4(), MAIN, net(P)).unwrap().1.priority;
    assert_eq!(active(&mirror), 1);
    let ignore = [
        0x24, 0, 0, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 8, 0, 1, 0, 2, 0, 0, 0, 8, 0, 6, 0,
        1, 0, 0, 0,
    ];
    Message::read_all(&ignore).unwrap().into_iter().for_each(|message| mirror.apply(message));
    assert_eq!(active(&mirror), 2);
    // The kernel then also flags such a hop as dead, but that is a consequence, not its state.
    let mut dead = body(1, one("192.0.2.2", 2));
    if let Via::One(hop) = &mut dead.via {
        hop.flags = HopFlags(17);
    }
    mirror.take_changes();
    mirror.apply(route4(RouteEvent::Replaced, P, dead));
    assert!(mirror.take_changes().is_empty());
    mirror.apply(link(2, UP));
    assert_eq!(active(&mirror), 1);
}

#[test]
fn deleting_addresses_removes_routes_of_the_link_and_routes_with_that_source() {
    let mut mirror = two_links();
    for local in ["192.0.2.1", "192.0.2.9"] {
        mirror.apply(Message::Address(address(2, local)));
    }
    let from = |source, gateway, link| RouteBody {
        preferred_source: Some(ip(source)),
        ..body(0, one(gateway, link))
    };
    mirror.apply(route4(RouteEvent::Added, P, from("192.0.2.9", "10.0.0.2", 3)));
    mirror.apply(route4(RouteEvent::Added, "198.51.101.0/24", body(0, one("192.0.2.2", 2))));
    let elsewhere = RouteMessage {
        event: RouteEvent::Added,
        table: 100,
        prefix: net(P),
        body: from("192.0.2.9", "10.0.0.2", 3),
        lifetime: 0,
    };
    mirror.apply(Message::Route4(elsewhere));
    mirror.apply(Message::AddressGone(address(2, "192.0.2.9")));
    assert!(gateways4(&mirror, P).is_empty());
    assert_eq!(mirror.ipv4().get(100, net(P)).len(), 1, "the kernel only looks in the link's own table");
    assert_eq!(gateways4(&mirror, "198.51.101.0/24").len(), 1);
    mirror.apply(Message::AddressGone(address(2, "192.0.2.1")));
    assert!(gateways4(&mirror, "198.51.101.0/24").is_empty());
}

#[test]
fn addresses_stay_in_order_of_arrival() {
    let in_order = |locals: [&str; 3]| {
        let mut mirror = two_links();
        locals.iter().for_each(|local| mirror.apply(Message::Address(address(2, local))));
        mirror
    };
    let mut mirror = in_order(["192.0.2.9", "192.0.2.1", "192.0.2.5"]);
    let locals = |mirror: &Mirror| mirror.addresses(2).iter().map(|a| a.local).collect::<Vec<_>>();
    assert_eq!(locals(&mirror), [ip("192.0.2.9"), ip("192.0.2.1"), ip("192.0.2.5")]);
    // A dump has the kernel's order, which may change without an event: it is adopted and is no difference.
    let mut findings = Findings::up_to(1);
    mirror.adopt(in_order(["192.0.2.1", "192.0.2.5", "192.0.2.9"]), &mut findings);
    assert_eq!(findings.count, 0, "{findings:?}");
    assert_eq!(locals(&mirror), [ip("192.0.2.1"), ip("192.0.2.5"), ip("192.0.2.9")]);
}

fn group(id: u32, members: &[(u32, u16)], resilient: Option<Resilient>) -> Message {
    let members = members.iter().map(|&(id, weight)| Member { id, weight }).collect();
    Message::NextHop(NextHop { id, protocol: 0, object: Object::Group { members, resilient } })
}

fn object(id: u32, gateway: &str, ifindex: u32) -> Message {
    Message::NextHop(NextHop { id, protocol: 0, object: Object::Hop(Hop::via(ip(gateway), ifindex)) })
}

#[test]
fn groups_lose_members_and_routes_lose_objects() {
    let mut mirror = two_links();
    let keeps = Some(Resilient { buckets: 8, idle_timer: 3000, unbalanced_timer: 0 });
    for message in [
        object(10, "192.0.2.2", 2),
        object(11, "10.0.0.2", 3),
        group(20, &[(10, 3), (11, 1)], keeps),
        group(21, &[(10, 1)], None),
        route4(RouteEvent::Added, P, body(0, Via::Object(20))),
        route4(RouteEvent::Added, "198.51.101.0/24", body(0, Via::Object(21))),
        route6(RouteEvent::Added, P6, body(0, Via::Object(21))),
    ] {
        mirror.apply(message);
    }
    let paths =
        |mirror: &Mirror, prefix| mirror.paths(mirror.active(mirror.ipv4(), MAIN, net(prefix)).unwrap().1);
    let weights: Vec<_> = paths(&mirror, P).hops.iter().map(|hop| (hop.ifindex, hop.weight)).collect();
    assert_eq!((weights, paths(&mirror, P).resilient), (vec![(2, 3), (3, 1)], keeps));
    mirror.take_changes();

    mirror.apply(object(11, "10.0.0.3", 3));
    assert_eq!(mirror.take_changes(), [Change::NextHop(11), Change::NextHop(20)]);

    mirror.apply(Message::NextHopGone(10));
    assert_eq!(paths(&mirror, P).hops, [Hop::via(ip("10.0.0.3"), 3)]);
    assert!(gateways4(&mirror, "198.51.101.0/24").is_empty() && gateways6(&mirror, P6).is_empty());
    assert!(mirror.next_hop(21).is_none() && mirror.take_comparison_request());

    // When objects are restored, routes added again use them (docs/conformance.md 75).
    mirror.apply(object(10, "192.0.2.2", 2));
    mirror.apply(group(21, &[(10, 1)], None));
    mirror.apply(route4(RouteEvent::Added, "198.51.101.0/24", body(0, Via::Object(21))));
    assert_eq!(paths(&mirror, "198.51.101.0/24").hops, [Hop::via(ip("192.0.2.2"), 2)]);

    // Without carrier the kernel deletes objects without an event.
    mirror.apply(link(3, NO_CARRIER));
    assert!(mirror.next_hop(11).is_none() && mirror.next_hop(20).is_none());
    assert!(gateways4(&mirror, P).is_empty());
}

#[test]
fn missing_objects_are_named_and_blackhole_objects_work() {
    let mut mirror = two_links();
    mirror.apply(route4(RouteEvent::Added, P, body(0, Via::Object(99))));
    assert_eq!(mirror.paths(&body(0, Via::Object(99))).unknown, Some(99));
    assert!(mirror.active(mirror.ipv4(), MAIN, net(P)).is_none());
    mirror.apply(Message::NextHop(NextHop { id: 99, protocol: 0, object: Object::Blackhole }));
    let (_, body) = mirror.active(mirror.ipv4(), MAIN, net(P)).unwrap();
    assert!(mirror.paths(body).blackhole);
}

#[test]
fn a_deleted_link_removes_everything_that_refers_to_it() {
    let mut mirror = two_links();
    let neighbor = Neighbor {
        ifindex: 2,
        address: ip("192.0.2.2"),
        state: state::REACHABLE,
        mac: Some([2; 6]),
        router: false,
    };
    for message in [
        Message::Address(address(2, "192.0.2.1")),
        Message::Neighbor(neighbor),
        object(10, "192.0.2.2", 2),
        route4(RouteEvent::Added, P, body(0, many(&[("192.0.2.2", 2), ("10.0.0.2", 3)]))),
        Message::LinkGone(2),
    ] {
        mirror.apply(message);
    }
    assert!(mirror.link(2).is_none() && mirror.addresses(2).is_empty());
    assert!(mirror.neighbor(2, ip("192.0.2.2")).is_none() && mirror.next_hop(10).is_none());
    assert!(
        gateways4(&mirror, P).is_empty(),
        "when one hop is gone for good, the kernel deletes the whole route"
    );
}

#[test]
fn a_link_in_a_vrf_has_its_table() {
    let mut mirror = two_links();
    let vrf =
        Link { ifindex: 9, name: "red".into(), kind: Kind::Vrf { table: 10 }, flags: UP, ..Link::default() };
    mirror.apply(Message::Link(vrf));
    let member = Link { ifindex: 3, name: "if3".into(), master: Some(9), flags: UP, ..Link::default() };
    mirror.apply(Message::Link(member));
    assert_eq!([2, 3, 9].map(|ifindex| mirror.table_of(ifindex)), [MAIN, 10, 10]);
}

#[test]
fn adopting_reports_only_the_differences() {
    use RouteEvent::{Added, Listed};
    let mut mirror = two_links();
    let kept = body(0, one("192.0.2.2", 2));
    for index in 0..1000u32 {
        mirror.apply(route4(Added, &format!("10.{}.{}.0/24", index / 256, index % 256), kept.clone()));
    }
    mirror.apply(route4(Added, P, kept.clone()));
    mirror.apply(route4(Added, "203.0.113.0/24", body(5, one("192.0.2.3", 2))));
    let number = mirror.ipv4().get(MAIN, net(P))[0];
    mirror.take_changes();

    let mut fresh = Mirror::default();
    [link(2, UP), link(3, UP)].into_iter().for_each(|message| fresh.apply(message));
    fresh.apply(route4(Listed, "203.0.113.0/24", body(5, one("192.0.2.4", 2))));
    fresh.apply(route4(Listed, "203.0.114.0/24", kept.clone()));
    for index in 0..1000u32 {
        fresh.apply(route4(Listed, &format!("10.{}.{}.0/24", index / 256, index % 256), kept.clone()));
    }
    let mut findings = Findings::up_to(10);
    mirror.adopt(fresh, &mut findings);
    let listed: Vec<_> = findings.list.iter().map(ToString::to_string).collect();
    assert_eq!((findings.count, listed.len()), (3, 3), "{listed:?}");
    assert!(listed.contains(&format!("only in the mirror: route {P} table 254 [{kept}]")), "{listed:?}");
    assert!(
        findings.list.iter().any(|difference| matches!(difference, Difference::Missing(_))),
        "{listed:?}"
    );
    let routes: Vec<_> =
        mirror.take_changes().into_iter().filter(|change| matches!(change, Change::Route4 { .. })).collect();
    let expected = [P, "203.0.113.0/24", "203.0.114.0/24"]
        .map(|prefix| Change::Route4 { table: MAIN, prefix: net(prefix) });
    assert_eq!(routes, expected);
    assert_eq!(mirror.ipv4().get(MAIN, net("10.0.0.0/24")), [number], "numbers must stay the same");
    assert_eq!(mirror.ipv4().body_count(), 2);
}

/// Pseudo-random numbers, the same for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Events of a kernel with few prefixes and few routes, each possible after those before it. With `several`, there may
/// be several routes of one metric, and none is replaced; otherwise there is at most one, which may be replaced.
///
/// A mixture of both would be ambiguous, since a replacement does not say which route it replaces. The driver compares
/// again after a dump during which there were replacements.
fn history(numbers: &mut Numbers, several: bool, length: usize) -> Vec<(RouteEvent, String, RouteBody)> {
    let mut kernel = two_links();
    let mut events = Vec::new();
    while events.len() < length {
        let prefix = format!("10.{}.0.0/16", numbers.below(4));
        let new = body(numbers.below(2) as u32, one(&format!("192.0.2.{}", numbers.below(4)), 2));
        let bodies = kernel.ipv4().get(MAIN, net(&prefix)).iter().map(|&id| kernel.ipv4().body(id).unwrap());
        let peers: Vec<_> = bodies.filter(|body| body.priority == new.priority).collect();
        let event = match (numbers.below(4), peers.contains(&&new)) {
            (0 | 1, true) => RouteEvent::Deleted,
            (2, false) if several => RouteEvent::Appended,
            (3, false) if several || peers.is_empty() => RouteEvent::Added,
            (2 | 3, false) if !several => RouteEvent::Replaced,
            _ => continue,
        };
        kernel.apply(route4(event, &prefix, new.clone()));
        events.push((event, prefix, new));
    }
    events
}

fn state_after(events: &[(RouteEvent, String, RouteBody)]) -> Mirror {
    let mut mirror = two_links();
    for (event, prefix, body) in events {
        mirror.apply(route4(*event, prefix, body.clone()));
    }
    mirror
}

#[test]
fn a_dump_during_events_is_correct_after_applying_the_events() {
    let mut numbers = Numbers(7);
    for round in 0..300 {
        let events = history(&mut numbers, round % 2 == 0, 60);
        let dumped_at = numbers.below(60) as usize;
        let from = numbers.below(dumped_at as u64 + 1) as usize;
        // The dump has the state after `dumped_at`; events from `from` on are applied afterwards.
        let mut fresh = two_links();
        let dump = state_after(&events[..dumped_at]);
        for (table, routes) in dump.ipv4().tables() {
            for (prefix, list) in routes.iter() {
                for &id in list {
                    let body = dump.ipv4().body(id).unwrap().clone();
                    fresh.apply(Message::Route4(RouteMessage {
                        event: RouteEvent::Listed,
                        table,
                        prefix,
                        body,
                        lifetime: 0,
                    }));
                }
            }
        }
        for (event, prefix, body) in &events[from..] {
            fresh.apply(route4(*event, prefix, body.clone()));
        }
        let kernel = state_after(&events);
        for index in 0..4 {
            let prefix = format!("10.{index}.0.0/16");
            let sorted = |mirror| {
                let mut list = gateways4(mirror, &prefix);
                list.sort();
                list
            };
            assert_eq!(
                sorted(&fresh),
                sorted(&kernel),
                "round {round}, {prefix}, events {:?}",
                &events[from..]
            );
        }
    }
}

/// Events of an IPv6 route as the kernel sends them: with all hops, or with the hop that was deleted.
fn history6(numbers: &mut Numbers, length: usize) -> Vec<(RouteEvent, Vec<u64>, Vec<u64>)> {
    let mut kernel: Vec<u64> = Vec::new();
    let mut events = Vec::new();
    while events.len() < length {
        let hop = numbers.below(4);
        let there = kernel.contains(&hop);
        let event = match numbers.below(5) {
            0 if kernel.len() > 1 && there => {
                kernel.retain(|&other| other != hop);
                (RouteEvent::Deleted, vec![hop])
            }
            1 if !kernel.is_empty() => (RouteEvent::Deleted, std::mem::take(&mut kernel)),
            2 if !there && kernel.is_empty() => {
                kernel.push(hop);
                (RouteEvent::Added, kernel.clone())
            }
            3 if !there && !kernel.is_empty() => {
                kernel.insert(0, hop);
                (RouteEvent::Appended, kernel.clone())
            }
            4 if !kernel.is_empty() && kernel != [hop] => {
                kernel = vec![hop];
                (RouteEvent::Replaced, kernel.clone())
            }
            _ => continue,
        };
        events.push((event.0, event.1, kernel.clone()));
    }
    events
}

#[test]
fn an_ipv6_dump_during_events_is_correct_too() {
    let hops = |list: &[u64]| {
        let mut hops: Vec<_> = list.iter().map(|last| Hop::via(ip(&format!("fe80::{last}")), 2)).collect();
        hops.sort();
        body(1024, Via::from_hops(hops))
    };
    let mut numbers = Numbers(9);
    for round in 0..500 {
        let events = history6(&mut numbers, 30);
        let dumped_at = numbers.below(30) as usize;
        let from = numbers.below(dumped_at as u64 + 1) as usize;
        let mut fresh = two_links();
        if !events[dumped_at].2.is_empty() {
            fresh.apply(route6(RouteEvent::Listed, P6, hops(&events[dumped_at].2)));
        }
        let mut live = two_links();
        for (index, (event, output, after)) in events.iter().enumerate() {
            live.apply(route6(*event, P6, hops(output)));
            let expected: Vec<_> =
                (!after.is_empty()).then(|| hops(after).via.to_string()).into_iter().collect();
            assert_eq!(gateways6(&live, P6), expected, "round {round}, event {index}");
            if index >= from {
                fresh.apply(route6(*event, P6, hops(output)));
            }
        }
        assert_eq!(gateways6(&fresh, P6), gateways6(&live, P6), "round {round}");
    }
}

#[test]
fn rules_keep_the_order_of_the_kernel_and_may_be_equal() {
    let rule = |table, protocol| Rule { protocol, ..Rule::lookup(Family::V4, 100, table) };
    let tables = |mirror: &Mirror| mirror.rules().iter().map(|rule| rule.table).collect::<Vec<_>>();
    let mut mirror = Mirror::default();
    for (table, protocol) in [(9, 3), (7, 3), (9, 4)] {
        mirror.apply(Message::Rule(rule(table, protocol)));
    }
    mirror.apply(Message::Rule(Rule::lookup(Family::V4, 99, 254)));
    assert_eq!(tables(&mirror), [254, 9, 7, 9]);
    mirror.apply(Message::RuleGone(rule(9, 3)));
    assert_eq!(tables(&mirror), [254, 7, 9]);
    assert!(!mirror.take_reread_request() && !mirror.rules_in_doubt(Family::V4));
    mirror.apply(Message::Rule(rule(7, 3)));
    assert_eq!(tables(&mirror), [254, 7, 9, 7], "the kernel allows two that are equal");
    mirror.take_reread_request();
    mirror.apply(Message::RuleGone(rule(7, 3)));
    assert_eq!(tables(&mirror), [254, 9, 7]);
    assert!(mirror.take_reread_request() && mirror.rules_in_doubt(Family::V4), "which of the two was it?");
    let mut fresh = Mirror::default();
    for rule in [Rule::lookup(Family::V4, 99, 254), rule(7, 3)] {
        fresh.apply(Message::Rule(rule));
    }
    mirror.adopt(fresh, &mut Findings::default());
    assert_eq!(tables(&mirror), [254, 7]);
    assert!(!mirror.rules_in_doubt(Family::V4) && !mirror.rules_in_doubt(Family::V6));
}

#[test]
fn ipv4_routes_that_differ_in_what_is_not_understood_are_two() {
    use RouteEvent::{Appended, Deleted};
    let with = |others: &[u8]| RouteBody { others: others.into(), ..body(0, one("192.0.2.2", 2)) };
    let mut mirror = two_links();
    mirror.apply(route4(Appended, P, with(&[1])));
    mirror.apply(route4(Appended, P, with(&[2])));
    mirror.apply(route4(Deleted, P, with(&[1])));
    assert_eq!(gateways4(&mirror, P).len(), 1);
    assert!(!mirror.take_reread_request());
    // Two that look alike, which a later list of the kernel may show.
    mirror.apply(route4(RouteEvent::Listed, P, with(&[2])));
    assert_eq!(gateways4(&mirror, P).len(), 2);
    mirror.apply(route4(Deleted, P, with(&[2])));
    assert_eq!(gateways4(&mirror, P).len(), 1);
    assert!(mirror.take_reread_request() && mirror.ipv4().in_doubt(MAIN, net(P)));
}

/// A default route by router advertisement (`RTPROT_RA`).
fn advertised(gateway: &str, ifindex: u32, preference: u8) -> RouteBody {
    RouteBody { protocol: 9, preference, ..body(1024, one(gateway, ifindex)) }
}

/// The state after a list of the kernel with these routes.
fn relisted(mirror: &mut Mirror, prefix: &str, bodies: &[RouteBody]) {
    let mut fresh = two_links();
    fresh.apply(forwarding6());
    bodies.iter().for_each(|body| fresh.apply(route6(RouteEvent::Listed, prefix, body.clone())));
    mirror.adopt(fresh, &mut Findings::default());
}

/// `net.ipv6.conf.all.forwarding` is set.
fn forwarding6() -> Message {
    let forwarding = [
        0x24, 0, 0, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 8, 0, 1, 0, 0xff, 0xff, 0xff, 0xff,
        8, 0, 2, 0, 1, 0, 0, 0,
    ];
    Message::read_all(&forwarding).unwrap().remove(0)
}

#[test]
fn a_router_is_chosen_by_preference_and_then_by_age() {
    let default = "::/0";
    let mut mirror = two_links();
    mirror.apply(forwarding6());
    let [b, c] = [("fe80::b", 2), ("fe80::c", 3)];
    let by = |(gateway, ifindex), preference| advertised(gateway, ifindex, preference);
    let chosen = |mirror: &Mirror| {
        mirror.active(mirror.ipv6(), MAIN, net6(default)).map(|(_, body)| body.via.to_string())
    };
    let [to_b, to_c] = [b, c].map(|(gateway, ifindex)| Some(format!("via {gateway} dev {ifindex}")));
    for (preferences, expected) in [([0, 1], &to_c), ([0, 3], &to_b), ([3, 0], &to_c)] {
        relisted(&mut mirror, default, &[by(b, preferences[0]), by(c, preferences[1])]);
        assert_eq!(chosen(&mirror), *expected, "{preferences:?}");
    }
    for equal in [0, 1, 3] {
        relisted(&mut mirror, default, &[by(b, equal), by(("fe80::c", 2), equal)]);
        assert_eq!(chosen(&mirror), to_b, "{equal}");
        relisted(&mut mirror, default, &[by(b, equal), by(c, equal)]);
        assert_eq!(chosen(&mirror), None, "{equal}: Linux prefers the link on which the packet came in");
    }
    // A change of the preference is announced like a replacement, but replaces no other router.
    relisted(&mut mirror, default, &[by(b, 0), by(c, 0)]);
    mirror.apply(route6(RouteEvent::Replaced, default, by(c, 3)));
    assert_eq!(gateways6(&mirror, default).len(), 2);
    assert!(mirror.take_reread_request() && chosen(&mirror).is_none(), "it could also be one");
    relisted(&mut mirror, default, &[by(b, 0), by(c, 3)]);
    mirror.apply(route6(RouteEvent::Deleted, default, by(c, 3)));
    assert_eq!(chosen(&mirror), to_b);
    // Linux changes the preference of a route from route information without a message.
    relisted(&mut mirror, P6, &[by(b, 0)]);
    assert!(mirror.active(mirror.ipv6(), MAIN, net6(P6)).is_none());
}

#[test]
fn ipv6_metrics_do_not_matter_once_the_lowest_is_unusable() {
    let mut mirror = two_links();
    let with =
        |priority, preference, ifindex| RouteBody { preference, ..body(priority, one("fe80::1", ifindex)) };
    let dead = RouteBody { kind: RouteKind::Unicast, ..with(1, 0, 9) };
    relisted(&mut mirror, P6, &[dead.clone(), with(2, 3, 2), with(3, 1, 3)]);
    let chosen =
        |mirror: &Mirror| mirror.active(mirror.ipv6(), MAIN, net6(P6)).map(|(_, body)| body.priority);
    assert_eq!(chosen(&mirror), Some(3), "link 9 is not there");
    relisted(&mut mirror, P6, &[with(2, 3, 2), with(3, 1, 3)]);
    assert_eq!(chosen(&mirror), Some(2));
    // Without forwarding on all interfaces, the state of the gateways' neighbor entries counts.
    let mut fresh = two_links();
    for body in [with(2, 0, 2), with(2, 0, 3)] {
        fresh.apply(route6(RouteEvent::Listed, P6, body));
    }
    fresh.apply(route6(
        RouteEvent::Listed,
        P6,
        RouteBody { kind: RouteKind::Blackhole, ..body(2, Via::Nowhere) },
    ));
    mirror.adopt(fresh, &mut Findings::default());
    assert_eq!(chosen(&mirror), None);
}

#[test]
fn the_mtu_of_ipv6_is_a_limit_only_below_that_of_the_link() {
    let mut mirror = two_links();
    let of_one = |mtu_ipv6| {
        std::collections::BTreeMap::from([(2, LinkSysctls { mtu_ipv6, ..LinkSysctls::default() })])
    };
    mirror.set_link_sysctls(of_one(1500));
    assert_eq!(mirror.link_sysctls(2).mtu_ipv6, 0);
    mirror.take_changes();
    mirror.set_link_sysctls(of_one(1400));
    assert_eq!(mirror.link_sysctls(2).mtu_ipv6, 1400);
    assert!(mirror.take_changes().contains(&Change::Netconf(Family::V6, 2)));
    // A new MTU of the link is that of IPv6, too.
    let Message::Link(before) = link(2, UP) else { panic!("a link") };
    mirror.apply(Message::Link(Link { mtu: 9000, ..before }));
    assert_eq!(mirror.link_sysctls(2).mtu_ipv6, 0);
}

#[test]
fn a_family_without_rules_is_known_if_it_had_some() {
    let mut mirror = Mirror::default();
    assert!(!mirror.lost_all_rules(Family::V4));
    let rule = bm_netlink::Rule::lookup(Family::V4, 0, 255);
    mirror.apply(Message::Rule(rule.clone()));
    assert!(!mirror.lost_all_rules(Family::V4));
    mirror.apply(Message::RuleGone(rule));
    assert!(mirror.lost_all_rules(Family::V4) && !mirror.lost_all_rules(Family::V6));
}

#[test]
fn a_neighbor_that_fails_again_is_a_change() {
    let mut mirror = two_links();
    let address = "192.0.2.9".parse().unwrap();
    for state in [state::FAILED, state::FAILED, state::STALE] {
        mirror.take_changes();
        mirror.apply(Message::Neighbor(Neighbor { ifindex: 2, address, state, mac: None, router: false }));
        assert_eq!(mirror.take_changes(), [Change::Neighbor(2, address)], "{state:#x}");
    }
    mirror.apply(Message::Neighbor(Neighbor {
        ifindex: 2,
        address,
        state: state::STALE,
        mac: None,
        router: false,
    }));
    assert!(mirror.take_changes().is_empty(), "the kernel repeats what it said");
}

#[test]
fn linux_may_ignore_that_a_default_rule_of_ipv6_is_missing() {
    let [local, main, own] = [(0, 255), (32_766, 254), (100, 7)]
        .map(|(priority, table)| Rule::lookup(Family::V6, priority, table));
    let mut mirror = Mirror::default();
    let mut then = |message| {
        mirror.apply(message);
        mirror.may_ignore_rules(Family::V6)
    };
    assert!(then(Message::Rule(local)));
    assert!(!then(Message::Rule(main.clone())));
    assert!(then(Message::RuleGone(main)));
    assert!(!then(Message::Rule(own)), "one was added");
    assert!(!mirror.may_ignore_rules(Family::V4), "a deletion counts for IPv4");
}

#[test]
fn broadcast_addresses_are_those_of_the_most_specific_local_route() {
    let mut mirror = two_links();
    let mut add = |prefix: &str, kind: RouteKind, table: u32| {
        let body = RouteBody { kind, ..RouteBody::default() };
        let (event, prefix) = (RouteEvent::Added, net(prefix));
        mirror.apply(Message::Route4(RouteMessage { event, table, prefix, body, lifetime: 0 }));
        mirror.is_broadcast(2, "192.0.2.9".parse().unwrap())
    };
    assert!(!add("192.0.2.0/24", RouteKind::Broadcast, 254), "another table");
    assert!(add("0.0.0.0/0", RouteKind::Broadcast, 255));
    assert!(!add("192.0.2.0/28", RouteKind::Local, 255));
    assert!(add("192.0.2.9/32", RouteKind::Broadcast, 255));
}
