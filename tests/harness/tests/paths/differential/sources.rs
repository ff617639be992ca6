//! Sources: those that Linux refuses since their route is not unicast, and those of the errors that it sends.
//!
//! Linux looks at the routes of sources only once a rule or a local route was added, and from then on for ever: the
//! order of the cases matters.

use bm_tests::case::Case;
use bm_tests::lab::Side;
use bm_tests::normalise::LOCAL6;
use bm_tests::packet::{Ip4, Ip6, time_exceeded4, time_exceeded6};

const HOST: &str = "192.0.2.2";
const FAR: &str = "10.9.9.9";
const HOST6: &str = "2001:db8:1::2";
const FAR6: &str = "2001:db8:a000::9";

fn from(source: &str) -> Ip4 {
    Ip4::udp(source, FAR, 20)
}

pub fn cases() -> Vec<Case> {
    [refused(), of_errors4(), of_errors6()].concat()
}

fn refused() -> Vec<Case> {
    let broadcast = "198.51.100.255";
    let anyip = "10.99.0.0/24 dev lo";
    vec![
        Case::new(19, "broadcast-source-while-routes-do-not-matter").passes(from(broadcast)),
        Case::new(19, "address-in-a-network-of-the-loopback")
            .after("addr add 10.97.0.1/24 dev lo", "addr del 10.97.0.1/24 dev lo")
            .passes(from("10.97.0.5"))
            .sends(from("10.97.0.1")),
        Case::new(19, "source-that-a-local-route-covers")
            .after(&format!("route add local {anyip}"), &format!("route del local {anyip}"))
            .sends(from("10.99.0.5"))
            .sends(from(broadcast))
            .passes(from(HOST)),
        Case::new(19, "broadcast-source-once-routes-matter").sends(from(broadcast)).passes(from(HOST)),
        Case::new(19, "local-route-to-one-address")
            .after("route add local 10.98.0.7 dev lo", "route del local 10.98.0.7 dev lo")
            .sends(from("10.98.0.7"))
            .passes(from("10.98.0.8")),
        Case::new(19, "source-in-a-network-of-the-loopback-once-routes-matter")
            .after("addr add 10.97.0.1/24 dev lo", "addr del 10.97.0.1/24 dev lo")
            .sends(from("10.97.0.5")),
        Case::new(12, "destination-that-a-local-route-covers")
            .after(&format!("route add local {anyip}"), &format!("route del local {anyip}"))
            .sends(Ip4::new(HOST, "10.99.0.5", 253, vec![0; 8]).flags(1).ttl(9)),
    ]
}

fn of_errors4() -> Vec<Case> {
    let spent = from("172.16.5.5").ttl(1);
    let error = |case: Case, source: &str| case.answers(spent.clone(), |sent| time_exceeded4(source, sent));
    let after = |name, lines: &str, undo: &str| Case::new(41, name).after(lines, undo);
    vec![
        error(
            after(
                "source-with-link-scope",
                "addr add 10.77.1.2/24 dev r0 scope link",
                "addr del 10.77.1.2/24 dev r0",
            ),
            "192.0.2.1",
        ),
        error(
            after(
                "source-with-a-peer",
                "addr add 10.77.1.2 peer 192.0.2.0/24 dev r0",
                "addr del 10.77.1.2 peer 192.0.2.0/24 dev r0",
            ),
            "192.0.2.1",
        ),
        error(
            after("source-on-the-loopback", "addr add 10.77.1.2/32 dev lo", "addr del 10.77.1.2/32 dev lo"),
            "192.0.2.1",
        ),
        error(
            after(
                "source-of-a-route-to-the-link",
                "addr add 10.77.1.2/24 dev r0\nroute add 172.16.5.0/24 dev r0\nneigh add 172.16.5.5 lladdr 02:00:00:00:00:02 dev r0 nud permanent",
                "neigh del 172.16.5.5 dev r0\nroute del 172.16.5.0/24 dev r0\naddr del 10.77.1.2/24 dev r0",
            ),
            "192.0.2.1",
        ),
    ]
}

fn of_errors6() -> Vec<Case> {
    let spent = Ip6::udp(HOST6, FAR6, 20).hop_limit(1);
    let error = |case: Case, source: &str| case.answers(spent.clone(), |sent| time_exceeded6(source, sent));
    let address = |name, address: &str, words: &str| {
        let add = format!("addr add {address} dev r0 nodad {words}");
        Case::new(41, name).after(&add, &format!("addr del {address} dev r0"))
    };
    let elsewhere = "2001:db8:c000::5";
    let ula = address("unique-local-source-beside-a-global-one", "fd00:1::1/64", "");
    vec![
        error(ula, "2001:db8:1::1"),
        error(address("deprecated-source", "2001:db8:1::5/64", "preferred_lft 0"), "2001:db8:1::1"),
        error(address("source-with-a-longer-match", "2001:db8:1::3/128", ""), LOCAL6),
        error(
            Case::new(41, "source-that-a-route-prefers").after(
                "route add 2001:db8:1::2/128 dev r0 src 2001:db8:2::1",
                "route del 2001:db8:1::2/128 dev r0",
            ),
            "2001:db8:2::1",
        ),
        Case::new(41, "error-to-a-source-behind-another-router")
            .answers(Ip6::udp(elsewhere, FAR6, 20).hop_limit(1), |sent| {
                time_exceeded6("2001:db8:1::1", sent)
            }),
        Case::new(41, "global-source-elsewhere-if-only-a-deprecated-one-is-here")
            .after(
                "addr change 2001:db8:1::1/64 dev r0 nodad preferred_lft 0",
                "addr change 2001:db8:1::1/64 dev r0 nodad preferred_lft forever",
            )
            .answers(spent.clone(), |sent| time_exceeded6("2001:db8:2::1", sent))
            .forwards(Ip6::udp(HOST6, FAR6, 20), Side::Snk, 2),
    ]
}
