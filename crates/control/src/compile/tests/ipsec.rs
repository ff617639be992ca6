//! IPsec interfaces: which links are, where routes by them lead, and what is left to Linux with a reason.

use super::*;
use bm_forward::tables::ipsec_mac;
use bm_wire::Vlan;

/// What a TUN device has: no MAC address, and no neighbors.
fn tun(ifindex: u32, name: &str, flags: u32) -> Link {
    let kind = Kind::Other("tun".into());
    Link { name: name.into(), hardware: 0xfffe, mac: None, kind, ..link(ifindex, flags | 0x90) }
}

fn xfrm(ifindex: u32, name: &str, if_id: u32) -> Link {
    Link { kind: Kind::Xfrm { if_id }, ..tun(ifindex, name, UP) }
}

fn world(configured: &[(&str, u32)]) -> World {
    let mut world = World::new();
    let configured = configured.iter().map(|(name, if_id)| ((*name).into(), *if_id)).collect();
    world.compiler.set_ipsec(Some(IpsecDevices { configured }));
    world
}

fn dev(ifindex: u32) -> Via {
    Via::One(Hop { ifindex, ..Hop::default() })
}

fn encrypted(if_id: u32, ifindex: u32) -> Answer {
    Answer::Forward { mac: ipsec_mac(if_id), ifindex }
}

fn troubles(world: &World) -> Vec<String> {
    world.compiler.ipsec_faults(&world.mirror).iter().map(ToString::to_string).collect()
}

#[test]
fn routes_by_an_ipsec_interface_lead_to_it() {
    let mut world = world(&[("ipsec0", 7)]);
    world.add("192.0.2.0/24", unicast(dev(9))).compile();
    // It does not exist yet.
    assert_eq!(world.to("192.0.2.1"), Answer::NoRoute);
    assert!(troubles(&world)[0].starts_with("IPsec interface ipsec0: there is no interface of this name"));
    world.tell(Message::Link(tun(9, "ipsec0", UP))).compile();
    assert_eq!((world.to("192.0.2.1"), troubles(&world)), (encrypted(7, 9), vec![]));
    world.add("198.51.100.0/24", unicast(Via::One(Hop::via(ip("10.99.0.2"), 9)))).compile();
    assert_eq!(world.to("198.51.100.1"), encrypted(7, 9));
    let shown = world.compiler.shown_next_hops(&world.mirror);
    let of_it = shown.next_hops.iter().filter_map(|hop| hop.hop.as_ref()).filter(|hop| hop.ifindex == 9);
    assert!(of_it.clone().count() == 2 && of_it.clone().all(|hop| hop.mac.is_none()));
    // It has no neighbors that would have to be kept.
    assert!(world.compiler.take_in_use().iter().all(|(ifindex, _)| *ifindex != 9));
    world.is_sound().unwrap();
    world.tell(Message::Link(tun(9, "ipsec0", NO_CARRIER))).compile();
    assert_eq!(world.to("192.0.2.1"), Answer::Unreachable);
    assert_eq!(troubles(&world), ["IPsec interface ipsec0: it has no carrier"]);
    world.tell(Message::LinkGone(9)).compile();
    assert_ne!(world.to("192.0.2.1"), encrypted(7, 9));
    world.is_sound().unwrap();
}

#[test]
fn without_ipsec_a_tun_device_is_linuxs() {
    let mut world = World::new();
    world.tell(Message::Link(tun(9, "ipsec0", UP))).tell(Message::Link(xfrm(10, "ipsec1", 8)));
    world.add("192.0.2.0/24", unicast(dev(9))).add("198.51.100.0/24", unicast(dev(10))).compile();
    assert_eq!((world.to("192.0.2.1"), world.to("198.51.100.1")), (Answer::Host, Answer::Host));
    world.compiler.set_ipsec(Some(IpsecDevices::default()));
    world.compile();
    // XFRM interfaces are found by themselves.
    assert_eq!((world.to("192.0.2.1"), world.to("198.51.100.1")), (Answer::Host, encrypted(8, 10)));
    world.compiler.set_ipsec(None);
    world.compile();
    assert_eq!(world.to("198.51.100.1"), Answer::Host);
    world.is_sound().unwrap();
}

