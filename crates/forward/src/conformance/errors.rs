//! Group C: ICMP errors, when they are sent, from which address, and how many.

use bm_stats::Reason;
use bm_wire::protocol;

use super::frames::{LEFT_HOST, RIGHT_MAC, V4, error_ipv4, frame};
use super::{LEFT, RIGHT, lab};
use crate::WaitLimits;
use crate::tables::Settings;
use crate::testing::{Answer, Lab};

/// A packet with its last hop.
fn spent() -> V4 {
    V4 { ttl: 1, ..V4::default() }
}

fn is_told(packet: &V4) -> bool {
    let mut lab = lab();
    let answer = lab.exchange(LEFT, &packet.sent());
    assert_eq!(lab.drops().len(), 1, "{packet:?}");
    assert!(answer.host.is_empty());
    answer.sent.len() == 1
}

#[test]
fn c40_quotes_as_much_as_576_bytes_hold() {
    for length in [0, 1, 8, 100, 527, 528, 529, 1480] {
        let packet = V4 { payload: vec![0x5a; length], ..spent() };
        let mut padded = packet.sent();
        padded.resize(padded.len().max(60), 0xaa);
        let answer = lab().exchange(LEFT, &padded);
        let (port, error) = answer.only().unwrap();
        assert_eq!((port, error), (LEFT, &error_ipv4("192.0.2.1", 11, 0, 0, &packet.bytes(), error)[..]));
        assert_eq!(error.len(), 14 + 20 + 8 + (20 + length).min(548));
    }
}

#[test]
fn c40_quotes_options_as_they_came() {
    for options in [vec![1, 1, 1, 1], vec![30, 4, 1, 2, 1, 1, 1, 0]] {
        let packet = V4 { options, ..spent() };
        let answer = lab().exchange(LEFT, &packet.sent());
        let (_, error) = answer.only().unwrap();
        assert_eq!(error, error_ipv4("192.0.2.1", 11, 0, 0, &packet.bytes(), error));
    }
}

#[test]
fn c40_routes_that_were_recorded_come_back() {
    let options = vec![7, 7, 8, 1, 2, 3, 4, 1, 7, 7, 8, 1, 2, 3, 4, 0];
    let packet = V4 { options, ..V4::default() };
    let answer = lab().exchange(LEFT, &packet.sent());
    let (_, error) = answer.only().unwrap();
    // An option of 7 bytes, padded to 8; the quote starts after 28 bytes of header and 8 of ICMP.
    assert_eq!(error[14], 0x47);
    assert_eq!(error[34..42], [7, 7, 8, 1, 2, 3, 4, 0]);
    assert_eq!((error[42], error[43], error[46]), (12, 0, 28));
    assert_eq!(error[50..], packet.bytes());
    let header = &error[14..42];
    assert_eq!(bm_wire::checksum::checksum(header), 0);
    assert_eq!(bm_wire::checksum::checksum(&error[42..]), 0);
    assert_eq!(u16::from_be_bytes([header[2], header[3]]) as usize, error.len() - 14);
}

#[test]
fn c40_what_linux_records_before_an_error_is_linuxs() {
    for options in [vec![7, 7, 4, 0, 0, 0, 0, 0], vec![68, 8, 5, 0, 0, 0, 0, 0]] {
        let packet = V4 { options, ..spent() }.sent();
        let answer = lab().exchange(LEFT, &packet);
        assert_eq!(answer, Answer { sent: vec![], host: vec![(LEFT, packet)] });
    }
}

#[test]
fn c40_options_of_an_error_leave_less_room_for_the_quote() {
    let options = vec![7, 7, 8, 1, 2, 3, 4, 1, 7, 7, 8, 1, 2, 3, 4, 0];
    for length in [503, 504, 505, 1000] {
        let packet = V4 { options: options.clone(), payload: vec![0x5a; length], ..V4::default() };
        let answer = lab().exchange(LEFT, &packet.sent());
        let (_, error) = answer.only().unwrap();
        // Of the 576 bytes, 28 are the header, 8 ICMP's, and 36 the quoted header.
        let quoted = &packet.bytes()[..36 + length.min(504)];
        assert_eq!((error[14], &error[50..]), (0x47, quoted), "{length}");
    }
}

