use super::*;
use bm_netlink::hop::Hop;
use bm_netlink::route::{RouteEvent, RouteMessage};
use bm_netlink::{Change, LinkSysctls, Message};
use std::collections::BTreeMap;

const PORT: u32 = 7;

fn link(ifindex: u32, kind: &str) -> Link {
    let kind = if kind.is_empty() { Kind::Device } else { Kind::Other(kind.into()) };
    let mac = Some([2, 0, 0, 0, 0, ifindex as u8]);
    Link {
        ifindex,
        name: format!("if{ifindex}").into(),
        kind,
        mac,
        hardware: ETHERNET,
        mtu: 1500,
        ..Link::default()
    }
}

fn mirror(links: &[Link]) -> Mirror {
    let mut mirror = Mirror::default();
    mirror.apply(Message::Link(link(PORT, "")));
    links.iter().for_each(|link| mirror.apply(Message::Link(link.clone())));
    mirror
}

fn with(change: impl FnOnce(&mut Sysctls)) -> Vec<Traffic> {
    let (mut mirror, mut sysctls) = (Mirror::default(), Sysctls::default());
    change(&mut sysctls);
    mirror.set_sysctls(sysctls);
    of_mirror(&mirror).into_iter().map(|entry| entry.traffic).collect()
}

#[test]
fn defaults_leave_nothing_to_linux() {
    assert_eq!(with(|_| {}), []);
    assert_eq!(with(|now| (now.route_error_cost, now.route_error_burst) = (250, 1250)), []);
}

#[test]
fn settings_that_only_linux_follows_leave_their_packets_to_it() {
    let [four, six] = [Family::V4, Family::V6].map(|family| vec![all(family)]);
    let [errors4, errors6] = [Family::V4, Family::V6].map(|family| vec![errors(family)]);
    assert_eq!(with(|now| now.ip_forward_use_pmtu = 1), four);
    assert_eq!(with(|now| now.skip_notify_on_dev_down = 1), six);
    assert_eq!(with(|now| now.max_hbh_opts_number = 2), six);
    assert_eq!(with(|now| now.max_hbh_length = 64), six);
    assert_eq!(with(|now| now.icmp_errors_extension_mask = 1), errors4);
    assert_eq!(with(|now| now.icmpv6_errors_extension_mask = 1), errors6);
    assert_eq!(with(|now| now.auto_flowlabels = 0), errors6);
    assert_eq!(with(|now| (now.route_error_cost, now.route_error_burst) = (250, 1000)), errors4);
    assert_eq!(with(|now| now.route_localnet = 1).len(), 3);
}

#[test]
fn a_setting_of_a_link_is_about_what_comes_in_there() {
    let mut mirror = mirror(&[]);
    let own = LinkSysctls { route_localnet: true, ..LinkSysctls::default() };
    mirror.set_link_sysctls(BTreeMap::from([(PORT, own)]));
    let list = of_mirror(&mirror);
    let inputs = list.iter().filter_map(|entry| match &entry.traffic {
        Traffic::Matching(of) => of.input,
        _ => None,
    });
    assert_eq!(inputs.collect::<Vec<_>>(), [PORT, PORT]);
}

#[test]
fn upper_interfaces_that_take_frames_leave_the_port_to_linux() {
    let upper = |kind: &str, mode: Option<u32>| {
        let link = Link { lower: Some(PORT), macvlan_mode: mode, ..link(8, kind) };
        of_mirror(&mirror(&[link])).into_iter().map(|entry| entry.traffic).collect::<Vec<_>>()
    };
    for mode in BY_MAC {
        assert_eq!(upper("macvlan", Some(mode)), []);
    }
    for (kind, mode) in [("macvlan", Some(8)), ("macvlan", Some(16)), ("macvtap", Some(8)), ("macvlan", None)]
    {
        assert_eq!(upper(kind, mode), [Traffic::In(PORT)], "{kind} {mode:?}");
    }
    for kind in ["ipvlan", "ipvtap", "macsec", "rmnet", "dsa", "a-kind-of-tomorrow"] {
        assert_eq!(upper(kind, None), [Traffic::In(PORT)], "{kind}");
    }
    assert_eq!(upper("gre", None), []);
    let same =
        Link { lower: Some(PORT), macvlan_mode: Some(4), mac: link(PORT, "").mac, ..link(8, "macvlan") };
    assert_eq!(of_mirror(&mirror(std::slice::from_ref(&same)))[0].traffic, Traffic::In(PORT));
    let elsewhere = Link { lower_namespace: Some(0), ..same };
    assert_eq!(of_mirror(&mirror(&[elsewhere])), []);
    let ring = Link { takes_from: vec![PORT], ..link(8, "hsr") };
    assert_eq!(of_mirror(&mirror(&[ring]))[0].traffic, Traffic::In(PORT));
    let vlan = Link {
        maps_priorities: true,
        kind: Kind::Vlan { id: 5, protocol: 0x8100 },
        lower: Some(PORT),
        ..link(8, "")
    };
    assert_eq!(of_mirror(&mirror(&[vlan]))[0].traffic, Traffic::Out(8));
}

