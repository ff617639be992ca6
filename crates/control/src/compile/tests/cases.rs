//! One property per test, with the clause of docs/conformance.md.

use super::*;
use bm_netlink::mirror::Findings;
use bm_netlink::next_hop::{Member, Object, Resilient};
use bm_netlink::{Netconf, Rule};
use neighbor::state::{FAILED, INCOMPLETE, REACHABLE, STALE};

fn via(gateway: &str, ifindex: u32) -> RouteBody {
    unicast(Via::One(Hop::via(ip(gateway), ifindex)))
}

fn on_link(ifindex: u32) -> RouteBody {
    unicast(Via::One(Hop::link(ifindex)))
}

fn forward(last: u8, ifindex: u32) -> Answer {
    Answer::Forward { mac: mac(last), ifindex }
}

fn resolve(ifindex: u32, gateway: &str) -> Answer {
    Answer::Resolve(ifindex, Some(ip(gateway)))
}

fn multipath(hops: &[(&str, u32)]) -> RouteBody {
    unicast(Via::Many(hops.iter().map(|(gateway, ifindex)| Hop::via(ip(gateway), *ifindex)).collect()))
}

fn half(one: Answer, two: Answer) -> Answer {
    Answer::Group(vec![(one, 128), (two, 128)])
}

fn used(world: &World) -> usize {
    world.compiler.targets.iter().count()
}

/// 70: one store in the next hop reaches every route; none of them is written again.
#[test]
fn a_changed_mac_touches_no_route() {
    let mut world = World::new();
    world.add("0.0.0.0/0", via("10.0.0.1", 1)).add("203.0.113.0/24", via("10.0.0.1", 1));
    world.neighbor(1, "10.0.0.1", REACHABLE, Some(mac(1))).compile();
    assert_eq!(world.to("203.0.113.9"), forward(1, 1));
    let hop = world.hop("203.0.113.9");
    assert_eq!(hop, world.hop("198.51.100.1"), "equal ways share a next hop");
    world.neighbor(1, "10.0.0.1", REACHABLE, Some(mac(2))).compile();
    assert_eq!(world.last, Report { published: false, entries: 0 });
    assert_eq!((world.to("203.0.113.9"), world.hop("203.0.113.9")), (forward(2, 1), hop));
    world.neighbor(1, "10.0.0.1", FAILED, None).compile();
    assert_eq!((world.last.entries, world.to("8.8.8.8")), (0, resolve(1, "10.0.0.1")));
}

/// 72: one link-local next hop on two interfaces stays two.
#[test]
fn a_link_local_gateway_is_a_next_hop_per_link() {
    let mut world = World::new();
    world.add("2001:db8:1::/48", via("fe80::1", 1)).add("2001:db8:2::/48", via("fe80::1", 2));
    world.neighbor(1, "fe80::1", STALE, Some(mac(1))).neighbor(2, "fe80::1", STALE, Some(mac(2))).compile();
    assert_eq!(world.to("2001:db8:1::9"), forward(1, 1));
    assert_eq!(world.to("2001:db8:2::9"), forward(2, 2));
}

/// On an interface without an address Linux's loose check takes sources for its own only, as the strict one does.
#[test]
fn a_loose_check_of_sources_needs_an_address() {
    let mut world = World::new();
    let address = Address {
        ifindex: 1,
        local: ip("10.0.0.2"),
        length: 24,
        peer: None,
        broadcast: None,
        scope: 0,
        flags: 0,
    };
    let check = |world: &World| world.compiler.interfaces().by_ifindex(1).unwrap().reverse_path;
    world.tell(history::netconf_of(2, 1, 3, 2)).compile();
    assert_eq!(check(&world), bm_wire::ReversePath::Strict);
    world.tell(Message::Address(address)).compile();
    assert_eq!(check(&world), bm_wire::ReversePath::Loose);
    world.tell(Message::AddressGone(address)).compile();
    assert_eq!(check(&world), bm_wire::ReversePath::Strict);
}

/// 74: IPv4 via an IPv6 next hop (RFC 8950).
#[test]
fn ipv4_routes_may_have_ipv6_gateways() {
    let mut world = World::new();
    world.add("192.0.2.0/24", via("fe80::1", 1)).compile();
    assert_eq!(world.to("192.0.2.1"), resolve(1, "fe80::1"));
    world.neighbor(1, "fe80::1", REACHABLE, Some(mac(7))).compile();
    assert_eq!(world.to("192.0.2.1"), forward(7, 1));
}

/// Linux ignores a gateway that was an address of this machine when the route was added, and asks for the destination.
#[test]
fn routes_through_own_addresses_are_linuxs_for_good() {
    let mut world = World::new();
    let address = |text: &str| Address {
        ifindex: 1,
        local: ip(text),
        length: 24,
        peer: None,
        broadcast: None,
        scope: 0,
        flags: 0,
    };
    // One stays: with the last address of a link its routes go.
    world.tell(Message::Address(address("10.0.0.2")));
    let own = Message::Address(address("10.0.0.1"));
    let gone = Message::AddressGone(address("10.0.0.1"));
    let through = multipath(&[("10.0.0.1", 1), ("10.0.1.1", 2)]);
    world.neighbor(1, "10.0.0.1", REACHABLE, Some(mac(1))).neighbor(2, "10.0.1.1", REACHABLE, Some(mac(2)));
    world.add("0.0.0.0/0", through.clone()).add("192.0.2.0/24", via("10.0.0.1", 1)).compile();
    assert_eq!(world.to("192.0.2.1"), forward(1, 1));
    world.tell(own.clone()).compile();
    // A route that is older than the address keeps its gateway, which Linux then asks for.
    assert_eq!(
        (world.to("192.0.2.1"), world.to("8.8.8.8")),
        (Answer::Host, half(Answer::Host, forward(2, 2)))
    );
    world.tell(gone.clone()).compile();
    assert_eq!(world.to("192.0.2.1"), Answer::Host);
    world.delete("0.0.0.0/0", through).delete("192.0.2.0/24", via("10.0.0.1", 1)).compile();
    world.tell(own.clone()).compile();
    world.add("192.0.2.0/24", via("10.0.0.1", 1)).compile();
    assert_eq!(world.to("192.0.2.1"), Answer::Host);
    world.delete("192.0.2.0/24", via("10.0.0.1", 1)).compile();
    world.tell(gone.clone()).compile();
    world.add("192.0.2.0/24", via("10.0.0.1", 1)).compile();
    assert_eq!(world.to("192.0.2.1"), forward(1, 1), "no route led through the address when it went");
    // Local by a route of the administrator's.
    let any = RouteBody { kind: RouteKind::Local, protocol: 3, ..on_link(1) };
    world.route(RouteEvent::Added, 255, "10.0.0.0/30", any.clone()).compile();
    assert_eq!(world.to("192.0.2.1"), Answer::Host);
    world.add("192.0.2.128/25", via("10.0.0.3", 1)).compile();
    world.route(RouteEvent::Deleted, 255, "10.0.0.0/30", any).compile();
    assert_eq!((world.to("192.0.2.1"), world.to("192.0.2.129")), (Answer::Host, Answer::Host));
    assert!(world.is_sound().is_ok());
}

