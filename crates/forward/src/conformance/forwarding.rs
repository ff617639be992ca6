//! Group A: validation and forwarding of IPv4.

use bm_stats::Reason;

use super::frames::{
    LEFT_HOST, LEFT_MAC, RIGHT_HOST, RIGHT_MAC, V4, error_ipv4, frame, sum_header, to_router,
};
use super::{LEFT, RIGHT, lab};
use crate::testing::{Answer, Lab};

/// 192.0.2.9:12345 > 8.8.8.8:53, UDP "data", TTL 64, to the router; the same as it leaves, TTL 63.
const IN: [u8; 46] = [
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 9, 8, 0, 0x45, 0, 0, 32, 0x12, 0x34, 0, 0, 64, 17, 0x96, 0x80, 192, 0,
    2, 9, 8, 8, 8, 8, 0x30, 0x39, 0, 53, 0, 12, 0, 0, b'd', b'a', b't', b'a',
];
const OUT: [u8; 46] = [
    2, 0, 0, 0, 2, 7, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 32, 0x12, 0x34, 0, 0, 63, 17, 0x97, 0x80, 192, 0,
    2, 9, 8, 8, 8, 8, 0x30, 0x39, 0, 53, 0, 12, 0, 0, b'd', b'a', b't', b'a',
];

/// Sends a frame that must be dropped, and returns the reasons under which it was counted.
fn lost(lab: &mut Lab, frame: &[u8]) -> Vec<(Reason, u64)> {
    assert!(lab.exchange(LEFT, frame).is_silence());
    lab.drops()
}

/// The default packet, with its header changed and a new checksum.
fn changed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut packet = V4::default().bytes();
    change(&mut packet);
    sum_header(&mut packet);
    to_router(&packet)
}

#[test]
fn forwards_byte_for_byte() {
    assert_eq!((V4::default().sent(), V4::default().routed()), (IN.to_vec(), OUT.to_vec()));
    assert_eq!(lab().exchange(LEFT, &IN).only(), Some((RIGHT, &OUT[..])));
}

#[test]
fn a1_to_a6_drops_what_is_no_packet() {
    let cases = [
        (to_router(&V4::default().bytes()[..19]), Reason::Ipv4Short),
        (IN[..13].to_vec(), Reason::EthernetShort),
        (
            {
                let mut bytes = IN;
                bytes[24] ^= 1;
                bytes.to_vec()
            },
            Reason::Ipv4Checksum,
        ),
        (changed(|packet| packet[0] = 0x55), Reason::Ipv4Version),
        (frame(LEFT_MAC, LEFT_HOST, 0x0800, &[0x65; 40]), Reason::Ipv4Version),
        (changed(|packet| packet[0] = 0x44), Reason::Ipv4HeaderLength),
        (changed(|packet| packet[0] = 0x40), Reason::Ipv4HeaderLength),
        (changed(|packet| packet[3] = 19), Reason::Ipv4TotalLength),
        (changed(|packet| (packet[0], packet[3]) = (0x46, 23)), Reason::Ipv4TotalLength),
        (changed(|packet| packet[3] = 33), Reason::Ipv4TotalLength),
        (changed(|packet| packet[2] = 0xff), Reason::Ipv4TotalLength),
    ];
    for (bytes, reason) in cases {
        assert_eq!(lost(&mut lab(), &bytes), [(reason, 1)], "{bytes:02x?}");
    }
}

#[test]
fn a7_padding_is_not_forwarded() {
    let mut padded = IN.to_vec();
    padded.resize(60, 0xaa);
    assert_eq!(lab().exchange(LEFT, &padded).only(), Some((RIGHT, &OUT[..])));
}

#[test]
fn a8_ttl_2_leaves_with_ttl_1() {
    let packet = V4 { ttl: 2, ..V4::default() };
    let answer = lab().exchange(LEFT, &packet.sent());
    assert_eq!(answer.only(), Some((RIGHT, &packet.routed()[..])));
    assert_eq!(packet.routed()[22], 1);
}

#[test]
fn a9_a_spent_ttl_is_told() {
    for ttl in [1, 0] {
        let packet = V4 { ttl, ..V4::default() };
        let mut lab = lab();
        let answer = lab.exchange(LEFT, &packet.sent());
        let (port, error) = answer.only().unwrap();
        assert_eq!((port, error), (LEFT, &error_ipv4("192.0.2.1", 11, 0, 0, &packet.bytes(), error)[..]));
        assert_eq!(lab.drops(), [(Reason::TtlExceeded, 1)]);
    }
}

