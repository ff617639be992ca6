//! Group E, checks 67 to 71 and 76: next hops that must be resolved, change, become stale or disappear.
//!
//! These take time and depend on clocks, so the same assertions apply to both subjects instead of a comparison byte by
//! byte. The hosts do not exist: a responder answers for them, or does not.

use bm_tests::daemon::eventually;
use bm_tests::flow::Stream;
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::packet::{self, Ip4, Ip6};
use bm_tests::responder::{Responder, usual};
use bm_tests::subject::{Router, Subject, each};
use bm_tests::{command, normalise, report};
use bm_wire::Mac;
use std::net::IpAddr;
use std::time::{Duration, Instant};

const HOST: &str = "192.0.2.2";
const HOST6: &str = "2001:db8:1::2";
const FAR: &str = "10.9.9.9";
const FAR6: &str = "2001:db8:a000::9";

fn millis(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// Makes the timeouts of the router's neighbor tables short enough for a test.
fn hasten(lab: &Lab) {
    for family in ["ipv4", "ipv6"] {
        for link in ["r0", "r1", "r2"] {
            lab.rtr.set(&[
                (&format!("net.{family}.neigh.{link}.retrans_time_ms"), "100"),
                (&format!("net.{family}.neigh.{link}.base_reachable_time_ms"), "600"),
                (&format!("net.{family}.neigh.{link}.delay_first_probe_time"), "1"),
            ]);
        }
        lab.rtr.set(&[(&format!("net.{family}.neigh.r1.mcast_solicit"), "3")]);
    }
    lab.rtr.set(&[("net.ipv4.neigh.r1.locktime", "0")]);
}

fn is_forwarded(frame: &[u8], packet: &[u8]) -> bool {
    frame.get(14..) == Some(&packet::routed(packet)[..])
}

/// Sends packets to one destination in a row; returns which of them came out at the sink, in the order of arrival.
fn arrived(lab: &Lab, packets: &[Vec<u8>]) -> Vec<usize> {
    lab.drain();
    for packet in packets {
        lab.send(Side::Src, &Side::Src.to_router(packet));
    }
    let mut order = Vec::new();
    let deadline = Instant::now() + millis(1500);
    while order.len() < packets.len() && Instant::now() < deadline {
        let left = deadline.saturating_duration_since(Instant::now());
        let Some(captured) = lab.await_frame(Side::Snk, left, |frame| !normalise::is_noise(frame)) else {
            break;
        };
        order.extend(packets.iter().position(|packet| is_forwarded(&captured.frame, packet)));
    }
    order
}

#[test]
fn packets_wait_for_their_next_hop() {
    each("wait", Ends::Unknown, |lab, _| {
        let _source = Responder::usual(lab, Side::Src);
        let answer = |address| Some(usual(Side::Snk, address));
        let _sink = Responder::start(lab, Side::Snk, millis(60), Box::new(answer));
        let v4: Vec<_> = (0..3).map(|id| Ip4::udp(HOST, FAR, 20).id(id).bytes()).collect();
        let v6: Vec<_> = (0..3).map(|label| Ip6::udp(HOST6, FAR6, 20).label(label).bytes()).collect();
        assert_eq!(arrived(lab, &v4), [0, 1, 2], "IPv4 packets with an empty neighbor table");
        assert_eq!(arrived(lab, &v6), [0, 1, 2], "IPv6 packets with an empty neighbor table");
        assert_eq!(arrived(lab, &v4), [0, 1, 2], "IPv4 packets with an entry in the table");
    });
}

/// Starts brickmoon with a firewall that forwards nothing, and that brickmoon bypasses.
fn behind_a_firewall<'a>(subject: &Subject, lab: &'a Lab) -> Router<'a> {
    for line in [
        "nft add table inet t",
        "nft add chain inet t f { type filter hook forward priority 0 ; policy drop ; }",
    ] {
        lab.rtr.run(line);
    }
    let mut router = subject.start(lab);
    router.end(&[]);
    router.restart_with(&["r0", "r1", "r2"], "[firewall]\nnftables = 'bypass'\n");
    router.settle();
    router
}