#[test]
fn flows_are_spread_over_ipsec_interfaces_and_others() {
    let mut world = world(&[("ipsec0", 7), ("ipsec1", 8)]);
    world.tell(Message::Link(tun(9, "ipsec0", UP))).tell(Message::Link(tun(10, "ipsec1", UP)));
    let hop = |ifindex| Hop { ifindex, weight: 1, ..Hop::default() };
    let hops = [hop(9), hop(10), Hop { weight: 2, ..Hop::via(ip("10.0.0.1"), 1) }];
    world.add("0.0.0.0/0", unicast(Via::Many(hops.into())));
    world.neighbor(1, "10.0.0.1", neighbor::state::REACHABLE, Some(mac(1))).compile();
    let Answer::Group(shares) = world.to("8.8.8.8") else { panic!("a group") };
    let ways: Vec<_> = shares.iter().map(|(answer, _)| answer.clone()).collect();
    assert!(
        ways.contains(&encrypted(7, 9)) && ways.contains(&encrypted(8, 10)) && ways.len() == 3,
        "{ways:?}"
    );
    world.tell(Message::Link(tun(10, "ipsec1", NO_CARRIER))).compile();
    let Answer::Group(shares) = world.to("8.8.8.8") else { panic!("a group") };
    assert!(shares.iter().all(|(answer, _)| *answer != encrypted(8, 10)), "{shares:?}");
    assert!(shares.iter().any(|(answer, _)| *answer == Answer::Unreachable), "{shares:?}");
    world.is_sound().unwrap();
}

#[test]
fn all_interfaces_have_one_port_and_keep_their_tags() {
    let mut world = world(&[("ipsec0", 7), ("ipsec1", 8)]);
    let seen = |world: &World| {
        let reader = world.readers.register();
        let tables = world.compiler.published().load(&reader);
        let of = tables.interfaces.iter().filter(|own| own.if_id != 0);
        let mut all: Vec<_> = of.map(|own| (own.if_id, own.port, own.vlan.map(|tag| tag.id))).collect();
        all.sort_unstable();
        assert_eq!(tables.ports.len(), 3);
        all
    };
    world.tell(Message::Link(tun(10, "ipsec1", UP))).compile();
    assert_eq!(seen(&world), [(8, 2, None)]);
    world.tell(Message::Link(tun(9, "ipsec0", UP))).tell(Message::Link(xfrm(11, "x", 1))).compile();
    assert_eq!(seen(&world), [(1, 2, Some(2)), (7, 2, Some(1)), (8, 2, None)]);
    // A tag is not given again in the round in which it is released.
    world.tell(Message::LinkGone(10)).tell(Message::Link(xfrm(12, "y", 2))).compile();
    assert_eq!(seen(&world), [(1, 2, Some(2)), (2, 2, Some(3)), (7, 2, Some(1))]);
    world.tell(Message::Link(xfrm(13, "z", 3))).compile();
    assert_eq!(seen(&world), [(1, 2, Some(2)), (2, 2, Some(3)), (3, 2, None), (7, 2, Some(1))]);
    let reader = world.readers.register();
    let ports = world.compiler.published().load(&reader).ports.clone();
    assert!(ports[2].tagged.iter().all(|(Vlan { protocol, .. }, _)| *protocol == 0x8100));
    world.is_sound().unwrap();
}

