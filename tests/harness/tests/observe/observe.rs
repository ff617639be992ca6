//! What operators see: packets of ports as `ip -s link` counts them, under which names drops appear, and the web page,
//! which hostile requests do not affect.

use std::collections::BTreeMap;

use bm_tests::daemon::eventually;
use bm_tests::lab::{Ends, Lab, SIDES, Side};
use bm_tests::packet::{Ip4, Ip6, ip_frame};
use bm_tests::report;
use bm_tests::subject::{Router, Subject};
use bm_tests::{daemon, netns::Namespace};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Packets that a test sends from `s0`, and their length on the wire.
const PACKETS: u64 = 40;
const FRAME: u64 = 14 + 20 + 8 + 300;

/// Packets and bytes of both directions.
type Both = [u64; 4];

/// An interface as `ip -s link` shows it: received packets and bytes, sent packets and bytes.
fn by_ip(namespace: &Namespace, interface: &str) -> Both {
    let output = namespace.try_run(&format!("ip -s -j link show {interface}")).stdout;
    let all: Value = serde_json::from_slice(&output).expect("ip prints JSON");
    let stats = &all[0]["stats64"];
    let number = |direction: &str, name: &str| stats[direction][name].as_u64().expect("a number");
    [number("rx", "packets"), number("rx", "bytes"), number("tx", "packets"), number("tx", "bytes")]
}

/// A port as `show ports` shows it.
fn by_us(router: &Router, name: &str) -> Both {
    let reply = router.json(&["show", "ports", name]);
    let port = &reply["ports"][0];
    let number = |direction: &str, name: &str| {
        port[direction][name].as_u64().unwrap_or_else(|| panic!("{direction} {name}: {reply}"))
    };
    [number("rx", "packets"), number("rx", "bytes"), number("tx", "packets"), number("tx", "bytes")]
}

/// Asserts that a port shows what Linux counts. Linux may send packets of its own at any time.
fn assert_same(router: &Router, port: &str, linux: impl Fn() -> Both) -> Both {
    let mut last = ([0; 4], [0; 4]);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(10) {
        let (before, shown, after) = (linux(), by_us(router, port), linux());
        if before == after && shown == before {
            return shown;
        }
        last = (before, shown);
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{port}: Linux counts {:?}, brickmoon shows {:?}", last.0, last.1);
}

/// The bytes that a port shows as sent, and Linux not as received, at a moment when the other numbers are equal.
fn refused_bytes(router: &Router, port: &str, linux: impl Fn() -> Both) -> u64 {
    let mut bytes = 0;
    eventually(&format!("{port} is quiet"), || {
        let (before, shown, after) = (linux(), by_us(router, port), linux());
        bytes = shown[3].saturating_sub(after[3]);
        before == after && shown[..3] == after[..3] && shown[3] >= after[3]
    });
    bytes
}

fn grown(before: Both, after: Both) -> Both {
    std::array::from_fn(|at| after[at] - before[at])
}

fn send(lab: &Lab, frame: &[u8], count: u64) {
    (0..count).for_each(|_| lab.send(Side::Src, frame));
}

#[test]
fn ports_show_what_ip_link_counts() {
    for subject in Subject::all("observe-ports") {
        let lab = Lab::new("observe-ports", Ends::Silent);
        let router = subject.start(&lab);
        if !router.is_brickmoon() {
            router.stop();
            continue;
        }
        let of_linux = |name: &'static str| {
            let lab = &lab;
            move || by_ip(&lab.rtr, name)
        };
        let before = ["r0", "r1"].map(|name| assert_same(&router, name, of_linux(name)));
        let frame = Side::Src.to_router(&Ip4::udp("192.0.2.2", "10.9.9.9", 300).bytes());
        assert_eq!(frame.len() as u64, FRAME);
        send(&lab, &frame, PACKETS);
        eventually("the packets are counted", || by_us(&router, "r1")[2] >= before[1][2] + PACKETS);
        let after = ["r0", "r1"].map(|name| assert_same(&router, name, of_linux(name)));
        let [rx, rx_bytes, ..] = grown(before[0], after[0]);
        let [_, _, tx, tx_bytes] = grown(before[1], after[1]);
        let name = router.name();
        // A few more are Linux's own: neighbor discovery.
        assert!((PACKETS..PACKETS + 20).contains(&rx), "{name}: {rx} received");
        assert!((PACKETS..PACKETS + 20).contains(&tx), "{name}: {tx} sent");
        // A veth counts what it receives without the Ethernet header.
        assert!(rx_bytes >= PACKETS * (FRAME - 14), "{name}: {rx_bytes}");
        assert!(tx_bytes >= PACKETS * FRAME, "{name}: {tx_bytes}");
        let text = String::from_utf8(router.ask("show", &["interfaces", "r0"]).expect("a daemon").stdout);
        let text = text.expect("text");
        assert!(text.starts_with("r0: xdp:r0, up, "), "{text}");
        let account =
            String::from_utf8(router.ask("show", &["ports", "--account"]).expect("a daemon").stdout);
        assert!(account.expect("text").lines().next().is_some_and(|line| line.contains("LOST BY DEVICE")));
        let wrong = router.ask("show", &["ports", "r9"]).expect("a daemon");
        assert_eq!(wrong.status.code(), Some(2));
        let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert!(said.contains("no port is called \"r9\"; there is r0, r1, r2"), "{said}");
        router.settle();
        router.stop();
    }
}