#[test]
fn a10_what_is_ours_reaches_linux_whatever_its_ttl() {
    for ttl in [0, 1, 2, 255] {
        for destination in ["192.0.2.1", "198.51.100.1", "192.0.2.255", "198.51.100.255"] {
            let frame = V4 { ttl, ..V4::to(destination) }.sent();
            let answer = lab().exchange(LEFT, &frame);
            assert_eq!(answer, Answer { sent: vec![], host: vec![(LEFT, frame)] }, "{destination}");
        }
    }
}

#[test]
fn a11_incremental_sums_are_full_sums() {
    // All checksums: the identification takes every value. Many frames at once, as a burst.
    let mut lab = lab();
    for first in (0..=u16::MAX).step_by(512) {
        let ids = first..=first + 511;
        let packet = |id| V4 { id, ..V4::default() };
        ids.clone().for_each(|id| lab.send(LEFT, &packet(id).sent()));
        lab.run();
        let expected: Vec<_> = ids.map(|id| packet(id).routed()).collect();
        assert!(lab.take(RIGHT) == expected, "ids from {first}");
    }
}

#[test]
fn a12_a13_the_longest_match_wins_and_falls_back() {
    let prefixes =
        ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.128/25", "10.1.2.200/32"];
    let mut lab = lab();
    for (at, prefix) in prefixes.iter().enumerate() {
        let gateway = format!("198.51.100.{}", 100 + at);
        lab.change(&format!("neighbor {gateway} right 02:00:00:00:09:{at:02x}"));
        lab.change(&format!("route {prefix} via {gateway} right"));
    }
    let matched = |lab: &mut Lab| {
        let answer = lab.exchange(LEFT, &V4::to("10.1.2.200").sent());
        answer.only().map(|(_, frame)| usize::from(frame[5]))
    };
    let others = [("11.0.0.1", 0), ("10.9.9.9", 1), ("10.1.9.9", 2), ("10.1.2.9", 3), ("10.1.2.129", 4)];
    for (destination, expected) in others {
        let answer = lab.exchange(LEFT, &V4::to(destination).sent());
        assert_eq!(usize::from(answer.only().unwrap().1[5]), expected, "{destination}");
    }
    for at in (0..prefixes.len()).rev() {
        assert_eq!(matched(&mut lab), Some(at));
        lab.change(&format!("no route {}", prefixes[at]));
    }
    assert_ne!(matched(&mut lab), Some(0));
}

#[test]
fn a14_a15_routes_that_refuse() {
    let text = "route 10.1.0.0/16 unreachable
        route 10.2.0.0/16 prohibit
        route 10.3.0.0/16 blackhole";
    let cases = [
        ("10.1.1.1", Some(1), Reason::Unreachable),
        ("10.2.1.1", Some(13), Reason::Prohibit),
        ("10.3.1.1", None, Reason::Blackhole),
        ("10.4.1.1", Some(0), Reason::NoRoute),
    ];
    for (destination, code, reason) in cases {
        // An expired TTL makes no difference: the route is looked up first, as in Linux.
        for ttl in [64, 1] {
            let mut lab = lab();
            lab.change(text);
            let packet = V4 { ttl, ..V4::to(destination) };
            let answer = lab.exchange(LEFT, &packet.sent());
            match code {
                Some(code) => {
                    let (port, error) = answer.only().unwrap();
                    let expected = error_ipv4("192.0.2.1", 3, code, 0, &packet.bytes(), error);
                    assert_eq!((port, error), (LEFT, &expected[..]));
                }
                None => assert!(answer.is_silence()),
            }
            assert_eq!(lab.drops(), [(reason, 1)]);
        }
    }
}

#[test]
fn a16_unicast_in_a_link_broadcast_is_not_forwarded() {
    for mac in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
        let packet = V4::default().bytes();
        assert_eq!(lost(&mut lab(), &frame(mac, LEFT_HOST, 0x0800, &packet)), [(Reason::LinkBroadcast, 1)]);
        // Packets to this machine, and those without a route, are for Linux to check.
        let ours = frame(mac, LEFT_HOST, 0x0800, &V4::to("192.0.2.1").bytes());
        assert_eq!(lab().exchange(LEFT, &ours).host, [(LEFT, ours)]);
    }
}

