//! Ports follow their interfaces by name: deleted and created again, late, renamed, refused; and `reload` adds and
//! removes ports on every path. What happens to one port does not affect the others.

use bm_tests::PATIENCE;
use bm_tests::daemon::eventually;
use bm_tests::flow::{Outcome, Stream};
use bm_tests::foreign::ForeignProgram;
use bm_tests::lab::{Ends, Lab, SIDES, Side};
use bm_tests::packet::{Ip4, Ip6, ip_frame, routed};
use bm_tests::report;
use bm_tests::subject::{Router, Subject};
use bm_tests::sys::{self, PacketSocket};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The three links as ports with these paths.
fn ports(paths: [&str; 3]) -> String {
    SIDES.into_iter().zip(paths).map(|(side, path)| named(&[side.router()], path)).collect()
}

/// Runs a test on a router with this configuration, which also selects the path.
fn with(test: &str, config: &str, action: impl FnOnce(&Lab, &mut Router)) {
    let Some(subject) = Subject::kernel(test) else { return };
    let lab = Lab::new(test, Ends::Silent);
    let mut router = subject.start(&lab);
    router.end(&[]);
    router.restart_choosing(&[], config);
    action(&lab, &mut router);
    router.settle();
    router.stop();
}

fn shown(router: &Router, what: &[&str]) -> serde_json::Value {
    let (verb, rest) = what.split_first().expect("a command");
    let reply = router.ask(verb, &[rest, &["--json"]].concat()).expect("a daemon");
    serde_json::from_slice(&reply.stdout).expect("it prints JSON")
}

/// The entry of a port in `show ports`.
fn port(router: &Router, name: &str) -> serde_json::Value {
    let ports = shown(router, &["show", "ports"]);
    let ports = ports["ports"].as_array().expect("ports");
    ports.iter().find(|port| port["name"] == name).cloned().unwrap_or_default()
}

fn state(router: &Router, name: &str) -> String {
    port(router, name)["state"].as_str().unwrap_or_default().into()
}

/// Waits until a port is attached to its interface.
fn taken(router: &Router, name: &str) {
    eventually(&format!("{name} is not attached: {:#}\n{}", port(router, name), router.log()), || {
        let port = port(router, name);
        port["state"] == "attached" && port["active"] == true && port["up"] == true
    });
}

fn notes(router: &Router) -> String {
    shown(router, &["status"])["notes"].to_string()
}

fn sent(router: &Router, name: &str) -> u64 {
    port(router, name)["account"]["sent"].as_u64().unwrap_or_default()
}

/// The far end of a link that was created again, with the MAC address of the router's end.
struct Far {
    side: Side,
    socket: PacketSocket,
    last: u8,
}

impl Far {
    fn of(lab: &Lab, side: Side, last: u8) -> Self {
        Self { side, socket: lab.host(side).packet_socket(side.host()), last }
    }

    fn receives(&self, frame: &[u8]) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(2) {
            sys::wait_readable(&[&self.socket], Duration::from_millis(50)).expect("poll works");
            while let Some(captured) = self.socket.receive().expect("a socket") {
                if captured.frame == frame {
                    return true;
                }
            }
        }
        false
    }

    /// Sends packets of both families to this link and from it, and compares them byte by byte.
    fn crosses(&self, lab: &Lab) {
        let (side, ours) = (self.side, self.side.mac(self.last));
        let out = [
            Ip4::udp(&Side::Src.v4(2), "10.2.3.4", 20).bytes(),
            Ip6::new(&Side::Src.v6(2), "2001:db8:b000::9", 253, vec![0; 8]).bytes(),
        ];
        for packet in out {
            lab.send(Side::Src, &Side::Src.to_router(&packet));
            let expected = ip_frame(side.mac(2), ours, &routed(&packet));
            assert!(self.receives(&expected), "no correct packet arrives at {side:?}");
        }
        let back = [
            Ip4::udp(&side.v4(2), "10.9.9.9", 20).bytes(),
            Ip6::new(&side.v6(2), "2001:db8:a000::9", 253, vec![0; 8]).bytes(),
        ];
        for packet in back {
            lab.drain();
            self.socket.send(&ip_frame(ours, side.mac(2), &packet)).expect("a frame");
            let expected = Side::Snk.to_neighbor(2, &routed(&packet));
            let came = lab.await_frame(Side::Snk, Duration::from_secs(2), |frame| frame == expected);
            assert!(came.is_some(), "no correct packet from {side:?} arrives");
        }
    }
}