#[test]
fn cleared_counters_count_from_then_on_and_metrics_go_on() {
    for subject in Subject::all("observe-clear").into_iter().filter(|subject| *subject != Subject::Linux) {
        let lab = Lab::new("observe-clear", Ends::Silent);
        let router = subject.start(&lab);
        lab.rtr.ip("route add blackhole 11.1.0.0/16\n");
        router.settle();
        let text = |command: &str, words: &[&str]| {
            String::from_utf8_lossy(&router.ask(command, words).expect("a daemon").stdout).into_owned()
        };
        let good = Side::Src.to_router(&Ip4::udp("192.0.2.2", "10.9.9.9", 300).bytes());
        let bad = Side::Src.to_router(&Ip4::udp("192.0.2.2", "11.1.0.9", 300).bytes());
        send(&lab, &good, 5 * PACKETS);
        send(&lab, &bad, PACKETS);
        let dropped = || for_reason(&router, "blackhole");
        eventually("the first packets are counted", || {
            by_us(&router, "r0")[0] >= 6 * PACKETS && dropped() >= PACKETS
        });
        assert!(!text("show", &["ports"]).contains("counted since"));
        let said = text("clear", &["counters"]);
        assert!(said.contains("count from now on"), "{said}");
        send(&lab, &bad, 3);
        eventually("the other packets are counted", || dropped() >= PACKETS + 3);
        // The number in the line of r0's drops, or packets received.
        let drops = text("show", &["drops"]);
        let line = drops.lines().find(|line| line.starts_with("blackhole")).expect("a line");
        assert_eq!(line.split_whitespace().nth(1), Some("3"), "{drops}");
        assert!(drops.contains("counted since `brickmoon clear counters`, "), "{drops}");
        let ports = text("show", &["ports"]);
        let line = ports.lines().find(|line| line.starts_with("r0 ")).expect("a line");
        let received = line.split_whitespace().skip_while(|word| *word != "rx").nth(1).expect("a number");
        assert!((3..PACKETS).contains(&received.parse().expect("a number")), "{ports}");
        assert!(ports.contains("counted since"), "{ports}");
        assert!(by_us(&router, "r0")[0] >= 6 * PACKETS + 3, "--json goes on");
        let metrics = router.get("/v1/metrics").expect("a daemon");
        let counted: u64 = metrics
            .lines()
            .filter(|line| line.contains("\"blackhole\"") && !line.contains("linux_dropped"))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum();
        assert_eq!(counted, PACKETS + 3, "metrics go on: {metrics}");
        assert!(text("clear", &["counters", "--undo"]).contains("show all counts again"));
        assert!(!text("show", &["drops"]).contains("counted since"));
        router.stop();
    }
}

