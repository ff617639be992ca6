//! Group E, checks 70 to 75, as far as single packets can show. Checks that take time are in `tests/neighbors.rs`.

use bm_tests::case::Case;
use bm_tests::lab::Side;
use bm_tests::packet::{self, Ip4, Ip6};
use bm_wire::Mac;

const HOST: &str = "192.0.2.2";
const HOST6: &str = "2001:db8:1::2";
const TO: &str = "10.74.1.1";
const TO6: &str = "2001:db8:a074::1";

fn udp(to: &str) -> Ip4 {
    Ip4::udp(HOST, to, 20)
}

fn udp6(to: &str) -> Ip6 {
    Ip6::udp(HOST6, to, 20)
}

/// Adds routes first, which are deleted afterwards.
fn routes(check: u16, name: &'static str, routes: &[&str]) -> Case {
    let lines = |verb: &str| routes.iter().map(|route| format!("route {verb} {route}\n")).collect::<String>();
    Case::new(check, name).after(&lines("add"), &lines("del"))
}

pub fn cases() -> Vec<Case> {
    [neighbors(), kinds_of_next_hop(), objects()].concat()
}

fn neighbors() -> Vec<Case> {
    let moved = Mac([2, 0, 0, 0, 1, 0x99]);
    let replace =
        |address: &str, mac: Mac| format!("neigh replace {address} lladdr {mac} dev r1 nud permanent");
    let at_new = |case: Case, packet: Vec<u8>| {
        let out = packet::ip_frame(moved, Side::Snk.mac(1), &packet::routed(&packet));
        case.sends(packet).expects(Side::Snk, out)
    };
    let changed = |name, address: &str| {
        Case::new(70, name).after(&replace(address, moved), &replace(address, Side::Snk.mac(2)))
    };
    let many = ["10.9.9.9", "10.0.0.1", "10.200.1.1", "198.51.100.2"].into_iter();
    vec![
        many.fold(changed("changed-mac", "198.51.100.2"), |case, to| at_new(case, udp(to).bytes())),
        ["2001:db8:a000::9", "2001:db8:2::2"]
            .into_iter()
            .fold(changed("changed-mac-ipv6", "2001:db8:2::2"), |case, to| at_new(case, udp6(to).bytes())),
        Case::new(70, "new-neighbor-on-a-link")
            .after(&replace("198.51.100.77", moved), "neigh del 198.51.100.77 dev r1")
            .sends(udp("198.51.100.77"))
            .expects(
                Side::Snk,
                packet::ip_frame(moved, Side::Snk.mac(1), &packet::routed(&udp("198.51.100.77").bytes())),
            ),
        routes(
            72,
            "one-link-local-next-hop-on-two-links",
            &["2001:db8:a074::/48 via fe80::3 dev r1", "2001:db8:a075::/48 via fe80::3 dev r2"],
        )
        .forwards(udp6(TO6), Side::Snk, 3)
        .forwards(udp6("2001:db8:a075::1"), Side::Low, 3),
    ]
}

fn kinds_of_next_hop() -> Vec<Case> {
    let neighbor = |address: &str, n: u8| {
        let mac = Side::Snk.mac(n);
        (
            format!("neigh replace {address} lladdr {mac} dev r1 nud permanent"),
            format!("neigh del {address} dev r1"),
        )
    };
    let with = |case: Case, (add, del): (String, String)| case.after(&add, &del);
    vec![
        routes(74, "ipv4-by-an-ipv6-next-hop", &["10.74.0.0/16 via inet6 2001:db8:2::4 dev r1"]).forwards(
            udp(TO),
            Side::Snk,
            4,
        ),
        routes(
            74,
            "ipv4-by-a-link-local-next-hop",
            &["10.74.0.0/16 via inet6 fe80::5 dev r1", "10.75.0.0/16 via inet6 fe80::5 dev r2"],
        )
        .forwards(udp(TO), Side::Snk, 5)
        .forwards(udp("10.75.1.1"), Side::Low, 5),
        with(routes(0, "on-link-route", &["10.74.0.0/16 dev r1"]), neighbor(TO, 6)).forwards(
            udp(TO),
            Side::Snk,
            6,
        ),
        with(routes(0, "on-link-route-ipv6", &["2001:db8:a074::/48 dev r1"]), neighbor(TO6, 6)).forwards(
            udp6(TO6),
            Side::Snk,
            6,
        ),
        with(
            routes(0, "next-hop-outside-the-net", &["10.74.0.0/16 via 10.250.0.1 dev r1 onlink"]),
            neighbor("10.250.0.1", 7),
        )
        .forwards(udp(TO), Side::Snk, 7),
        routes(
            0,
            "one-next-hop-twice-in-tables",
            &["10.74.0.0/16 via 198.51.100.4 metric 10", "10.74.0.0/16 via 203.0.113.4 metric 20"],
        )
        .forwards(udp(TO), Side::Snk, 4),
    ]
}

fn objects() -> Vec<Case> {
    let object = |check, name, add: &str, del: &str| Case::new(check, name).after(add, del);
    let one = "nexthop add id 74 via 198.51.100.4 dev r1\nroute add 10.74.0.0/16 nhid 74";
    let gone = "route del 10.74.0.0/16\nnexthop del id 74";
    let group = "nexthop add id 74 via 198.51.100.4 dev r1\nnexthop add id 75 group 74\nroute add 10.74.0.0/16 nhid 75";
    let group_gone = "route del 10.74.0.0/16\nnexthop del id 75\nnexthop del id 74";
    let six = "nexthop add id 76 via fe80::6 dev r1\nroute add 2001:db8:a074::/48 nhid 76\nroute add 10.74.0.0/16 nhid 76";
    let six_gone = "route del 2001:db8:a074::/48\nroute del 10.74.0.0/16\nnexthop del id 76";
    let hole = "nexthop add id 77 blackhole\nroute add 10.74.0.0/16 nhid 77";
    let fallen = |case: Case| case.passes(udp(TO));
    vec![
        object(0, "next-hop-object", one, gone).forwards(udp(TO), Side::Snk, 4),
        object(73, "next-hop-object-replaced", one, gone)
            .after("nexthop replace id 74 via 203.0.113.5 dev r2", "")
            .forwards(udp(TO), Side::Low, 5),
        fallen(object(75, "next-hop-object-deleted-in-use", one, "").after("nexthop del id 74", "")),
        object(75, "next-hop-object-restored", one, gone)
            .after(&format!("nexthop del id 74\n{one}"), "")
            .forwards(udp(TO), Side::Snk, 4),
        object(0, "next-hop-group-of-one", group, group_gone).forwards(udp(TO), Side::Snk, 4),
        object(73, "next-hop-group-replaced", group, group_gone)
            .after("nexthop add id 78 via 198.51.100.8 dev r1\nnexthop replace id 75 group 78", "")
            .after("", "nexthop replace id 75 group 74\nnexthop del id 78")
            .forwards(udp(TO), Side::Snk, 8),
        fallen(
            object(75, "next-hop-group-deleted-in-use", group, "nexthop del id 74")
                .after("nexthop del id 75", ""),
        ),
        object(74, "ipv6-object-for-both-families", six, six_gone).forwards(udp(TO), Side::Snk, 6).forwards(
            udp6(TO6),
            Side::Snk,
            6,
        ),
        object(14, "blackhole-object", hole, "route del 10.74.0.0/16\nnexthop del id 77").sends(udp(TO)),
    ]
}
