//! Filters of both paths, as a user sets and sees them (docs/conformance.md 34, 77 to 80, 83).

use bm_tests::flow::Stream;
use bm_tests::lab::{Ends, Lab, SIDES, Side};
use bm_tests::packet::{Ip4, Ip6, routed};
use bm_tests::subject::{Router, Subject};
use bm_tests::{command, report};
use std::time::{Duration, Instant};

const RULES: &str = "
[filter]
tiny_fragments = 'drop'
[[filter.rule]]
name = 'no-telnet'
action = 'drop'
protocol = 'tcp'
destination_ports = 23
[[filter.rule]]
name = 'net-10-2'
action = 'drop'
destination = '10.2.0.0/16'
port = 'r0'
[[filter.rule]]
name = 'net-10-2'
action = 'drop'
destination = '2001:db8:b000::/36'
";

/// Runs a test on each path, with this configuration.
fn with_config(test: &str, config: &str, action: impl Fn(&Lab, &mut Router)) {
    for subject in Subject::all(test).into_iter().filter(|subject| *subject != Subject::Linux) {
        let lab = Lab::new(test, Ends::Silent);
        let mut router = subject.start(&lab);
        router.end(&[]);
        router.restart_with(&SIDES.map(|side| side.router()), config);
        action(&lab, &mut router);
        router.settle();
        router.stop();
    }
}

/// Whether a packet from the source comes out where it should.
fn passes(lab: &Lab, out: Side, packet: &[u8]) -> bool {
    let expected = out.to_neighbor(2, &routed(packet));
    let heard = lab.exchange(&[(Side::Src, Side::Src.to_router(packet))], 1, true);
    assert!(heard.complete, "the fence must pass whatever is filtered");
    heard.seen.iter().any(|seen| seen.side == out && seen.frame == expected)
}

fn shown(router: &Router, what: &str) -> serde_json::Value {
    let reply = router.ask("show", &[what, "--json"]).expect("a daemon");
    serde_json::from_slice(&reply.stdout).expect("show prints JSON")
}

/// How many packets the rules of a name have matched.
fn matched(router: &Router, name: &str) -> u64 {
    let shown = shown(router, "filters");
    let mut filters = shown["filters"].as_array().into_iter().flatten();
    filters.find(|filter| filter["name"] == name).map_or(0, |filter| filter["packets"].as_u64().unwrap_or(0))
}

#[test]
fn rules_drop_and_are_counted_by_name() {
    with_config("rules", RULES, |lab, router| {
        let tcp = |port| Ip4::tcp_syn("192.0.2.2", "10.9.9.9", 4000, port);
        assert!(passes(lab, Side::Snk, &tcp(22).bytes()));
        assert!(!passes(lab, Side::Snk, &tcp(23).bytes()));
        // Packets that Linux would forward: with an option, a later fragment, another family.
        assert!(!passes(lab, Side::Snk, &tcp(23).options(&[1, 1, 1, 0]).bytes()));
        assert!(!passes(lab, Side::Low, &Ip4::udp("192.0.2.2", "10.2.3.4", 20).bytes()));
        assert!(!passes(lab, Side::Low, &Ip4::udp("192.0.2.2", "10.2.3.4", 20).flags(99).bytes()));
        assert!(!passes(
            lab,
            Side::Low,
            &Ip6::new("2001:db8:1::2", "2001:db8:b000::9", 253, vec![0; 8]).bytes()
        ));
        // A fragment with eight bytes of TCP, in which no filter can see the flags.
        let mut tiny = tcp(22).flags(Ip4::MF);
        tiny.payload.truncate(8);
        assert!(!passes(lab, Side::Snk, &tiny.bytes()));
        assert_eq!((matched(router, "no-telnet"), matched(router, "net-10-2")), (2, 3));
        assert_eq!((router.dropped("filter"), router.dropped("tiny_fragment")), (5, 1));
        let metrics = metrics(router);
        for line in ["brickmoon_filter_packets_total{rule=\"no-telnet\"} 2", "reason=\"tiny_fragment\"} 1"] {
            assert!(metrics.contains(line), "{line} is not in\n{metrics}");
        }
    });
}