/// Sends a packet again and again, until one comes out at the sink.
fn time_until_forwarded(lab: &Lab, packet: &[u8]) -> Option<Duration> {
    lab.drain();
    let start = Instant::now();
    (0..100).find_map(|_| {
        lab.send(Side::Src, &Side::Src.to_router(packet));
        lab.await_frame(Side::Snk, millis(20), |frame| is_forwarded(frame, packet))?;
        Some(start.elapsed())
    })
}

/// Linux would drop packets to unknown hosts before it asks for their MAC addresses.
#[test]
fn hosts_behind_a_bypassed_firewall_are_found() {
    if !command::has("nft") {
        return report::skip("bypass-unknown", "there is no nft");
    }
    for subject in Subject::with_tc("bypass-unknown").into_iter().filter(|subject| *subject != Subject::Linux)
    {
        let lab = Lab::new("bypass-unknown", Ends::Unknown);
        let router = behind_a_firewall(&subject, &lab);
        let silent: IpAddr = "198.51.100.99".parse().expect("an address");
        let answer = move |address| (address != silent).then(|| usual(Side::Snk, address));
        let (_source, sink) = (
            Responder::usual(&lab, Side::Src),
            Responder::start(&lab, Side::Snk, Duration::ZERO, Box::new(answer)),
        );
        for packet in [
            Ip4::udp(HOST, "198.51.100.77", 20).bytes(),
            Ip6::udp(HOST6, "2001:db8:2::77", 20).bytes(),
            Ip4::udp(HOST, FAR, 20).bytes(),
            Ip6::udp(HOST6, FAR6, 20).bytes(),
        ] {
            let took = time_until_forwarded(&lab, &packet);
            let took =
                took.unwrap_or_else(|| panic!("{}: {packet:x?}\n{}", router.name(), router.status_text()));
            report::say(&format!("bypass-unknown: {}: after {} ms", router.name(), took.as_millis()));
        }
        // A host that does not answer is asked for as Linux asks: about once a second, while packets come.
        let start = Instant::now();
        let packet = Side::Src.to_router(&Ip4::udp(HOST, "198.51.100.99", 20).bytes());
        while start.elapsed() < millis(5000) {
            lab.send(Side::Src, &packet);
            std::thread::sleep(millis(5));
        }
        let asked = || sink.asked().iter().filter(|asked| asked.target == silent).count();
        assert!((3..=10).contains(&asked()), "{}: {} requests", router.name(), asked());
        std::thread::sleep(millis(3500));
        let before = asked();
        std::thread::sleep(millis(1500));
        assert_eq!(asked(), before, "{}: none without packets", router.name());
        router.settle();
        router.stop();
    }
}

/// Type, code, and the destination of the packet that an ICMP or ICMPv6 error at the source quotes.
fn error(frame: &[u8]) -> Option<(u8, u8, Vec<u8>)> {
    let packet = frame.get(14..)?;
    match packet.first()? >> 4 {
        4 if packet.get(9) == Some(&1) => {
            Some((*packet.get(20)?, *packet.get(21)?, packet.get(44..48)?.to_vec()))
        }
        6 if packet.get(6) == Some(&58) => {
            Some((*packet.get(40)?, *packet.get(41)?, packet.get(72..88)?.to_vec()))
        }
        _ => None,
    }
}

