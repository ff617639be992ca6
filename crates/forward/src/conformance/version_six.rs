//! Group D: IPv6 and ICMPv6.

use bm_stats::Reason;
use bm_wire::protocol;

use super::frames::{LEFT_HOST, LEFT_MAC, NARROW_HOST, NARROW_MAC, V4, V6, error_ipv6, frame, to_router};
use super::{LEFT, NARROW, RIGHT, lab};
use crate::WaitLimits;
use crate::tables::Settings;
use crate::testing::{Answer, Lab};

const ROUTER: &str = "2001:db8:1::1";

/// 2001:db8:1::9 > 2001:db8:8::8, UDP "hi", hop limit 64, to the router; the same as it leaves.
const IN: [u8; 64] = [
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 9, 0x86, 0xdd, 0x60, 5, 0x43, 0x21, 0, 10, 17, 64, 0x20, 1, 0xd, 0xb8,
    0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0x20, 1, 0xd, 0xb8, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0x30, 0x39,
    0, 53, 0, 10, 0, 0, b'h', b'i',
];

fn told(packet: &V6, kind: u8, code: u8, rest: u32, reason: Reason) {
    let mut lab = lab();
    let answer = lab.exchange(LEFT, &packet.sent());
    let expected = error_ipv6(ROUTER, kind, code, rest, &packet.bytes());
    assert_eq!(answer.only(), Some((LEFT, &expected[..])), "{packet:?}");
    assert_eq!(lab.drops(), [(reason, 1)]);
}

fn lost(frame: &[u8], reason: Reason) {
    let mut lab = lab();
    assert!(lab.exchange(LEFT, frame).is_silence(), "{frame:02x?}");
    assert_eq!(lab.drops(), [(reason, 1)]);
}

fn passes(packet: &V6) {
    assert_eq!(
        lab().exchange(LEFT, &packet.sent()).only(),
        Some((RIGHT, &packet.routed()[..])),
        "{packet:?}"
    );
}

fn is_linuxs(frame: &[u8]) {
    assert_eq!(lab().exchange(LEFT, frame), Answer { sent: vec![], host: vec![(LEFT, frame.to_vec())] });
}

#[test]
fn forwards_byte_for_byte() {
    let mut out = IN;
    out[..12].copy_from_slice(&[2, 0, 0, 0, 2, 7, 2, 0, 0, 0, 0, 2]);
    out[21] = 63;
    let mut padded = IN.to_vec();
    padded.extend([0xaa; 9]);
    for frame in [&IN[..], &padded] {
        assert_eq!(lab().exchange(LEFT, frame).only(), Some((RIGHT, &out[..])));
    }
}

#[test]
fn d52_a_spent_hop_limit_is_told() {
    for hop_limit in [0, 1] {
        told(&V6 { hop_limit, ..V6::default() }, 3, 0, 0, Reason::TtlExceeded);
        is_linuxs(&V6 { hop_limit, ..V6::to(ROUTER) }.sent());
    }
    for hop_limit in [2, 255] {
        passes(&V6 { hop_limit, ..V6::default() });
    }
}

#[test]
fn d53_too_big_is_told_and_never_cut() {
    let sized = |bytes: usize| V6 { payload: vec![1; bytes - 40], ..V6::to("2001:db8:9::9") };
    for bytes in [1301, 1400, 1500] {
        told(&sized(bytes), 2, 0, 1300, Reason::TooBig);
    }
    let fits = sized(1300);
    let expected = frame(NARROW_HOST, NARROW_MAC, 0x86dd, &fits.one_hop_on());
    assert_eq!(lab().exchange(LEFT, &fits.sent()).only(), Some((NARROW, &expected[..])));
    // About a route's MTU Linux sends the error, also if that is below what IPv6 asks of every link (RFC 8200 5).
    let mut lab = lab();
    lab.change("route 2001:db8:9::/48 via 2001:db8:3::5 narrow mtu 1000");
    let too_big = sized(1001).sent();
    assert_eq!(lab.exchange(LEFT, &too_big), Answer { sent: vec![], host: vec![(LEFT, too_big)] });
    assert_eq!(lab.exchange(LEFT, &sized(1000).sent()).only().unwrap().0, NARROW);
}

