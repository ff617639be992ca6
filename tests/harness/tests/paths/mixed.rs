//! Ports of both paths in one daemon: each port shows its path, and every packet comes out where it should.

use bm_tests::lab::{Ends, Lab, SIDES, Side};
use bm_tests::packet::{Ip4, Ip6, routed};
use bm_tests::subject::{Router, Subject};

/// Runs a test with these paths for the router's ports, `r0` first.
fn with_paths(test: &str, paths: [&str; 3], more: &str, action: impl Fn(&Lab, &mut Router)) {
    let Some(subject) = Subject::kernel(test) else { return };
    let lab = Lab::new(test, Ends::Silent);
    let mut router = subject.start(&lab);
    router.end(&[]);
    let port =
        |(side, path): (Side, &str)| format!("[[port]]\ndevice = '{}'\npath = '{path}'\n", side.router());
    let config: String = SIDES.into_iter().zip(paths).map(port).collect();
    router.restart_choosing(&[], &(config + more));
    action(&lab, &mut router);
    router.settle();
    router.stop();
}

/// Whether a packet that arrives on one side leaves by another as it should.
fn passes(lab: &Lab, from: Side, to: Side, packet: &[u8]) -> bool {
    let expected = to.to_neighbor(2, &routed(packet));
    let heard = lab.exchange(&[(from, from.to_router(packet))], 1, true);
    heard.complete && heard.seen.iter().any(|seen| seen.side == to && seen.frame == expected)
}

fn shown(router: &Router, what: &str) -> serde_json::Value {
    let reply = router.ask("show", &[what, "--json"]).expect("a daemon");
    serde_json::from_slice(&reply.stdout).expect("show prints JSON")
}

/// Sends packets of both families between all three sides.
fn check_all_ways(lab: &Lab) {
    let ways = [
        (Side::Src, Side::Snk, "10.9.9.9", "2001:db8:a000::9"),
        (Side::Src, Side::Low, "10.2.3.4", "2001:db8:b000::9"),
        (Side::Snk, Side::Src, "172.16.0.7", "2001:db8:c000::9"),
        (Side::Snk, Side::Low, "10.2.3.4", "2001:db8:b000::9"),
        (Side::Low, Side::Src, "172.16.0.7", "2001:db8:c000::9"),
        (Side::Low, Side::Snk, "10.9.9.9", "2001:db8:a000::9"),
    ];
    for (from, to, ipv4, ipv6) in ways {
        let packet = Ip4::udp(&from.v4(2), ipv4, 20).bytes();
        assert!(passes(lab, from, to, &packet), "{from:?} to {to:?}");
        let packet = Ip6::new(&from.v6(2), ipv6, 253, vec![0; 8]).bytes();
        assert!(passes(lab, from, to, &packet), "{from:?} to {to:?}, IPv6");
    }
}

#[test]
fn packets_cross_between_the_paths_in_both_directions() {
    for (test, paths) in [("mixed-a", ["kernel", "user", "kernel"]), ("mixed-b", ["user", "kernel", "user"])]
    {
        with_paths(test, paths, "", |lab, router| {
            check_all_ways(lab);
            // Brickmoon forwarded all of them: Linux got none.
            let ports = shown(router, "ports");
            for (port, path) in ports["ports"].as_array().expect("ports").iter().zip(paths) {
                assert_eq!(port["path"], path);
                assert!(port["account"]["sent"].as_u64() >= Some(4), "{port:#}");
            }
            let status = router.ask("status", &[]).expect("a daemon");
            let status = String::from_utf8_lossy(&status.stdout).into_owned();
            assert!(status.contains("path mixed"), "{status}");
        });
    }
}

#[test]
fn a_user_port_answers_for_what_leaves_by_a_kernel_port() {
    with_paths("mixed-icmp", ["user", "kernel", "kernel"], "", |lab, _| {
        // Too big for the link behind r2: the worker's slow path answers.
        let packet = Ip4::udp("192.0.2.2", "10.2.3.4", 1380).flags(Ip4::DF).bytes();
        let heard = lab.exchange(&[(Side::Src, Side::Src.to_router(&packet))], 1, true);
        let is_error = |frame: &[u8]| frame.get(23) == Some(&1) && frame.get(34..36) == Some(&[3, 4]);
        assert!(heard.seen.iter().any(|seen| seen.side == Side::Src && is_error(&seen.frame)));
        // Without DF, it fragments the packet.
        let packet = Ip4::udp("192.0.2.2", "10.2.3.4", 1380).bytes();
        let heard = lab.exchange(&[(Side::Src, Side::Src.to_router(&packet))], 2, true);
        assert_eq!(heard.seen.iter().filter(|seen| seen.side == Side::Low).count(), 2);
    });
}

#[test]
fn filters_are_effective_on_both_paths() {
    let rules = "[[filter.rule]]\nname = 'no'\naction = 'drop'\nprotocol = 'tcp'\ndestination_ports = 23\n";
    with_paths("mixed-filter", ["kernel", "user", "kernel"], rules, |lab, router| {
        let tcp = |from: Side, to, port| Ip4::tcp_syn(&from.v4(2), to, 4000, port).bytes();
        for (from, to, address) in [(Side::Src, Side::Snk, "10.9.9.9"), (Side::Snk, Side::Src, "172.16.0.7")]
        {
            assert!(passes(lab, from, to, &tcp(from, address, 22)));
            assert!(!passes(lab, from, to, &tcp(from, address, 23)));
        }
        let filters = shown(router, "filters");
        assert_eq!(filters["filters"][0]["packets"], 2, "one on each path: {filters:#}");
    });
}
