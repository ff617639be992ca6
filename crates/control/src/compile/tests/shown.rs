//! What the API shows of the compiled tables.

use super::*;
use bm_api::request::RouteQuery;
use bm_api::{Action, Route, RouteState};
use bm_netlink::next_hop::{Member, Object};
use neighbor::state::{REACHABLE, STALE};

fn via(gateway: &str, ifindex: u32) -> RouteBody {
    RouteBody { protocol: 186, priority: 20, ..unicast(Via::One(Hop::via(ip(gateway), ifindex))) }
}

fn all(world: &World, query: &RouteQuery) -> Vec<Route> {
    let (mut query, mut list) = (query.clone(), Vec::new());
    loop {
        let page = world.compiler.shown_routes(&world.mirror, &query).unwrap();
        assert!(page.routes.len() <= query.limit.unwrap_or(usize::MAX));
        list.extend(page.routes);
        match page.next {
            Some(next) => query.after = Some(next),
            None => return list,
        }
    }
}

fn prefixes(world: &World, query: &RouteQuery) -> Vec<String> {
    all(world, query).into_iter().map(|route| route.prefix).collect()
}

fn refused(world: &World, query: &RouteQuery) -> String {
    world.compiler.shown_routes(&world.mirror, query).unwrap_err().to_string()
}

fn some() -> World {
    let mut world = World::new();
    for prefix in ["0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/24", "10.9.0.0/16", "192.0.2.0/24"] {
        world.add(prefix, via("10.0.0.1", 1));
    }
    for prefix in ["::/0", "2001:db8::/32", "2001:db8:1::/48"] {
        world.add(prefix, via("fe80::1", 1));
    }
    world.compile();
    world
}

#[test]
fn pages_list_all_routes_in_order() {
    let world = some();
    let whole = prefixes(&world, &RouteQuery::default());
    let expected = [
        "0.0.0.0/0",
        "10.0.0.0/8",
        "10.0.0.0/16",
        "10.0.0.0/24",
        "10.9.0.0/16",
        "192.0.2.0/24",
        "::/0",
        "2001:db8::/32",
        "2001:db8:1::/48",
    ];
    assert_eq!(whole, expected);
    for limit in 1..=10 {
        let query = RouteQuery { limit: Some(limit), ..RouteQuery::default() };
        assert_eq!(prefixes(&world, &query), whole, "pages of {limit}");
    }
    let page = world.compiler.shown_routes(&world.mirror, &RouteQuery::default()).unwrap();
    assert_eq!((page.total_ipv4, page.total_ipv6), (6, 3));
}

#[test]
fn a_query_selects_routes() {
    let world = some();
    let within = |prefix: &str, limit| RouteQuery {
        prefix: Some(prefix.into()),
        limit: Some(limit),
        ..RouteQuery::default()
    };
    for limit in 1..4 {
        let found = prefixes(&world, &within("10.0.0.0/9", limit));
        assert_eq!(found, ["10.0.0.0/16", "10.0.0.0/24", "10.9.0.0/16"]);
        assert_eq!(prefixes(&world, &within("2001:db8::/32", limit)), ["2001:db8::/32", "2001:db8:1::/48"]);
    }
    let address = |text: &str| RouteQuery { address: Some(text.into()), ..RouteQuery::default() };
    assert_eq!(prefixes(&world, &address("10.0.77.1")), ["10.0.0.0/16"]);
    assert_eq!(prefixes(&world, &address("2001:db8:1::5")), ["2001:db8:1::/48"]);
    let family = RouteQuery { family: Some(6), limit: Some(2), ..RouteQuery::default() };
    assert_eq!(prefixes(&world, &family), ["::/0", "2001:db8::/32", "2001:db8:1::/48"]);
}

#[test]
fn an_invalid_request_is_answered_with_a_hint() {
    let mut world = some();
    let prefix = |text: &str| RouteQuery { prefix: Some(text.into()), ..RouteQuery::default() };
    let hint = "write it as 192.0.2.0/24 or 2001:db8::/32";
    assert_eq!(
        refused(&world, &prefix("192.0.2.1/24")),
        format!("\"192.0.2.1/24\": has bits past its length: {hint}")
    );
    assert_eq!(refused(&world, &prefix("home")), format!("\"home\": not an address: {hint}"));
    let address = RouteQuery { address: Some("192.0.2".into()), ..RouteQuery::default() };
    assert_eq!(refused(&world, &address), "\"192.0.2\" is not an IP address");
    let vrf = RouteQuery { vrf: Some("blue".into()), ..RouteQuery::default() };
    assert_eq!(refused(&world, &vrf), "unknown VRF \"blue\": `ip vrf` lists VRFs");
    world
        .tell(Message::Link(Link { kind: Kind::Vrf { table: 10 }, name: "blue".into(), ..link(9, UP) }))
        .compile();
    assert!(refused(&world, &vrf).starts_with("no port is in the VRF \"blue\""));
}