#[test]
fn rates_follow_what_comes() {
    let Some(subject) = Subject::kernel("observe-rates") else { return };
    let lab = Lab::new("observe-rates", Ends::Silent);
    let router = subject.start(&lab);
    let frame = Side::Src.to_router(&Ip4::udp("192.0.2.2", "10.9.9.9", 300).bytes());
    let rates = || {
        let port = router.json(&["show", "ports", "r0"])["ports"][0]["rx"].clone();
        [&port["packets_per_s"], &port["bits_per_s"]].map(|rate| rate.as_u64().unwrap_or(0))
    };
    eventually("a rate while packets come", || {
        send(&lab, &frame, 50);
        let [packets, bits] = rates();
        // All of them are this long, but for a few of Linux's own.
        packets > 50 && bits > packets * FRAME * 7
    });
    eventually("no rate when none come", || rates()[0] < 20);
    router.stop();
}

#[test]
fn a_tap_shows_the_counters_of_its_interface_in_linux_exchanged() {
    let Some(subject) = Subject::user("observe-tap") else { return };
    if !Path::new("/dev/net/tun").exists() {
        return report::skip("observe-tap", "needs /dev/net/tun");
    }
    let lab = Lab::new("observe-tap", Ends::Silent);
    let mut router = subject.start(&lab);
    router.end(&[]);
    router.restart_with(&["r0", "r1", "tap:vm0"], "[daemon]\nworkers = 1\n");
    let mac = daemon::mac(&lab.rtr, "bm-vm0");
    let far = bm_wire::Mac([2, 0, 0, 0, 9, 2]);
    lab.rtr.ip(&format!(
        "link set vm0 netns {}\naddr add 10.66.0.1/24 dev bm-vm0\n\
         neigh replace 10.66.0.2 lladdr {far} dev bm-vm0 nud permanent\n",
        lab.snk.name()
    ));
    lab.snk.ip("link set vm0 arp off\nlink set vm0 up\n");
    router.settle();
    let exchanged = || {
        let [rx, rx_bytes, tx, tx_bytes] = by_ip(&lab.snk, "vm0");
        [tx, tx_bytes, rx, rx_bytes]
    };
    // What Linux sent before the interface was up, such as reports of multicast listeners, was refused: it counts as
    // dropped, but its bytes count as sent.
    let refused = refused_bytes(&router, "bm-vm0", exchanged);
    send(&lab, &Side::Src.to_router(&Ip4::udp("192.0.2.2", "10.66.0.2", 300).bytes()), PACKETS);
    let from = lab.snk.packet_socket("vm0");
    let back = ip_frame(mac, far, &Ip4::udp("10.66.0.2", "10.9.9.9", 200).bytes());
    (0..PACKETS / 2).for_each(|_| from.send(&back).expect("the TAP takes it"));
    eventually("the TAP's packets", || {
        let [rx, _, tx, _] = by_us(&router, "bm-vm0");
        rx >= PACKETS / 2 && tx >= PACKETS
    });
    assert_same(&router, "bm-vm0", || {
        let [rx, rx_bytes, tx, tx_bytes] = exchanged();
        [rx, rx_bytes, tx, tx_bytes + refused]
    });
    router.settle();
    router.stop();
}

/// The frames of each reason of a list in the reply to `show drops`.
fn reasons(drops: &Value, list: &str) -> BTreeMap<String, u64> {
    let of = |drop: &Value| Some((drop["reason"].as_str()?.to_string(), drop["frames"].as_u64()?));
    drops[list].as_array().into_iter().flatten().filter_map(of).collect()
}

/// A counter of Linux's IP in the router, by its line and name in /proc/net/snmp and netstat.
fn of_ip(lab: &Lab, line: &str, name: &str) -> u64 {
    lab.rtr.within(|| {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).expect(file);
        let text = read("snmp") + &read("netstat");
        let mut lines = text.lines().filter(|found| found.starts_with(line)).map(str::split_whitespace);
        let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
        let value = names.zip(values).find(|(found, _)| *found == name).expect(name).1;
        value.parse().expect("a number")
    })
}

