//! Several next hops: shares, stickiness, and losses when the group changes (checks 39, 73, 75, 81).
//!
//! Each router hashes flows in its own way, so results are not compared packet by packet.

use bm_tests::flow::Stream;
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::packet::{Ip4, Ip6};
use bm_tests::report;
use bm_tests::spread::{self, Exit};
use bm_tests::subject::{Router, each};
use std::collections::BTreeMap;
use std::time::Duration;

const HOST: &str = "192.0.2.2";
const HOST6: &str = "2001:db8:1::2";
/// Flows of a trial; the standard deviation of shares is then half a percent.
const FLOWS: u32 = 10_000;

/// One packet for each flow; `vary` derives destination and port from its number.
fn flows(count: u32, vary: impl Fn(u32) -> (String, u16)) -> Vec<Vec<u8>> {
    let packet = |number: u32| {
        let (to, port) = vary(number);
        let data = spread::label(number);
        if to.contains(':') {
            Ip6::udp_ports(HOST6, &to, port, 5000, &data).bytes()
        } else {
            Ip4::udp_ports(HOST, &to, port, 5000, &data).bytes()
        }
    };
    (0..count).map(packet).collect()
}

fn v4(number: u32) -> (String, u16) {
    (format!("10.81.{}.{}", number >> 8 & 255, number & 255), 4000)
}

fn v6(number: u32) -> (String, u16) {
    (format!("2001:db8:a081::{number:x}"), 4000)
}

/// Where all packets come out; none may be lost.
fn exits(lab: &Lab, router: &Router, packets: &[Vec<u8>]) -> BTreeMap<u32, Exit> {
    let exits = spread::exits(lab, packets);
    assert_eq!(exits.len(), packets.len(), "{}: packets were lost", router.name());
    exits
}

/// Share of each neighbor of the sink's two links, in percent.
fn percents(exits: &BTreeMap<u32, Exit>) -> BTreeMap<(Side, u8), f64> {
    let shares = spread::shares(exits).into_iter();
    shares.map(|((side, mac), count)| ((side, mac.0[5]), count as f64 * 100.0 / exits.len() as f64)).collect()
}

#[track_caller]
fn assert_shares(router: &Router, what: &str, exits: &BTreeMap<u32, Exit>, expected: &[((Side, u8), f64)]) {
    let found = percents(exits);
    report::say(&format!("multipath: {}: {what}: {found:.2?}", router.name()));
    assert_eq!(found.len(), expected.len(), "{}: {what}: {found:?}", router.name());
    for (exit, percent) in expected {
        // Check 81 requires 1 % at 10,000 flows, but a fair coin deviates by more in one of 20 trials.
        let strays = (found.get(exit).copied().unwrap_or_default() - percent).abs();
        assert!(strays < 2.0, "{}: {what}: {found:?}, not {expected:?}", router.name());
    }
}

#[test]
fn shares_follow_weights_and_flows_stay() {
    each("shares", Ends::Silent, |lab, router| {
        lab.rtr.ip(
            "route add 10.81.0.0/16 nexthop via 198.51.100.4 weight 1 nexthop via 203.0.113.4 weight 1
nexthop add id 4 via 2001:db8:2::4 dev r1
nexthop add id 5 via 2001:db8:3::4 dev r2
nexthop add id 6 group 4,3/5,1
route add 2001:db8:a081::/48 nhid 6",
        );
        router.settle();
        let even = [((Side::Snk, 4), 50.0), ((Side::Low, 4), 50.0)];
        let packets = flows(FLOWS, v4);
        let first = exits(lab, router, &packets);
        assert_shares(router, "IPv4, 1 to 1", &first, &even);
        assert_eq!(first, exits(lab, router, &packets), "{}: a flow has moved", router.name());
        let packets = flows(FLOWS, v6);
        let first = exits(lab, router, &packets);
        assert_shares(router, "IPv6, 3 to 1", &first, &[((Side::Snk, 4), 75.0), ((Side::Low, 4), 25.0)]);
        assert_eq!(first, exits(lab, router, &packets), "{}: a flow has moved", router.name());
    });
}