#[test]
fn a17_a18_broadcasts_are_never_forwarded() {
    let sources = ["192.0.2.9", "0.0.0.0", "255.255.255.255"];
    for (mac, source) in [([0xff; 6], sources[0]), (LEFT_MAC, sources[1]), (LEFT_MAC, sources[2])] {
        let limited = V4 { source, ..V4::to("255.255.255.255") }.bytes();
        let limited = frame(mac, LEFT_HOST, 0x0800, &limited);
        assert_eq!(lab().exchange(LEFT, &limited), Answer { sent: vec![], host: vec![(LEFT, limited)] });
    }
    // A directed broadcast of the other network goes to Linux, which drops it by default.
    let directed = V4::to("198.51.100.255").sent();
    assert_eq!(lab().exchange(LEFT, &directed), Answer { sent: vec![], host: vec![(LEFT, directed)] });
}

#[test]
fn a19_sources_that_no_host_has() {
    for source in ["127.0.0.1", "127.255.255.255", "224.0.0.1", "239.1.1.1", "255.255.255.255", "0.0.0.0"] {
        let packet = V4 { source, ..V4::default() };
        assert_eq!(lost(&mut lab(), &packet.sent()), [(Reason::Ipv4Source, 1)], "{source}");
    }
    // As Linux: these may be hosts.
    for source in ["240.0.0.1", "0.0.0.1", "254.1.1.1"] {
        let packet = V4 { source, ..V4::default() };
        assert_eq!(lab().exchange(LEFT, &packet.sent()).only(), Some((RIGHT, &packet.routed()[..])));
    }
}

#[test]
fn a19_a_source_that_is_our_own() {
    for source in ["192.0.2.1", "198.51.100.1", "203.0.113.1"] {
        let packet = V4 { source, ..V4::default() };
        assert_eq!(lost(&mut lab(), &packet.sent()), [(Reason::Ipv4Source, 1)]);
        // The slow and the fast path give the same result.
        let packet = V4 { options: vec![1, 1, 1, 1], ..packet };
        assert_eq!(lost(&mut lab(), &packet.sent()), [(Reason::Ipv4Source, 1)]);
    }
}

#[test]
fn a20_loopback_destinations() {
    for destination in ["127.0.0.1", "127.9.9.9", "0.0.0.0"] {
        assert_eq!(lost(&mut lab(), &V4::to(destination).sent()), [(Reason::Ipv4Destination, 1)]);
    }
}

#[test]
fn a21_link_local_is_forwarded_when_routed_as_in_linux() {
    let mut lab = lab();
    lab.change("route 169.254.0.0/16 via 198.51.100.7 right");
    let packet = V4::to("169.254.1.1");
    assert_eq!(lab.exchange(LEFT, &packet.sent()).only(), Some((RIGHT, &packet.routed()[..])));
    let packet = V4 { source: "169.254.1.1", ..V4::default() };
    assert_eq!(lab.exchange(LEFT, &packet.sent()).only(), Some((RIGHT, &packet.routed()[..])));
}

/// Sends a packet with `options` and expects them as `expected` on the other side.
fn carried(options: &[u8], expected: &[u8]) {
    let packet = V4 { options: options.to_vec(), ..V4::default() };
    let routed = V4 { options: expected.to_vec(), ..packet.clone() }.routed();
    assert_eq!(lab().exchange(LEFT, &packet.sent()).only(), Some((RIGHT, &routed[..])), "{options:?}");
}

