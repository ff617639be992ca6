//! Group D, checks 52 to 63: forwarding IPv6 (RFC 8200, 4291, 5095).

use bm_tests::case::Case;
use bm_tests::lab::{LOW_MTU, Side};
use bm_tests::packet::{self, Ip6, parameter_problem6, put16, time_exceeded6, too_big6, unreachable6, with};
use bm_wire::Mac;
use bm_wire::ethernet::ethertype;
use bm_wire::protocol::{DESTINATION_OPTIONS, HOP_BY_HOP, NO_NEXT, ROUTING};

const HOST: &str = "2001:db8:1::2";
const ROUTER: &str = "2001:db8:1::1";
const FAR: &str = "2001:db8:a000::9";
const LOW: &str = "2001:db8:b000::9";

fn udp(to: &str) -> Ip6 {
    Ip6::udp(HOST, to, 20)
}

/// A packet in a frame with the EtherType of IPv6, whatever the packet's version is.
fn as_ipv6(packet: &[u8]) -> Vec<u8> {
    packet::frame(Side::Src.mac(1), Side::Src.mac(2), ethertype::IPV6, packet)
}

pub fn cases() -> Vec<Case> {
    [headers(), hops(), longest_match(), route_types(), sizes(), scopes(), extensions(), what_is_kept()]
        .concat()
}

fn headers() -> Vec<Case> {
    let short = [0, 1, 39].into_iter().fold(Case::new(63, "ipv6-cut-short"), |case, length| {
        case.sends_frame(Side::Src, as_ipv6(&udp(FAR).bytes()[..length]))
    });
    let version = [0, 4, 5, 7].into_iter().fold(Case::new(63, "version-not-6"), |case, version: u8| {
        case.sends_frame(Side::Src, as_ipv6(&with(udp(FAR).bytes(), |bytes| bytes[0] = version << 4)))
    });
    let above = [29, 100, 65_535]
        .into_iter()
        .fold(Case::new(63, "payload-length-above-the-frame"), |case, length| {
            case.sends(with(udp(FAR).bytes(), |bytes| put16(bytes, 4, length)))
        });
    let padded =
        [1, 7, 500].into_iter().fold(Case::new(63, "padding-of-ipv6-is-not-forwarded"), |case, padding| {
            case.passes([udp(FAR).bytes(), vec![0xaa; padding]].concat())
        });
    let empty = Case::new(63, "no-payload")
        .passes(Ip6::new(HOST, FAR, NO_NEXT, Vec::new()))
        .passes([Ip6::new(HOST, FAR, NO_NEXT, Vec::new()).bytes(), vec![1; 6]].concat());
    let other = packet::ip_frame(Mac([2, 0, 0, 0, 0x99, 0x99]), Side::Src.mac(2), &udp(FAR).bytes());
    let broadcast = packet::ip_frame(Mac::BROADCAST, Side::Src.mac(2), &udp(FAR).bytes());
    let group = packet::ip_frame(Mac([0x33, 0x33, 0, 0, 0, 1]), Side::Src.mac(2), &udp(FAR).bytes());
    vec![
        short,
        version,
        above,
        padded,
        empty,
        Case::new(28, "ipv6-frame-for-another-mac").sends_frame(Side::Src, other),
        Case::new(16, "ipv6-link-layer-group")
            .sends_frame(Side::Src, broadcast)
            .sends_frame(Side::Src, group),
    ]
}

fn hops() -> Vec<Case> {
    let left = [2, 64, 255]
        .into_iter()
        .fold(Case::new(52, "hop-limit-left"), |case, hops| case.passes(udp(FAR).hop_limit(hops)));
    let spent = [0, 1].into_iter().fold(Case::new(52, "hop-limit-spent"), |case, hops| {
        case.answers(udp(FAR).hop_limit(hops), |sent| time_exceeded6(ROUTER, sent))
    });
    let ours = packet::echo6(HOST, ROUTER, 0x0102_0304, 30);
    let reply = packet::reply6(&ours);
    vec![left, spent, Case::new(10, "last-hop-limit-is-ours").answers(ours.hop_limit(1), |_| reply)]
}