#[test]
fn interfaces_of_other_namespaces_take_frames_as_those_of_this_one() {
    let upper = |kind: &str, macvlan_mode: Option<u32>, same_mac: bool| {
        let mut mirror = mirror(&[]);
        let upper = Upper { ifindex: 7, namespace: 4_026_532_000, kind: kind.into(), macvlan_mode, same_mac };
        mirror.set_uppers(BTreeMap::from([(PORT, vec![upper])]));
        assert_eq!(mirror.take_changes().pop(), Some(Change::Link(PORT)));
        of_mirror(&mirror).into_iter().map(|entry| entry.traffic).collect::<Vec<_>>()
    };
    for kind in ["vlan", "vxlan"] {
        assert_eq!(upper(kind, None, true), [], "{kind}");
    }
    assert_eq!(upper("macvlan", Some(4), false), []);
    for (kind, mode, same_mac) in [
        ("macvlan", Some(4), true),
        ("macvlan", Some(8), false),
        ("macvlan", Some(16), false),
        ("macvlan", None, false),
        ("ipvlan", None, true),
        ("", None, false),
    ] {
        assert_eq!(upper(kind, mode, same_mac), [Traffic::In(PORT)], "{kind} {mode:?}");
    }
}

#[test]
fn unusual_addresses_leave_errors_to_linux() {
    let left = |local: &str, length, change: fn(&mut Address)| {
        let local = local.parse().unwrap();
        let mut address = Address {
            ifindex: PORT,
            local,
            length,
            peer: None,
            broadcast: None,
            scope: UNIVERSE,
            flags: 0x80,
        };
        change(&mut address);
        let mut mirror = mirror(&[]);
        mirror.apply(Message::Address(address));
        of_mirror(&mirror).into_iter().map(|entry| entry.traffic).collect::<Vec<_>>()
    };
    assert_eq!(left("192.0.2.1", 24, |_| {}), []);
    assert_eq!(left("192.0.2.1", 24, |address| address.flags |= Address::SECONDARY), []);
    assert_eq!(left("2001:db8::1", 64, |_| {}), []);
    assert_eq!(left("fe80::1", 64, |address| address.scope = 253), []);
    assert_eq!(
        left("192.0.2.1", 32, |address| address.peer = "192.0.2.2".parse().ok()),
        [errors(Family::V4)]
    );
    assert_eq!(left("192.0.2.1", 24, |address| address.scope = 253), [errors(Family::V4)]);
    for flag in [0x01, 0x04, 0x10, 0x20] {
        let now = match flag {
            0x01 => left("2001:db8::1", 64, |address| address.flags |= 0x01),
            0x04 => left("2001:db8::1", 64, |address| address.flags |= 0x04),
            0x10 => left("2001:db8::1", 64, |address| address.flags |= 0x10),
            _ => left("2001:db8::1", 64, |address| address.flags |= 0x20),
        };
        assert_eq!(now, [errors(Family::V6)], "{flag:#x}");
    }
}

#[test]
fn routes_that_choose_a_source_leave_errors_to_linux() {
    let left = |body: RouteBody| {
        let mut mirror = mirror(&[]);
        let (table, prefix) = (254, "198.51.100.0/24".parse().unwrap());
        let added = RouteMessage { event: RouteEvent::Added, table, prefix, body, lifetime: 0 };
        mirror.apply(Message::Route4(added));
        of_mirror(&mirror).into_iter().map(|entry| entry.traffic).collect::<Vec<_>>()
    };
    let hop = Hop { ifindex: PORT, ..Hop::default() };
    let on_link = RouteBody { via: Via::One(hop), protocol: 4, ..RouteBody::default() };
    let by_gateway = |source: Option<IpAddr>| RouteBody {
        via: Via::One(Hop { gateway: "192.0.2.9".parse().ok(), ..hop }),
        preferred_source: source,
        ..on_link.clone()
    };
    assert_eq!(left(on_link.clone()), [errors(Family::V4)]);
    assert_eq!(left(by_gateway(None)), []);
    assert_eq!(left(by_gateway("192.0.2.1".parse().ok())), [errors(Family::V4)]);
    assert_eq!(left(RouteBody { hop_limit: 99, ..by_gateway(None) }), [errors(Family::V4)]);
    assert_eq!(left(RouteBody { protocol: BY_KERNEL, ..on_link.clone() }), []);
    let elsewhere = RouteBody { via: Via::One(Hop { ifindex: 99, ..hop }), ..on_link };
    assert_eq!(left(elsewhere), [], "a tunnel has no neighbors");
}