/// 76: nothing is sent without carrier. Linux gets the flows of that member, and all go to the others if an interface
/// ignores such routes. Routes are not touched.
#[test]
fn flows_of_a_member_without_carrier_are_left_to_linux() {
    let mut world = World::new();
    world.add("0.0.0.0/0", multipath(&[("10.0.0.1", 1), ("10.0.1.1", 2)]));
    world.add("198.51.100.0/24", via("10.0.1.1", 2));
    for (ifindex, gateway) in [(1, "10.0.0.1"), (2, "10.0.1.1")] {
        world.neighbor(ifindex, gateway, REACHABLE, Some(mac(ifindex as u8)));
    }
    world.compile();
    let both = half(forward(1, 1), forward(2, 2));
    assert_eq!(world.to("8.8.8.8"), both);
    world.tell(Message::Link(link(2, NO_CARRIER))).compile();
    assert_eq!(world.to("8.8.8.8"), half(Answer::Host, forward(1, 1)));
    assert_eq!(world.to("198.51.100.1"), Answer::Host);
    assert_eq!(world.last.entries, 0);
    world.tell(history::netconf(2, 2, true)).compile();
    assert_eq!(world.to("8.8.8.8"), Answer::Group(vec![(forward(1, 1), 256)]));
    world.tell(history::netconf(2, 2, false)).compile();
    world.tell(Message::Link(link(1, NO_CARRIER))).compile();
    assert_eq!(world.to("8.8.8.8"), Answer::Group(vec![(Answer::Host, 256)]));
    world.tell(Message::Link(link(1, UP))).tell(Message::Link(link(2, UP))).compile();
    assert_eq!((world.to("8.8.8.8"), world.to("198.51.100.1")), (both, forward(2, 2)));
}

/// A hop without carrier on an interface that ignores such hops: the kernel continues with the shorter prefix.
#[test]
fn an_ignored_hop_leaves_its_addresses_to_the_shorter_route() {
    let mut world = World::new();
    world.add("0.0.0.0/0", via("10.0.0.1", 1)).add("203.0.113.0/24", via("10.0.1.1", 2)).compile();
    world.tell(history::netconf(2, 2, true)).compile();
    assert_eq!(world.to("203.0.113.1"), resolve(2, "10.0.1.1"));
    world.tell(Message::Link(link(2, NO_CARRIER))).compile();
    assert_eq!(world.to("203.0.113.1"), resolve(1, "10.0.0.1"));
    world.tell(history::netconf(2, 2, false)).compile();
    assert_eq!(world.to("203.0.113.1"), Answer::Host);
    world.tell(history::netconf(2, history::ALL, true)).compile();
    assert_eq!(world.to("203.0.113.1"), resolve(1, "10.0.0.1"));
    world.tell(history::netconf(2, history::ALL, false)).compile();
    assert_eq!(world.to("203.0.113.1"), Answer::Host);
    world.tell(Message::Link(link(2, UP))).compile();
    assert_eq!(world.to("203.0.113.1"), resolve(2, "10.0.1.1"));
}

/// 73: whatever happens to an object, its routes are not touched.
#[test]
fn an_object_changes_under_its_routes() {
    let mut world = World::new();
    world.object(1, Object::Hop(Hop::via(ip("10.0.0.1"), 1)));
    world.add("0.0.0.0/0", unicast(Via::Object(1))).neighbor(1, "10.0.0.1", STALE, Some(mac(1))).compile();
    let hop = world.hop("8.8.8.8");
    assert_eq!(world.to("8.8.8.8"), forward(1, 1));
    world.object(1, Object::Hop(Hop::via(ip("10.0.1.1"), 2)));
    world.compile();
    // The slow path gets the new gateway: a next hop's own never changes, so this is a group of one.
    assert_eq!(world.to("8.8.8.8"), Answer::Group(vec![(resolve(2, "10.0.1.1"), 256)]));
    world.object(1, Object::Blackhole);
    world.compile();
    assert_eq!(world.to("8.8.8.8"), Answer::Blackhole);
    world.object(1, Object::Hop(Hop::via(ip("10.0.0.1"), 1)));
    world.compile();
    assert_eq!((world.to("8.8.8.8"), world.hop("8.8.8.8")), (forward(1, 1), hop));
    assert_eq!(world.last.entries, 0);
}

/// 73 and 75: members of a group are added, removed and added again.
#[test]
fn a_group_is_changed_in_place_and_restored() {
    let mut world = World::new();
    for (id, gateway, ifindex) in [(1, "10.0.0.1", 1), (2, "10.0.1.1", 2)] {
        world.object(id, Object::Hop(Hop::via(ip(gateway), ifindex)));
        world.neighbor(ifindex, gateway, STALE, Some(mac(id as u8)));
    }
    let group = |ids: &[u32]| {
        let members = ids.iter().map(|id| Member { id: *id, weight: 1 }).collect();
        Object::Group { members, resilient: None }
    };
    world.object(9, group(&[1, 2]));
    let route = unicast(Via::Object(9));
    world.add("0.0.0.0/0", route.clone()).compile();
    let hop = world.hop("8.8.8.8");
    let both = half(forward(1, 1), forward(2, 2));
    assert_eq!(world.to("8.8.8.8"), both);
    world.tell(Message::NextHopGone(2)).compile();
    assert_eq!((world.to("8.8.8.8"), world.last.entries), (Answer::Group(vec![(forward(1, 1), 256)]), 0));
    world.object(2, Object::Hop(Hop::via(ip("10.0.1.1"), 2)));
    world.object(9, group(&[1, 2]));
    world.compile();
    assert_eq!((world.to("8.8.8.8"), world.hop("8.8.8.8"), world.last.entries), (both.clone(), hop, 0));
    // The kernel removes routes with their group; a daemon adds both again.
    world.tell(Message::NextHopGone(9)).compile();
    assert_eq!(world.to("8.8.8.8"), Answer::NoRoute);
    world.object(9, group(&[1, 2]));
    world.add("0.0.0.0/0", route).compile();
    assert_eq!(world.to("8.8.8.8"), both);
}