/// Linux removes any number of tags with VLAN 0, so filters must not be evaded by them.
#[test]
fn tags_do_not_hide_packets_from_filters() {
    with_config("tags", RULES, |lab, router| {
        let out_of = |tags: usize, port: u16| {
            let packet = Ip4::tcp_syn("192.0.2.2", "10.9.9.9", 4000, port).bytes();
            let mut frame = Side::Src.to_router(&packet);
            frame.splice(12..12, [0x81, 0, 0, 0].repeat(tags));
            let expected = Side::Snk.to_neighbor(2, &routed(&packet));
            let heard = lab.exchange(&[(Side::Src, frame)], 1, true);
            assert!(heard.complete, "the fence must pass whatever is filtered");
            heard.seen.iter().any(|seen| seen.side == Side::Snk && seen.frame == expected)
        };
        for tags in 0..=5 {
            assert_eq!((out_of(tags, 22), out_of(tags, 23)), (tags <= 2, false), "{tags} tags");
        }
        assert_eq!((matched(router, "no-telnet"), router.dropped("filter")), (3, 9), "also on the user path");
    });
}

/// When all packets of a family must go to Linux's firewall, packets that filters drop do not go there.
#[test]
fn dropped_packets_do_not_pass_through_linux() {
    if !command::has("nft") {
        return report::skip("filters", "there is no nft");
    }
    with_config("before-linux", RULES, |lab, router| {
        let tcp = |port| Ip4::tcp_syn("192.0.2.2", "10.9.9.9", 4000, port).bytes();
        let six = |destination: &str| Ip6::new("2001:db8:1::2", destination, 253, vec![0; 8]).bytes();
        let both = |what: &str| {
            assert!(passes(lab, Side::Snk, &tcp(22)), "{what}");
            assert!(passes(lab, Side::Snk, &six("2001:db8:a000::9")), "{what}");
            assert!(!passes(lab, Side::Snk, &tcp(23)), "{what}");
            assert!(!passes(lab, Side::Low, &six("2001:db8:b000::9")), "{what}");
        };
        both("without rules in Linux");
        let rules = "add table inet t; add chain inet t f { type filter hook forward priority 0; }; \
                     add rule inet t f meta mark 7 drop";
        lab.rtr.feed("nft -f -", rules).expect("nft takes a rule");
        wait_until(router, "all packets must be left to Linux", |left| {
            left.iter().any(|entry| entry["packets"] == "all packets")
        });
        both("with all packets left to Linux");
        lab.rtr.run("nft flush ruleset");
        wait_until(router, "no packets must be left to Linux", <[_]>::is_empty);
        both("without rules in Linux again");
        assert_eq!((matched(router, "no-telnet"), matched(router, "net-10-2")), (3, 3));
    });
}