fn longest_match() -> Vec<Case> {
    let by = |case: Case, list: &[(&str, u8)]| {
        list.iter().fold(case, |case, (to, n)| case.forwards(udp(to), Side::Snk, *n))
    };
    let nested = [
        ("2001:db9::1", 7),
        ("2001:db8:a000::1", 2),
        ("2001:db8:afff::1", 2),
        ("2001:db8:a100::1", 3),
        ("2001:db8:a101:2::1", 4),
        ("2001:db8:a101:1::", 5),
        ("2001:db8:a101:1:ffff:ffff:ffff:ffff", 5),
        ("2001:db8:a101:1::200", 6),
        ("2001:db8:a101:1::201", 5),
        ("fd00::1", 7),
    ];
    let default = Case::new(12, "ipv6-longest-match")
        .after("route add ::/0 via 2001:db8:2::7", "route del ::/0 via 2001:db8:2::7");
    let without = |name, route: &str, via: &str, list: &[(&str, u8)]| {
        let (add, del) = (format!("route add {route} via {via}"), format!("route del {route}"));
        by(Case::new(13, name).after(&del, &add), list)
    };
    vec![
        by(default, &nested),
        without(
            "falls-back-from-128",
            "2001:db8:a101:1::200/128",
            "2001:db8:2::6",
            &[("2001:db8:a101:1::200", 5)],
        ),
        without(
            "falls-back-from-64",
            "2001:db8:a101:1::/64",
            "2001:db8:2::5",
            &[("2001:db8:a101:1::1", 4), ("2001:db8:a101:1::200", 6)],
        ),
        without(
            "falls-back-from-40",
            "2001:db8:a100::/40",
            "2001:db8:2::3",
            &[("2001:db8:a100::1", 2), ("2001:db8:a101::1", 4)],
        ),
        by(
            Case::new(0, "ipv6-by-rule-on-the-source").after(
                "-6 rule add from 2001:db8:c001::/48 table 77\nroute add ::/0 via 2001:db8:2::4 table 77",
                "route del ::/0 via 2001:db8:2::4 table 77\n-6 rule del from 2001:db8:c001::/48 table 77",
            ),
            &[(FAR, 2)],
        )
        .forwards(Ip6::udp("2001:db8:c001::1", FAR, 20), Side::Snk, 4),
    ]
}

fn route_types() -> Vec<Case> {
    let to = "2001:db8:a077::1";
    let typed = |check, name, kind: &str| {
        let route = format!("{kind} 2001:db8:a077::/48");
        Case::new(check, name).after(&format!("route add {route}"), &format!("route del {route}"))
    };
    let rejected = |case: Case, code| case.answers(udp(to), |sent| unreachable6(ROUTER, code, sent));
    let otherwise = |case: Case, words, code| {
        case.but_linux(words, |case| case.replies(unreachable6(ROUTER, code, &udp(to).bytes())))
    };
    let from = Ip6::udp("2001:db8:c001::1", FAR, 20);
    let rule =
        ["-6 rule add from 2001:db8:c001::/48 prohibit", "-6 rule del from 2001:db8:c001::/48 prohibit"];
    vec![
        typed(14, "ipv6-blackhole", "blackhole").sends(udp(to)),
        otherwise(
            rejected(typed(66, "ipv6-unreachable", "unreachable"), 6),
            "an unreachable route gives 1/0",
            0,
        ),
        rejected(typed(66, "ipv6-prohibit", "prohibit"), 1),
        rejected(typed(66, "ipv6-throw", "throw"), 0),
        Case::new(15, "ipv6-no-route").answers(udp("2001:db9::1"), |sent| unreachable6(ROUTER, 0, sent)),
        Case::new(66, "ipv6-rule-prohibit")
            .after(rule[0], rule[1])
            .answers(from.clone(), |sent| unreachable6(ROUTER, 5, sent))
            .but_linux("a prohibit rule gives 1/1", |case| {
                case.replies(unreachable6(ROUTER, 1, &from.bytes()))
            }),
    ]
}