/// Linux walks on from a member that does not answer, whatever the setting for routes says, unless the group is
/// resilient.
#[test]
fn a_group_of_objects_skips_members_that_do_not_answer() {
    let mut world = World::new();
    for (id, gateway) in [(1, "10.0.0.1"), (2, "10.0.0.2"), (3, "2001:db8::3")] {
        world.object(id, Object::Hop(Hop::via(ip(gateway), 1)));
        world.neighbor(1, gateway, STALE, Some(mac(id as u8)));
    }
    let group = |resilient| {
        let members = [1, 2, 3].map(|id| Member { id, weight: 1 });
        Object::Group { members: members.into(), resilient }
    };
    world.object(9, group(None));
    world.add("0.0.0.0/0", unicast(Via::Object(9))).compile();
    let third = |a, b, c| {
        let mut parts = vec![(a, 85), (b, 85), (c, 86)];
        parts.sort();
        Answer::Group(parts)
    };
    let all = third(forward(1, 1), forward(2, 1), forward(3, 1));
    assert!(oracle::same(&all, &world.to("8.8.8.8")), "{:?}", world.to("8.8.8.8"));
    world.neighbor(1, "10.0.0.2", FAILED, None).compile();
    let two = Answer::Group(vec![(forward(1, 1), 1), (forward(3, 1), 2)]);
    assert!(
        oracle::same(&two, &world.to("8.8.8.8")),
        "its packets go to the next: {:?}",
        world.to("8.8.8.8")
    );
    world.neighbor(1, "2001:db8::3", INCOMPLETE, None).compile();
    assert_eq!(world.to("8.8.8.8"), Answer::Group(vec![(forward(1, 1), 256)]), "after the last the first");
    world.neighbor(1, "10.0.0.1", FAILED, None).compile();
    let first = resolve(1, "10.0.0.1");
    assert_eq!(world.to("8.8.8.8"), Answer::Group(vec![(first.clone(), 256)]), "none answers");
    world.neighbor(1, "10.0.0.2", REACHABLE, Some(mac(2)));
    world.object(9, group(Some(Resilient::default())));
    world.compile();
    let kept = third(first, forward(2, 1), resolve(1, "2001:db8::3"));
    assert!(oracle::same(&kept, &world.to("8.8.8.8")), "a resilient group: {:?}", world.to("8.8.8.8"));
    assert_eq!(world.is_sound(), Ok(()));
}

/// A route may arrive before its object: Linux gets its packets until the object is known.
#[test]
fn an_unknown_object_leaves_its_routes_to_linux() {
    let mut world = World::new();
    world.add("192.0.2.0/24", unicast(Via::Object(5))).compile();
    assert_eq!(world.to("192.0.2.1"), Answer::Host);
    world.object(5, Object::Hop(Hop::via(ip("10.0.0.1"), 1)));
    world.compile();
    assert_eq!(world.to("192.0.2.1"), Answer::Group(vec![(resolve(1, "10.0.0.1"), 256)]));
}

#[test]
fn neighbors_on_the_link_have_entries_of_their_own() {
    let mut world = World::new();
    world.add("192.0.2.0/24", on_link(1)).neighbor(1, "192.0.2.7", REACHABLE, Some(mac(7)));
    world.neighbor(2, "192.0.2.8", REACHABLE, Some(mac(8))).compile();
    assert_eq!(world.to("192.0.2.7"), forward(7, 1));
    assert_eq!(world.to("192.0.2.8"), Answer::Resolve(1, None), "that neighbor is on another link");
    assert_eq!(world.to("192.0.2.9"), Answer::Resolve(1, None));
    world.neighbor(1, "192.0.2.7", FAILED, None).compile();
    assert_eq!(world.to("192.0.2.7"), Answer::Resolve(1, None));
    world.neighbor(1, "192.0.2.7", REACHABLE, Some(mac(7))).compile();
    // A more specific route takes the neighbor's address, and releases it.
    world.add("192.0.2.0/29", via("10.0.1.1", 2)).compile();
    assert_eq!(world.to("192.0.2.7"), resolve(2, "10.0.1.1"));
    world.delete("192.0.2.0/29", via("10.0.1.1", 2)).compile();
    assert_eq!(world.to("192.0.2.7"), forward(7, 1));
    // The kernel's own route to exactly that address has precedence.
    world.add("192.0.2.7/32", of_kind(RouteKind::Prohibit)).compile();
    assert_eq!(world.to("192.0.2.7"), Answer::Prohibit);
    world.delete("192.0.2.7/32", of_kind(RouteKind::Prohibit)).compile();
    assert_eq!(world.to("192.0.2.7"), forward(7, 1));
    world.delete("192.0.2.0/24", on_link(1)).compile();
    assert_eq!((world.to("192.0.2.7"), used(&world)), (Answer::NoRoute, 6));
}

#[test]
fn a_neighbors_entry_keeps_the_mtu_of_its_link_route() {
    let mut world = World::new();
    world.add("192.0.2.0/24", RouteBody { mtu: 1400, ..on_link(1) });
    world.neighbor(1, "192.0.2.7", REACHABLE, Some(mac(7))).compile();
    assert_eq!(world.answer(0, ip("192.0.2.7")), (forward(7, 1), 1400));
    assert_eq!(world.answer(0, ip("192.0.2.8")), (Answer::Resolve(1, None), 1400));
}

#[test]
fn tables_are_searched_in_order_local_main_default() {
    let mut world = World::new();
    let (local, fallback) = (of_kind(RouteKind::Local), of_kind(RouteKind::Blackhole));
    world.route(RouteEvent::Added, 255, "192.0.2.1/32", local.clone());
    world.route(RouteEvent::Added, 253, "0.0.0.0/0", fallback.clone());
    world.route(RouteEvent::Added, 253, "192.0.2.0/25", fallback);
    world.add("192.0.2.0/24", via("10.0.0.1", 1)).compile();
    assert_eq!(world.to("192.0.2.1"), Answer::Host);
    assert_eq!(world.to("192.0.2.2"), resolve(1, "10.0.0.1"), "main knows it, so default is not asked");
    assert_eq!(world.to("203.0.113.1"), Answer::Blackhole);
    world.delete("192.0.2.0/24", via("10.0.0.1", 1)).compile();
    assert_eq!(world.to("192.0.2.2"), Answer::Blackhole);
    world.route(RouteEvent::Deleted, 255, "192.0.2.1/32", local).compile();
    assert_eq!(world.to("192.0.2.1"), Answer::Blackhole);
}