#[test]
fn what_linux_drops_has_its_reason_and_its_number() {
    let Some(subject) = Subject::kernel("observe-drops") else { return };
    let lab = Lab::new("observe-drops", Ends::Silent);
    let router = subject.start(&lab);
    lab.rtr.ip(
        "route add blackhole 11.1.0.0/16\nroute add prohibit 11.2.0.0/16\nroute add unreachable 11.3.0.0/16\n\
         route add 11.4.0.0/16 via 198.51.100.77\nroute add blackhole 2001:db8:dead::/48\n",
    );
    lab.rtr.set(&[("net.ipv4.neigh.r1.retrans_time_ms", "100")]);
    lab.rtr.run("nft add table ip observe");
    lab.rtr.run("nft add chain ip observe forward { type filter hook forward priority 0 ; }");
    lab.rtr.run("nft add rule ip observe forward udp dport 7777 counter drop");
    router.settle();
    let is_left =
        || router.json(&["status"])["firewall"]["linux_only"].as_array().is_some_and(|all| !all.is_empty());
    eventually("the rule is known", is_left);
    let before = [of_ip(&lab, "Ip:", "InHdrErrors"), of_ip(&lab, "IpExt:", "InNoRoutes")];
    let known = reasons(&router.json(&["show", "drops"]), "left_to_linux");
    let to = |destination: &str| Ip4::udp("192.0.2.2", destination, 20);
    let to6 = |destination: &str| Ip6::new("2001:db8:1::2", destination, 253, vec![7; 8]);
    let firewall = Ip4::udp_ports("192.0.2.2", "10.9.9.9", 4000, 7777, b"firewall");
    let expired = Ip4 { ttl: 1, ..to("10.9.9.9") };
    let expired6 = Ip6 { hop_limit: 1, ..to6("2001:db8:a000::9") };
    for (packet, count) in [
        (to("12.0.0.1").bytes(), 3),
        (to("11.1.0.1").bytes(), 4),
        (to("11.2.0.1").bytes(), 5),
        (to("11.3.0.1").bytes(), 6),
        (to("11.4.0.1").bytes(), 2),
        (expired.bytes(), 7),
        (firewall.bytes(), 8),
        (to6("3fff::1").bytes(), 9),
        (to6("2001:db8:dead::1").bytes(), 10),
        (expired6.bytes(), 11),
    ] {
        send(&lab, &Side::Src.to_router(&packet), count);
    }
    let expected = [
        ("no_route", 3 + 9),
        ("prohibit", 5),
        ("unreachable", 6),
        ("neighbor_unresolved", 2),
        ("ttl_exceeded", 7 + 11),
        ("firewall", 8),
    ];
    let drops = || router.json(&["show", "drops"]);
    let unknown = drops()["by_linux_unknown"].clone();
    if let Some(why) = unknown.as_str() {
        report::skip("observe-drops", why);
    } else {
        let found = || reasons(&drops(), "by_linux");
        let is_found = || expected.iter().all(|(reason, frames)| found().get(*reason) == Some(frames));
        eventually("Linux's drops", || {
            is_found() || found().get("neighbor_unresolved").is_some_and(|n| *n >= 2)
        });
        assert!(is_found(), "{:#}", drops());
    }
    let left = reasons(&drops(), "left_to_linux");
    for (cause, frames) in
        [("no_route", 12), ("prohibit", 5), ("unreachable", 6), ("unresolved", 2), ("hops", 18)]
    {
        let more = left.get(cause).copied().unwrap_or(0) - known.get(cause).copied().unwrap_or(0);
        assert_eq!(more, frames, "{cause}: {left:?}");
    }
    // Nobody is told about these, so the program drops them itself.
    assert_eq!(reasons(&drops(), "drops").get("blackhole"), Some(&(4 + 10)));
    // Linux's own counters say the same.
    assert_eq!(of_ip(&lab, "Ip:", "InHdrErrors") - before[0], 7);
    assert_eq!(of_ip(&lab, "IpExt:", "InNoRoutes") - before[1], 3);
    let rules = lab.rtr.try_run("nft list table ip observe").stdout;
    assert!(String::from_utf8_lossy(&rules).contains("counter packets 8 "), "{rules:?}");
    let metrics = router.get("/v1/metrics").expect("a daemon");
    if unknown.is_null() {
        let line = "brickmoon_linux_dropped_frames_total{port=\"r0\",reason=\"firewall\"} 8";
        assert!(metrics.contains(line), "{metrics}");
    }
    let line = "brickmoon_left_to_linux_frames_total{port=\"r0\",cause=\"prohibit\"} 5";
    assert!(metrics.contains(line), "{metrics}");
    lab.rtr.run("nft delete table ip observe");
    router.stop();
}