#[test]
fn silent_next_hop_is_reported_and_retried() {
    each("silent", Ends::Unknown, |lab, router| {
        hasten(lab);
        let _source = Responder::usual(lab, Side::Src);
        let v4 = Ip4::udp(HOST, FAR, 20);
        let v6 = Ip6::udp(HOST6, FAR6, 20);
        let expected = [
            (v4.bytes(), (3, 1, v4.destination.octets().to_vec())),
            (v6.bytes(), (1, 3, v6.destination.octets().to_vec())),
        ];
        for (packet, wanted) in &expected {
            lab.drain();
            let start = Instant::now();
            // On a busy machine Linux itself may send no error for the first packet.
            let found = (0..5).find_map(|_| {
                lab.send(Side::Src, &Side::Src.to_router(packet));
                lab.await_frame(Side::Src, millis(2000), |frame| error(frame).as_ref() == Some(wanted))
            });
            assert!(found.is_some(), "{}: no {wanted:?} for any of five packets", router.name());
            report::say(&format!(
                "silent: {}: unreachable after {} ms",
                router.name(),
                start.elapsed().as_millis()
            ));
        }
        // The host comes up: a failed entry must not block packets forever.
        let _sink = Responder::usual(lab, Side::Snk);
        for (packet, _) in &expected {
            let got = (0..20).any(|_| !arrived(lab, std::slice::from_ref(packet)).is_empty());
            assert!(got, "{}: not forwarded after the host came up", router.name());
        }
    });
}

#[test]
fn group_mac_in_an_arp_reply() {
    each("group-mac", Ends::Unknown, |lab, router| {
        hasten(lab);
        let _source = Responder::usual(lab, Side::Src);
        let group = Mac([1, 0, 0x5e, 0, 0, 5]);
        let _sink = Responder::start(lab, Side::Snk, Duration::ZERO, Box::new(move |_| Some(group)));
        let packet = Ip4::udp(HOST, FAR, 20).bytes();
        lab.drain();
        lab.send(Side::Src, &Side::Src.to_router(&packet));
        let out = lab.await_frame(Side::Snk, millis(700), |frame| is_forwarded(frame, &packet));
        let to_group = out.is_some_and(|captured| captured.frame[..6] == group.0);
        // Check 68 requires ignoring it, but Linux accepts it. Either is allowed, and reported.
        let verb = if to_group { "accepts" } else { "ignores" };
        // Other next hops are not affected.
        let _low = Responder::usual(lab, Side::Low);
        let other = Ip4::udp(HOST, "10.2.9.9", 20).bytes();
        lab.send(Side::Src, &Side::Src.to_router(&other));
        let out = lab.await_frame(Side::Low, millis(2000), |frame| is_forwarded(frame, &other));
        assert!(out.is_some(), "{}: another next hop is not resolved", router.name());
        report::say(&format!("group-mac: {} {verb} a group MAC from ARP (check 68)", router.name()));
        assert!(to_group || router.is_brickmoon(), "docs say that Linux accepts it");
    });
}

#[test]
fn changed_mac_is_used_immediately() {
    each("moved", Ends::Unknown, |lab, router| {
        hasten(lab);
        let _source = Responder::usual(lab, Side::Src);
        let sink = Responder::usual(lab, Side::Snk);
        let packets: Vec<_> = ["10.9.9.9", "10.8.8.8"].map(|to| Ip4::udp(HOST, to, 20).bytes()).into();
        let mut met = arrived(lab, &packets);
        met.sort_unstable();
        assert_eq!(met, [0, 1]);
        drop(sink);
        // The host announces its new MAC to all (RFC 5227 calls it an announcement).
        let moved = Mac([2, 0, 0, 0, 1, 0x77]);
        let address = Side::Snk.v4(2).parse().expect("an address");
        lab.send(Side::Snk, &packet::arp_request((moved, address), address));
        let start = Instant::now();
        let at_new = |packet: &Vec<u8>| {
            lab.send(Side::Src, &Side::Src.to_router(packet));
            let out = lab.await_frame(Side::Snk, millis(200), |frame| is_forwarded(frame, packet));
            out.is_some_and(|captured| captured.frame[..6] == moved.0)
        };
        while !packets.iter().all(at_new) {
            assert!(start.elapsed() < millis(1000), "{}: the old MAC is still used", router.name());
        }
        report::say(&format!(
            "moved: {}: new MAC used after {} ms",
            router.name(),
            start.elapsed().as_millis()
        ));
    });
}