/// Linux may have the tables local and main in one, where the longer prefix of main is preferred.
#[test]
fn routes_in_the_table_of_local_ones_lead_to_linux() {
    let mut world = World::new();
    world.add("192.0.2.0/24", via("10.0.0.1", 1)).add("192.0.3.0/24", via("10.0.0.1", 1));
    world.add("2001:db8::/32", via("fe80::1", 1));
    let bodies = [via("10.0.1.1", 2), of_kind(RouteKind::Blackhole), of_kind(RouteKind::Throw)];
    for body in bodies {
        world.route(RouteEvent::Added, 255, "192.0.2.0/23", body.clone()).compile();
        assert_eq!(world.to("192.0.2.1"), Answer::Host, "{body:?}");
        assert_eq!(world.to("192.0.3.1"), Answer::Host, "{body:?}");
        world.route(RouteEvent::Deleted, 255, "192.0.2.0/23", body).compile();
        assert_eq!(world.to("192.0.3.1"), resolve(1, "10.0.0.1"));
    }
    // For IPv6 there are always two.
    world.route(RouteEvent::Added, 255, "2001:db8:1::/48", of_kind(RouteKind::Blackhole)).compile();
    assert_eq!(world.to("2001:db8:1::1"), Answer::Blackhole);
}

#[test]
fn a_throw_route_continues_in_the_next_table() {
    let mut world = World::new();
    world.add("0.0.0.0/0", via("10.0.0.1", 1)).add("192.0.2.0/24", of_kind(RouteKind::Throw)).compile();
    assert_eq!(world.to("192.0.2.1"), Answer::NoRoute);
    world.route(RouteEvent::Added, 253, "192.0.0.0/16", of_kind(RouteKind::Unreachable)).compile();
    assert_eq!(world.to("192.0.2.1"), Answer::Unreachable);
    assert_eq!(world.to("192.0.3.1"), resolve(1, "10.0.0.1"));
}

/// Linux prefers the link on which a packet has come in, so the destination alone does not decide.
#[test]
fn a_prefix_of_two_links_is_linuxs() {
    let mut world = World::new();
    world.tell(history::netconf_of(10, history::ALL, 2, 1));
    let prefix = "2001:db8:5::/64";
    world.add(prefix, on_link(1)).compile();
    assert_eq!(world.to("2001:db8:5::9"), Answer::Resolve(1, None));
    world.route(RouteEvent::Appended, 254, prefix, on_link(2)).compile();
    assert_eq!(world.to("2001:db8:5::9"), Answer::Host);
    world.delete(prefix, on_link(2)).compile();
    let preferred = RouteBody { preference: 1, ..on_link(2) };
    world.route(RouteEvent::Appended, 254, prefix, preferred).compile();
    assert_eq!(world.to("2001:db8:5::9"), Answer::Resolve(2, None));
}

#[test]
fn the_best_route_to_a_prefix_is_used() {
    let mut world = World::new();
    let far = RouteBody { priority: 200, ..via("10.0.0.2", 1) };
    world.add("192.0.2.0/24", far.clone()).add("192.0.2.0/24", via("10.0.0.1", 1)).compile();
    assert_eq!(world.to("192.0.2.1"), resolve(1, "10.0.0.1"));
    world.delete("192.0.2.0/24", via("10.0.0.1", 1)).compile();
    assert_eq!(world.to("192.0.2.1"), resolve(1, "10.0.0.2"));
    // A route for some packets only: Linux decides for which.
    world.add("192.0.2.0/24", RouteBody { tos: 16, ..via("10.0.0.3", 1) }).compile();
    assert_eq!(world.to("192.0.2.1"), Answer::Host);
}

#[test]
fn a_vrf_has_its_own_table_or_is_left_to_linux() {
    let mut world = World::new();
    world.tell(Message::Link(Link { kind: Kind::Vrf { table: 10 }, ..link(9, UP) }));
    world.tell(Message::Link(Link { master: Some(9), ..link(2, UP) }));
    world.route(RouteEvent::Added, 10, "192.0.2.0/24", via("10.0.1.1", 2));
    world.add("192.0.2.0/24", via("10.0.0.1", 1)).add("0.0.0.0/0", via("10.0.0.1", 1)).compile();
    let in_vrf = |world: &World, address| world.answer(1, ip(address)).0;
    assert_eq!(world.to("192.0.2.1"), resolve(1, "10.0.0.1"));
    assert_eq!(in_vrf(&world, "192.0.2.1"), resolve(2, "10.0.1.1"));
    assert_eq!(in_vrf(&world, "203.0.113.1"), Answer::Host);
    assert_eq!(world.compiler.interfaces().by_ifindex(2).unwrap().vrf, 1);
    world.tell(Message::Link(link(2, UP))).compile();
    assert_eq!(world.compiler.interfaces().by_ifindex(2).unwrap().vrf, 0);
    assert_eq!(world.compiler.ipv4.vrfs.len(), 1);
}

#[test]
fn unsupported_rules_leave_the_family_to_linux() {
    let mut world = World::new();
    world.add("0.0.0.0/0", via("10.0.0.1", 1)).add("::/0", via("fe80::1", 1)).compile();
    let rule = Rule { source: Some((ip("192.0.2.0"), 24)), ..Rule::lookup(Family::V4, 100, 7) };
    let main = Rule::lookup(Family::V4, 32_766, 254);
    world.tell(Message::Rule(main.clone())).tell(Message::Rule(rule.clone())).compile();
    assert_eq!((world.to("8.8.8.8"), world.to("2001:db8::1")), (Answer::Host, resolve(1, "fe80::1")));
    world.add("8.8.8.0/24", of_kind(RouteKind::Blackhole)).compile();
    assert_eq!(world.to("8.8.8.8"), Answer::Host);
    world.tell(Message::RuleGone(rule)).compile();
    assert_eq!((world.to("8.8.8.8"), world.to("9.9.9.9")), (Answer::Blackhole, resolve(1, "10.0.0.1")));
    // Without any rule nothing has a route.
    world.tell(Message::RuleGone(main)).compile();
    assert_eq!((world.to("9.9.9.9"), world.to("2001:db8::1")), (Answer::Host, resolve(1, "fe80::1")));
}

