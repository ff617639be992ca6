//! Tests which families are forwarded by flow.

use super::*;
use bm_firewall::Addresses;

/// `NETCONFA_FORWARDING`.
const FORWARDING: u8 = 2;
const ALL: Traffic = Traffic::All { ipv4: true, ipv6: true };
const IPV4: Traffic = Traffic::All { ipv4: true, ipv6: false };

fn entry(traffic: Traffic, repeats: Repeats) -> LinuxOnly {
    LinuxOnly { feature: Feature::Nftables, traffic, repeats, why: "a rule".into() }
}

fn each_flow(traffic: Traffic) -> LinuxOnly {
    entry(traffic, Repeats::EachFlow)
}

fn each_packet(traffic: Traffic) -> LinuxOnly {
    entry(traffic, Repeats::EachPacket)
}

/// TCP packets to an IPv4 prefix.
fn matching() -> Traffic {
    let addresses = Addresses::Ipv4(None, "192.0.2.0/24".parse().ok());
    Traffic::Matching(Match { addresses, protocol: Some(6), ..Match::default() })
}

/// A world that forwards on two interfaces, with a table of flows or without one, and with this list.
fn world(flows: bool, list: &[LinuxOnly]) -> World {
    let mut world = World::new();
    for ifindex in [history::ALL, 1, 2] {
        for family in [2, 10] {
            world.tell(history::netconf_of(family, ifindex, FORWARDING, 1));
        }
    }
    world.compiler.set_flows(flows);
    world.compiler.set_linux_only(list);
    world.compile();
    world
}

/// What becomes of packets that arrive on an interface.
#[derive(Debug, PartialEq, Eq)]
struct Fate {
    forward: [bool; 2],
    linux_only_in: [bool; 2],
    by_flow: [bool; 2],
    linux_only_out: bool,
}

impl World {
    fn fate(&self, ifindex: u32) -> Fate {
        let own = self.compiler.interfaces().by_ifindex(ifindex).unwrap();
        Fate {
            forward: [own.forward_ipv4, own.forward_ipv6],
            linux_only_in: own.linux_only_in,
            by_flow: own.by_flow,
            linux_only_out: own.linux_only_out,
        }
    }
}

/// Packets of these families are forwarded by flow, and the others by brickmoon.
fn by_flow(families: [bool; 2]) -> Fate {
    Fate {
        forward: families.map(|by_flow| !by_flow),
        linux_only_in: families,
        by_flow: families,
        linux_only_out: false,
    }
}

#[test]
fn entries_that_repeat_make_their_families_by_flow() {
    for (traffic, families) in [
        (ALL, [true, true]),
        (IPV4, [true, false]),
        (Traffic::In(1), [true, true]),
        (Traffic::Out(2), [true, true]),
        (matching(), [true, false]),
        (Traffic::Matching(Match::default()), [true, true]),
    ] {
        let world = world(true, &[each_flow(traffic.clone())]);
        for ifindex in [1, 2] {
            assert_eq!(world.fate(ifindex), by_flow(families), "{traffic:?}");
        }
        assert_eq!(world.compiler.by_flow(), families);
        assert_eq!(world.compiler.filters(), None, "flows decide, no rules: {traffic:?}");
    }
}

#[test]
fn entries_for_each_packet_stay_as_they_are() {
    let all = world(true, &[each_flow(ALL), each_packet(IPV4)]);
    let left =
        Fate { forward: [false; 2], linux_only_in: [true; 2], by_flow: [false, true], linux_only_out: false };
    assert_eq!(all.fate(1), left);
    let in_one = world(true, &[each_flow(IPV4), each_packet(Traffic::In(1))]);
    assert_eq!(in_one.fate(1), Fate { by_flow: [false; 2], ..left });
    assert_eq!(in_one.fate(2), by_flow([true, false]));
    let out_one = world(true, &[each_flow(IPV4), each_packet(Traffic::Out(1))]);
    assert_eq!(out_one.fate(1), Fate { linux_only_out: true, ..by_flow([true, false]) });
    let ruled = world(true, &[each_flow(IPV4), each_packet(matching())]);
    assert_eq!(ruled.fate(1), by_flow([true, false]));
    assert!(ruled.compiler.filters().is_some(), "programs look for its packets ahead of flows");
    // These are about packets that are never of a flow.
    let fragments = Traffic::Fragments { ipv4: true, ipv6: false };
    assert_eq!(world(true, &[each_flow(fragments)]).fate(1), by_flow([false; 2]));
}

#[test]
fn without_a_table_of_flows_nothing_repeats() {
    for traffic in [ALL, IPV4, Traffic::In(1), Traffic::Out(2), matching()] {
        let [repeats, packets] = [Repeats::EachFlow, Repeats::EachPacket]
            .map(|repeats| world(false, &[entry(traffic.clone(), repeats)]));
        for ifindex in [1, 2] {
            assert_eq!(repeats.fate(ifindex), packets.fate(ifindex), "{traffic:?}");
            assert_eq!(repeats.fate(ifindex).by_flow, [false; 2]);
        }
        assert_eq!(repeats.compiler.filters().is_some(), packets.compiler.filters().is_some());
    }
}

#[test]
fn too_many_rules_leave_all_packets_to_linux() {
    let rule = |number: u32| {
        let addresses = Addresses::Ipv4(None, Prefix::containing(number << 8, 32));
        each_packet(Traffic::Matching(Match { addresses, ..Match::default() }))
    };
    let list: Vec<LinuxOnly> = (0..5000).map(rule).chain([each_flow(ALL)]).collect();
    let world = world(true, &list);
    assert_eq!((world.fate(1).by_flow, world.fate(1).linux_only_in), ([false; 2], [true; 2]));
}

#[test]
fn an_interface_that_does_not_forward_has_no_flows() {
    let mut world = World::new();
    world.compiler.set_flows(true);
    world.compiler.set_linux_only(&[each_flow(ALL)]);
    world.compile();
    assert_eq!(world.fate(1).by_flow, [false; 2]);
}
