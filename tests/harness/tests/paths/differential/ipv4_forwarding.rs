//! Group A, checks 8 to 15 and 26 to 28: forwarding by the longest match (RFC 1812 5.2.4 and 5.3).

use bm_tests::case::Case;
use bm_tests::lab::Side;
use bm_tests::normalise::LOCAL4;
use bm_tests::packet::{self, Ip4, time_exceeded4, unreachable4};

const HOST: &str = "192.0.2.2";
const FAR: &str = "10.9.9.9";
const ROUTER: &str = "192.0.2.1";

fn udp(to: &str) -> Ip4 {
    Ip4::udp(HOST, to, 20)
}

pub fn cases() -> Vec<Case> {
    [hops(), longest_match(), route_types(), what_is_kept(), other_ways()].concat()
}

fn hops() -> Vec<Case> {
    let left = [2, 3, 64, 128, 255]
        .into_iter()
        .fold(Case::new(8, "hops-left"), |case, ttl| case.passes(udp(FAR).ttl(ttl)));
    let spent =
        |name, ttl| Case::new(9, name).answers(udp(FAR).ttl(ttl), |sent| time_exceeded4(ROUTER, sent));
    let ours = packet::echo4(HOST, ROUTER, 0x0102_0304, 30);
    let reply = packet::reply4(&ours);
    let delivered = Case::new(10, "last-hop-is-ours").answers(ours.clone().ttl(1), |_| reply.clone());
    let zero = Case::new(10, "no-hop-and-ours").answers(ours.ttl(0), |_| reply);
    vec![left, spent("ttl-1", 1), spent("ttl-0", 0), delivered, zero]
}

fn longest_match() -> Vec<Case> {
    let by = |case: Case, list: &[(&str, u8)]| {
        list.iter().fold(case, |case, (to, n)| case.forwards(udp(to), Side::Snk, *n))
    };
    let nested = [
        ("11.0.0.1", 7),
        ("10.9.9.9", 2),
        ("10.0.0.0", 2),
        ("10.255.255.255", 2),
        ("10.1.0.0", 3),
        ("10.1.255.255", 3),
        ("10.1.1.0", 4),
        ("10.1.1.127", 4),
        ("10.1.1.128", 5),
        ("10.1.1.199", 5),
        ("10.1.1.200", 6),
        ("10.1.1.201", 5),
    ];
    let default = Case::new(12, "longest-match-under-a-default")
        .after("route add default via 198.51.100.7", "route del default");
    let without = |name, route: &str, via: &str, list: &[(&str, u8)]| {
        let (add, del) = (format!("route add {route} via {via}"), format!("route del {route}"));
        by(Case::new(13, name).after(&del, &add), list)
    };
    vec![
        by(default, &nested),
        without("falls-back-from-32", "10.1.1.200/32", "198.51.100.6", &[("10.1.1.200", 5)]),
        without(
            "falls-back-from-25",
            "10.1.1.128/25",
            "198.51.100.5",
            &[("10.1.1.128", 4), ("10.1.1.200", 6)],
        ),
        without("falls-back-from-16", "10.1.0.0/16", "198.51.100.3", &[("10.1.2.3", 2), ("10.1.1.1", 4)]),
        by(
            Case::new(13, "the-better-metric-wins")
                .after("route add 10.1.0.0/16 via 198.51.100.8 metric 50", "route del 10.1.0.0/16 metric 50"),
            &[("10.1.2.3", 3)],
        ),
        by(
            Case::new(13, "the-next-metric-takes-over")
                .after("route add 10.1.0.0/16 via 198.51.100.8 metric 50", "route del 10.1.0.0/16 metric 50")
                .after("route del 10.1.0.0/16 metric 0", "route add 10.1.0.0/16 via 198.51.100.3"),
            &[("10.1.2.3", 8)],
        ),
        by(
            Case::new(13, "a-replaced-route").after(
                "route replace 10.1.0.0/16 via 198.51.100.9",
                "route replace 10.1.0.0/16 via 198.51.100.3",
            ),
            &[("10.1.2.3", 9), ("10.1.1.1", 4)],
        ),
    ]
}

fn route_types() -> Vec<Case> {
    let typed = |name, kind: &str| {
        let route = format!("{kind} 10.77.0.0/16");
        Case::new(14, name).after(&format!("route add {route}"), &format!("route del {route}"))
    };
    let to = LOCAL4;
    // Linux limits these answers per source, so each packet has another source.
    let from = |last: u8, to: &str| Ip4::udp(&format!("172.16.14.{last}"), to, 20);
    let rejected =
        |case: Case, packet: Ip4, code| case.answers(packet, |sent| unreachable4(ROUTER, code, sent));
    vec![
        typed("route-blackhole", "blackhole").sends(udp(to)).sends(packet::echo4(HOST, to, 1, 20)),
        rejected(typed("route-unreachable", "unreachable"), from(1, to), 1),
        rejected(typed("route-prohibit", "prohibit"), from(2, to), 13),
        rejected(typed("route-throw", "throw"), from(3, to), 0),
        typed("more-specific-in-a-blackhole", "blackhole")
            .after("route add 10.77.1.0/24 via 198.51.100.3", "route del 10.77.1.0/24")
            .forwards(udp(to), Side::Snk, 3)
            .sends(udp("10.77.2.1")),
        typed("blackhole-in-a-route", "blackhole").passes(udp("10.76.0.1")).sends(udp(to)),
        rejected(rejected(Case::new(15, "no-route"), from(4, "11.0.0.1"), 0), from(5, "99.99.99.99"), 0),
        Case::new(15, "no-route-in-an-empty-table")
            .after("rule add to 10.77.0.0/16 table 77", "rule del to 10.77.0.0/16 table 77")
            .passes(udp(to)),
        Case::new(0, "route-of-type-local")
            .after(
                &format!("route add local {LOCAL4}/32 dev lo"),
                &format!("route del local {LOCAL4}/32 dev lo"),
            )
            .answers(packet::echo4(HOST, to, 5, 20), |_| packet::reply4(&packet::echo4(HOST, to, 5, 20))),
    ]
}