/// State of the next hop in the kernel's table.
fn state(lab: &Lab, address: &str) -> String {
    lab.rtr.run(&format!("ip neigh show {address} dev r1"))
}

#[test]
fn neighbor_in_use_stays_fresh() {
    each("fresh", Ends::Unknown, |lab, router| {
        hasten(lab);
        let _source = Responder::usual(lab, Side::Src);
        let sink = Responder::usual(lab, Side::Snk);
        // Wait until the next hop is resolved.
        assert!(!arrived(lab, &[Ip4::udp(HOST, FAR, 20).bytes()]).is_empty());
        assert!(!arrived(lab, &[Ip6::udp(HOST6, FAR6, 20).bytes()]).is_empty());
        let stream = Stream { destinations: vec![FAR.into(), FAR6.into()], rate: 400 };
        let outcome = stream.for_a_while(lab, millis(4500));
        let asked = sink.asked();
        for next_hop in ["198.51.100.2", "2001:db8:2::2"] {
            let address: IpAddr = next_hop.parse().expect("an address");
            let probes = asked.iter().filter(|asked| asked.target == address && asked.unicast).count();
            let state = state(lab, next_hop);
            report::say(&format!("fresh: {}: {next_hop}: {probes} probes, {}", router.name(), state.trim()));
            // 600 ms reachable, 1 s delay: about two to three probes in this time.
            assert!(probes >= 1, "{}: the next hop was never probed", router.name());
            let fresh = ["REACHABLE", "DELAY", "PROBE"].iter().any(|fresh| state.contains(fresh));
            assert!(fresh, "{}: {state}", router.name());
        }
        assert_eq!(outcome.lost(), 0, "{}: {outcome}", router.name());
    });
}

#[test]
fn next_hop_that_disappears_is_noticed() {
    each("dies", Ends::Unknown, |lab, router| {
        hasten(lab);
        let _source = Responder::usual(lab, Side::Src);
        let sink = Responder::usual(lab, Side::Snk);
        let packet = Ip4::udp(HOST, FAR, 20);
        assert!(!arrived(lab, &[packet.bytes()]).is_empty());
        drop(sink);
        let start = Instant::now();
        let wanted = (3, 1, packet.destination.octets().to_vec());
        lab.drain();
        let noticed = loop {
            lab.send(Side::Src, &Side::Src.to_router(&packet.bytes()));
            let found =
                lab.await_frame(Side::Src, millis(20), |frame| error(frame).as_ref() == Some(&wanted));
            if found.is_some() || start.elapsed() > millis(8000) {
                break found.is_some();
            }
        };
        assert!(
            noticed,
            "{}: still sends to a host that is gone\n{}",
            router.name(),
            state(lab, "198.51.100.2")
        );
        report::say(&format!("dies: {}: noticed after {} ms", router.name(), start.elapsed().as_millis()));
    });
}

#[test]
fn scan_of_a_link_is_bounded() {
    each("scan", Ends::Unknown, |lab, router| {
        hasten(lab);
        let _source = Responder::usual(lab, Side::Src);
        let known = |address: IpAddr| {
            let local = ["198.51.100.2", "2001:db8:2::2"].iter().any(|known| address.to_string() == *known);
            local.then(|| usual(Side::Snk, address))
        };
        let sink = Responder::start(lab, Side::Snk, Duration::ZERO, Box::new(known));
        lab.rtr.ip("addr add 10.60.0.1/16 dev r1");
        router.settle();
        assert!(!arrived(lab, &[Ip4::udp(HOST, FAR, 20).bytes()]).is_empty());
        let ((), outcome) = Stream::to(FAR, 1000).during(lab, || scan(lab));
        let asked = sink.asked().len();
        let entries = lab.rtr.run("ip -4 neigh show dev r1").lines().count();
        let entries6 = lab.rtr.run("ip -6 neigh show dev r1").lines().count();
        report::say(&format!(
            "scan: {}: {SCANNED} + {SCANNED} addresses, {asked} requests, {entries} + {entries6} entries; meanwhile {outcome}",
            router.name()
        ));
        // A resolution sends three requests. There are four packets for each address, and after a failed resolution
        // another may follow.
        assert!(asked <= 2 * 3 * 2 * SCANNED as usize, "{}: {asked} requests", router.name());
        let most = SCANNED as usize + 20;
        assert!(
            entries <= most && entries6 <= most,
            "{}: too many entries for hosts that do not exist",
            router.name()
        );
        assert_eq!(outcome.lost(), 0, "{}: {outcome}", router.name());
    });
}