#[test]
fn hash_policy_defines_what_a_flow_is() {
    each("policy", Ends::Silent, |lab, router| {
        lab.rtr.ip("route add 10.81.0.0/16 nexthop via 198.51.100.4 nexthop via 203.0.113.4
route add 2001:db8:a081::/48 nexthop via 2001:db8:2::4 nexthop via 2001:db8:3::4");
        router.settle();
        let by_port = |to: &'static str| flows(2000, move |number| (to.to_string(), 1000 + number as u16));
        let families = [by_port("10.81.0.1"), by_port("2001:db8:a081::1")];
        for packets in &families {
            let one = spread::shares(&exits(lab, router, packets));
            assert_eq!(one.len(), 1, "{}: policy 0 must not look at ports: {one:?}", router.name());
        }
        lab.rtr
            .set(&[("net.ipv4.fib_multipath_hash_policy", "1"), ("net.ipv6.fib_multipath_hash_policy", "1")]);
        for packets in &families {
            assert!(spreads(lab, router, packets), "{}: policy 1 must look at ports", router.name());
        }
        // A fragment has no ports, but payload in their place (check 39).
        let fragment = |number: u32| {
            let data = [&number.to_be_bytes()[..], &[0; 4], &spread::label(number)].concat();
            let offset = if number == 0 { Ip4::MF } else { number as u16 };
            Ip4::new(HOST, "10.81.0.1", 17, data).flags(offset).bytes()
        };
        let fragments: Vec<_> = (0..64).map(fragment).collect();
        let one = spread::shares(&exits(lab, router, &fragments));
        assert_eq!(
            one.len(),
            1,
            "{}: fragments of one datagram take different paths: {one:?}",
            router.name()
        );
    });
}

/// In a group of next-hop objects Linux skips members whose neighbor does not answer, in both families and with default
/// settings; in routes with several next hops it does so only if a setting says so.
#[test]
fn members_that_do_not_answer_get_nothing() {
    each("dead", Ends::Silent, |lab, router| {
        lab.rtr.ip("nexthop add id 4 via 198.51.100.4 dev r1
nexthop add id 5 via 203.0.113.4 dev r2
nexthop add id 6 group 4/5
route add 10.81.0.0/16 nhid 6
nexthop add id 14 via 2001:db8:2::4 dev r1
nexthop add id 15 via 2001:db8:3::4 dev r2
nexthop add id 16 group 14/15
route add 2001:db8:a081::/48 nhid 16");
        router.settle();
        let families = [flows(500, v4), flows(500, v6)];
        let used =
            |packets: &[Vec<u8>]| percents(&exits(lab, router, packets)).into_keys().collect::<Vec<_>>();
        let both = [(Side::Snk, 4), (Side::Low, 4)];
        for packets in &families {
            assert_eq!(used(packets), both, "{}: all answer", router.name());
        }
        lab.rtr
            .ip("neigh replace 203.0.113.4 dev r2 nud failed\nneigh replace 2001:db8:3::4 dev r2 nud failed");
        router.settle();
        for packets in &families {
            assert_eq!(used(packets), both[..1], "{}: one does not", router.name());
        }
        let mac = Side::Low.mac(4);
        lab.rtr.ip(&format!(
            "neigh replace 203.0.113.4 lladdr {mac} dev r2 nud permanent
neigh replace 2001:db8:3::4 lladdr {mac} dev r2 nud permanent"
        ));
        router.settle();
        for packets in &families {
            assert_eq!(used(packets), both, "{}: it answers again", router.name());
        }
    });
}

/// Waits until both next hops get about 40 to 60 percent: the kernel does not announce a change of the setting, so a
/// mirror may have to poll it.
fn spreads(lab: &Lab, router: &Router, packets: &[Vec<u8>]) -> bool {
    (0..20).any(|_| {
        let shares = percents(&exits(lab, router, packets));
        let even = shares.len() == 2 && shares.values().all(|share| (40.0..60.0).contains(share));
        if !even {
            std::thread::sleep(Duration::from_millis(100));
        }
        even
    })
}

/// Three next hops of one group on the sink's first link.
const GROUP: &str = "nexthop add id 3 via 198.51.100.3 dev r1
nexthop add id 4 via 198.51.100.4 dev r1
nexthop add id 5 via 198.51.100.5 dev r1
nexthop add id 6 via 198.51.100.6 dev r1\n";

fn stream() -> Stream {
    Stream { destinations: (0..100).map(|host| format!("10.81.7.{host}")).collect(), rate: 4000 }
}

#[test]
fn replaced_group_loses_nothing() {
    each("replace", Ends::Silent, |lab, router| {
        lab.rtr.ip(&format!("{GROUP}nexthop add id 10 group 3/4\nroute add 10.81.0.0/16 nhid 10"));
        router.settle();
        let ((), outcome) = stream().during(lab, || {
            for _ in 0..20 {
                lab.rtr.ip("nexthop replace id 10 group 5/6");
                std::thread::sleep(Duration::from_millis(10));
                lab.rtr.ip("nexthop replace id 10 group 3/4/5");
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        report::say(&format!("replace: {}: 40 replacements: {outcome}", router.name()));
        assert_eq!((outcome.lost(), outcome.twice), (0, 0), "{}: {outcome}", router.name());
        router.settle();
        let last = exits(lab, router, &flows(3000, v4));
        let used: Vec<u8> = percents(&last).keys().map(|(_, n)| *n).collect();
        assert_eq!(used, [3, 4, 5], "{}", router.name());
    });
}

#[test]
fn resilient_group_keeps_the_flows_of_living_members() {
    each("resilient", Ends::Silent, |lab, router| {
        lab.rtr.ip(&format!(
            "{GROUP}nexthop add id 10 group 3/4/5 type resilient buckets 64 idle_timer 60 unbalanced_timer 0
route add 10.81.0.0/16 nhid 10"
        ));
        router.settle();
        let packets = flows(2000, v4);
        let before = exits(lab, router, &packets);
        assert_eq!(percents(&before).len(), 3, "{}", router.name());
        lab.rtr.ip("nexthop replace id 10 group 3/4 type resilient");
        router.settle();
        let after = exits(lab, router, &packets);
        assert_eq!(percents(&after).len(), 2, "{}", router.name());
        let stays = |(number, exit): &(&u32, &Exit)| exit.1.0[5] == 5 || after.get(number) == Some(exit);
        let moved = before.len() - before.iter().filter(stays).count();
        report::say(&format!("resilient: {}: {moved} of 2000 flows of living members moved", router.name()));
        assert_eq!(moved, 0, "{}: flows of living members moved", router.name());
    });
}

#[test]
fn group_deleted_in_use_comes_back() {
    each("restore", Ends::Silent, |lab, router| {
        let make = "nexthop add id 10 group 3/4\nroute add 10.81.0.0/16 nhid 10";
        lab.rtr.ip(&format!("{GROUP}{make}"));
        router.settle();
        // The kernel deletes the route with the group, and 10.0.0.0/8 is used: nothing may be lost.
        let ((), outcome) = stream().during(lab, || {
            for _ in 0..10 {
                lab.rtr.ip("nexthop del id 10");
                std::thread::sleep(Duration::from_millis(20));
                lab.rtr.ip(make);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        report::say(&format!("restore: {}: 10 times deleted and restored: {outcome}", router.name()));
        assert_eq!((outcome.lost(), outcome.twice), (0, 0), "{}: {outcome}", router.name());
        router.settle();
        let last = exits(lab, router, &flows(1000, v4));
        let used: Vec<u8> = percents(&last).keys().map(|(_, n)| *n).collect();
        assert_eq!(used, [3, 4], "{}", router.name());
    });
}