#[test]
fn d53_what_waits_for_its_neighbor_may_be_as_long_as_the_mtu() {
    let sized = |bytes: usize| V6 { payload: vec![1; bytes - 40], ..V6::to("2001:db8:9::9") };
    let mut lab = lab();
    lab.change("no neighbor 2001:db8:3::5 narrow");
    assert!(lab.exchange(LEFT, &sized(1300).sent()).is_silence());
    assert_eq!(lab.asked(), [("narrow".into(), "2001:db8:3::5".parse().unwrap())]);
    let expected = error_ipv6(ROUTER, 2, 0, 1300, &sized(1301).bytes());
    assert_eq!(lab.exchange(LEFT, &sized(1301).sent()).only(), Some((LEFT, &expected[..])));
    lab.change("neighbor 2001:db8:3::5 narrow 02:00:00:00:03:05");
    lab.pass(1000);
    let expected = frame(NARROW_HOST, NARROW_MAC, 0x86dd, &sized(1300).one_hop_on());
    assert_eq!(lab.answer().only(), Some((NARROW, &expected[..])));
}

#[test]
fn d54_errors_hold_1280_bytes() {
    for length in [0, 8, 1191, 1192, 1193, 1460] {
        let packet = V6 { hop_limit: 1, payload: vec![7; length], ..V6::default() };
        told(&packet, 3, 0, 0, Reason::TtlExceeded);
    }
    let packet = V6 { hop_limit: 1, traffic_class: 0xb8, ..V6::default() };
    told(&packet, 3, 0, 0, Reason::TtlExceeded);
}

#[test]
fn d54_the_source_is_of_the_interface_it_came_in_on() {
    // Towards a host on the other side: still the address that the packet came to.
    let mut lab = lab();
    lab.change("neighbor 2001:db8:2::9 right 02:00:00:00:02:09");
    let packet = V6 { source: "2001:db8:2::9", hop_limit: 1, ..V6::default() };
    let answer = lab.exchange(LEFT, &packet.sent());
    let (port, error) = answer.only().unwrap();
    assert_eq!((port, &error[22..38]), (RIGHT, &IN_ROUTER[..]));
    // If it has only a link-local address, or several others, Linux chooses, and sends the error.
    for addresses in ["fe80::1/64", "2001:db8:1::1/64 fd00:1::1/64"] {
        lab.change(&format!("interface left 0 02:00:00:00:00:01 192.0.2.1/24 {addresses}"));
        assert_eq!(lab.exchange(LEFT, &packet.sent()).host, [(LEFT, packet.sent())], "{addresses}");
    }
}

#[test]
fn d54_linux_tells_sources_that_only_it_reaches() {
    let mut lab = lab();
    lab.change("route 2001:db8:77::/48 host");
    let packet = V6 { source: "2001:db8:77::9", hop_limit: 1, ..V6::default() }.sent();
    assert_eq!(lab.exchange(LEFT, &packet), Answer { sent: vec![], host: vec![(LEFT, packet)] });
}

const IN_ROUTER: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

#[test]
fn d55_d65_groups_are_linuxs() {
    for group in ["ff02::1", "ff02::5", "ff02::1:ff00:1", "ff05::2", "ff0e::9"] {
        let packet = V6::to(group).bytes();
        is_linuxs(&frame([0x33, 0x33, 0, 0, 0, 1], LEFT_HOST, 0x86dd, &packet));
        is_linuxs(&to_router(&packet));
    }
    for group in ["ff00::1", "ff01::1", "ff11::1"] {
        lost(&V6::to(group).sent(), Reason::Ipv6Destination);
    }
    let unicast = frame([0x33, 0x33, 0, 0, 0, 1], LEFT_HOST, 0x86dd, &V6::default().bytes());
    lost(&unicast, Reason::LinkBroadcast);
}

#[test]
fn d56_no_error_to_unspecified_or_multicast() {
    for source in ["::", "ff02::9", "::1"] {
        lost(&V6 { source, hop_limit: 1, ..V6::default() }.sent(), Reason::Ipv6Source);
    }
}

#[test]
fn c42_no_error_about_an_error() {
    for kind in [1, 2, 3, 4, 100, 127, 137] {
        let payload = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        let packet = V6 { next_header: protocol::ICMPV6, hop_limit: 1, payload, ..V6::default() };
        lost(&packet.sent(), Reason::TtlExceeded);
    }
    for kind in [128, 129, 200] {
        let payload = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        let packet = V6 { next_header: protocol::ICMPV6, hop_limit: 1, payload, ..V6::default() };
        told(&packet, 3, 0, 0, Reason::TtlExceeded);
    }
}