/// Rules for the packets of [`explain_says_what_a_packet_then_does`].
const EXPLAINED: &str = "\
[[filter.rule]]
name = 'no-dns'
action = 'drop'
protocol = 'udp'
destination_ports = 53
";

/// Counters that a packet moves: of the path, of drops, of filters.
fn moved(router: &Router) -> Vec<Value> {
    let port = &router.json(&["show", "ports", "r0"])["ports"][0];
    let drops = router.json(&["show", "drops"]);
    let filters = router.json(&["show", "filters"]);
    vec![port["kernel_counters"].clone(), port["account"].clone(), drops["drops"].clone(), filters]
}

fn hex(frame: &[u8]) -> String {
    frame.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How many packets were dropped, or left to Linux by the kernel path, for this reason.
fn for_reason(router: &Router, reason: &str) -> u64 {
    let drops = router.json(&["show", "drops"]);
    let of = |list| reasons(&drops, list).get(reason).copied().unwrap_or(0);
    of("drops") + of("left_to_linux")
}

#[test]
fn explain_says_what_a_packet_then_does() {
    for subject in Subject::all("explain").into_iter().filter(|subject| *subject != Subject::Linux) {
        let lab = Lab::new("explain", Ends::Silent);
        let mut router = subject.start(&lab);
        router.end(&[]);
        router.restart_with(&SIDES.map(|side| side.router()), EXPLAINED);
        lab.rtr.ip("route add blackhole 11.1.0.0/16\nroute add prohibit 11.2.0.0/16\n\
             route add 11.3.0.0/16 nexthop via 198.51.100.4 nexthop via 203.0.113.4\n\
             route add 11.4.0.0/16 via 198.51.100.77\n");
        router.settle();
        let to = |destination: &str| Ip4::udp("192.0.2.2", destination, 20);
        let port = |port| Ip4::udp_ports("192.0.2.2", "10.9.9.9", 4000, port, b"explain").bytes();
        // Linux's default hash is of the addresses only. All of 20 on one side: once in half a million runs.
        let flows = (1..=20).map(|flow| to(&format!("11.3.0.{flow}")).bytes());
        let six = Ip6::new("2001:db8:1::2", "2001:db8:a000::9", 253, vec![7; 8]);
        let cases = [
            (to("10.9.9.9").bytes(), "sent", ["", ""]),
            (six.bytes(), "sent", ["", ""]),
            (to("11.1.0.1").bytes(), "dropped", ["blackhole", "blackhole"]),
            (to("11.2.0.1").bytes(), "dropped", ["prohibit", "prohibit"]),
            (to("12.0.0.1").bytes(), "dropped", ["no_route", "no_route"]),
            (Ip4 { ttl: 1, ..to("10.9.9.9") }.bytes(), "dropped", ["hops", "ttl_exceeded"]),
            (to("127.0.0.9").bytes(), "dropped", ["header", "ipv4_destination"]),
            (to("11.4.0.1").bytes(), "held", ["unresolved", ""]),
            (to("192.0.2.1").bytes(), "linux", ["local", "local"]),
            (to("224.0.0.9").bytes(), "linux", ["header", "group"]),
            (port(53), "dropped", ["filter", "filter"]),
        ];
        let cases = cases.into_iter().chain(flows.map(|packet| (packet, "sent", ["", ""])));
        let mut exits = std::collections::BTreeSet::new();
        for (packet, fate, [in_kernel, by_worker]) in cases {
            let frame = Side::Src.to_router(&packet);
            let name = format!("{}: {}", router.name(), hex(&packet));
            let before = moved(&router);
            let reply = router.json(&["explain", "--frame", &hex(&frame), "--in", "r0"]);
            // Packets of Linux's own come at any time, so a difference has to stay.
            if moved(&router) != before {
                let quiet = moved(&router);
                router.json(&["explain", "--frame", &hex(&frame), "--in", "r0"]);
                assert_eq!(moved(&router), quiet, "{name}: explain has counted");
            }
            let reason = if router.is_kernel() { in_kernel } else { by_worker };
            let is_left = router.is_kernel() && !["", "filter", "blackhole"].contains(&reason);
            assert_eq!(reply["fate"], if is_left { "linux" } else { fate }, "{name}: {reply:#}");
            assert_eq!(reply["reason"].as_str().unwrap_or(""), reason, "{name}: {reply:#}");
            let known = for_reason(&router, reason);
            lab.drain();
            lab.send(Side::Src, &frame);
            if reply["fate"] == "sent" {
                let sent = &reply["sent"][0];
                let side = SIDES.into_iter().find(|side| sent["port"] == side.router()).expect("a port");
                exits.insert((side, sent["to"].to_string()));
                let is_it = |seen: &[u8]| sent["frame"] == hex(seen).as_str();
                let seen = lab.await_frame(side, Duration::from_secs(2), is_it);
                assert!(seen.is_some(), "{name}: it does not leave like this: {reply:#}");
            } else if router.is_kernel() || fate == "dropped" {
                eventually(&format!("{name}: {reason}"), || for_reason(&router, reason) > known);
            }
        }
        assert!(exits.len() > 2, "flows take both next hops: {exits:?}");
        let wrong = router.ask("explain", &["10.9.9.9", "--in", "r9"]).expect("a daemon");
        let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert!(said.contains("no port is called \"r9\": use --in with one of r0, r1, r2"), "{said}");
        let route = router.json(&["show", "routes", "11.3.0.9"])["routes"][0].clone();
        let text = router.ask("explain", &["11.3.0.9", "--json"]).expect("a daemon").stdout;
        let reply: Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(reply["route"], route, "the same as `show routes` says");
        router.settle();
        router.stop();
    }
}

/// Address of the web page in the tests below.
const WEB: &str = "127.0.0.1:9480";

/// The reply of the web page to these bytes, as far as it arrives.
fn web(lab: &Lab, bytes: &[u8]) -> String {
    let reply = lab.rtr.within(|| {
        let mut stream = TcpStream::connect(WEB).expect("the daemon listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
        let mut reply = Vec::new();
        // The daemon may close the connection before it has read everything.
        let _closed = stream.write_all(bytes).and_then(|()| stream.read_to_end(&mut reply).map(|_| ()));
        reply
    });
    String::from_utf8_lossy(&reply).into_owned()
}

/// Status and text of the reply to a request with these header lines.
fn ask_web(lab: &Lab, request: &str, lines: &str) -> (String, String) {
    let reply = web(lab, format!("{request} HTTP/1.1\r\n{lines}Connection: close\r\n\r\n").as_bytes());
    (reply.split(' ').nth(1).unwrap_or_default().into(), reply)
}

/// Starts the daemon with these lines in `[daemon]`.
fn start_with_page<'a>(subject: &Subject, lab: &'a Lab, lines: &str) -> Router<'a> {
    lab.rtr.run("ip link set lo up");
    let mut router = subject.start(lab);
    router.end(&[]);
    let way = if router.is_kernel() { "kernel" } else { "user" };
    router.restart_with(&["r0", "r1"], &format!("[daemon]\npath = \"{way}\"\n{lines}"));
    router
}