#[test]
fn routes_through_other_interfaces_are_left_to_linux() {
    let mut world = World::new();
    world.tell(Message::Link(link(4, UP))).neighbor(1, "10.0.0.1", STALE, Some(mac(1)));
    world.add("192.0.2.0/24", via("10.0.4.1", 4));
    let encap = Hop { encap: 6, ..Hop::via(ip("10.0.0.1"), 1) };
    world.add("198.51.100.0/24", unicast(Via::One(encap)));
    world.add("203.0.113.0/24", multipath(&[("10.0.0.1", 1), ("10.0.4.1", 4)])).compile();
    assert_eq!((world.to("192.0.2.1"), world.to("198.51.100.1")), (Answer::Host, Answer::Host));
    assert_eq!(world.to("203.0.113.1"), half(Answer::Host, forward(1, 1)));
    // The link becomes a port, and is removed again.
    world.compiler.set_ports(vec![Some(1), Some(2), Some(4)]);
    world.compile();
    assert!(world.last.published);
    assert_eq!(world.to("192.0.2.1"), resolve(4, "10.0.4.1"));
    assert_eq!(world.to("203.0.113.1"), half(resolve(4, "10.0.4.1"), forward(1, 1)));
    world.compiler.set_ports(vec![Some(1), Some(2), None]);
    world.compile();
    assert_eq!(world.to("192.0.2.1"), Answer::Host);
    assert_eq!(world.to("203.0.113.1"), half(Answer::Host, forward(1, 1)));
}

#[test]
fn ports_in_a_bridge_or_bond_are_left_to_linux() {
    let mut world = World::new();
    world
        .add("0.0.0.0/0", via("10.0.0.1", 1))
        .tell(Message::Link(Link { kind: Kind::Bridge, ..link(7, UP) }));
    world.tell(Message::Link(Link { master: Some(7), ..link(1, UP) })).compile();
    assert_eq!((world.to("8.8.8.8"), world.compiler.interfaces().index_of(1)), (Answer::Host, None));
}

#[test]
fn interfaces_have_linuxs_settings() {
    let mut world = World::new();
    let vlan = Link {
        kind: Kind::Vlan { id: 100, protocol: 0x8100 },
        lower: Some(1),
        mtu: 9000,
        mac: Some([2, 0, 0, 0, 9, 9]),
        ..link(3, UP)
    };
    world.tell(Message::Link(vlan));
    let address = |text: &str, length, flags| Address {
        ifindex: 3,
        local: ip(text),
        length,
        peer: None,
        broadcast: None,
        scope: 0,
        flags,
    };
    for address in [
        address("192.0.2.1", 24, Address::SECONDARY),
        address("192.0.2.9", 24, 0),
        address("2001:db8::1", 64, 0),
        address("2001:db8::2", 64, Address::TENTATIVE),
    ] {
        world.tell(Message::Address(address));
    }
    world.compile();
    let interfaces = world.compiler.interfaces().clone();
    let index = interfaces.index_of(3).unwrap();
    let interface = interfaces.by_ifindex(3).unwrap();
    assert_eq!((interface.port, interface.mtu, interface.up), (0, 9000, true));
    assert_eq!(
        interface.ipv4.iter().map(|(a, _)| a.to_string()).collect::<Vec<_>>(),
        ["192.0.2.9", "192.0.2.1"]
    );
    assert_eq!(interface.ipv6.len(), 1, "a tentative address is no source");
    let of_port = &interfaces.ports[0];
    assert_eq!(of_port.untagged, interfaces.index_of(1));
    assert_eq!(
        of_port.tagged.iter().map(|(vlan, index)| (vlan.id, *index)).collect::<Vec<_>>(),
        [(100, index)]
    );
    let reader = world.readers.register();
    let tables = world.compiler.published().load(&reader);
    assert_eq!((tables.local_ipv4.len(), tables.local_ipv6.len()), (2, 1));
    assert_eq!(world.mirror.netconf(Family::V4, 3), Netconf::default());
    assert!(!interface.forward_ipv4);
}

#[test]
fn interfaces_keep_their_slot_until_deleted() {
    let mut world = World::new();
    let vlan = |ifindex, id| {
        Message::Link(Link { kind: Kind::Vlan { id, protocol: 0x8100 }, lower: Some(1), ..link(ifindex, UP) })
    };
    world.tell(vlan(3, 100)).compile();
    let index = world.compiler.interfaces().index_of(3).unwrap();
    let two = world.compiler.interfaces().index_of(2).unwrap();
    world.tell(Message::LinkGone(3)).compile();
    assert_eq!(world.compiler.interfaces().index_of(2), Some(two));
    let gone = world.compiler.interfaces().list[usize::from(index)].clone();
    assert!(!gone.up && world.compiler.interfaces().ports[0].tagged.is_empty());
    world.tell(vlan(5, 101)).compile();
    assert_eq!(world.compiler.interfaces().index_of(5), Some(index), "the place is taken again");
}

#[test]
fn a_family_ends_on_a_link_below_its_smallest_mtu() {
    let mut world = World::new();
    world.tell(history::netconf_of(2, 1, 2, 1)).tell(history::netconf_of(10, history::ALL, 2, 1));
    world.tell(history::netconf_of(10, 1, 2, 1));
    for (mtu, forwards) in [
        (1500, (true, true)),
        (1280, (true, true)),
        (1279, (true, false)),
        (67, (false, false)),
        (1500, (true, true)),
    ] {
        world.tell(Message::Link(Link { mtu, ..link(1, UP) })).compile();
        let interface = world.compiler.interfaces().by_ifindex(1).unwrap();
        assert_eq!((interface.forward_ipv4, interface.forward_ipv6), forwards, "{mtu}");
    }
}

#[test]
fn nothing_is_published_for_routes_alone() {
    let mut world = World::new();
    world.add("192.0.2.0/24", via("10.0.0.1", 1)).compile();
    assert_eq!(world.last, Report { published: false, entries: 1 });
    world.tell(Message::Link(Link { mtu: 1400, ..link(1, UP) })).compile();
    assert_eq!(world.last, Report { published: true, entries: 0 });
    world.tell(Message::Link(Link { oper_state: 5, mtu: 1400, ..link(1, UP) })).compile();
    assert_eq!(world.last, Report { published: false, entries: 0 });
}

/// A route without room leads to Linux, even if there is a shorter route, and is added when there is room.
#[test]
fn routes_beyond_a_full_table_are_left_to_linux() {
    plain::ROOM.set(1);
    let mut world = World::new();
    world.add("0.0.0.0/0", via("10.0.0.1", 1)).add("192.0.2.0/25", via("10.0.0.2", 1)).compile();
    world.add("198.51.100.128/25", via("10.0.0.3", 1)).compile();
    assert_eq!(world.to("192.0.2.1"), resolve(1, "10.0.0.2"));
    assert_eq!(world.to("198.51.100.129"), Answer::Host);
    assert_eq!(world.to("198.51.101.1"), resolve(1, "10.0.0.1"));
    let refused: Vec<_> =
        world.compiler.ipv4.vrfs[&None].refused().map(|(prefix, _)| prefix.to_string()).collect();
    assert_eq!(refused, ["198.51.100.128/25"]);
    world.add("198.51.100.0/24", via("10.0.0.4", 1)).compile();
    assert_eq!(world.to("198.51.100.1"), Answer::Host, "its place around the other is kept");
    world.delete("192.0.2.0/25", via("10.0.0.2", 1)).compile();
    world.add("203.0.113.0/24", via("10.0.0.4", 1)).compile();
    assert_eq!(world.to("198.51.100.129"), resolve(1, "10.0.0.3"));
    assert_eq!(world.to("198.51.100.1"), resolve(1, "10.0.0.4"));
    assert_eq!(world.compiler.ipv4.vrfs[&None].refused().count(), 0);
    plain::ROOM.set(usize::MAX);
}