#[test]
fn routes_show_their_action_and_reason() {
    let mut world = World::new();
    world.neighbor(1, "10.0.0.1", REACHABLE, Some(mac(1))).neighbor(1, "192.0.2.9", STALE, Some(mac(9)));
    world.add("203.0.113.0/24", RouteBody { mtu: 1400, ..via("10.0.0.1", 1) });
    world.add("192.0.2.0/24", unicast(Via::One(Hop::link(1))));
    world.add("198.51.100.0/24", via("10.0.4.1", 4)).add("100.64.0.0/10", unicast(Via::Object(9)));
    world.add("10.7.0.0/16", RouteBody { tos: 8, ..via("10.0.0.1", 1) });
    world.tell(Message::Link(link(4, UP))).compile();
    let one = |world: &World, address: &str| {
        let query = RouteQuery { address: Some(address.into()), ..RouteQuery::default() };
        all(world, &query).remove(0)
    };
    let route = one(&world, "203.0.113.1");
    assert_eq!(
        (route.action, route.kind.as_str(), route.protocol.as_str()),
        (Action::Forward, "unicast", "bgp")
    );
    assert_eq!((route.metric, route.mtu_bytes, route.table, route.reason), (20, 1400, 254, None));
    let hop = &route.hops[0];
    assert_eq!(
        (hop.interface.as_str(), hop.gateway, hop.mac),
        ("eth1", Some(ip("10.0.0.1")), Some(bm_api::Mac(mac(1))))
    );
    let route = one(&world, "192.0.2.9");
    assert_eq!((route.prefix.as_str(), route.state, route.table), ("192.0.2.9/32", RouteState::Neighbor, 0));
    let route = one(&world, "198.51.100.1");
    let elsewhere = "its interface is not a port, or it needs an encapsulation";
    assert_eq!(
        (route.action, route.state, route.reason.as_deref()),
        (Action::Host, RouteState::Route, Some(elsewhere))
    );
    let route = one(&world, "100.64.0.1");
    let unknown = "unknown nexthop object 9";
    assert_eq!((route.state, route.reason.as_deref()), (RouteState::Refused, Some(unknown)));
    let route = one(&world, "10.7.0.1");
    let some = "it is only for some types of service or sources";
    assert_eq!(
        (route.action, route.state, route.reason.as_deref()),
        (Action::Host, RouteState::Route, Some(some))
    );
}

#[test]
fn next_hops_and_neighbors_are_shown_with_their_parts() {
    let mut world = World::new();
    for (id, gateway, ifindex) in [(1, "10.0.0.1", 1), (2, "10.0.1.1", 2)] {
        world.object(id, Object::Hop(Hop::via(ip(gateway), ifindex)));
    }
    let members = [(1, 1), (2, 3)].map(|(id, weight)| Member { id, weight });
    world.object(9, Object::Group { members: members.into(), resilient: None });
    world.add("0.0.0.0/0", unicast(Via::Object(9))).neighbor(2, "10.0.1.1", STALE, Some(mac(2))).compile();
    let next_hops = world.compiler.shown_next_hops(&world.mirror).next_hops;
    let group = next_hops.iter().find(|hop| hop.object == Some(9)).unwrap();
    assert_eq!((group.action, group.members.len(), group.users), (Action::Group, 2, 1));
    assert_eq!(group.members.iter().map(|share| share.weight).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(group.members[1].hop.as_ref().unwrap().mac, Some(bm_api::Mac(mac(2))));
    let neighbors = world.compiler.shown_neighbors(&world.mirror).neighbors;
    assert_eq!(neighbors.len(), 1);
    assert_eq!((neighbors[0].state.as_str(), neighbors[0].usable, neighbors[0].used), ("stale", true, false));
    assert_eq!(neighbors[0].next_hop, Some(group.members[1].index));
    world.compiler.targets.table().mark_used(bm_fib::NextHop(group.members[1].index));
    world.compiler.take_in_use();
    assert!(world.compiler.shown_neighbors(&world.mirror).neighbors[0].used);
}

#[test]
fn shows_the_lookup_structures() {
    let world = some();
    let both = world.compiler.shown_routes(&world.mirror, &RouteQuery::default()).unwrap().lookup;
    assert_eq!(both, world.compiler.lookup());
    let names: Vec<_> = both.iter().map(|table| (table.family.as_str(), table.structure.as_str())).collect();
    assert_eq!(names, [("ipv4", "plain"), ("ipv6", "plain")]);
    assert_eq!((both[0].version.as_str(), both[0].pages.as_str()), ("scalar", "plain pages"));
    assert!(both[0].memory_bytes > 0);
    let query = RouteQuery { family: Some(6), ..RouteQuery::default() };
    let six = world.compiler.shown_routes(&world.mirror, &query).unwrap().lookup;
    assert_eq!(six, both[1..]);
}