/// A stream between the two other links.
fn flow() -> Stream {
    Stream::to_all(&["10.9.9.9", "2001:db8:a000::9", "10.1.1.200"], 5_000)
}

fn unharmed(what: &str, outcome: &Outcome) {
    report::say(&format!("returning: {what}: {outcome}"));
    assert_eq!(outcome.lost_by_router(), 0, "{what}: {outcome}");
}

const WAYS: [(&str, [&str; 3]); 4] = [
    ("kernel", ["kernel", "kernel", "kernel"]),
    ("user", ["user", "user", "user"]),
    ("mixed-k", ["user", "kernel", "kernel"]),
    ("mixed-u", ["kernel", "kernel", "user"]),
];

#[test]
fn an_interface_that_is_created_again_is_used_again_and_others_lose_nothing() {
    for (way, paths) in WAYS {
        with(&format!("back-{way}"), &ports(paths), |lab, router| {
            Far::of(lab, Side::Low, 1).crosses(lab);
            let before = sent(router, "r2");
            assert!(before > 0, "{way}: brickmoon must forward");
            for nth in 0..2 {
                let ((), outcome) = flow().during(lab, || {
                    lab.delete(Side::Low);
                    eventually("the port is missing", || state(router, "r2") == "missing");
                    assert!(notes(router).contains("interface r2 does not exist"), "{}", notes(router));
                    lab.make_again(Side::Low, 0x51 + nth);
                    taken(router, "r2");
                });
                unharmed(&format!("{way}: gone and back"), &outcome);
                router.settle();
                Far::of(lab, Side::Low, 0x51 + nth).crosses(lab);
                let now = sent(router, "r2");
                assert!(
                    now >= before + 2 * u64::from(nth + 1),
                    "{way}: counters must continue: {now} after {before}"
                );
            }
            // Deleted and created again within one call, before the daemon can notice.
            let ((), outcome) = flow().during(lab, || {
                lab.delete(Side::Low);
                lab.make_again(Side::Low, 0x61);
                let mac = Side::Low.mac(0x61).to_string();
                eventually("the new MAC", || port(router, "r2")["interfaces"][0]["mac"] == mac.as_str());
                taken(router, "r2");
            });
            unharmed(&format!("{way}: gone and back at once"), &outcome);
            router.settle();
            Far::of(lab, Side::Low, 0x61).crosses(lab);
        });
    }
}

#[test]
fn twenty_flaps_in_a_second() {
    for (way, paths) in [WAYS[0], WAYS[1]] {
        with(&format!("flap-{way}"), &ports(paths), |lab, router| {
            let ((), outcome) = flow().during(lab, || {
                for nth in 0..20 {
                    lab.rtr.ip("link del r2");
                    let far = lab.snk.name();
                    let mac = Side::Low.mac(0x70 + nth);
                    lab.rtr.ip(&format!(
                        "link add r2 address {mac} type veth peer name k1 netns {far}\nlink set r2 up"
                    ));
                }
                lab.delete(Side::Low);
                lab.make_again(Side::Low, 0x61);
                let mac = Side::Low.mac(0x61).to_string();
                eventually("the new MAC", || port(router, "r2")["interfaces"][0]["mac"] == mac.as_str());
                taken(router, "r2");
            });
            unharmed(&format!("{way}: twenty flaps"), &outcome);
            router.settle();
            Far::of(lab, Side::Low, 0x61).crosses(lab);
            // On a busy machine a thread may have so little time that packets are left to Linux meanwhile.
            let log = router.log();
            let is_error = |line: &&str| line.contains("ERROR") && !line.contains("makes no progress");
            assert_eq!(log.lines().find(is_error), None, "{log}");
        });
    }
}