/// Number of hosts of a scan, per family. The kernel's limit of 1024 entries is shared by all namespaces, so a scan
/// that reached it would affect everything else on this machine.
const SCANNED: u32 = 400;

/// Sends four packets of each family to each of many hosts that do not exist.
fn scan(lab: &Lab) {
    for host in (0..4).flat_map(|_| 0..SCANNED) {
        let v4 = Ip4::udp(HOST, &format!("10.60.{}.{}", host >> 8, host & 255), 20);
        let v6 = Ip6::udp(HOST6, &format!("2001:db8:2::f:{host:x}"), 20);
        lab.send(Side::Src, &Side::Src.to_router(&v4.bytes()));
        lab.send(Side::Src, &Side::Src.to_router(&v6.bytes()));
        if host % 50 == 0 {
            std::thread::sleep(millis(10));
        }
    }
}

/// Adds two next hops for one prefix, on the sink's two links.
fn two_ways(lab: &Lab, router: &Router) {
    lab.rtr.ip("route add 10.80.0.0/16 nexthop via 198.51.100.4 nexthop via 203.0.113.4
route add 2001:db8:a080::/48 nexthop via 2001:db8:2::4 nexthop via 2001:db8:3::4");
    router.settle();
}

#[test]
fn all_flows_leave_a_link_without_carrier() {
    each("carrier", Ends::Silent, |lab, router| {
        // Without this setting the kernel, and so its mirror, keeps using a link without carrier.
        lab.rtr.set(&[
            ("net.ipv4.conf.all.ignore_routes_with_linkdown", "1"),
            ("net.ipv4.conf.r2.ignore_routes_with_linkdown", "1"),
            ("net.ipv6.conf.all.ignore_routes_with_linkdown", "1"),
            ("net.ipv6.conf.r2.ignore_routes_with_linkdown", "1"),
        ]);
        two_ways(lab, router);
        let mut destinations: Vec<String> = (1..60).map(|host| format!("10.80.0.{host}")).collect();
        destinations.extend((1..60).map(|host| format!("2001:db8:a080::{host}")));
        let stream = Stream { destinations, rate: 2000 };
        let before = stream.for_a_while(lab, millis(200));
        assert_eq!(before.lost(), 0, "{}: {before}", router.name());
        assert!(before.at.iter().skip(1).all(|share| *share > before.sent / 5), "{before} {:?}", before.at);
        lab.snk.ip("link set k1 down");
        // On a busy machine even Linux takes a while to notice.
        for route in ["-4 route show 10.80.0.0/16", "-6 route show 2001:db8:a080::/48"] {
            eventually("Linux notices", || lab.rtr.run(&format!("ip {route}")).contains("linkdown"));
        }
        let start = Instant::now();
        router.settle();
        let settled = start.elapsed();
        let after = stream.for_a_while(lab, millis(300));
        report::say(&format!(
            "carrier: {}: settled in {} ms, then {after}",
            router.name(),
            settled.as_millis()
        ));
        assert_eq!((after.lost(), after.at[Side::Low as usize]), (0, 0), "{}: {after}", router.name());
        lab.snk.ip("link set k1 up");
        std::thread::sleep(millis(300));
        router.settle();
        let again = stream.for_a_while(lab, millis(200));
        assert_eq!(again.lost(), 0, "{}: {again}", router.name());
        assert!(
            again.at[Side::Low as usize] > again.sent / 5,
            "{}: the link is not used again",
            router.name()
        );
    });
}