/// Waits until the right packets are left to Linux.
fn wait_until(router: &Router, what: &str, is_so: impl Fn(&[serde_json::Value]) -> bool) {
    let begin = Instant::now();
    loop {
        let status = router.json(&["status"]);
        let left = status["firewall"]["linux_only"].as_array().map_or(&[][..], Vec::as_slice);
        if is_so(left) {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}: {left:?}\n{}", router.status_text());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn metrics(router: &Router) -> String {
    router.get("/v1/metrics").expect("a daemon")
}

#[test]
fn sources_are_checked_as_the_configuration_says() {
    let config = |rule: &str| format!("[filter]\nreverse_path = '{rule}'\n");
    with_config("urpf", &config("strict"), |lab, router| {
        let from = |source: &str| Ip4::udp(source, "10.9.9.9", 20).bytes();
        let from6 = |source: &str| Ip6::new(source, "2001:db8:a000::9", 253, vec![0; 8]).bytes();
        // The reverse path of these leads to the source, to the sink, nowhere.
        let (near, far, unknown) = ("172.16.0.7", "10.7.7.7", "100.64.0.1");
        let (near6, far6, unknown6) = ("2001:db8:c000::7", "2001:db8:a000::7", "2001:db8:f000::7");
        for (rule, through) in
            [("strict", [true, false, false]), ("loose", [true, true, false]), ("off", [true; 3])]
        {
            let reply = router.reload_with(&config(rule)).expect("a daemon");
            assert!(reply.status.success(), "{}", String::from_utf8_lossy(&reply.stderr));
            let before = router.dropped("reverse_path");
            let found = [near, far, unknown].map(|source| passes(lab, Side::Snk, &from(source)));
            assert_eq!(found, through, "{rule}");
            let found = [near6, far6, unknown6].map(|source| passes(lab, Side::Snk, &from6(source)));
            assert_eq!(found, through, "{rule}, IPv6");
            let lost = 2 * through.iter().filter(|through| !**through).count() as u64;
            assert_eq!(router.dropped("reverse_path") - before, lost, "{rule}");
        }
    });
}

#[test]
fn feasible_sources_may_use_routes_that_are_not_the_best() {
    let feasible = "[[port]]\ndevice = 'r0'\nreverse_path = 'feasible'\n";
    with_config("feasible", feasible, |lab, router| {
        let passes4 = |source: &str| passes(lab, Side::Snk, &Ip4::udp(source, "10.9.9.9", 20).bytes());
        let passes6 = |source: &str| {
            passes(lab, Side::Snk, &Ip6::new(source, "2001:db8:a000::9", 253, vec![0; 8]).bytes())
        };
        // The best route back leads to the sink.
        let (far, far6) = ("10.7.7.7", "2001:db8:a000::7");
        let both = |expected: bool, what: &str| {
            assert_eq!((passes4(far), passes6(far6)), (expected, expected), "{what}");
        };
        both(false, "the only route is by r1");
        lab.rtr.run("ip route add 10.0.0.0/8 via 192.0.2.2 metric 500");
        lab.rtr.run("ip -6 route add 2001:db8:a000::/36 via 2001:db8:1::2 metric 5000");
        router.settle();
        both(true, "a worse route is by r0");
        let shown = router.ask("show", &["filters"]).expect("a daemon");
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("source check feasible on r0"), "{shown}");
        let strict = feasible.replace("feasible", "strict");
        assert!(router.reload_with(&strict).expect("a daemon").status.success());
        both(false, "strict asks for the best");
        assert!(router.reload_with(feasible).expect("a daemon").status.success());
        both(true, "and again");
        lab.rtr.run("ip route del 10.0.0.0/8 via 192.0.2.2 metric 500");
        lab.rtr.run("ip -6 route del 2001:db8:a000::/36 via 2001:db8:1::2 metric 5000");
        router.settle();
        both(false, "it is gone");
        assert_eq!(router.dropped("reverse_path"), 6);
    });
}

#[test]
fn the_rate_of_a_source_is_limited() {
    let config = "[filter]\nrate_packets = 500\nrate_burst = 50\n[daemon]\nworkers = 'auto'\n";
    with_config("rate", config, |lab, router| {
        let started = Instant::now();
        let outcome = Stream::to("10.9.9.9", 5000).for_a_while(lab, Duration::from_millis(700));
        let allowed = 50.0 + 500.0 * started.elapsed().as_secs_f64();
        let received = f64::from(outcome.received);
        report::say(&format!("filters: 5000 packets a second, 500 allowed: {outcome}"));
        assert!(received <= allowed && received > 500.0 * 0.7, "{received} of {allowed:.0}: {outcome}");
        // A busy machine loses some in front of the router, too.
        let (limited, lost) = (router.dropped("rate_limit"), u64::from(outcome.lost()));
        assert!(limited <= lost && limited >= lost - lost / 20, "{limited} of {lost}: {outcome}");
    });
}

#[test]
fn each_packet_is_filtered_by_the_old_set_or_the_new_one() {
    // Both sets drop the stream's packets, but by different rules.
    let by_port = "[[filter.rule]]\naction = 'drop'\nprotocol = 'udp'\ndestination_ports = 5000\n";
    let by_prefix = "[[filter.rule]]\naction = 'drop'\ndestination = '10.9.9.0/24'\n";
    with_config("change", by_port, |lab, router| {
        let stream = Stream { destinations: vec!["10.9.9.9".into(), "10.1.1.200".into()], rate: 10_000 };
        let by_workers = router.name() == "brickmoon";
        let harmless = |set: &str| set.replace("5000", "6000").replace("10.9.9.0", "10.9.8.0");
        let ((), outcome) = Stream::to("10.9.9.9", 10_000).during(lab, || {
            for set in [by_prefix, by_port].into_iter().cycle().take(12) {
                assert!(router.reload_with(set).expect("a daemon").status.success());
            }
        });
        // A worker that gets no CPU time for 40 ms counts as hung, and then Linux forwards without filters.
        if !by_workers {
            assert_eq!(outcome.received, 0, "nothing may come through while sets change: {outcome}");
        }
        // Packets that no set drops are not lost when filters are added and removed.
        assert!(router.reload_with("").expect("a daemon").status.success());
        let ((), outcome) = stream.during(lab, || {
            for set in [harmless(by_prefix), String::new(), harmless(by_port)].iter().cycle().take(12) {
                assert!(router.reload_with(set).expect("a daemon").status.success());
            }
        });
        report::say(&format!("filters: 12 changes under load: {outcome}"));
        assert_eq!(outcome.lost(), 0, "{outcome}");
    });
}