#[test]
fn renamed_moved_or_of_another_kind() {
    for (way, paths) in [WAYS[0], WAYS[1]] {
        with(&format!("name-{way}"), &ports(paths), |lab, router| {
            let is_on = || lab.rtr.run("ip -d link show").contains("prog/xdp");
            Far::of(lab, Side::Low, 1).crosses(lab);
            // With another name it is no port, and no program stays attached.
            lab.rtr.ip("link set r2 down\nlink set r2 name other\nlink set other up");
            eventually("the port is missing", || state(router, "r2") == "missing");
            eventually("the program is gone", || !lab.rtr.run("ip -d link show other").contains("prog/xdp"));
            assert!(is_on(), "the other ports must keep their programs");
            lab.rtr.ip("link set other down\nlink set other name r2\nlink set r2 up");
            taken(router, "r2");
            // Moved to another namespace and back.
            let far = lab.snk.name();
            lab.rtr.run(&format!("ip link set r2 netns {far}"));
            eventually("the port is missing", || state(router, "r2") == "missing");
            eventually("the program is gone", || !lab.snk.run("ip -d link show r2").contains("prog/xdp"));
            let back = lab.rtr.name();
            lab.snk.run(&format!("ip link set r2 netns {back}"));
            lab.rtr.ip("link set r2 up");
            taken(router, "r2");
            // An interface without Ethernet headers.
            lab.delete(Side::Low);
            lab.rtr.run("ip tuntap add dev r2 mode tun");
            eventually("the port is refused", || state(router, "r2") == "refused");
            assert!(notes(router).contains("r2 is not an Ethernet interface"), "{}", notes(router));
            lab.rtr.run("ip link del r2");
            lab.make_again(Side::Low, 0x51);
            taken(router, "r2");
            router.settle();
            Far::of(lab, Side::Low, 0x51).crosses(lab);
        });
    }
}

#[test]
fn an_interface_that_cannot_be_used_is_tried_again() {
    let Some(program) = ForeignProgram::compile("refused") else {
        return report::skip("refused", "it needs clang");
    };
    for (way, paths) in [WAYS[1], WAYS[3]] {
        with(&format!("refused-{way}"), &ports(paths), |lab, router| {
            let far = lab.snk.name();
            lab.delete(Side::Low);
            eventually("the port is missing", || state(router, "r2") == "missing");
            // Another program is at XDP before the interface has the port's name.
            lab.rtr.ip(&format!("link add other type veth peer name k1 netns {far}"));
            program.attach(&lab.rtr, "other", "xdpgeneric");
            lab.rtr.ip("link set other name r2");
            eventually("the port is refused", || state(router, "r2") == "refused");
            let why = port(router, "r2")["state_reason"].as_str().unwrap_or_default().to_string();
            assert!(why.contains("r2") && notes(router).contains("port r2 is waiting"), "{why}");
            let outcome = flow().for_a_while(lab, Duration::from_millis(300));
            unharmed(&format!("{way}: beside a refused port"), &outcome);
            // Once it can be used, it is.
            lab.rtr.run("ip link set r2 xdpgeneric off");
            lab.snk.ip("link set k1 up");
            lab.rtr.run("ip link set r2 up");
            eventually(&format!("r2 must be attached: {}", router.log()), || {
                state(router, "r2") == "attached"
            });
        });
    }
}

/// A rule for packets that arrive on the link, and one for packets sent there.
const RULES: &str = "[[filter.rule]]\nname = 'in'\naction = 'drop'\nport = 'r2'\n\
    [[filter.rule]]\nname = 'low'\naction = 'drop'\ndestination = '10.2.0.0/16'\n";