#[test]
fn the_web_page_only_reads_and_survives_hostile_requests() {
    let Some(subject) = Subject::kernel("observe-web") else { return };
    let lab = Lab::new("observe-web", Ends::Silent);
    let router = start_with_page(&subject, &lab, &format!("web = \"{WEB}\"\n"));
    assert_eq!(router.json(&["status"])["web"], format!("http://{WEB}/"));
    let host = format!("Host: {WEB}\r\n");
    let (status, page) = ask_web(&lab, "GET /", &host);
    assert!(status == "200" && page.contains("content-security-policy: default-src 'none'"), "{page}");
    assert!(page.contains("<title>brickmoon</title>"), "{page}");
    for path in ["/page.js", "/page.css", "/v1/status", "/v1/routes?address=10.0.0.1", "/v1/cluster"] {
        assert_eq!(ask_web(&lab, &format!("GET {path}"), &host).0, "200", "{path}");
    }
    let (_, ports) = ask_web(&lab, "GET /v1/ports", &host);
    assert!(ports.contains("\"name\":\"r0\""), "{ports}");
    for name in ["evil.example", "127.0.0.1.evil.example:9480", "10.0.0.1", ""] {
        let (status, reply) = ask_web(&lab, "GET /v1/status", &format!("Host: {name}\r\n"));
        assert!(status == "403" && !reply.contains("\"pid\""), "{name}: {reply}");
    }
    let ambiguous = [
        "Host: evil.example\r\n",
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 3\r\n",
    ];
    for more in ambiguous {
        assert_eq!(ask_web(&lab, "GET /v1/status", &format!("{host}{more}")).0, "400", "{more}");
    }
    for path in ["/v1/stop", "/v1/reload", "/v1/cluster/drain", "/v1/verify", "/v1/status", "/"] {
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
            assert_eq!(ask_web(&lab, &format!("{method} {path}"), &host).0, "405", "{method} {path}");
        }
    }
    for path in ["/v1/nodes/a/v1/status", "/v1/stop", "/v1/../../etc/passwd", "/page.html", "/..%2f..%2fetc"]
    {
        assert_eq!(ask_web(&lab, &format!("GET {path}"), &host).0, "404", "{path}");
    }
    hostile(&lab, &host);
    assert_eq!(ask_web(&lab, "GET /v1/status", &host).0, "200");
    assert_forwards(&lab, &router);
    router.stop();
}