#[test]
fn a_rule_for_an_unknown_port_is_an_error() {
    let Some(subject) = Subject::kernel("refuse") else { return };
    let lab = Lab::new("refuse", Ends::Silent);
    for path in ["user", "kernel"] {
        let refused = subject.refused(&lab, path, "[[filter.rule]]\naction = 'drop'\nport = 'r9'\n");
        assert!(refused.contains("the port r9, which does not exist"), "{refused}");
    }
}

/// Filters are added, changed and removed in a stream of 10,000 packets a second that none of them drops.
#[test]
#[ignore = "ten runs, half a minute: cargo test -p bm-tests --test firewall filters:: -- --ignored --nocapture"]
fn ten_runs_of_changed_sets_lose_nothing() {
    let Some(subject) = Subject::kernel("sets-ten") else { return };
    let lab = Lab::new("sets-ten", Ends::Silent);
    let mut router = subject.start(&lab);
    let stream = Stream { destinations: vec!["10.9.9.9".into(), "10.1.1.200".into()], rate: 10_000 };
    let sets = ["protocol = 'udp'\ndestination_ports = 6000\n", "destination = '10.9.8.0/24'\n"]
        .map(|of| format!("[[filter.rule]]\naction = 'drop'\n{of}"));
    router.end(&[]);
    router.restart_with(&SIDES.map(|side| side.router()), &sets[0]);
    for run in 1..=10 {
        let ((), outcome) = stream.during(&lab, || {
            for set in [&*sets[0], "", &*sets[1]].iter().cycle().take(12) {
                let done = router.reload_with(set).expect("a daemon");
                assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            }
        });
        report::say(&format!("filters: 12 changes, run {run}: {outcome}"));
        assert_eq!(outcome.lost(), 0, "run {run}: {outcome}");
    }
    router.settle();
    router.stop();
}

/// If the configuration lets filters fail open, a port that was lost is not filtered, and this is reported.
#[test]
fn a_port_that_filters_cannot_reach_is_reported() {
    let open = RULES.replace("[filter]", "[filter]\nfail = 'open'");
    with_config("unfiltered", &open, |lab, router| {
        let name = router.name();
        let packet = Ip4::udp(&Side::Src.v4(2), "10.9.9.9", 20).bytes();
        assert!(passes(lab, Side::Snk, &packet), "{name}");
        let count = || router.json(&["status"])["unfiltered_ports"].as_u64();
        assert_eq!(count(), Some(0), "{name}");
        lab.rtr.ip("link add br0 type bridge\nlink set r2 master br0");
        let deadline = Instant::now() + Duration::from_secs(20);
        while count() != Some(1) || !router.log().contains("port r2 is not filtered") {
            assert!(Instant::now() < deadline, "{name}: {}\n{}", router.status_text(), router.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(
            router.status_text().contains("port r2 is not filtered: Linux forwards"),
            "{name}: {}",
            router.status_text()
        );
        assert!(shown_by(router, "verify").contains("port r2 is not filtered"), "{name}");
        assert!(
            router.get("/v1/metrics").unwrap_or_default().contains("brickmoon_unfiltered_ports{} 1"),
            "{name}"
        );
        lab.rtr.ip("link set r2 nomaster\nlink del br0");
        while count() != Some(0) || !router.log().contains("[filter] applies on all ports again") {
            assert!(Instant::now() < deadline, "{name}: {}\n{}", router.status_text(), router.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    });
}

/// The output of a command.
fn shown_by(router: &Router, command: &str) -> String {
    let output = router.ask(command, &[]).expect("a daemon");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}