#[test]
fn filters_are_effective_when_an_interface_comes_back() {
    for (way, paths) in [WAYS[0], WAYS[1]] {
        with(&format!("rules-{way}"), &(ports(paths) + RULES), |lab, router| {
            let refused = |last: u8| {
                let far = Far::of(lab, Side::Low, last);
                let packet = Ip4::udp(&Side::Low.v4(2), "10.9.9.9", 20).bytes();
                lab.drain();
                far.socket.send(&ip_frame(Side::Low.mac(last), Side::Low.mac(2), &packet)).expect("a frame");
                let expected = Side::Snk.to_neighbor(2, &routed(&packet));
                let came = lab.await_frame(Side::Snk, Duration::from_millis(300), |frame| frame == expected);
                assert!(came.is_none(), "{way}: filtered packets must not pass");
                let packet = Ip4::udp(&Side::Src.v4(2), "10.2.3.4", 20).bytes();
                let _sent = lab.exchange(&[(Side::Src, Side::Src.to_router(&packet))], 0, true);
            };
            let matched = |at: usize| shown(router, &["show", "filters"])["filters"][at]["packets"].as_u64();
            refused(1);
            assert_eq!((matched(0), matched(1)), (Some(1), Some(1)));
            lab.delete(Side::Low);
            lab.make_again(Side::Low, 0x51);
            taken(router, "r2");
            refused(0x51);
            assert_eq!((matched(0), matched(1)), (Some(2), Some(2)), "{way}: counters must continue");
        });
    }
}