#[test]
fn a_table_loads_what_fits() {
    plain::ROOM.set(1);
    let mut world = World::new();
    world.add("192.0.2.0/25", via("10.0.0.2", 1)).add("198.51.100.128/25", via("10.0.0.3", 1));
    world.compile_all(&[Change::Everything]);
    assert_eq!((world.to("192.0.2.1"), world.to("198.51.100.129")), (resolve(1, "10.0.0.2"), Answer::Host));
    plain::ROOM.set(usize::MAX);
}

#[test]
fn without_room_for_next_hops_linux_forwards_until_there_is() {
    // Room for the five fixed ones, that for no route, and two more.
    let mut world = World::with_room(Options { next_hops: 9, group_buckets: 4096, ..Options::default() });
    for (prefix, gateway) in [("192.0.2.0/24", "10.0.0.1"), ("198.51.100.0/24", "10.0.0.2")] {
        world.add(prefix, via(gateway, 1));
    }
    world.compile();
    world.add("203.0.113.0/24", via("10.0.0.3", 1)).compile();
    assert_eq!(world.to("203.0.113.1"), Answer::Host);
    assert_eq!(world.to("198.51.100.1"), resolve(1, "10.0.0.2"));
    world.delete("192.0.2.0/24", via("10.0.0.1", 1)).compile();
    world.tell(Message::Link(link(4, UP))).compile();
    assert_eq!(world.to("203.0.113.1"), resolve(1, "10.0.0.3"));
}

/// A neighbor without room for its next hop is left to Linux and reported, and is added when there is room.
#[test]
fn neighbors_without_a_next_hop_go_to_linux_until_there_is_room() {
    // Room for the fixed ones, the link, and one neighbor.
    let mut world = World::with_room(Options { next_hops: 9, group_buckets: 4096, ..Options::default() });
    world.add("192.0.2.0/24", on_link(1));
    for last in 1..4 {
        world.neighbor(1, &format!("192.0.2.{last}"), STALE, Some(mac(last)));
    }
    world.compile();
    let count = |world: &World| (world.compiler.without_room(), world.compiler.counts(&world.mirror).refused);
    let [without, refused] = [count(&world).0, count(&world).1];
    assert_eq!(without, refused);
    assert!((1..3).contains(&without), "{without}");
    let last = world.to("192.0.2.3");
    assert_eq!(last, Answer::Host);
    let output = world.compiler.notes(&world.mirror).join("\n");
    assert!(
        output.contains(&format!("of 9 next hops is full: 0 routes and {without} neighbors")),
        "{output}"
    );
    assert_eq!(sentences(&mut world).len(), without);
    // The first one goes: another one gets its room, without any change of its own.
    world.neighbor(1, "192.0.2.1", FAILED, None).compile();
    (0..2).for_each(|_| world.compile_all(&[]));
    assert_eq!(count(&world), (without - 1, without - 1));
    world.neighbor(1, "192.0.2.2", FAILED, None).compile();
    (0..2).for_each(|_| world.compile_all(&[]));
    assert_eq!(count(&world), (0, 0));
    assert_ne!(world.to("192.0.2.3"), Answer::Host);
    assert!(world.compiler.notes(&world.mirror).is_empty());
    assert_eq!(sentences(&mut world), [""; 0]);
}

/// 111: without memory a table is rejected; the published one stays.
#[test]
fn a_table_without_memory_is_refused_and_recovers() {
    let mut world = World::new();
    world.add("192.0.2.0/24", via("10.0.0.1", 1)).compile();
    world.tell(Message::Link(Link { kind: Kind::Vrf { table: 10 }, ..link(9, UP) }));
    world.tell(Message::Link(Link { master: Some(9), ..link(2, UP) }));
    plain::NO_MEMORY.set(true);
    for changes in [world.mirror.take_changes(), vec![Change::Everything]] {
        let refused = world.compiler.apply(&world.mirror, &changes).unwrap_err();
        assert!(refused.to_string().starts_with("cannot create an IPv4 table: no room"), "{refused}");
        assert_eq!(world.to("192.0.2.1"), resolve(1, "10.0.0.1"));
    }
    plain::NO_MEMORY.set(false);
    world.compile_all(&[Change::Everything]);
    assert_eq!((world.to("192.0.2.1"), world.is_sound()), (resolve(1, "10.0.0.1"), Ok(())));
    assert_eq!(world.compiler.ipv4.vrfs.len(), 2);
}

/// The same if other tables were created again before: what the old ones held is released.
#[test]
fn a_table_without_memory_keeps_no_next_hop_of_others() {
    let memory = Arc::new(Scarce::default());
    let mut world = World::in_memory(Options::default(), memory.clone());
    world.tell(Message::Link(Link { kind: Kind::Vrf { table: 10 }, ..link(9, UP) }));
    world.tell(Message::Link(Link { master: Some(9), ..link(2, UP) }));
    for (table, ifindex, net) in [(254, 1, "10.0.0"), (10, 2, "10.0.1")] {
        world.route(RouteEvent::Added, table, &format!("{net}.0/24"), on_link(ifindex));
        world.neighbor(ifindex, &format!("{net}.9"), REACHABLE, Some(mac(9)));
    }
    world.add("2001:db8::/64", on_link(1)).neighbor(1, "2001:db8::9", REACHABLE, Some(mac(9))).compile();
    assert_eq!(world.to("10.0.0.9"), forward(9, 1));
    // The VRF goes and both families look up another table first, but there is memory for only one of them.
    world.tell(Message::Link(link(2, UP)));
    for family in Family::BOTH {
        world.tell(Message::Rule(Rule::lookup(family, 50, 77)));
        world.tell(Message::Rule(Rule::lookup(family, 32_766, 254)));
    }
    let changes = world.mirror.take_changes();
    for (part, changes) in [(Part::Ipv6, &changes[..]), (Part::Ipv4, &[Change::Everything])] {
        memory.refuse(&[part]);
        world.compiler.apply(&world.mirror, changes).unwrap_err();
    }
    memory.refuse(&[]);
    world.compile_all(&[Change::Everything]);
    assert_eq!((world.to("10.0.0.9"), world.is_sound()), (forward(9, 1), Ok(())));
}