fn assert_forwards(lab: &Lab, router: &Router) {
    assert_eq!(router.json(&["status"])["ready"], true);
    let before = by_us(router, "r1")[2];
    send(lab, &Side::Src.to_router(&Ip4::udp("192.0.2.2", "10.9.9.9", 300).bytes()), PACKETS);
    eventually("packets are still forwarded", || by_us(router, "r1")[2] >= before + PACKETS);
}

/// Sends what is no request, or too much of one. None of it may be answered as if it were a request.
fn hostile(lab: &Lab, host: &str) {
    let long = "x".repeat(1 << 20);
    let lines = "A: b\r\n".repeat(20_000);
    let random: Vec<u8> = (0..100_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for bytes in [
        format!("GET /v1/status?{long} HTTP/1.1\r\n{host}\r\n").as_bytes(),
        format!("GET /v1/status HTTP/1.1\r\n{host}Authorization: {long}\r\n\r\n").as_bytes(),
        format!("GET /v1/status HTTP/1.1\r\n{host}{lines}\r\n").as_bytes(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &random,
    ] {
        let reply = web(lab, bytes);
        assert!(!reply.contains(" 200 "), "{reply}");
    }
}

#[test]
fn wrong_tokens_of_the_web_page_are_limited() {
    let Some(subject) = Subject::kernel("observe-token") else { return };
    let lab = Lab::new("observe-token", Ends::Silent);
    let refused = subject.refused(&lab, "kernel", "[daemon]\nweb = \"0.0.0.0:9480\"\n");
    assert!(
        refused.contains("would be open to other machines") && refused.contains("--web-token"),
        "{refused}"
    );
    let file = std::env::temp_dir().join(format!("{}.token", lab.rtr.name()));
    let config = format!("web = \"0.0.0.0:9480\"\nweb_token = \"{}\"\n", file.display());
    std::fs::write(&file, "0123456789abcdef\n").expect("a file");
    let mode = |mode| std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).expect("a mode");
    mode(0o644);
    let refused = subject.refused(&lab, "kernel", &format!("[daemon]\n{config}"));
    assert!(refused.contains("chmod 600"), "{refused}");
    mode(0o600);
    let router = start_with_page(&subject, &lab, &config);
    let status = |token: &str| {
        let lines = format!("Host: router.example:9480\r\nAuthorization: Bearer {token}\r\n");
        ask_web(&lab, "GET /v1/status", &lines).0
    };
    assert_eq!(ask_web(&lab, "GET /", "Host: router.example\r\n").0, "200", "the page itself is no secret");
    assert_eq!(ask_web(&lab, "GET /v1/ports", "Host: router.example\r\n").0, "401");
    assert_eq!(status("0123456789abcdef"), "200");
    let wrong: Vec<String> = (0..7).map(|n| status(&format!("0123456789abcde{n}"))).collect();
    assert_eq!(wrong, ["401", "401", "401", "401", "401", "429", "429"]);
    assert_eq!(status("0123456789abcdef"), "429", "the right one is not accepted either");
    eventually("it must be accepted again", || status("0123456789abcdef") == "200");
    assert_forwards(&lab, &router);
    std::fs::remove_file(file).expect("the file");
    router.stop();
}