fn sizes() -> Vec<Case> {
    let sized = |to: &str, bytes: usize| Ip6::udp(HOST, to, bytes - 48);
    let big = [1301, 1400, 1500].into_iter().fold(Case::new(53, "packet-too-big"), |case, bytes| {
        case.answers(sized(LOW, bytes), |sent| too_big6(ROUTER, LOW_MTU as u32, sent))
    });
    let route = "2001:db8:a003::/48 via 2001:db8:2::2";
    let to = "2001:db8:a003::1";
    let under = |name, words: &str| {
        Case::new(53, name)
            .after(&format!("route add {route} {words} 1350"), &format!("route del {route}"))
            .passes(sized(to, 1350))
    };
    // Linux has already taken a hop when it looks at an MTU that is not locked.
    let quoted = packet::routed(&sized(to, 1351).bytes());
    let unlocked = under("ipv6-mtu-of-the-route", "mtu").sends(sized(to, 1351));
    vec![
        big,
        Case::new(53, "ipv6-just-fits").forwards(sized(LOW, 1300), Side::Low, 2).passes(sized(FAR, 1500)),
        Case::new(53, "ipv6-fragment-too-big")
            .answers(Ip6::new(HOST, LOW, 17, packet::pattern(1400)).fragment(0, true, 7), |sent| {
                too_big6(ROUTER, LOW_MTU as u32, sent)
            }),
        under("ipv6-locked-mtu-of-the-route", "mtu lock")
            .answers(sized(to, 1351), |sent| too_big6(ROUTER, 1350, sent)),
        unlocked.replies(too_big6(ROUTER, 1350, &quoted)),
    ]
}

fn scopes() -> Vec<Case> {
    let from = |check, name, sources: &[&str]| {
        sources.iter().fold(Case::new(check, name), |case, source| case.sends(Ip6::udp(source, FAR, 20)))
    };
    let to = |check, name, destinations: &[&str]| {
        destinations.iter().fold(Case::new(check, name), |case, to| case.sends(udp(to)))
    };
    let group = |to: &str| {
        let address = u128::from(to.parse::<std::net::Ipv6Addr>().expect("an address"));
        packet::ip_frame(Mac::of_ipv6_group(address), Side::Src.mac(2), &udp(to).bytes())
    };
    let groups = ["ff0e::1:2", "ff05::1:3", "ff02::1:2", "ff01::1", "ff00::1"].into_iter();
    vec![
        Case::new(58, "source-link-local-ipv6").sends(Ip6::udp("fe80::2", FAR, 20)).replies(unreachable6(
            "fe80::1",
            2,
            &Ip6::udp("fe80::2", FAR, 20).bytes(),
        )),
        from(59, "source-loopback-or-none", &["::1", "::"]),
        from(59, "source-multicast-ipv6", &["ff02::1", "ff0e::1"]),
        to(59, "destination-loopback-ipv6", &["::1"]),
        to(59, "destination-unspecified-ipv6", &["::"]).but_linux("looks for a route to ::", |case| {
            case.replies(unreachable6(ROUTER, 0, &udp("::").bytes()))
        }),
        Case::new(0, "source-v4-mapped").passes(Ip6::udp("::ffff:192.0.2.2", FAR, 20)),
        groups.fold(Case::new(0, "ipv6-multicast-is-not-forwarded"), |case, to| {
            case.sends_frame(Side::Src, group(to))
        }),
        Case::new(0, "ipv6-unique-local")
            .after("route add fd00::/8 via 2001:db8:2::3", "route del fd00::/8 via 2001:db8:2::3")
            .forwards(udp("fd12:3456::1"), Side::Snk, 3),
        Case::new(0, "ipv6-source-is-the-router").passes(Ip6::udp(ROUTER, FAR, 20)),
    ]
}