fn what_is_kept() -> Vec<Case> {
    let tos = [0x01, 0x02, 0x03, 0xb8, 0xb9, 0xff]
        .into_iter()
        .fold(Case::new(26, "dscp-and-ecn"), |case, tos| case.passes(udp(FAR).tos(tos)));
    let flags = Case::new(27, "reserved-flag").passes(udp(FAR).flags(0x8000)).passes(udp(FAR).flags(0xc000));
    let protocols = [0, 1, 2, 4, 41, 47, 50, 51, 89, 132, 255].into_iter();
    let protocols = protocols.fold(Case::new(0, "any-protocol"), |case, protocol| {
        case.passes(Ip4::new(HOST, FAR, protocol, packet::pattern(20)))
    });
    let broken_udp = packet::with(udp(FAR).bytes(), |bytes| bytes[26] ^= 0x5a);
    let no_udp_sum = packet::with(udp(FAR).bytes(), |bytes| bytes[26..28].fill(0));
    vec![
        tos,
        flags,
        protocols,
        Case::new(0, "tcp").passes(Ip4::tcp_syn(HOST, FAR, 1000, 80)),
        Case::new(0, "checksums-of-the-payload-are-not-ours").passes(broken_udp).passes(no_udp_sum),
        Case::new(0, "full-size")
            .passes(Ip4::udp(HOST, FAR, 1472))
            .passes(Ip4::udp(HOST, FAR, 1472).flags(Ip4::DF)),
        Case::new(0, "fragments-pass-as-they-are")
            .passes(udp(FAR).flags(Ip4::MF))
            .passes(udp(FAR).flags(Ip4::MF | 100))
            .passes(udp(FAR).flags(185))
            .passes(udp(FAR).flags(Ip4::DF | Ip4::MF)),
    ]
}

fn other_ways() -> Vec<Case> {
    let back = Ip4::udp("198.51.100.2", "172.16.3.4", 20);
    let to_host = Ip4::udp("198.51.100.2", HOST, 20);
    let across = Ip4::udp("198.51.100.2", "203.0.113.4", 20);
    vec![
        Case::new(0, "from-sink-to-source")
            .sends_from(Side::Snk, back.clone())
            .expects(Side::Src, Side::Src.to_neighbor(2, &packet::routed(&back.bytes())))
            .sends_from(Side::Snk, to_host.clone())
            .expects(Side::Src, Side::Src.to_neighbor(2, &packet::routed(&to_host.bytes()))),
        Case::new(0, "between-the-links-of-the-sink")
            .sends_from(Side::Snk, across.clone())
            .expects(Side::Low, Side::Low.to_neighbor(4, &packet::routed(&across.bytes()))),
        Case::new(0, "to-a-neighbor-on-a-link").forwards(udp("198.51.100.5"), Side::Snk, 5).forwards(
            udp("203.0.113.9"),
            Side::Low,
            9,
        ),
        Case::new(49, "out-where-it-came-in").forwards(Ip4::udp("192.0.2.3", "172.16.3.4", 20), Side::Src, 2),
        Case::new(0, "by-tos")
            .after("route add 10.9.0.0/16 tos 0x10 via 198.51.100.3", "route del 10.9.0.0/16 tos 0x10")
            .forwards(udp(FAR).tos(0x10), Side::Snk, 3)
            .passes(udp(FAR).tos(0x08)),
        Case::new(0, "by-rule-on-the-source")
            .after(
                "rule add from 172.16.1.0/24 table 77\nroute add default via 198.51.100.4 table 77",
                "route del default table 77\nrule del from 172.16.1.0/24 table 77",
            )
            .forwards(Ip4::udp("172.16.1.9", FAR, 20), Side::Snk, 4)
            .passes(Ip4::udp("172.16.2.9", FAR, 20)),
        Case::new(0, "by-rule-on-the-interface")
            .after(
                "rule add iif r0 to 10.9.0.0/16 table 77\nroute add 10.9.0.0/16 via 203.0.113.4 table 77",
                "route del 10.9.0.0/16 table 77\nrule del iif r0 to 10.9.0.0/16 table 77",
            )
            .forwards(udp(FAR), Side::Low, 4),
        Case::new(66, "rule-prohibit")
            .after("rule add from 172.16.1.0/24 prohibit", "rule del from 172.16.1.0/24 prohibit")
            .sends(Ip4::udp("172.16.1.9", FAR, 20))
            .replies(unreachable4(ROUTER, 13, &Ip4::udp("172.16.1.9", FAR, 20).bytes())),
        Case::new(0, "rule-blackhole")
            .after("rule add from 172.16.1.0/24 blackhole", "rule del from 172.16.1.0/24 blackhole")
            .sends(Ip4::udp("172.16.1.9", FAR, 20)),
    ]
}
