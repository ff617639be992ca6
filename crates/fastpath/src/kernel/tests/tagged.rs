//! Frames with VLAN tags, in and out.

use super::*;
use crate::configuration::PortVlan;
use bm_wire::Vlan;

/// The frame with tags behind its addresses, the outer one first: type, then priority and number.
pub(super) fn tagged(frame: &[u8], tags: &[(u16, u16)]) -> Vec<u8> {
    let tags =
        tags.iter().flat_map(|(protocol, control)| [protocol.to_be_bytes(), control.to_be_bytes()].concat());
    [&frame[..12], &tags.collect::<Vec<_>>(), &frame[12..]].concat()
}

/// A lab whose port has VLAN 7 (interface 2), and which sends through VLAN 9 of another (interface 3, tag 88a8)
/// or that one's untagged interface (1).
pub(super) fn trunk() -> Option<(Lab, NextHop, NextHop)> {
    let mut lab = lab()?;
    let [input, output] = &lab.configuration.interfaces[..] else { unreachable!("two interfaces") };
    let mac = [2, 0, 0, 0, 0, 7];
    let vlan = Some(PortVlan { port: lab.ifindex, vlan: Vlan { protocol: 0x8100, id: 7 } });
    let seven = Interface { index: 2, ifindex: 207, vlan, mac, ..input.clone() };
    let vlan = Some(PortVlan { port: 77, vlan: Vlan { protocol: 0x88a8, id: 9 } });
    let nine = Interface { index: 3, ifindex: 209, vlan, ..output.clone() };
    lab.configuration.interfaces.extend([seven, nine]);
    lab.publish();
    let gateway = Gateway::default();
    let forward = |interface| Action::Forward { mac: [2, 0, 0, 1, 0, interface as u8], interface };
    let plain = lab.hops.add(forward(1), gateway, 0).unwrap();
    let nine = lab.hops.add(forward(3), gateway, 0).unwrap();
    Some((lab, plain, nine))
}

/// The frame as it leaves by the next hop of an interface: addresses, and one hop less.
fn sent(frame: &[u8], interface: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[..12].copy_from_slice(&[2, 0, 0, 1, 0, interface, 2, 0, 0, 0, 0, 2]);
    match frame[12] {
        8 => (frame[22], frame[24]) = (1, 0xcd),
        _ => frame[21] = 1,
    }
    frame
}

#[test]
fn tags_are_removed_added_and_changed() {
    let Some((mut lab, plain, nine)) = trunk() else { return };
    for frame in [&IPV4[..], &IPV6[..]] {
        let in_seven = tagged(frame, &[(0x8100, 0xa007)]);
        let padded = [&in_seven[..], &[0; 9]].concat();
        for (hop, tags, interface) in [(plain, vec![], 1), (nine, vec![(0x88a8, 9)], 3)] {
            lab.set4("198.51.100.0/24", hop);
            lab.set6("2001:db8:2::/48", hop);
            let untagged = tagged(&sent(frame, interface), &tags);
            assert_eq!(lab.pass(frame), (XDP_REDIRECT, untagged));
            // The priority that it came with stays with it.
            let with_priority: Vec<_> = tags.iter().map(|(protocol, id)| (*protocol, id | 0xa000)).collect();
            let expected = tagged(&sent(frame, interface), &with_priority);
            for frame in [&in_seven, &padded] {
                assert_eq!(lab.pass(frame), (XDP_REDIRECT, expected.clone()));
            }
        }
    }
    // Each was counted where it came in: those of the VLAN there.
    let forwarded = |interface| lab.kernel.counters(interface).unwrap().forwarded();
    assert_eq!((forwarded(0), forwarded(2)), (4, 8));
}

#[test]
fn blackhole_routes_reject_tagged_frames() {
    let Some((mut lab, ..)) = trunk() else { return };
    let hop = lab.hops.add(Action::Blackhole, Gateway::default(), 0).unwrap();
    lab.set4("198.51.100.0/24", hop);
    let frame = tagged(&IPV4, &[(0x8100, 7)]);
    assert_eq!(lab.pass(&frame), (XDP_DROP, frame.clone()));
    let drops = lab.kernel.counters(2).unwrap().drops().find(|(reason, _)| *reason == "blackhole");
    assert_eq!(drops, Some(("blackhole", 1)));
}

#[test]
fn vlan_0_is_a_priority_tag() {
    let Some((mut lab, plain, _)) = trunk() else { return };
    lab.set4("198.51.100.0/24", plain);
    assert_eq!(lab.pass(&tagged(&IPV4, &[(0x8100, 0x6000)])), (XDP_REDIRECT, sent(&IPV4, 1)));
    assert_eq!(lab.count("forwarded"), 1);
}

#[test]
fn frames_of_unknown_vlans_are_left_to_linux() {
    let Some((mut lab, plain, _)) = trunk() else { return };
    lab.set4("198.51.100.0/24", plain);
    let stacked = tagged(&IPV4, &[(0x88a8, 7), (0x8100, 7)]);
    let mut other_mac = tagged(&IPV4, &[(0x8100, 7)]);
    other_mac[5] = 9;
    let cut = &tagged(&IPV4, &[(0x8100, 7)])[..17];
    for frame in [&tagged(&IPV4, &[(0x8100, 8)]), &tagged(&IPV4, &[(0x88a8, 7)]), &stacked, &other_mac, cut] {
        lab.check_linux(frame, "linux_other_type");
    }
    // As Linux, a VLAN takes its own MAC too.
    let mut own_mac = tagged(&IPV4, &[(0x8100, 7)]);
    own_mac[5] = 7;
    assert_eq!(lab.pass(&own_mac), (XDP_REDIRECT, sent(&IPV4, 1)));
    // Stacked within a VLAN of ours: it is no IP.
    let before = lab.kernel.counters(2).unwrap().linux();
    assert_eq!(lab.pass(&tagged(&IPV4, &[(0x8100, 7), (0x8100, 8)])).0, XDP_PASS);
    assert_eq!(lab.kernel.counters(2).unwrap().linux() - before, 1);
    lab.configuration.interfaces[2].forward = [false, true];
    lab.publish();
    assert_eq!(lab.pass(&tagged(&IPV4, &[(0x8100, 7)])).0, XDP_PASS);
}

#[test]
fn filters_apply_to_tagged_frames() {
    use bm_filter::Filters;
    use bm_wire::ReversePath;
    let Some((mut lab, plain, _)) = trunk() else { return };
    lab.set4("198.51.100.0/24", plain);
    let back = Action::Forward { mac: [2; 6], interface: 2 };
    let back = lab.hops.add(back, Gateway::default(), 0).unwrap();
    lab.set4("192.0.2.0/24", back);
    lab.configuration.interfaces.iter_mut().for_each(|interface| {
        interface.check = ReversePath::Strict;
        interface.looked_at = interface.index != 1 && interface.index != 3;
    });
    lab.configuration.filters = Some(std::sync::Arc::new(Filters::default()));
    lab.publish();
    assert_eq!(lab.pass(&tagged(&IPV4, &[(0x8100, 7)])).0, XDP_REDIRECT, "the way back is that VLAN");
    assert_eq!(lab.pass(&IPV4), (XDP_DROP, IPV4.to_vec()), "and not the port itself");
    assert_eq!(lab.count("drop_reverse_path"), 1);
}