#[test]
fn c40_a_narrow_way_back_quotes_less() {
    let mut lab = lab();
    lab.change("route 77.0.0.0/8 via 192.0.2.9 left mtu 300");
    let packet = V4 { source: "77.1.1.1", payload: vec![1; 600], ..spent() };
    let answer = lab.exchange(LEFT, &packet.sent());
    assert_eq!(answer.only().unwrap().1.len(), 14 + 300);
}

#[test]
fn c41_the_source_is_that_of_the_way_back() {
    // Like Linux: the interface through which the error leaves, unless the setting says otherwise.
    let packet = V4 { source: "198.51.100.9", ..spent() };
    for (inbound, source) in [(false, [198, 51, 100, 1]), (true, [192, 0, 2, 1])] {
        let settings = Settings { icmp_source_inbound: inbound, ..Settings::default() };
        let mut lab = Lab::with(super::LINES, settings, WaitLimits::default());
        lab.change("neighbor 198.51.100.9 right 02:00:00:00:02:09");
        let answer = lab.exchange(LEFT, &packet.sent());
        let (port, error) = answer.only().unwrap();
        assert_eq!((port, &error[26..30]), (RIGHT, &source[..]));
    }
}

#[test]
fn c41_several_addresses_and_none() {
    let error_from = |text: &str, source| {
        let mut lab = Lab::new(text);
        let answer = lab.exchange(LEFT, &V4 { source, ..spent() }.sent());
        answer.only().map(|(_, error)| error[26..30].to_vec())
    };
    let routed = "neighbor 192.0.2.9 left 02:00:00:00:01:09
        interface right 1 02:00:00:00:00:02 198.51.100.1/24
        neighbor 198.51.100.7 right 02:00:00:00:02:07
        route 8.0.0.0/8 via 198.51.100.7 right
        route 77.0.0.0/8 via 192.0.2.9 left";
    let two = format!("interface left 0 02:00:00:00:00:01 10.9.9.1/24 192.0.2.1/24\n{routed}");
    assert_eq!(error_from(&two, "192.0.2.9"), Some(vec![192, 0, 2, 1]));
    assert_eq!(error_from(&two, "77.1.1.1"), Some(vec![192, 0, 2, 1]));
    // Without an address of its own, Linux chooses another interface's, and sends the error.
    let none = format!("interface left 0 02:00:00:00:00:01\n{routed}\nroute 192.0.2.9/32 via 192.0.2.9 left");
    let sent = V4 { source: "192.0.2.9", ..spent() }.sent();
    assert_eq!(Lab::new(&none).exchange(LEFT, &sent).host, [(LEFT, sent)]);
}

#[test]
fn c42_no_error_about_an_error() {
    let icmp =
        |kind: u8| V4 { protocol: protocol::ICMP, payload: vec![kind, 0, 0, 0, 0, 0, 0, 0], ..spent() };
    for kind in [3, 4, 5, 11, 12, 19, 41, 255] {
        assert!(!is_told(&icmp(kind)), "type {kind}");
    }
    for kind in [0, 8, 13, 14] {
        assert!(is_told(&icmp(kind)), "type {kind}");
    }
    assert!(!is_told(&V4 { payload: vec![], ..icmp(8) }));
}

#[test]
fn c43_no_error_about_broadcasts_and_groups() {
    let mut lab = lab();
    for mac in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
        assert!(lab.exchange(LEFT, &frame(mac, LEFT_HOST, 0x0800, &spent().bytes())).is_silence());
    }
    for destination in ["198.51.100.255", "239.1.1.1", "255.255.255.255"] {
        assert!(lab.exchange(LEFT, &V4 { destination, ..spent() }.sent()).sent.is_empty());
    }
}

