//! Feasible reverse paths (docs/conformance.md 78).

use super::*;
use bm_fib::sets;

fn via(gateway: &str, ifindex: u32) -> RouteBody {
    unicast(Via::One(Hop::via(ip(gateway), ifindex)))
}

impl World {
    /// The interfaces on which packets from an address may arrive besides the best one.
    fn feasible_interfaces(&self, source: &str) -> Vec<u32> {
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
fn every_route_to_the_prefix_is_a_feasible_path() {
    let mut world = World::new();
    let worse = |gateway, ifindex| RouteBody { priority: 500, ..via(gateway, ifindex) };
    world.add("192.0.2.0/24", via("10.0.0.1", 1)).add("192.0.2.0/24", worse("10.0.1.1", 2));
    world.add("0.0.0.0/0", via("10.0.0.1", 1)).add("192.0.2.128/25", via("10.0.0.1", 1));
    world.add("2001:db8::/32", via("fe80::1", 1)).add("2001:db8::/32", worse("fe80::2", 2)).compile();
    assert_eq!(world.feasible_interfaces("192.0.2.1"), [1, 2]);
    assert_eq!(world.feasible_interfaces("2001:db8::1"), [1, 2]);
    assert_eq!(
        world.feasible_interfaces("192.0.2.200"),
        [0; 0],
        "a longer prefix has a route of its own alone"
    );
    assert_eq!(world.feasible_interfaces("203.0.113.1"), [0; 0], "the best route is asked for elsewhere");
    // The worse route is removed, and added again.
    world.delete("192.0.2.0/24", worse("10.0.1.1", 2)).compile();
    assert_eq!(world.feasible_interfaces("192.0.2.1"), [0; 0]);
    world.add("192.0.2.0/24", worse("10.0.1.1", 2)).delete("192.0.2.128/25", via("10.0.0.1", 1)).compile();
    assert_eq!(
        (world.feasible_interfaces("192.0.2.1"), world.feasible_interfaces("192.0.2.200")),
        (vec![1, 2], vec![1, 2])
    );
    world.is_sound().unwrap();
}

#[test]
fn all_members_of_a_group_are_feasible_paths() {
    let mut world = World::new();
    let hops = [("10.0.0.1", 1), ("10.0.1.1", 2)].map(|(gateway, on)| Hop::via(ip(gateway), on));
    world.add("192.0.2.0/24", unicast(Via::Many(hops.into()))).compile();
    assert_eq!(world.feasible_interfaces("192.0.2.1"), [1, 2]);
    world.tell(Message::Link(link(2, NO_CARRIER))).compile();
    assert_eq!(world.feasible_interfaces("192.0.2.1"), [1, 2]);
    world.tell(Message::LinkGone(2)).compile();
    assert_eq!(world.feasible_interfaces("192.0.2.1"), [0; 0], "one is left, and it is the best");
    world.is_sound().unwrap();
}

#[test]
fn reverse_paths_exist_only_while_needed() {
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

/// Ports 1 to 92, and a route for each pair of them: 4,186 sets.
fn pairs() -> World {
    let mut world = World::new();
    world.ports = (1..=92).map(Some).collect();
    world.compiler.set_ports(world.ports.clone());
    for ifindex in 1..=92 {
        world.tell(Message::Link(link(ifindex, UP)));
    }
    let pairs = (1..=92u32).flat_map(|one| (one + 1..=92).map(move |two| [one, two]));
    for (at, [one, two]) in pairs.enumerate() {
        let address = format!("10.{}.{}.0/24", at / 256, at % 256);
        let worse = RouteBody { priority: 9, ..via("10.0.1.1", two) };
        world.add(&address, via("10.0.0.1", one)).add(&address, worse);
    }
    world.compile();
    world
}

#[test]
fn without_a_free_set_sources_pass_with_a_warning() {
    let mut world = pairs();
    let routes = 92 * 91 / 2;
    assert_eq!((routes, sets::ROOM), (4186, 4093));
    assert_eq!(
        (world.feasible_interfaces("10.0.0.1"), world.feasible_interfaces("10.0.91.1").len()),
        (vec![1, 2], 2)
    );
    let without = routes - sets::ROOM;
    let every = (0..routes)
        .filter(|at| world.feasible_interfaces(&format!("10.{}.{}.1", at / 256, at % 256)).len() == 92);
    assert_eq!(every.count(), without);
    let notes = world.compiler.notes(&world.mirror);
    assert!(
        notes.iter().any(|note| note.contains(&format!("reverse paths of {without} routes: "))),
        "{notes:?}"
    );
    let comparison = world.compiler.verify(&world.mirror);
    let refused = |(area, why): &&(bm_api::Area, String)| {
        *area == bm_api::Area::Refused && why.starts_with("no free set for the feasible reverse paths of 10.")
    };
    assert_eq!(
        comparison.differences.iter().filter(refused).count(),
        without,
        "{:?}",
        comparison.differences.first()
    );
    world.is_sound().unwrap();
}

#[test]
fn without_room_every_source_passes() {
    let mut world = World::new();
    world.add("192.0.2.0/24", via("10.0.0.1", 1)).compile();
    plain::ROOM.set(0);
    let before = plain::EMPTIED.get();
    world.add("192.0.2.128/25", via("10.0.0.1", 1)).compile();
    assert!(world.compiler.ipv4.has_lost_sources() && !world.compiler.ipv6.has_lost_sources());
    assert_eq!(
        (world.feasible_interfaces("192.0.2.1"), world.feasible_interfaces("203.0.113.1")),
        (vec![1, 2], vec![1, 2])
    );
    assert_eq!(plain::EMPTIED.get(), before, "at no moment is a source without an entry");
    plain::ROOM.set(usize::MAX);
}

#[test]
fn without_memory_for_reverse_paths_every_source_passes() {
    let memory = Arc::new(Scarce::default());
    let mut world = World::in_memory(Options::default(), memory.clone());
    world.add("192.0.2.0/24", via("10.0.0.1", 1)).compile();
    assert_eq!(world.compiler.source_check(SourceRule::Own(ReversePath::Feasible)), ReversePath::Feasible);
    memory.refuse(&[Part::Sources6]);
    world.add("198.51.100.0/24", via("10.0.0.1", 1));
    world.compile_all(&[Change::Everything]);
    assert!(world.last.published);
    assert_eq!(world.to("198.51.100.1"), Answer::Resolve(1, Some(ip("10.0.0.1"))));
    assert_eq!(world.compiler.source_check(SourceRule::Own(ReversePath::Feasible)), ReversePath::Off);
    assert_eq!(world.compiler.source_check(SourceRule::Own(ReversePath::Strict)), ReversePath::Strict);
    let notes = world.compiler.notes(&world.mirror);
    assert!(notes.iter().any(|note| note.contains("no room for the feasible reverse paths")), "{notes:?}");
    // It is tried again when tables are created again, not with each change.
    memory.refuse(&[]);
    world.add("203.0.113.0/24", via("10.0.0.1", 1)).compile();
    assert!(world.compiler.lacks_sources());
    world.compile_all(&[Change::Everything]);
    assert!(!world.compiler.lacks_sources());
    world.is_sound().unwrap();
}