#[test]
fn linux_cuts_what_leaves_by_a_veth() {
    let mut world = World::new();
    let cuts = |world: &World, ifindex| world.compiler.interfaces().by_ifindex(ifindex).unwrap().linux_cuts;
    let vlan = Link { kind: Kind::Vlan { id: 100, protocol: 0x8100 }, lower: Some(1), ..link(3, UP) };
    world.tell(Message::Link(vlan)).compile();
    assert!(!cuts(&world, 1) && !cuts(&world, 3));
    world.tell(Message::Link(Link { kind: Kind::Veth, lower: Some(9), ..link(1, UP) })).compile();
    assert!(cuts(&world, 1) && cuts(&world, 3));
}

/// A VLAN interface may be a port itself: then its frames are untagged.
#[test]
fn a_vlan_that_is_a_port_is_no_vlan_of_another() {
    let mut world = World::new();
    world.tell(Message::Link(Link {
        kind: Kind::Vlan { id: 100, protocol: 0x8100 },
        lower: Some(1),
        ..link(3, UP)
    }));
    world.compiler.set_ports(vec![Some(1), Some(3)]);
    world.compile();
    let interfaces = world.compiler.interfaces();
    assert_eq!(interfaces.by_ifindex(3).map(|interface| (interface.port, interface.vlan)), Some((1, None)));
    assert_eq!(interfaces.ports[1].untagged, interfaces.index_of(3));
    assert!(interfaces.ports[0].tagged.is_empty());
}

#[test]
fn nothing_remains_of_deleted_objects() {
    let mut world = World::new();
    world.object(1, Object::Hop(Hop::via(ip("10.0.0.9"), 2)));
    world.add("0.0.0.0/0", multipath(&[("10.0.0.1", 1), ("10.0.1.1", 2)]));
    world.add("192.0.2.0/24", on_link(1)).neighbor(1, "192.0.2.1", STALE, Some(mac(1)));
    world.add("198.51.100.0/24", unicast(Via::Object(1))).compile();
    assert!(used(&world) > 9);
    world.tell(Message::NextHopGone(1)).delete("192.0.2.0/24", on_link(1));
    world.delete("0.0.0.0/0", multipath(&[("10.0.0.1", 1), ("10.0.1.1", 2)])).compile();
    assert_eq!(used(&world), 6, "the fixed ones stay");
    assert_eq!(world.compiler.targets.writer().len(), 6);
}

fn sentences(world: &mut World) -> Vec<String> {
    let comparison = world.compiler.verify(&world.mirror);
    assert_eq!(comparison.count, comparison.differences.len());
    comparison.differences.into_iter().map(|(area, sentence)| format!("{area}: {sentence}")).collect()
}

#[test]
fn verify_finds_missed_updates() {
    let mut world = World::new();
    world.add("192.0.2.0/24", via("10.0.0.1", 1)).add("10.0.0.0/24", on_link(1)).compile();
    assert_eq!(sentences(&mut world), [""; 0]);
    world.delete("192.0.2.0/24", via("10.0.0.1", 1)).add("203.0.113.0/24", via("10.0.0.1", 1));
    let missing = "compiled: 203.0.113.0/24 has no entry, expected next hop 8, Resolve";
    let more = [
        "compiled: 192.0.2.0/24 has an entry but no route",
        "compiled: sources in 203.0.113.0/24 may arrive on None, expected Some([])",
        "compiled: 192.0.2.0/24 has a reverse path but no route",
    ];
    assert_eq!(sentences(&mut world), [&[missing], &more[..]].concat());
    world.compile();
    assert_eq!(sentences(&mut world), [""; 0]);
    world.neighbor(1, "10.0.0.1", REACHABLE, Some(mac(1)));
    let wrong = "compiled: next hop 8 has the action Resolve, expected Forward { mac: [2, 0, 0, 0, 1, 1], interface: 0 }";
    assert_eq!(sentences(&mut world), [wrong]);
    world.compile();
    assert_eq!(sentences(&mut world), [""; 0]);
    world.tell(Message::Link(Link { mtu: 1400, ..link(1, UP) }));
    assert!(sentences(&mut world)[0].starts_with("compiled: interface eth1 is "));
}

#[test]
fn verify_lists_what_cannot_be_compiled() {
    let mut world = World::with_room(Options { next_hops: 8, group_buckets: 4096, ..Options::default() });
    world.add("192.0.2.0/24", unicast(Via::Object(77))).add("198.51.100.0/24", via("10.0.0.1", 1)).compile();
    let unknown = "refused: 192.0.2.0/24 of table 254 goes to Linux: unknown nexthop object 77";
    let full = "refused: 198.51.100.0/24 of table 254 goes to Linux: all 8 next hops are in use; use fewer distinct next hops";
    let mut found = sentences(&mut world);
    found.sort();
    assert_eq!(found, [unknown, full]);
}

/// 71: gateways of routes, and neighbors that packets were sent to.
#[test]
fn reports_neighbors_in_use() {
    let mut world = World::new();
    world.add("0.0.0.0/0", multipath(&[("10.0.0.1", 1), ("10.0.1.1", 2)])).add("192.0.2.0/24", on_link(1));
    for last in 1..4 {
        world.neighbor(1, &format!("192.0.2.{last}"), STALE, Some(mac(last)));
    }
    world.compile();
    let gateways = [(1, ip("10.0.0.1")), (2, ip("10.0.1.1"))];
    assert_eq!(world.compiler.take_in_use(), gateways.into());
    let sent_to = world.hop("192.0.2.2");
    world.compiler.targets.table().mark_used(sent_to);
    assert_eq!(world.compiler.take_in_use(), [gateways[0], (1, ip("192.0.2.2")), gateways[1]].into());
    assert_eq!(world.compiler.take_in_use(), gateways.into());
    assert!(world.compiler.is_known(1, ip("10.0.0.1")) && !world.compiler.is_known(1, ip("10.0.1.1")));
}

/// 53: an MTU of IPv6 below that of the link limits routes of IPv6, and no others.
#[test]
fn the_mtu_of_ipv6_limits_its_routes() {
    let mut world = World::new();
    world.add("2001:db8::/32", via("fe80::1", 1)).add("192.0.2.0/24", via("10.0.0.1", 1)).compile();
    let mtu = |world: &World, to: &str| world.compiler.targets.table().mtu(world.hop(to));
    assert_eq!((mtu(&world, "2001:db8::1"), mtu(&world, "192.0.2.1")), (0, 0));
    let limited = bm_netlink::LinkSysctls { mtu_ipv6: 1400, ..Default::default() };
    world.mirror.set_link_sysctls(BTreeMap::from([(1, limited)]));
    world.compile();
    assert_eq!((mtu(&world, "2001:db8::1"), mtu(&world, "192.0.2.1")), (1400, 0));
    world.mirror.set_link_sysctls(BTreeMap::new());
    world.compile();
    assert_eq!(mtu(&world, "2001:db8::1"), 0);
}