/// Linux would send packets of this machine, and all packets while no daemon runs, in clear.
#[test]
fn an_interface_by_which_linux_sends_is_refused() {
    let mut world = world(&[("ipsec0", 7)]);
    world.add("192.0.2.0/24", unicast(dev(9)));
    for kind in [Kind::Device, Kind::Veth, Kind::Other("wireguard".into())] {
        let why =
            format!("IPsec interface ipsec0: it is of kind {kind}, by which Linux sends packets in clear");
        world.tell(Message::Link(Link { kind, ..tun(9, "ipsec0", UP) })).compile();
        assert!(troubles(&world)[0].starts_with(&why), "{:?}", troubles(&world));
        assert_ne!(world.to("192.0.2.1"), encrypted(7, 9));
    }
    world.tell(Message::Link(tun(9, "ipsec0", UP))).compile();
    assert_eq!((world.to("192.0.2.1"), troubles(&world)), (encrypted(7, 9), vec![]));
}

#[test]
fn an_interface_has_the_table_of_its_vrf() {
    let mut world = world(&[("ipsec0", 7)]);
    world.tell(Message::Link(Link { kind: Kind::Vrf { table: 10 }, ..link(20, UP) }));
    world.tell(Message::Link(Link { master: Some(20), ..tun(9, "ipsec0", UP) })).compile();
    let reader = world.readers.register();
    let vrfs: Vec<_> =
        world.compiler.published().load(&reader).interfaces.iter().map(|own| own.vrf).collect();
    assert_eq!(vrfs, [0, 0, 1]);
    world.is_sound().unwrap();
}

#[test]
fn what_only_linux_may_send_there_is_left_to_linux() {
    let mut world = world(&[]);
    world.tell(Message::Link(xfrm(9, "ipsec0", 7))).add("192.0.2.0/24", unicast(dev(9)));
    world.only_linux([Traffic::Out(9)]).compile();
    assert_eq!(world.to("192.0.2.1"), Answer::LinuxOnly(9));
    world.only_linux([]).compile();
    assert_eq!(world.to("192.0.2.1"), encrypted(7, 9));
}

#[test]
fn links_that_cannot_be_are_left_to_linux_with_a_reason() {
    let far = Link { lower: Some(1), lower_namespace: Some(0), ..xfrm(11, "far", 3) };
    let bridged = Link { master: Some(30), ..tun(12, "bridged", UP) };
    let mut world =
        world(&[("eth1", 1), ("ipsec0", 2), ("ipsec1", 2), ("bridged", 4), ("other", 5), ("eth30", 6)]);
    world.tell(Message::Link(Link { kind: Kind::Bridge, ..link(30, UP) }));
    for link in
        [tun(9, "ipsec0", UP), tun(10, "ipsec1", UP), far, bridged, xfrm(13, "other", 9), xfrm(14, "x", 2)]
    {
        world.tell(Message::Link(link));
    }
    for ifindex in 9..15 {
        world.add(&format!("10.{ifindex}.0.0/16"), unicast(dev(ifindex)));
    }
    world.compile();
    let reasons = [
        ("eth1", "it is a port"),
        ("ipsec1", "ipsec0 has the same if_id 2"),
        ("bridged", "it is in a bridge or a bond"),
        ("other", "it has if_id 9, the configuration says 5"),
        ("eth30", "it is a bridge"),
        ("far", "its SAs are in another network namespace"),
        ("x", "ipsec0 has the same if_id 2"),
    ];
    let found = troubles(&world);
    assert_eq!(found.len(), reasons.len(), "{found:#?}");
    for (name, why) in reasons {
        let said = format!("IPsec interface {name}: {why}");
        assert!(found.iter().any(|trouble| trouble.starts_with(&said)), "{said}: {found:#?}");
    }
    let answers: Vec<_> = (9..15).map(|ifindex| world.to(&format!("10.{ifindex}.0.1"))).collect();
    assert_eq!(answers[0], encrypted(2, 9));
    assert!(answers[1..].iter().all(|answer| *answer == Answer::Host), "{answers:?}");
    world.is_sound().unwrap();
}