#[test]
fn d57_errors_are_limited() {
    let mut lab = lab();
    let packet = V6 { hop_limit: 1, ..V6::default() };
    (0..40).for_each(|_| lab.send(LEFT, &packet.sent()));
    lab.run();
    assert_eq!((lab.take(LEFT).len(), lab.counter("errors_limited_address")), (6, 34));
    lab.pass(1000);
    lab.send(LEFT, &packet.sent());
    lab.run();
    assert_eq!(lab.take(LEFT).len(), 1);
    let settings = Settings { icmp6_ratelimit_ms: 0, icmp_messages_burst: 100, ..Settings::default() };
    let mut lab = Lab::with(super::LINES, settings, WaitLimits::default());
    (0..40).for_each(|_| lab.send(LEFT, &packet.sent()));
    lab.run();
    assert_eq!(lab.take(LEFT).len(), 40);
}

#[test]
fn d58_link_local_never_leaves_its_link() {
    // Linux answers: it knows the link's hosts.
    is_linuxs(&V6 { source: "fe80::9", ..V6::default() }.sent());
    is_linuxs(&V6::to("fe80::77").sent());
    is_linuxs(&V6 { source: "fe80::9", ..V6::to(ROUTER) }.sent());
}

#[test]
fn d59_addresses_that_may_not_be_on_a_wire() {
    for source in ["::1", "::", "ff02::1", "ff0e::1"] {
        lost(&V6 { source, ..V6::default() }.sent(), Reason::Ipv6Source);
    }
    for destination in ["::1", "::"] {
        lost(&V6::to(destination).sent(), Reason::Ipv6Destination);
    }
    // Like Linux: a mapped source, and an address of this machine.
    for source in ["::ffff:192.0.2.2", ROUTER, "2001:db8:2::1"] {
        passes(&V6 { source, ..V6::default() });
    }
}

#[test]
fn d60_routing_headers_are_their_destinations_matter() {
    let routing = |left, destination| {
        let mut payload = vec![17, 2, 0, left, 0, 0, 0, 0];
        payload.extend([0x20; 16]);
        payload.extend(V6::default().payload);
        V6 { next_header: protocol::ROUTING, payload, ..V6::to(destination) }
    };
    passes(&routing(1, "2001:db8:8::8"));
    passes(&routing(0, "2001:db8:8::8"));
    is_linuxs(&routing(1, ROUTER).sent());
}

/// A packet with these hop-by-hop options.
fn hop_by_hop(options: &[u8]) -> V6 {
    let mut payload = vec![17, ((options.len() + 2) / 8 - 1) as u8];
    payload.extend(options);
    payload.extend(V6::default().payload);
    V6 { next_header: 0, payload, ..V6::default() }
}

