//! Feasible ways back (CONFORMANCE.md 78).

use super::*;
use bm_fib::sets;

fn via(gateway: &str, ifindex: u32) -> RouteBody {
    unicast(Via::One(Hop::via(ip(gateway), ifindex)))
}

impl World {
    /// The interfaces that packets from an address may come in on besides the best.
    fn ways(&self, source: &str) -> Vec<u32> {
        let reader = self.readers.register();
        let tables = self.compiler.published().load(&reader);
        let feasible = &tables.feasible[0];
        let (set, sets) = match ip(source) {
            IpAddr::V4(source) => (feasible.ipv4.0.lookup(source.into()), &feasible.ipv4.1),
            IpAddr::V6(source) => (feasible.ipv6.0.lookup(source.into()), &feasible.ipv6.1),
        };
        let interfaces = tables.interfaces.iter().enumerate();
        interfaces.filter(|(at, _)| sets.holds(set, *at as u16)).map(|(_, on)| on.ifindex).collect()
    }
}

#[test]
fn every_route_to_the_prefix_is_a_way() {
    let mut world = World::new();
    let worse = |gateway, ifindex| RouteBody { priority: 500, ..via(gateway, ifindex) };
    world.add("192.0.2.0/24", via("10.0.0.1", 1)).add("192.0.2.0/24", worse("10.0.1.1", 2));
    world.add("0.0.0.0/0", via("10.0.0.1", 1)).add("192.0.2.128/25", via("10.0.0.1", 1));
    world.add("2001:db8::/32", via("fe80::1", 1)).add("2001:db8::/32", worse("fe80::2", 2)).compile();
    assert_eq!(world.ways("192.0.2.1"), [1, 2]);
    assert_eq!(world.ways("2001:db8::1"), [1, 2]);
    assert_eq!(world.ways("192.0.2.200"), [0; 0], "a longer prefix has a route of its own alone");
    assert_eq!(world.ways("203.0.113.1"), [0; 0], "the best route is asked for elsewhere");
    // The worse one goes, and comes again.
    world.delete("192.0.2.0/24", worse("10.0.1.1", 2)).compile();
    assert_eq!(world.ways("192.0.2.1"), [0; 0]);
    world.add("192.0.2.0/24", worse("10.0.1.1", 2)).delete("192.0.2.128/25", via("10.0.0.1", 1)).compile();
    assert_eq!((world.ways("192.0.2.1"), world.ways("192.0.2.200")), (vec![1, 2], vec![1, 2]));
    world.is_sound().unwrap();
}

#[test]
fn all_members_of_a_group_are_ways_alive_or_not() {
    let mut world = World::new();
    let hops = [("10.0.0.1", 1), ("10.0.1.1", 2)].map(|(gateway, on)| Hop::via(ip(gateway), on));
    world.add("192.0.2.0/24", unicast(Via::Many(hops.into()))).compile();
    assert_eq!(world.ways("192.0.2.1"), [1, 2]);
    world.tell(Message::Link(link(2, NO_CARRIER))).compile();
    assert_eq!(world.ways("192.0.2.1"), [1, 2]);
    world.tell(Message::LinkGone(2)).compile();
    assert_eq!(world.ways("192.0.2.1"), [0; 0], "one is left, and it is the best");
    world.is_sound().unwrap();
}

#[test]
fn ways_are_kept_only_while_somebody_asks() {
    let mut world = World::new();
    world.add("192.0.2.0/24", via("10.0.0.1", 1)).compile();
    let kept = |world: &World| {
        let reader = world.readers.register();
        world.compiler.published().load(&reader).feasible.len()
    };
    assert_eq!(kept(&world), 1);
    let choices = *world.compiler.choices();
    world.compiler.set_choices(Choices { feasible: false, ..choices });
    world.compile();
    assert!(world.last.published);
    assert_eq!(kept(&world), 0);
    world.compiler.set_choices(choices);
    world.compile();
    assert_eq!(kept(&world), 1);
}

#[test]
fn without_room_every_source_passes() {
    let mut world = World::new();
    for source in 0..=255u32 {
        let address = format!("192.0.{source}.0/24");
        world
            .add(&address, via("10.0.0.1", 1))
            .add(&address, RouteBody { priority: 9, ..via("10.0.1.1", 2) });
    }
    world.compile();
    let lost = world.compiler.ipv4.vrfs.values().filter_map(table::Table::sources).any(|s| s.is_lost());
    assert!(!lost, "the same set for all");
    assert_eq!(sets::SETS, 4096);
    assert_eq!(world.ways("192.0.77.1"), [1, 2]);
}