/// Sends forbidden packets of both families from the far end of `r2` without pause, until stopped.
fn forbidden_stream(lab: &Lab, stop: &AtomicBool) {
    let socket = lab.host(Side::Low).packet_socket(Side::Low.host());
    let packets = [
        Ip4::udp(&Side::Low.v4(2), "10.9.9.9", 20).bytes(),
        Ip6::new(&Side::Low.v6(2), "2001:db8:a000::9", 253, vec![0; 8]).bytes(),
    ];
    let frames = packets.map(|packet| ip_frame(Side::Low.mac(0x51), Side::Low.mac(2), &packet));
    while !stop.load(Ordering::Relaxed) {
        // Sending fails while the other end is down.
        let _refused = frames.iter().map(|frame| socket.send(frame)).all(|sent| sent.is_ok());
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Number of packets from the far end of `r2` that have come out at the sink.
fn came_out(lab: &Lab) -> usize {
    let sources = [ip(&Side::Low.v4(2)), ip(&Side::Low.v6(2))];
    let is_forbidden =
        |frame: &[u8]| sources.iter().any(|source| frame.windows(source.len()).any(|at| at == source));
    let mut count = 0;
    while let Ok(Some(captured)) = lab.socket(Side::Snk).receive() {
        count += usize::from(is_forbidden(&captured.frame));
    }
    count
}

fn ip(text: &str) -> Vec<u8> {
    match text.parse().expect("an address") {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[test]
fn filters_are_effective_from_the_first_frame() {
    const ROUNDS: usize = 20;
    for (way, paths) in [WAYS[0], WAYS[1]] {
        with(&format!("first-{way}"), &(ports(paths) + RULES), |lab, router| {
            let matched =
                || shown(router, &["show", "filters"])["filters"][0]["packets"].as_u64().unwrap_or(0);
            let (mut out, mut by_rules) = (0, 0);
            lab.drain();
            for round in 0..ROUNDS {
                lab.delete(Side::Low);
                eventually("the port is missing", || state(router, "r2") == "missing");
                lab.make_again_down(Side::Low, 0x51);
                let before = matched();
                let stop = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    let sending = scope.spawn(|| forbidden_stream(lab, &stop));
                    eventually("a program is there", || {
                        lab.rtr.run("ip -d link show r2").contains("prog/xdp")
                    });
                    lab.bring_up(Side::Low);
                    eventually("the rule matches again", || matched() > before);
                    stop.store(true, Ordering::Relaxed);
                    sending.join().expect("the sender does not panic");
                });
                by_rules += matched() - before;
                out += came_out(lab);
                assert_eq!(out, 0, "{way}: forbidden packets came out in round {round}");
            }
            let port = port(router, "r2");
            let waited = port["kernel_counters"]["drop_filter_not_ready"].as_u64().unwrap_or(0);
            report::say(&format!(
                "returning: {way}: {ROUNDS} rounds, {waited} dropped before the rules were there, {by_rules} by the rule, {out} out"
            ));
        });
    }
}

#[test]
fn claims_work_again_when_an_interface_comes_back() {
    let claim = "[[claim]]\nname = 'dns'\nprotocol = 'udp'\ndestination_ports = 53\n";
    with("back-claim", &(ports(["kernel"; 3]) + claim), |lab, router| {
        let claimed = || port(router, "r2")["kernel_counters"]["claimed"].as_u64().unwrap_or_default();
        let crosses = |last: u8| {
            let far = Far::of(lab, Side::Low, last);
            let packet = Ip4::udp_ports(&Side::Low.v4(2), "10.9.9.9", 4000, 53, &[7; 20]).bytes();
            lab.drain();
            far.socket.send(&ip_frame(Side::Low.mac(last), Side::Low.mac(2), &packet)).expect("a frame");
            let expected = Side::Snk.to_neighbor(2, &routed(&packet));
            let came = lab.await_frame(Side::Snk, Duration::from_secs(2), |frame| frame == expected);
            assert!(came.is_some(), "claimed packets must come out");
            far.crosses(lab);
        };
        crosses(1);
        assert_eq!(claimed(), 1);
        lab.delete(Side::Low);
        lab.make_again(Side::Low, 0x51);
        taken(router, "r2");
        crosses(0x51);
        assert_eq!(claimed(), 2);
    });
}

/// Reloads, which must succeed. Returns the message.
fn reloads(router: &Router, config: &str) -> String {
    let done = router.reload_with(config).expect("a daemon");
    let output = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(done.status.success(), "{output}");
    output
}

/// Ports that all have one path. On the kernel path by XDP, where `ip link` shows whether the program is there.
fn named(names: &[&str], path: &str) -> String {
    let attach = if path == "kernel" { "attach = 'xdp'\n" } else { "" };
    names.iter().map(|name| format!("[[port]]\ndevice = '{name}'\npath = '{path}'\n{attach}")).collect()
}

#[test]
fn reload_adds_and_removes_ports_of_the_kernel_path() {
    with("reload-k", &named(&["r0", "r1"], "kernel"), |lab, router| {
        let counted = sent(router, "r0");
        let (output, outcome) = flow().during(lab, || reloads(router, &named(&["r2", "r0", "r1"], "kernel")));
        unharmed("a port is added", &outcome);
        assert!(output.contains("changed: port.xdp:r2") && !output.contains("restart"), "{output}");
        assert!(sent(router, "r0") > counted, "the kernel path must have forwarded");
        Far::of(lab, Side::Low, 1).crosses(lab);
        let counted = (sent(router, "r0"), sent(router, "r2"));
        assert!(counted.1 >= 2, "Linux must forward what comes in on r2");
        let (output, outcome) = flow().during(lab, || reloads(router, &named(&["r0", "r1"], "kernel")));
        unharmed("a port is removed", &outcome);
        assert!(output.contains("changed: port.xdp:r2"), "{output}");
        assert!(
            sent(router, "r0") > counted.0,
            "the port has another number, but its counters must continue"
        );
        assert!(
            !lab.rtr.run("ip -d link show r2").contains("prog/xdp"),
            "the program must be detached from r2"
        );
        router.settle();
        Far::of(lab, Side::Low, 1).crosses(lab);
        assert_eq!(state(router, "r2"), "", "it must be left to Linux");
        // An interface that does not exist yet.
        reloads(router, &named(&["r0", "r1", "late"], "kernel"));
        assert_eq!(state(router, "late"), "missing");
        lab.rtr.run("ip link add late type veth peer name far");
        eventually("late is taken", || state(router, "late") == "attached");
        // An interface that cannot be used: nothing changes.
        lab.rtr.run("ip link add taken type veth peer name far2");
        lab.rtr.run("ip link set r2 down");
        let refused = router.reload_with(&named(&["r0", "r1", "tap:x"], "kernel")).expect("a daemon");
        assert!(!refused.status.success());
        unharmed("after a refusal", &flow().for_a_while(lab, Duration::from_millis(200)));
        lab.rtr.run("ip link set r2 up");
    });
}

#[test]
fn reload_changes_the_path_of_a_port() {
    with("reload-path", &named(&["r0", "r1", "r2"], "kernel"), |lab, router| {
        let path = |name: &str| port(router, name)["path"].as_str().unwrap_or_default().to_string();
        let (_, outcome) = flow().during(lab, || {
            let output = reloads(router, &(named(&["r0", "r1"], "kernel") + &named(&["r2"], "user")));
            assert!(output.contains("workers restarted: port.xdp:r2"), "{output}");
        });
        unharmed("a port goes to workers", &outcome);
        assert_eq!((path("r0"), path("r2")), ("kernel".into(), "user".into()));
        Far::of(lab, Side::Low, 1).crosses(lab);
        let (_, outcome) = flow().during(lab, || reloads(router, &named(&["r0", "r1", "r2"], "kernel")));
        unharmed("and back", &outcome);
        assert_eq!(path("r2"), "kernel");
        Far::of(lab, Side::Low, 1).crosses(lab);
    });
}

#[test]
fn starts_without_ports_and_adds_them_later() {
    let Some(subject) = Subject::kernel("late") else { return };
    let lab = Lab::new("late", Ends::Silent);
    let mut router = subject.start(&lab);
    router.end(&[]);
    lab.delete(Side::Low);
    router.restart_choosing(&[], "[daemon]\n");
    assert!(notes(&router).contains("no ports: add [[port]] tables to "), "{}", notes(&router));
    for way in ["kernel", "user"] {
        reloads(&router, &named(&["r0", "r1", "r2"], way));
        assert_eq!(state(&router, "r2"), "missing", "{way}");
        let packet = Ip4::udp(&Side::Src.v4(2), "10.9.9.9", 20).bytes();
        let expected = Side::Snk.to_neighbor(2, &routed(&packet));
        let heard = lab.exchange(&[(Side::Src, Side::Src.to_router(&packet))], 1, true);
        assert!(heard.seen.iter().any(|seen| seen.frame == expected), "{way}: {:?}", heard.seen);
        lab.make_again(Side::Low, 0x51);
        taken(&router, "r2");
        router.settle();
        Far::of(&lab, Side::Low, 0x51).crosses(&lab);
        lab.delete(Side::Low);
        eventually("it is missing", || state(&router, "r2") == "missing");
    }
    lab.make_again(Side::Low, 0x51);
    taken(&router, "r2");
    router.settle();
    router.stop();
}

#[test]
fn a_port_that_the_kernel_path_cannot_use_affects_no_other() {
    let Some(subject) = Subject::kernel("auto-one") else { return };
    let lab = Lab::new("auto-one", Ends::Silent);
    let mut router = subject.start(&lab);
    router.end(&[]);
    lab.rtr.run("ip link add vx0 type vxlan id 7 remote 203.0.113.2 dstport 4789 dev r2");
    lab.rtr.run("ip tuntap add dev tun0 mode tun");
    lab.rtr.ip("link set vx0 up\nlink set tun0 up");
    router.restart_choosing(&["r0", "r1", "r2", "vx0", "tun0"], "");
    let paths = ["r0", "r1", "r2", "vx0"].map(|name| port(&router, name)["path"].clone());
    assert_eq!(paths, ["kernel"; 4]);
    assert_eq!(port(&router, "vx0")["attach"], "tc");
    let why = port(&router, "vx0")["attach_reason"].as_str().unwrap_or_default().to_string();
    assert!(why.starts_with("the driver of vx0"), "{why}");
    assert_eq!(state(&router, "tun0"), "refused");
    assert!(
        port(&router, "tun0")["state_reason"]
            .as_str()
            .is_some_and(|why| why.contains("not an Ethernet interface"))
    );
    unharmed("beside vxlan and tun", &flow().for_a_while(&lab, PATIENCE / 50));
    assert!(sent(&router, "r0") > 0);
    router.settle();
    router.stop();
}