/// Linux chooses among next hops by settings of its hash that are not known here.
#[test]
fn unknown_flow_hashes_leave_groups_to_linux() {
    let mut world = World::new();
    world.add("0.0.0.0/0", multipath(&[("10.0.0.1", 1), ("10.0.1.1", 2)]));
    world.add("198.51.100.0/24", via("10.0.1.1", 2)).compile();
    let linux = half(Answer::LinuxOnly(1), Answer::LinuxOnly(2));
    let sysctls = bm_netlink::Sysctls { ipv4_multipath_hash_policy: 3, ..Default::default() };
    world.mirror.set_sysctls(sysctls);
    world.compile();
    assert_eq!((world.to("8.8.8.8"), world.to("198.51.100.1")), (linux, resolve(2, "10.0.1.1")));
    world.mirror.set_sysctls(bm_netlink::Sysctls::default());
    world.compile();
    assert_eq!(world.to("8.8.8.8"), half(resolve(1, "10.0.0.1"), resolve(2, "10.0.1.1")));
}

/// 19: sources that a route to this machine covers, or that are broadcast addresses, are looked up.
#[test]
fn sources_of_local_routes_are_doubtful() {
    let mut world = World::new();
    let local = |protocol| RouteBody { protocol, ..of_kind(RouteKind::Local) };
    let single = |list: &[&str]| {
        DoubtfulSources::Single(list.iter().map(|address| address.parse().unwrap()).collect())
    };
    let tell = |world: &mut World, event, table, prefix: &str, body: RouteBody| {
        let prefix = prefix.parse().unwrap();
        world.tell(Message::Route4(RouteMessage { event, table, prefix, body, lifetime: 0 })).compile();
        world.compiler.doubtful().clone()
    };
    let added = RouteEvent::Added;
    assert_eq!(tell(&mut world, added, 255, "127.0.0.0/8", local(2)), single(&[]));
    assert_eq!(tell(&mut world, added, 255, "10.0.0.1/32", local(2)), single(&["10.0.0.1"]));
    let broadcast = RouteBody { protocol: 2, ..of_kind(RouteKind::Broadcast) };
    let both = single(&["10.0.0.1", "10.0.0.255"]);
    assert_eq!(tell(&mut world, added, 255, "10.0.0.255/32", broadcast), both);
    assert_eq!(tell(&mut world, added, 254, "203.0.113.0/24", local(3)), DoubtfulSources::All);
    assert_eq!(tell(&mut world, RouteEvent::Deleted, 254, "203.0.113.0/24", local(3)), both);
    assert_eq!(tell(&mut world, added, 255, "10.97.0.0/24", local(2)), DoubtfulSources::All);
}

#[test]
fn what_is_in_doubt_is_left_to_linux() {
    let mut world = World::new();
    world.add("0.0.0.0/0", via("10.0.0.1", 1)).add("192.0.2.0/24", via("10.0.0.1", 1)).compile();
    world.delete("192.0.2.0/24", via("10.0.0.9", 1)).compile();
    assert_eq!(world.to("192.0.2.1"), Answer::Host, "a deletion of a route that is not here");
    assert_eq!(world.to("198.51.100.1"), resolve(1, "10.0.0.1"), "only that prefix");
    world.compile_all(&[Change::Everything]);
    assert_eq!(world.to("192.0.2.1"), Answer::Host);
    assert_eq!(world.compiler.linux_only(), [false; 2]);
    world.tell(Message::RuleGone(Rule::lookup(Family::V6, 5, 7))).compile();
    assert_eq!(
        world.compiler.linux_only(),
        [false, true],
        "nor rules of which one more was deleted than known"
    );
}

/// Puts a prefix in doubt that then loses its only route.
fn doubt_without_route(world: &mut World, table: u32, prefix: &str) {
    let one = RouteBody { tos: 8, ..via("10.0.0.1", 1) };
    let added = world.route(RouteEvent::Added, table, prefix, via("10.0.0.1", 1));
    // It has replaced none of the same TOS.
    added.route(RouteEvent::Replaced, table, prefix, one.clone());
    world.route(RouteEvent::Deleted, table, prefix, one);
    world.route(RouteEvent::Deleted, table, prefix, via("10.0.0.1", 1));
    assert!(world.mirror.ipv4().get(table, prefix.parse().unwrap()).is_empty());
}

#[test]
fn a_doubt_without_a_route_leads_to_linux_until_read_again() {
    let (mut world, mut twin) = (World::new(), World::new());
    world.add("0.0.0.0/0", via("10.0.0.1", 1)).compile();
    doubt_without_route(&mut world, 254, "192.0.2.0/24");
    for step in [false, true] {
        if step {
            world.compile_all(&[Change::Everything]);
        }
        world.compile();
        assert_eq!(world.to("192.0.2.1"), Answer::Host);
        assert_eq!(world.is_sound(), Ok(()));
    }
    twin.add("0.0.0.0/0", via("10.0.0.1", 1));
    world.mirror.adopt(twin.mirror, &mut Findings::up_to(0));
    world.compile();
    assert_eq!(world.to("192.0.2.1"), resolve(1, "10.0.0.1"));
    assert_eq!(world.is_sound(), Ok(()));
}

#[test]
fn an_earlier_table_overrides_a_doubt_without_a_route() {
    let mut world = World::new();
    doubt_without_route(&mut world, 253, "10.1.0.0/16");
    world.compile();
    assert_eq!(world.to("10.1.1.1"), Answer::Host);
    world.route(RouteEvent::Added, 254, "10.0.0.0/8", of_kind(RouteKind::Blackhole)).compile();
    assert_eq!(world.to("10.1.1.1"), Answer::Blackhole);
    assert_eq!(world.is_sound(), Ok(()));
}

#[test]
fn a_doubt_without_a_route_hides_what_later_tables_have() {
    let mut world = World::new();
    doubt_without_route(&mut world, 255, "10.0.0.0/8");
    world.add("10.1.0.0/16", via("10.0.0.1", 1)).compile();
    assert_eq!(world.to("10.1.1.1"), Answer::Host);
    world.compile_all(&[Change::Everything]);
    assert_eq!(world.to("10.1.1.1"), Answer::Host);
    assert_eq!(world.is_sound(), Ok(()));
}
