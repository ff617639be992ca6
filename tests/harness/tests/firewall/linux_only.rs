//! Packets that only Linux may handle because its firewall, IPsec policies or traffic control forbid, change or delay
//! them: Linux alone is compared with brickmoon on both paths (docs/conformance.md, group J).
//!
//! Each case has commands that set something in the router's namespace, packets that must or must not come through
//! then, and commands that undo the setting. Linux alone must do what the case says. Brickmoon must do the same, and
//! forward by itself again once everything is undone.

use bm_tests::daemon::eventually;
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::packet::{Ip4, Ip6, routed};
use bm_tests::subject::{Router, Subject, each};
use bm_tests::{PATIENCE, command, report};
use std::time::{Duration, Instant};

/// A packet that a host behind `s0` sends, where it comes out, and whether it must.
struct Packet {
    bytes: Vec<u8>,
    out: Side,
    passes: bool,
}

fn udp(destination: &str, port: u16, out: Side, passes: bool) -> Packet {
    Packet { bytes: Ip4::udp_ports("192.0.2.2", destination, 4000, port, b"linux-only").bytes(), out, passes }
}

fn udp6(destination: &str, out: Side, passes: bool) -> Packet {
    Packet { bytes: Ip6::new("2001:db8:1::2", destination, 253, vec![7; 8]).bytes(), out, passes }
}

/// Packets of both families to the sink, by way of r1.
fn both(passes4: bool, passes6: bool) -> Vec<Packet> {
    vec![udp("10.9.9.9", 5000, Side::Snk, passes4), udp6("2001:db8:a000::9", Side::Snk, passes6)]
}

/// Adds a packet that leaves by r2 and must pass.
fn with_r2(mut packets: Vec<Packet>) -> Vec<Packet> {
    packets.push(udp("10.2.9.9", 5000, Side::Low, true));
    packets
}

/// IPv4 packets that leave by r1 must not come through; all others must.
fn only_ipv4_by_r1() -> Vec<Packet> {
    with_r2(both(false, true))
}

/// Sends the packets; returns which of them come out as routed.
fn passed(lab: &Lab, packets: &[Packet]) -> Vec<bool> {
    let frames: Vec<_> =
        packets.iter().map(|packet| (Side::Src, Side::Src.to_router(&packet.bytes))).collect();
    let heard = lab.exchange(&frames, packets.len(), false);
    let came = |packet: &Packet| {
        let expected = packet.out.to_neighbor(2, &routed(&packet.bytes));
        heard.seen.iter().any(|seen| seen.side == packet.out && seen.frame == expected)
    };
    packets.iter().map(came).collect()
}