#[test]
fn d61_hop_by_hop_options() {
    for options in [&[0; 6], &[1, 4, 0, 0, 0, 0], &[0x1e, 4, 9, 9, 9, 9], &[0x3e, 4, 9, 9, 9, 9]] {
        passes(&hop_by_hop(options));
    }
    lost(&hop_by_hop(&[0x5e, 4, 9, 9, 9, 9]).sent(), Reason::Ipv6Options);
    lost(&hop_by_hop(&[1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).sent(), Reason::Ipv6Options);
    told(&hop_by_hop(&[0x9e, 4, 9, 9, 9, 9]), 4, 2, 42, Reason::Ipv6Options);
    told(&hop_by_hop(&[0xde, 4, 9, 9, 9, 9]), 4, 2, 42, Reason::Ipv6Options);
    told(&hop_by_hop(&[0xc2, 4, 0, 0, 0, 9]), 4, 0, 44, Reason::Ipv6Options);
    is_linuxs(&hop_by_hop(&[5, 2, 0, 0, 1, 0]).sent());
    let mut cut = hop_by_hop(&[0; 6]);
    cut.payload[1] = 40;
    lost(&cut.sent(), Reason::Ipv6Options);
    let jumbo = {
        let mut bytes = hop_by_hop(&[0xc2, 4, 0, 1, 0, 0]).bytes();
        bytes[4..6].fill(0);
        to_router(&bytes)
    };
    // Its payload length of zero leaves no room for the option that would explain it.
    lost(&jumbo, Reason::Ipv6Options);
    // Packets to this machine are for Linux to check.
    is_linuxs(&V6 { destination: ROUTER, ..hop_by_hop(&[0x5e, 4, 9, 9, 9, 9]) }.sent());
}

#[test]
fn d61_padding_stays_on_the_fast_path() {
    let mut lab = lab();
    (0..50).for_each(|_| lab.send(LEFT, &hop_by_hop(&[0; 6]).sent()));
    lab.run();
    assert_eq!(lab.take(RIGHT).len(), 50);
    assert_eq!(lab.passed_to_slow_path(), 0);
}

#[test]
fn d62_any_next_header_passes() {
    for next_header in [59, 60, 43, 44, 50, 51, 132, 139, 253, 255] {
        passes(&V6 { next_header, payload: vec![0x11; 24], ..V6::default() });
    }
    passes(&V6 { next_header: 59, payload: vec![], ..V6::default() });
}

#[test]
fn d63_lengths() {
    let bytes = V6::default().bytes();
    for length in [0, 1, 39] {
        lost(&frame(LEFT_MAC, LEFT_HOST, 0x86dd, &bytes[..length]), Reason::Ipv6Short);
    }
    for version in [0, 4, 5, 7] {
        let mut bytes = bytes.clone();
        bytes[0] = version << 4;
        lost(&frame(LEFT_MAC, LEFT_HOST, 0x86dd, &bytes), Reason::Ipv6Version);
    }
    for length in [13u16, 100, 0xffff] {
        let mut bytes = bytes.clone();
        bytes[4..6].copy_from_slice(&length.to_be_bytes());
        lost(&to_router(&bytes), Reason::Ipv6PayloadLength);
    }
    lost(&frame(LEFT_MAC, LEFT_HOST, 0x86dd, &V4::default().bytes()), Reason::Ipv6Short);
}

#[test]
fn d66_routes_that_refuse() {
    let mut lab = lab();
    lab.change(
        "route 2001:db8:a1::/48 unreachable
        route 2001:db8:a2::/48 prohibit
        route 2001:db8:a3::/48 blackhole",
    );
    // Like Linux: an unreachable route says "no route", not "reject route".
    let cases = [
        ("2001:db8:a1::1", Some(0), Reason::Unreachable),
        ("2001:db8:a2::1", Some(1), Reason::Prohibit),
        ("2001:db8:a3::1", None, Reason::Blackhole),
        ("2001:db8:a4::1", Some(0), Reason::NoRoute),
    ];
    for (destination, code, reason) in cases {
        let packet = V6::to(destination);
        let answer = lab.exchange(LEFT, &packet.sent());
        match code {
            Some(code) => {
                let expected = error_ipv6(ROUTER, 1, code, 0, &packet.bytes());
                assert_eq!(answer.only(), Some((LEFT, &expected[..])));
            }
            None => assert!(answer.is_silence()),
        }
        assert_eq!(lab.dropped(reason), 1);
    }
}

#[test]
fn the_hop_limit_of_errors_is_the_interfaces() {
    let mut lab = lab();
    lab.change("interface left 0 02:00:00:00:00:01 hop-limit 99 192.0.2.1/24 2001:db8:1::1/64");
    let answer = lab.exchange(LEFT, &V6 { hop_limit: 1, ..V6::default() }.sent());
    assert_eq!(answer.only().unwrap().1[21], 99);
}

#[test]
fn both_families_in_one_burst_keep_their_order() {
    let mut lab = lab();
    let mut expected = Vec::new();
    for n in 0..400u16 {
        let frame = if n % 3 == 0 {
            V6 { traffic_class: n as u8, ..V6::default() }.sent()
        } else {
            V4 { id: n, ..V4::default() }.sent()
        };
        lab.send(LEFT, &frame);
        expected.push(if n % 3 == 0 {
            V6 { traffic_class: n as u8, ..V6::default() }.routed()
        } else {
            V4 { id: n, ..V4::default() }.routed()
        });
    }
    lab.run();
    assert!(lab.take(RIGHT) == expected);
}