#[test]
fn a22_unknown_options_are_carried() {
    carried(&[1, 1, 1, 0], &[1, 1, 1, 0]);
    carried(&[30, 4, 0xde, 0xad], &[30, 4, 0xde, 0xad]);
    carried(&[130, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[130, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a23_record_route_and_timestamp() {
    // Record Route gets the address of the egress interface, Timestamp the one that the source knows.
    carried(&[7, 7, 4, 0, 0, 0, 0, 0], &[7, 7, 8, 198, 51, 100, 1, 0]);
    carried(&[7, 7, 8, 9, 9, 9, 9, 0], &[7, 7, 8, 9, 9, 9, 9, 0]);
    carried(&[68, 8, 5, 0, 0, 0, 0, 0], &[68, 8, 9, 0, 1, 2, 3, 4]);
    carried(&[68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[68, 12, 13, 1, 192, 0, 2, 1, 1, 2, 3, 4]);
    carried(&[68, 12, 5, 3, 192, 0, 2, 1, 0, 0, 0, 0], &[68, 12, 13, 3, 192, 0, 2, 1, 1, 2, 3, 4]);
    carried(&[68, 8, 9, 0, 1, 1, 1, 1], &[68, 8, 9, 0x10, 1, 1, 1, 1]);
}

#[test]
fn a23_linux_records_an_uncertain_address() {
    let mut lab = lab();
    let mut tables = lab.tables();
    tables.linux_tells = [true, false];
    lab.publish(tables);
    let packet = V4 { options: vec![7, 7, 4, 0, 0, 0, 0, 0], ..V4::default() }.sent();
    assert_eq!(lab.exchange(LEFT, &packet), Answer { sent: vec![], host: vec![(LEFT, packet)] });
    let full = V4 { options: vec![7, 7, 8, 9, 9, 9, 9, 0], ..V4::default() };
    assert_eq!(lab.exchange(LEFT, &full.sent()).only(), Some((RIGHT, &full.routed()[..])));
}

#[test]
fn a23_pointers_that_lie_are_told() {
    let cases: [(&[u8], u32); 5] = [
        (&[7, 7, 3, 0, 0, 0, 0, 0], 22),
        (&[7, 7, 6, 0, 0, 0, 0, 0], 22),
        (&[7, 40, 4, 0], 20),
        (&[1, 7, 1, 0], 21),
        (&[68, 8, 9, 0xf0, 1, 1, 1, 1], 23),
    ];
    for (options, pointer) in cases {
        let packet = V4 { options: options.to_vec(), ..V4::default() };
        let mut lab = lab();
        let answer = lab.exchange(LEFT, &packet.sent());
        let (port, error) = answer.only().unwrap();
        let expected = error_ipv4("192.0.2.1", 12, 0, pointer << 24, &packet.bytes(), error);
        assert_eq!((port, error), (LEFT, &expected[..]), "{options:?}");
        assert_eq!(lab.drops(), [(Reason::Ipv4Options, 1)]);
    }
}

#[test]
fn a24_source_routes_are_dropped() {
    for options in [[131, 7, 4, 8, 8, 8, 8, 0], [137, 7, 4, 8, 8, 8, 8, 0]] {
        let packet = V4 { options: options.to_vec(), ..V4::default() };
        assert_eq!(lost(&mut lab(), &packet.sent()), [(Reason::Ipv4Options, 1)]);
        // To ourselves it is Linux's to refuse.
        let ours = V4 { options: options.to_vec(), ..V4::to("192.0.2.1") }.sent();
        assert_eq!(lab().exchange(LEFT, &ours).host, [(LEFT, ours)]);
    }
}

#[test]
fn a25_router_alert_reaches_linux_at_a_limited_rate() {
    let packet = V4 { options: vec![148, 4, 0, 0], ..V4::default() };
    let mut lab = lab();
    for _ in 0..300 {
        lab.send(LEFT, &packet.sent());
    }
    lab.run();
    assert_eq!(lab.take_host(LEFT), vec![packet.sent(); 100]);
    // The rest is routed as any other.
    assert_eq!(lab.take(RIGHT), vec![packet.routed(); 200]);
    assert_eq!(lab.counter("alerts_limited"), 200);
    lab.pass(10);
    lab.send(LEFT, &packet.sent());
    lab.run();
    assert_eq!(lab.take_host(LEFT).len(), 1);
}

#[test]
fn a26_a27_tos_and_the_reserved_bit_are_kept() {
    for tos in [0x03, 0xb8, 0xff] {
        let packet = V4 { tos, ..V4::default() };
        assert_eq!(lab().exchange(LEFT, &packet.sent()).only(), Some((RIGHT, &packet.routed()[..])));
    }
    for fragment in [0x8000, 0xc000] {
        let packet = V4 { fragment, ..V4::default() };
        assert_eq!(lab().exchange(LEFT, &packet.sent()).only(), Some((RIGHT, &packet.routed()[..])));
    }
}

#[test]
fn a28_frames_for_others_are_not_routed() {
    let packet = V4::default().bytes();
    for mac in [[2, 0, 0, 0, 0, 2], [0; 6], [2, 0, 0, 0, 0x80, 1]] {
        assert_eq!(lost(&mut lab(), &frame(mac, LEFT_HOST, 0x0800, &packet)), [(Reason::OtherHost, 1)]);
    }
}

#[test]
fn packets_other_than_ip_go_to_linux() {
    let others = [
        frame([0xff; 6], LEFT_HOST, 0x0806, &[0, 1, 8, 0, 6, 4, 0, 1]),
        frame(LEFT_MAC, LEFT_HOST, 0x0806, &[0, 1, 8, 0, 6, 4, 0, 2]),
        frame([1, 0x80, 0xc2, 0, 0, 14], LEFT_HOST, 0x88cc, &[2, 7, 4]),
        frame(LEFT_MAC, LEFT_HOST, 0x8847, &[0; 40]),
        frame([1, 0, 0x5e, 0, 0, 5], LEFT_HOST, 0x0800, &V4::to("224.0.0.5").bytes()),
        frame(LEFT_MAC, LEFT_HOST, 0x8100, &[0, 99, 8, 0, 0x45]),
    ];
    for other in others {
        let answer = lab().exchange(LEFT, &other);
        assert_eq!(answer, Answer { sent: vec![], host: vec![(LEFT, other)] });
    }
}

#[test]
fn where_forwarding_is_off_linux_decides() {
    let mut lab = lab();
    lab.change("interface left 0 02:00:00:00:00:01 no-forwarding 192.0.2.1/24");
    let sent = V4::default().sent();
    assert_eq!(lab.exchange(LEFT, &sent), Answer { sent: vec![], host: vec![(LEFT, sent)] });
}

#[test]
fn what_linux_refuses_is_counted() {
    let mut lab = lab();
    lab.linux_refuses(LEFT, true);
    assert_eq!(lost(&mut lab, &V4::to("192.0.2.1").sent()), [(Reason::HostRefused, 1)]);
}

#[test]
fn linux_sends_through_the_host_tap() {
    let mut lab = lab();
    let frame = frame(RIGHT_HOST, RIGHT_MAC, 0x0806, &[7; 46]);
    lab.send_from_linux(RIGHT, &frame);
    lab.run();
    assert_eq!(lab.answer().only(), Some((RIGHT, &frame[..])));
}

#[test]
fn linux_sends_what_a_slot_holds_and_nothing_cut() {
    // Slots of 16384 bytes, for an MTU of 9000, and the usual ones. Of each, 512 bytes are not for data.
    for (mut lab, room) in [(Lab::with_slots(super::LINES, 16384), 15872), (lab(), 1536)] {
        for length in [9014, room].into_iter().filter(|length| *length <= room) {
            let mut frame = frame(RIGHT_HOST, RIGHT_MAC, 0x0800, &vec![7; length - 14]);
            frame[length - 1] = 8;
            lab.send_from_linux(RIGHT, &frame);
            lab.run();
            assert_eq!(lab.answer().only(), Some((RIGHT, &frame[..])));
        }
        lab.send_from_linux(RIGHT, &frame(RIGHT_HOST, RIGHT_MAC, 0x0800, &vec![7; room - 13]));
        lab.run();
        assert!(lab.answer().is_silence());
        assert_eq!(lab.drops(), [(Reason::Oversize, 1)]);
    }
}

#[test]
fn reverse_path_filter_in_its_three_manners() {
    let strict = "interface left 0 02:00:00:00:00:01 strict 192.0.2.1/24";
    let loose = "interface left 0 02:00:00:00:00:01 loose 192.0.2.1/24";
    // From its own network, from the other side, from nowhere.
    let sources = ["192.0.2.77", "198.51.100.7", "8.1.1.1", "77.1.1.1"];
    for (text, passes) in
        [("", [true; 4]), (strict, [true, false, false, false]), (loose, [true, true, true, false])]
    {
        for (source, passes) in sources.into_iter().zip(passes) {
            for options in [vec![], vec![1, 1, 1, 1]] {
                let mut lab = lab();
                lab.change(text);
                let packet = V4 { source, options, ..V4::default() };
                let answer = lab.exchange(LEFT, &packet.sent());
                assert_eq!(answer.only().is_some(), passes, "{text} {source}");
                assert_eq!(lab.dropped(Reason::ReversePath), u64::from(!passes));
            }
        }
    }
}

#[test]
fn vlans_are_interfaces() {
    let text = "
        interface trunk 0 02:00:00:00:00:01 192.0.2.1/24
        interface trunk.10 0 02:00:00:00:00:01 vlan 10 10.10.0.1/24
        interface trunk.20 0 02:00:00:00:00:20 vlan 20 10.20.0.1/24
        neighbor 192.0.2.9 trunk 02:00:00:00:01:09
        neighbor 10.10.0.9 trunk.10 02:00:00:00:10:09
        neighbor 10.20.0.9 trunk.20 02:00:00:00:20:09";
    let tagged = |mac: [u8; 6], from: [u8; 6], id: u8, packet: &[u8]| {
        frame(mac, from, 0x8100, &[&[0, id, 8, 0][..], packet].concat())
    };
    let (ten, twenty) = ([2, 0, 0, 0, 0x10, 9], [2, 0, 0, 0, 0x20, 9]);
    let mut lab = Lab::new(text);
    // Untagged to tagged, tagged to tagged, tagged to untagged.
    let packet = V4::to("10.10.0.9");
    let expected = tagged(ten, LEFT_MAC, 10, &packet.one_hop_on());
    assert_eq!(lab.exchange(0, &packet.sent()).only(), Some((0, &expected[..])));
    let packet = V4 { source: "10.10.0.9", ..V4::to("10.20.0.9") };
    let sent = tagged(LEFT_MAC, ten, 10, &packet.bytes());
    let expected = tagged(twenty, [2, 0, 0, 0, 0, 0x20], 20, &packet.one_hop_on());
    assert_eq!(lab.exchange(0, &sent).only(), Some((0, &expected[..])));
    let packet = V4 { source: "10.20.0.9", ..V4::to("192.0.2.9") };
    for mac in [LEFT_MAC, [2, 0, 0, 0, 0, 0x20]] {
        let sent = tagged(mac, twenty, 20, &packet.bytes());
        let expected = frame(LEFT_HOST, LEFT_MAC, 0x0800, &packet.one_hop_on());
        assert_eq!(lab.exchange(0, &sent).only(), Some((0, &expected[..])));
    }
    // VLAN 0 is only a priority; an unknown VLAN goes to Linux, and so do two tags.
    let packet = V4::to("10.10.0.9");
    let sent = tagged(LEFT_MAC, LEFT_HOST, 0, &packet.bytes());
    let expected = tagged(ten, LEFT_MAC, 10, &packet.one_hop_on());
    assert_eq!(lab.exchange(0, &sent).only(), Some((0, &expected[..])));
    let unknown = tagged(LEFT_MAC, LEFT_HOST, 30, &packet.bytes());
    assert_eq!(lab.exchange(0, &unknown).host, [(0, unknown)]);
    let double =
        frame(LEFT_MAC, LEFT_HOST, 0x88a8, &[&[0, 10, 0x81, 0, 0, 20, 8, 0][..], &packet.bytes()].concat());
    assert_eq!(lab.exchange(0, &double).host, [(0, double)]);
    // The MAC address of another VLAN is not valid there.
    let other = tagged([2, 0, 0, 0, 0, 0x20], ten, 10, &packet.bytes());
    assert!(lab.exchange(0, &other).is_silence());
    assert_eq!(lab.drops(), [(Reason::OtherHost, 1)]);
}

#[test]
fn vrfs_are_isolated() {
    let text = "
        interface red 0 02:00:00:00:00:01 vrf 1 192.0.2.1/24
        interface blue 1 02:00:00:00:00:02 vrf 2 192.0.2.1/24
        interface mixed 2 02:00:00:00:00:03 vrf 1 10.0.0.1/24
        interface mixed.7 2 02:00:00:00:00:03 vlan 7 vrf 2 10.0.0.1/24
        neighbor 192.0.2.9 red 02:00:00:00:01:09
        neighbor 192.0.2.9 blue 02:00:00:00:02:09
        route 8.0.0.0/8 vrf 1 via 192.0.2.9 red
        route 8.0.0.0/8 vrf 2 via 192.0.2.9 blue";
    let mut lab = Lab::new(text);
    let packet = V4 { source: "10.0.0.9", ..V4::default() };
    for _ in 0..3 {
        lab.send(2, &frame([2, 0, 0, 0, 0, 3], LEFT_HOST, 0x0800, &packet.bytes()));
        lab.send(
            2,
            &frame([2, 0, 0, 0, 0, 3], LEFT_HOST, 0x8100, &[&[0, 7, 8, 0][..], &packet.bytes()].concat()),
        );
    }
    lab.run();
    let red = frame([2, 0, 0, 0, 1, 9], LEFT_MAC, 0x0800, &packet.one_hop_on());
    let blue = frame([2, 0, 0, 0, 2, 9], RIGHT_MAC, 0x0800, &packet.one_hop_on());
    assert_eq!((lab.take(0), lab.take(1)), (vec![red; 3], vec![blue; 3]));
    let _ = RIGHT_HOST;
}