/// Waits until the right packets come through, and checks again a moment later. Returns how long it took.
fn become_so(lab: &Lab, router: &Router, packets: &[Packet], what: &str) -> Duration {
    let wanted: Vec<bool> = packets.iter().map(|packet| packet.passes).collect();
    let begin = Instant::now();
    let mut found = passed(lab, packets);
    let took = loop {
        if found == wanted {
            break begin.elapsed();
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: {found:?}, not {wanted:?}\n{}", router.status_text());
        found = passed(lab, packets);
    };
    for _ in 0..2 {
        assert_eq!(passed(lab, packets), wanted, "{what}, a moment later\n{}", router.status_text());
    }
    took
}

/// The parts of Linux to which packets are left.
fn left(router: &Router) -> Vec<String> {
    let status = router.json(&["status"]);
    let list = status["firewall"]["linux_only"].as_array().cloned().unwrap_or_default();
    list.iter().map(|entry| entry["feature"].as_str().unwrap_or_default().to_string()).collect()
}

/// Waits until brickmoon forwards these packets by itself.
fn fast_again(lab: &Lab, router: &Router, packets: &[Packet]) {
    if !router.is_brickmoon() {
        return;
    }
    let begin = Instant::now();
    loop {
        let before = router.sent();
        let came = passed(lab, packets);
        // Workers update their counters with a short delay.
        std::thread::sleep(Duration::from_millis(20));
        if came.iter().all(|came| *came) && router.sent() >= before + packets.len() as u64 {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "not forwarded here again: {came:?}\n{}", router.status_text());
    }
}

/// Runs commands of `nft`, `iptables`, `ip` or `tc`. Text between apostrophes is one word.
fn set(lab: &Lab, lines: &[&str]) {
    for line in lines {
        let mut words: Vec<&str> = Vec::new();
        for (at, part) in line.split('\'').enumerate() {
            if at % 2 == 1 { words.push(part) } else { words.extend(part.split_whitespace()) }
        }
        let (program, arguments) = words.split_first().expect("a command");
        let done = command::run(line, lab.rtr.command(program).args(arguments), PATIENCE).expect("a program");
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

struct Case {
    name: &'static str,
    needs: &'static str,
    feature: &'static str,
    set: &'static [&'static str],
    packets: fn() -> Vec<Packet>,
    unset: &'static [&'static str],
}

const FLUSH: &[&str] = &["nft flush ruleset"];

const CASES: &[Case] = &[
    Case {
        name: "forward chain with policy drop",
        needs: "nft",
        feature: "nftables",
        set: &[
            "nft add table inet t",
            "nft add chain inet t f { type filter hook forward priority 0 ; policy drop ; }",
        ],
        packets: || both(false, false),
        unset: FLUSH,
    },
    Case {
        name: "a rule by address, family ip",
        needs: "nft",
        feature: "nftables",
        set: &[
            "nft add table ip t",
            "nft add chain ip t f { type filter hook forward priority 0 ; }",
            "nft add rule ip t f ip daddr 10.9.0.0/16 udp dport 5000 drop",
        ],
        packets: || {
            let mut packets = only_ipv4_by_r1();
            packets.push(udp("10.9.9.9", 5001, Side::Snk, true));
            packets
        },
        unset: FLUSH,
    },
    Case {
        name: "a rule by interface, family inet",
        needs: "nft",
        feature: "nftables",
        set: &[
            "nft add table inet t",
            "nft add chain inet t f { type filter hook forward priority 0 ; }",
            "nft add rule inet t f iifname r0 oifname r1 drop",
        ],
        packets: || with_r2(both(false, false)),
        unset: FLUSH,
    },
    Case {
        name: "a rule of family ip6",
        needs: "nft",
        feature: "nftables",
        set: &[
            "nft add table ip6 t",
            "nft add chain ip6 t f { type filter hook prerouting priority 0 ; }",
            "nft add rule ip6 t f ip6 daddr 2001:db8:a000::/36 drop",
        ],
        packets: || both(true, false),
        unset: FLUSH,
    },
    Case {
        name: "netdev ingress",
        needs: "nft",
        feature: "nftables",
        set: &[
            "nft add table netdev t",
            "nft add chain netdev t f { type filter hook ingress device r0 priority 0 ; }",
            "nft add rule netdev t f ip daddr 10.9.9.9 drop",
        ],
        packets: || both(false, true),
        unset: FLUSH,
    },
    Case {
        name: "netdev egress",
        needs: "nft",
        feature: "nftables",
        set: &[
            "nft add table netdev t",
            "nft add chain netdev t f { type filter hook egress device r1 priority 0 ; }",
            "nft add rule netdev t f ip daddr 10.9.9.9 drop",
        ],
        packets: only_ipv4_by_r1,
        unset: FLUSH,
    },
    Case {
        name: "iptables FORWARD DROP",
        needs: "iptables-nft",
        feature: "nftables",
        set: &["iptables-nft -P FORWARD DROP"],
        packets: || both(false, true),
        unset: &["iptables-nft -P FORWARD ACCEPT", "nft flush ruleset"],
    },
    Case {
        name: "legacy iptables FORWARD DROP",
        needs: "iptables-legacy",
        feature: "iptables",
        set: &["iptables-legacy -P FORWARD DROP"],
        packets: || both(false, true),
        unset: &["iptables-legacy -P FORWARD ACCEPT"],
    },
    Case {
        name: "an IPsec policy that blocks",
        needs: "ip",
        feature: "xfrm",
        set: &["ip xfrm policy add dir fwd src 0.0.0.0/0 dst 10.9.0.0/16 action block"],
        packets: only_ipv4_by_r1,
        unset: &["ip xfrm policy flush"],
    },
    Case {
        name: "an IPsec tunnel without a state",
        needs: "ip",
        feature: "xfrm",
        set: &[
            "ip xfrm policy add dir out src 192.0.2.0/24 dst 10.9.0.0/16 tmpl src 198.51.100.1 dst 198.51.100.2 proto esp mode tunnel",
        ],
        packets: only_ipv4_by_r1,
        unset: &["ip xfrm policy flush"],
    },
    Case {
        name: "a tc filter at ingress",
        needs: "tc",
        feature: "tc filter",
        set: &[
            "tc qdisc add dev r0 clsact",
            "tc filter add dev r0 ingress protocol ip bpf da bytecode '1,6 0 0 2'",
        ],
        packets: || both(false, true),
        unset: &["tc qdisc del dev r0 clsact"],
    },
    Case {
        name: "a tc filter at egress",
        needs: "tc",
        feature: "tc filter",
        set: &[
            "tc qdisc add dev r1 clsact",
            "tc filter add dev r1 egress protocol ip bpf da bytecode '1,6 0 0 2'",
        ],
        packets: only_ipv4_by_r1,
        unset: &["tc qdisc del dev r1 clsact"],
    },
];

#[test]
fn packets_that_linux_forbids_do_not_come_through() {
    each("linux-only", Ends::Silent, |lab, router| {
        let all = both(true, true);
        fast_again(lab, router, &all);
        for case in CASES {
            if !command::has(case.needs) {
                report::skip("linux-only", &format!("{}: there is no {}", case.name, case.needs));
                continue;
            }
            set(lab, case.set);
            let took = become_so(lab, router, &(case.packets)(), case.name);
            report::say(&format!("{}: {}: after {} ms", router.name(), case.name, took.as_millis()));
            if router.is_brickmoon() {
                assert!(
                    left(router).iter().any(|feature| feature == case.feature),
                    "{}\n{}",
                    case.name,
                    router.status_text()
                );
                router.assert_verified();
            }
            set(lab, case.unset);
            become_so(lab, router, &all, case.name);
            fast_again(lab, router, &all);
            if router.is_brickmoon() {
                assert!(left(router).is_empty(), "{} is gone\n{}", case.name, router.status_text());
            }
        }
    });
}

/// Packets that a narrow rule does not match stay on the fast path, and those that it matches are counted.
#[test]
fn a_narrow_rule_leaves_the_rest_to_the_fast_path() {
    each("narrow", Ends::Silent, |lab, router| {
        if !router.is_brickmoon() {
            return;
        }
        set(lab, &["ip xfrm policy add dir fwd src 0.0.0.0/0 dst 10.9.0.0/16 action block"]);
        become_so(lab, router, &[udp("10.9.9.9", 5000, Side::Snk, false)], "the policy");
        fast_again(
            lab,
            router,
            &[udp("10.8.9.9", 5000, Side::Snk, true), udp6("2001:db8:a000::9", Side::Snk, true)],
        );
        let routes = router.json(&["show", "routes", "10.9.9.9"]);
        let to = &routes["linux_only"][0];
        assert_eq!((&to["all"], &to["entry"]["feature"]), (&true.into(), &"xfrm".into()), "{routes}");
        let routes = router.json(&["show", "routes", "10.8.9.9"]);
        assert!(routes["linux_only"].is_null(), "{routes}");
        let ports = router.status_text();
        assert!(ports.contains("left to Linux: IPv4 packets: from any to 10.9.0.0/16: xfrm: "), "{ports}");
        if router.is_kernel() {
            // The first ones may have been left to Linux for another reason, on a busy machine.
            eventually("they must be counted by name", || {
                passed(lab, &[udp("10.9.9.9", 5000, Side::Snk, false)]);
                router.status_text().contains(" firewall")
            });
        }
        set(lab, &["ip xfrm policy flush"]);
        fast_again(lab, router, &[udp("10.9.9.9", 5000, Side::Snk, true)]);
    });
}

/// With a bypass in `[firewall]`, packets are forwarded despite rules, and the bypass is shown.
#[test]
fn a_bypass_is_effective_and_shown() {
    for subject in Subject::all("bypass").into_iter().filter(|subject| *subject != Subject::Linux) {
        let lab = Lab::new("bypass", Ends::Silent);
        let mut router = subject.start(&lab);
        router.end(&[]);
        set(
            &lab,
            &[
                "nft add table ip t",
                "nft add chain ip t f { type filter hook forward priority 0 ; policy drop ; }",
            ],
        );
        let (drops, passes) =
            ([udp("10.9.9.9", 5000, Side::Snk, false)], [udp("10.9.9.9", 5000, Side::Snk, true)]);
        let honor = "[firewall]\nnftables = 'honor'\n";
        router.restart_with(&["r0", "r1", "r2"], honor);
        become_so(&lab, &router, &drops, "honored at the start");
        let bypass = "[firewall]\nnftables = 'bypass'\n";
        assert!(router.reload_with(bypass).expect("a daemon").status.success());
        fast_again(&lab, &router, &passes);
        let status = router.json(&["status"]);
        let bypassed = &status["firewall"]["bypassed"][0];
        assert_eq!(bypassed["setting"], "nftables", "{status}");
        assert_eq!(bypassed["packets"][0]["packets"], "all IPv4 packets", "{status}");
        assert!(
            router.log().contains("[firewall] nftables = \"bypass\": forwarding all IPv4 packets"),
            "{}",
            router.log()
        );
        assert!(router.reload_with(honor).expect("a daemon").status.success());
        become_so(&lab, &router, &drops, "honored again");
        set(&lab, FLUSH);
        fast_again(&lab, &router, &passes);
        router.settle();
        router.stop();
    }
}

/// Sends a packet from one side; returns whether the expected packet comes out at another.
fn crosses(lab: &Lab, from: Side, packet: &Ip4, out: Side, expected: &Ip4) -> bool {
    let heard = lab.exchange(&[(from, from.to_router(&packet.bytes()))], 1, false);
    let frame = out.to_neighbor(2, &routed(&expected.bytes()));
    heard.seen.iter().any(|seen| seen.side == out && seen.frame == frame)
}

/// Waits until [`crosses`] is true.
fn comes_to_cross(lab: &Lab, router: &Router, from: Side, packet: &Ip4, out: Side, expected: &Ip4) {
    let begin = Instant::now();
    while !crosses(lab, from, packet, out, expected) {
        assert!(
            begin.elapsed() < PATIENCE,
            "{packet:?} does not come out as {expected:?}\n{}",
            router.status_text()
        );
    }
}

fn to_sink(source: &str, destination: &str) -> Ip4 {
    Ip4::udp_ports(source, destination, 4000, 5000, b"linux-only")
}

#[test]
fn rules_with_connection_tracking_are_effective() {
    each("stateful", Ends::Silent, |lab, router| {
        set(
            lab,
            &[
                "nft add table ip t",
                "nft add chain ip t f { type filter hook forward priority 0 ; policy drop ; }",
                "nft add rule ip t f ct state established accept",
                "nft add rule ip t f iifname r1 ct state new accept",
            ],
        );
        let inbound = to_sink("192.0.2.2", "10.9.9.9");
        let outbound = Ip4::udp_ports("10.9.9.9", "192.0.2.2", 5000, 4000, b"linux-only");
        become_so(lab, router, &[udp("10.9.9.9", 5000, Side::Snk, false)], "a packet without a request");
        comes_to_cross(lab, router, Side::Snk, &outbound, Side::Src, &outbound);
        assert!(crosses(lab, Side::Src, &inbound, Side::Snk, &inbound), "a reply\n{}", router.status_text());
        become_so(lab, router, &[udp("10.9.9.8", 5000, Side::Snk, false)], "no reply");
        set(lab, FLUSH);
        fast_again(lab, router, &[udp("10.9.9.9", 5000, Side::Snk, true)]);
    });
}

#[test]
fn addresses_are_translated() {
    each("nat", Ends::Silent, |lab, router| {
        set(
            lab,
            &[
                "nft add table ip t",
                "nft add chain ip t pre { type nat hook prerouting priority dstnat ; }",
                "nft add rule ip t pre ip daddr 10.9.9.7 udp dport 5000 dnat to 10.8.8.8",
                "nft add chain ip t post { type nat hook postrouting priority srcnat ; }",
                "nft add rule ip t post oifname r1 ip saddr 192.0.2.3 masquerade",
            ],
        );
        let (sent, changed) = (to_sink("192.0.2.2", "10.9.9.7"), to_sink("192.0.2.2", "10.8.8.8"));
        comes_to_cross(lab, router, Side::Src, &sent, Side::Snk, &changed);
        let (sent, changed) = (to_sink("192.0.2.3", "10.9.9.9"), to_sink("198.51.100.1", "10.9.9.9"));
        comes_to_cross(lab, router, Side::Src, &sent, Side::Snk, &changed);
        assert!(
            !crosses(lab, Side::Src, &sent, Side::Snk, &sent),
            "the private address must not be on the wire"
        );
        set(lab, FLUSH);
        fast_again(lab, router, &both(true, true));
    });
}

#[test]
fn marks_select_another_route() {
    each("marks", Ends::Silent, |lab, router| {
        set(
            lab,
            &[
                "ip route add default via 203.0.113.2 table 100",
                "ip rule add fwmark 7 lookup 100",
                "nft add table ip t",
                "nft add chain ip t pre { type filter hook prerouting priority mangle ; }",
                "nft add rule ip t pre ip daddr 10.9.9.9 meta mark set 7",
            ],
        );
        become_so(
            lab,
            router,
            &[udp("10.9.9.9", 5000, Side::Low, true), udp("10.9.9.8", 5000, Side::Snk, true)],
            "marked",
        );
        set(lab, &["ip rule del fwmark 7 lookup 100", "ip route flush table 100", "nft flush ruleset"]);
        fast_again(lab, router, &both(true, true));
    });
}

#[test]
fn a_shaper_limits_the_rate() {
    each("shaper", Ends::Silent, |lab, router| {
        set(lab, &["tc qdisc add dev r1 root tbf rate 1mbit burst 10kb latency 50ms"]);
        if router.is_brickmoon() {
            let begin = Instant::now();
            while !left(router).iter().any(|feature| feature == "shaping") {
                assert!(begin.elapsed() < PATIENCE, "{}", router.status_text());
            }
        }
        let packet = Ip4::udp_ports("192.0.2.2", "10.9.9.9", 4000, 5000, &[7; 1000]).bytes();
        lab.drain();
        let begin = Instant::now();
        let mut came = 0;
        for _ in 0..500 {
            lab.send(Side::Src, &Side::Src.to_router(&packet));
            came += lab.collect(Side::Snk, Duration::from_millis(1)).len();
        }
        came += lab.collect(Side::Snk, Duration::from_millis(300)).len();
        let seconds = begin.elapsed().as_secs_f64();
        // The rate, plus a burst and a queue.
        let most = 125_000.0 / packet.len() as f64 * seconds + 40.0;
        report::say(&format!("{}: {came} of 500 packets in {seconds:.2} s", router.name()));
        assert!(
            (10.0..most).contains(&(came as f64)),
            "{came} in {seconds} s, at most {most}\n{}",
            router.status_text()
        );
        // Packets that leave by another interface are not shaped, and stay on the fast path.
        fast_again(lab, router, &[udp("10.2.9.9", 5000, Side::Low, true)]);
        set(lab, &["tc qdisc del dev r1 root"]);
        fast_again(lab, router, &both(true, true));
    });
}

/// The errors come from the router itself, so its own output chains apply to them.
#[test]
fn output_chains_apply_to_icmp_errors() {
    each("output", Ends::Silent, |lab, router| {
        // Each from a host of its own: errors to one host are limited.
        let expired = |host: u8| {
            let packet = Ip4::udp_ports(&format!("192.0.2.{host}"), "10.9.9.9", 4000, 5000, b"linux-only");
            Ip4 { ttl: 1, ..packet }.bytes()
        };
        let answered = |host: u8| {
            let heard = lab.exchange(&[(Side::Src, Side::Src.to_router(&expired(host)))], 1, false);
            // ICMP, time exceeded.
            heard
                .seen
                .iter()
                .any(|seen| seen.side == Side::Src && seen.frame[23] == 1 && seen.frame[34] == 11)
        };
        let mut hosts = 2..=99;
        let mut becomes = |wanted: bool, what: &str| {
            let begin = Instant::now();
            while answered(hosts.next().expect("an unused host")) != wanted {
                assert!(begin.elapsed() < PATIENCE, "{what}\n{}", router.status_text());
                std::thread::sleep(Duration::from_millis(100));
            }
        };
        becomes(true, "no rules");
        set(
            lab,
            &[
                "nft add table inet t",
                "nft add chain inet t o { type filter hook output priority 0 ; policy drop ; }",
            ],
        );
        becomes(false, "errors despite policy drop");
        // No packet but those that cause errors is left to Linux.
        fast_again(lab, router, &both(true, true));
        if router.is_brickmoon() {
            assert_eq!(left(router), ["nftables"], "{}", router.status_text());
        }
        set(lab, FLUSH);
        becomes(true, "rules are gone");
    });
}

#[test]
fn an_interface_without_ipv6_forwards_none() {
    each("no-ipv6", Ends::Silent, |lab, router| {
        for (interface, repair) in [
            ("r0", ""),
            // The setting also removes addresses, neighbors and routes.
            (
                "r1",
                "addr add 2001:db8:2::1/64 dev r1 nodad\n\
                 neigh replace 2001:db8:2::2 lladdr 02:00:00:00:01:02 dev r1 nud permanent\n\
                 route add 2001:db8:a000::/36 via 2001:db8:2::2\n",
            ),
        ] {
            let setting = format!("net.ipv6.conf.{interface}.disable_ipv6");
            lab.rtr.set(&[(&setting, "1")]);
            let took = become_so(lab, router, &both(true, false), interface);
            report::say(&format!("{}: no IPv6 on {interface}: after {} ms", router.name(), took.as_millis()));
            lab.rtr.set(&[(&setting, "0")]);
            lab.rtr.ip(repair);
            fast_again(lab, router, &both(true, true));
        }
    });
}