#[test]
fn c44_no_error_about_later_fragments() {
    assert!(is_told(&V4 { fragment: 0x2000, ..spent() }));
    assert!(!is_told(&V4 { fragment: 0x2001, ..spent() }));
    assert!(!is_told(&V4 { fragment: 0x0001, ..spent() }));
}

#[test]
fn c45_no_error_to_what_is_no_single_host() {
    for source in ["0.0.0.0", "127.0.0.1", "224.1.2.3", "255.255.255.255", "240.1.2.3", "0.1.2.3"] {
        assert!(!is_told(&V4 { source, ..spent() }), "{source}");
    }
    // Its own address, and a source without a route back.
    for source in ["192.0.2.1", "99.1.1.1"] {
        assert!(!is_told(&V4 { source, ..spent() }), "{source}");
    }
    // A broadcast address of this router: Linux answers it or not.
    let sent = V4 { source: "192.0.2.255", ..spent() }.sent();
    assert_eq!(lab().exchange(LEFT, &sent).host, [(LEFT, sent)]);
}

#[test]
fn c46_errors_are_limited_and_linux_is_not_starved() {
    let mut lab = lab();
    for _ in 0..100 {
        lab.send(LEFT, &spent().sent());
        lab.send(LEFT, &V4::to("192.0.2.1").sent());
    }
    lab.run();
    assert_eq!((lab.take(LEFT).len(), lab.take_host(LEFT).len()), (6, 100));
    assert_eq!((lab.counter("errors_sent"), lab.counter("errors_limited_address")), (6, 94));
    assert_eq!(lab.counter("errors_limited_all"), 0, "what one address is refused costs the others nothing");
    assert_eq!(lab.drops(), [(Reason::TtlExceeded, 100)]);
    lab.pass(1000);
    lab.send(LEFT, &spent().sent());
    lab.send(LEFT, &spent().sent());
    lab.run();
    assert_eq!(lab.take(LEFT).len(), 1);
}

#[test]
fn c46_a_flood_of_errors_leaves_room_for_linux() {
    // More than the queue holds, all before those for Linux.
    let mut lab = lab();
    (0..700).for_each(|_| lab.send(LEFT, &spent().sent()));
    (0..100).for_each(|_| lab.send(LEFT, &V4::to("192.0.2.1").sent()));
    lab.run();
    assert_eq!(lab.take_host(LEFT).len(), 100);
}

#[test]
fn c46_too_big_is_not_limited() {
    let mut lab = lab();
    let packet = V4 { fragment: 0x4000, payload: vec![0; 1400], ..V4::to("9.9.9.9") };
    (0..200).for_each(|_| lab.send(LEFT, &packet.sent()));
    lab.run();
    assert_eq!(lab.take(LEFT).len(), 200);
}

#[test]
fn c47_precedence_as_linux() {
    for (tos, expected) in [(0x00, 0xc0), (0x08, 0xc8), (0x1c, 0xdc), (0xb8, 0xd8), (0xff, 0xde)] {
        let answer = lab().exchange(LEFT, &V4 { tos, ..spent() }.sent());
        assert_eq!(answer.only().unwrap().1[15], expected);
    }
}

#[test]
fn c49_linux_gets_what_it_may_redirect() {
    // Out where it came in: over the plain path, and with options over the slow path.
    let left = super::LINES.lines().map(str::trim).find(|line| line.starts_with("interface left")).unwrap();
    let (name, rest) = left.split_at("interface left 0 02:00:00:00:00:01".len());
    let lines = super::LINES.replace(left, &format!("{name} redirects{rest}"));
    let mut lab = Lab::with(&lines, Settings::default(), WaitLimits::default());
    lab.change("route 77.0.0.0/8 via 192.0.2.9 left\nroute 78.0.0.0/8 via 192.0.2.77 left");
    let packets = ["77.1.1.1", "78.1.1.1"].map(|to| V4 { source: "192.0.2.20", ..V4::to(to) });
    for packet in &packets {
        let answer = lab.exchange(LEFT, &packet.sent());
        assert_eq!(
            (answer.host, answer.sent.len()),
            (vec![(LEFT, packet.sent())], 0),
            "{}",
            packet.destination
        );
    }
    let onward = V4 { source: "192.0.2.20", ..V4::default() };
    assert_eq!(
        lab.exchange(LEFT, &onward.sent()).only(),
        Some((RIGHT, &onward.routed()[..])),
        "others are sent"
    );
}