fn extensions() -> Vec<Case> {
    let hop_by_hop = |options: &[u8]| udp(FAR).extension(HOP_BY_HOP, &[&[0], options].concat());
    let padding = hop_by_hop(&[1, 4, 0, 0, 0, 0]);
    let pads = hop_by_hop(&[0; 6]);
    let long = udp(FAR).extension(HOP_BY_HOP, &[&[1, 1, 12][..], &[0; 12]].concat());
    let unknown = |first: u8| hop_by_hop(&[first | 0x1e, 4, 9, 9, 9, 9]);
    let overrun = udp(FAR).extension(HOP_BY_HOP, &[40, 1, 4, 0, 0, 0, 0]);
    let routing = |left: u8, to: &str| {
        udp(to).extension(ROUTING, &[&[2, 0, left, 0, 0, 0, 0][..], &[0x20; 16]].concat())
    };
    vec![
        Case::new(61, "hop-by-hop-padding").passes(padding).passes(pads),
        Case::new(61, "hop-by-hop-padding-of-14-bytes")
            .passes(long)
            .but_linux("drops hop-by-hop padding of more than 7 bytes (RFC 4942 2.1.9.5)", |case| case),
        Case::new(61, "hop-by-hop-unknown-skip").passes(unknown(0x00)).passes(unknown(0x20)),
        Case::new(61, "hop-by-hop-unknown-discard").sends(unknown(0x40)),
        Case::new(61, "hop-by-hop-unknown-report")
            .answers(unknown(0x80), |sent| parameter_problem6(ROUTER, 2, 42, sent))
            .answers(unknown(0xc0), |sent| parameter_problem6(ROUTER, 2, 42, sent)),
        Case::new(61, "hop-by-hop-router-alert").passes(hop_by_hop(&[5, 2, 0, 0, 1, 0])),
        Case::new(61, "hop-by-hop-past-the-packet").sends(overrun),
        Case::new(60, "routing-type-0-to-us")
            .answers(routing(1, ROUTER), |sent| parameter_problem6(ROUTER, 0, 42, sent)),
        Case::new(60, "routing-type-0-in-transit").passes(routing(1, FAR)).passes(routing(0, FAR)),
        Case::new(62, "other-extensions")
            .passes(udp(FAR).extension(DESTINATION_OPTIONS, &[0, 1, 4, 0, 0, 0, 0]))
            .passes(udp(FAR).extension(DESTINATION_OPTIONS, &[0, 0xde, 4, 0, 0, 0, 0]))
            .passes(udp(FAR).fragment(0, true, 7))
            .passes(udp(FAR).fragment(1480, false, 7))
            .passes(udp(FAR).extension(DESTINATION_OPTIONS, &[200, 1, 4, 0, 0, 0, 0])),
        Case::new(36, "atomic-fragment-in-transit").passes(udp(FAR).fragment(0, false, 9)),
    ]
}

fn what_is_kept() -> Vec<Case> {
    let next = [59, 60, 43, 44, 50, 51, 132, 139, 140, 253, 255].into_iter();
    let next = next.fold(Case::new(62, "any-next-header"), |case, next| {
        case.passes(Ip6::new(HOST, FAR, next, packet::pattern(24)))
    });
    let class = [0x01, 0xb8, 0xff].into_iter();
    let back = Ip6::udp("2001:db8:2::2", "2001:db8:c000::5", 20);
    vec![
        next,
        class.fold(Case::new(26, "class-and-label"), |case, class| {
            case.passes(udp(FAR).class(class).label(0xf_1234))
        }),
        Case::new(0, "ipv6-tcp").passes(Ip6::tcp_syn(HOST, FAR, 1000, 80)),
        Case::new(0, "ipv6-checksums-of-the-payload-are-not-ours")
            .passes(with(udp(FAR).bytes(), |bytes| bytes[46..48].fill(0)))
            .passes(with(udp(FAR).bytes(), |bytes| bytes[46] ^= 0x5a)),
        Case::new(0, "ipv6-from-sink-to-source")
            .sends_from(Side::Snk, back.clone())
            .expects(Side::Src, Side::Src.to_neighbor(2, &packet::routed(&back.bytes()))),
        Case::new(0, "ipv6-to-a-neighbor-on-a-link").forwards(udp("2001:db8:2::5"), Side::Snk, 5),
    ]
}