#[test]
fn c49_no_redirects_where_linux_sends_none() {
    // Out where it came in.
    let mut lab = lab();
    lab.change("route 77.0.0.0/8 via 192.0.2.9 left");
    let packet = V4 { source: "192.0.2.20", ..V4::to("77.1.1.1") };
    let answer = lab.exchange(LEFT, &packet.sent());
    let expected = frame(LEFT_HOST, super::frames::LEFT_MAC, 0x0800, &packet.one_hop_on());
    assert_eq!(answer.only(), Some((LEFT, &expected[..])));
}

#[test]
fn c51_each_hop_is_seen_once() {
    // Traceroute: TTL 1 expires here, TTL 2 at the next router.
    let mut lab = lab();
    let answer = lab.exchange(LEFT, &spent().sent());
    assert_eq!(answer.sent.len(), 1);
    let two = V4 { ttl: 2, ..V4::default() };
    assert_eq!(lab.exchange(LEFT, &two.sent()).only(), Some((RIGHT, &two.routed()[..])));
}

#[test]
fn default_ttl_is_linuxs() {
    let settings = Settings { default_ttl: 99, ..Settings::default() };
    let mut lab = Lab::with(super::LINES, settings, WaitLimits::default());
    assert_eq!(lab.exchange(LEFT, &spent().sent()).only().unwrap().1[22], 99);
}

#[test]
fn errors_wait_for_neighbors_too() {
    let mut lab = lab();
    let packet = V4 { source: "192.0.2.50", ..spent() };
    assert!(lab.exchange(LEFT, &packet.sent()).is_silence());
    assert_eq!(lab.asked(), [("left".to_string(), "192.0.2.50".parse().unwrap())]);
    lab.change("neighbor 192.0.2.50 left 02:00:00:00:01:50");
    lab.pass(5);
    let answer = lab.answer();
    let (port, error) = answer.only().unwrap();
    let mut expected = error_ipv4("192.0.2.1", 11, 0, 0, &packet.bytes(), error);
    expected[5] = 0x50;
    assert_eq!((port, error), (LEFT, &expected[..]));
}

#[test]
fn errors_are_routed_in_the_vrf_of_their_cause() {
    // Only VRF 1 has a route to the source, and another one than the main table.
    let text = "
        interface other 0 02:00:00:00:00:01 198.51.100.1/24
        interface mixed 1 02:00:00:00:00:02 vrf 1 192.0.2.1/24
        neighbor 198.51.100.9 other 02:00:00:00:01:09
        neighbor 192.0.2.9 mixed 02:00:00:00:02:09
        route 10.0.0.0/8 via 198.51.100.9 other
        route 10.0.0.0/8 vrf 1 via 192.0.2.9 mixed";
    let mut lab = Lab::new(text);
    let packet = V4 { source: "10.0.0.9", ttl: 1, ..V4::to("10.7.7.7") };
    let answer = lab.exchange(1, &frame(RIGHT_MAC, [2, 0, 0, 0, 2, 9], 0x0800, &packet.bytes()));
    let (port, error) = answer.only().unwrap();
    assert_eq!((port, &error[..6]), (1, &[2, 0, 0, 0, 2, 9][..]));
    assert_eq!(&error[26..34], &[192, 0, 2, 1, 10, 0, 0, 9], "from and to");
}
