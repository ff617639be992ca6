//! Filters on interfaces whose packets brickmoon does not get: nftables filters there by the same rules, and these
//! are removed afterwards. On both paths.

use bm_tests::daemon::eventually;
use bm_tests::foreign::ForeignProgram;
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::packet::{Ip4, Ip6, ip_frame, routed};
use bm_tests::subject::{Router, Subject};
use bm_tests::sys::PacketSocket;
use bm_tests::{command, report};
use bm_wire::Mac;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
name = 'no-253'
action = 'drop'
protocol = 253
source = '2001:db8::/32'
";
/// How many times each packet is sent.
const ROUNDS: u16 = 20;
/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a test on each path, with the three links as ports and a configuration.
fn with(test: &str, config: &str, action: impl Fn(&Lab, &mut Router, &str)) {
    with_paths(test, &["kernel", "user"], config, action);
}

fn with_paths(test: &str, paths: &[&str], config: &str, action: impl Fn(&Lab, &mut Router, &str)) {
    if !command::has("nft") {
        return report::skip("closed", "it needs nft to list tables");
    }
    for &path in paths {
        let Some(subject) = Subject::kernel(test) else { return };
        let lab = Lab::new(&format!("{test}-{path}"), Ends::Silent);
        let mut router = subject.start(&lab);
        router.end(&[]);
        router.restart_choosing(&[], &(ports(path) + config));
        action(&lab, &mut router, path);
    }
}

fn ports(path: &str) -> String {
    ["r0", "r1", "r2"].map(|port| format!("[[port]]\ndevice = '{port}'\npath = '{path}'\n")).concat()
}

/// Packets of one round from behind `r2` that filters forbid.
fn forbidden(round: u16) -> Vec<Vec<u8>> {
    let telnet = Ip4::tcp_syn(&Side::Low.v4(2), "10.9.9.9", 4000 + round, 23);
    let mut tiny = Ip4::tcp_syn(&Side::Low.v4(2), "10.9.9.9", 4000 + round, 22).flags(Ip4::MF);
    tiny.payload.truncate(8);
    let other = Ip6::new(&Side::Low.v6(2), "2001:db8:a000::9", 253, round.to_be_bytes().into());
    vec![telnet.bytes(), telnet.options(&[1, 1, 1, 0]).bytes(), tiny.bytes(), other.bytes()]
}

/// Packets of one round from behind `r2` that filters accept.
fn allowed(round: u16) -> Vec<Vec<u8>> {
    let ssh = Ip4::tcp_syn(&Side::Low.v4(2), "10.9.9.9", 4000 + round, 22);
    // A later fragment has no ports, so a rule that drops by port does not match.
    let later = Ip4::tcp_syn(&Side::Low.v4(2), "10.9.9.9", 4000 + round, 23).flags(99);
    let other = Ip6::new(&Side::Low.v6(2), "2001:db8:a000::9", 254, round.to_be_bytes().into());
    vec![ssh.bytes(), later.bytes(), other.bytes()]
}

/// Sends from the far end of `r2` to this MAC; returns how many forbidden packets came out, and how many others.
fn count_passed(lab: &Lab, from: &PacketSocket, mac: Mac) -> (usize, usize) {
    let all = |packets: fn(u16) -> Vec<Vec<u8>>| (0..ROUNDS).flat_map(packets).collect::<Vec<_>>();
    let out = |packets: &[Vec<u8>]| -> Vec<Vec<u8>> {
        packets.iter().map(|packet| Side::Snk.to_neighbor(2, &routed(packet))).collect()
    };
    let (forbidden, allowed) = (all(forbidden), all(allowed));
    lab.drain();
    for packet in forbidden.iter().chain(&allowed) {
        from.send(&ip_frame(mac, Side::Low.mac(2), packet)).expect("a frame");
    }
    let (forbidden, allowed) = (out(&forbidden), out(&allowed));
    let (mut bad, mut good) = (0, 0);
    let begin = Instant::now();
    while good < allowed.len() && begin.elapsed() < Duration::from_secs(5) {
        while let Ok(Some(captured)) = lab.socket(Side::Snk).receive() {
            bad += usize::from(forbidden.contains(&captured.frame));
            good += usize::from(allowed.contains(&captured.frame));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    (bad, good)
}

/// The result of [`count_passed`] if filters are effective.
fn held() -> (usize, usize) {
    (0, usize::from(ROUNDS) * allowed(0).len())
}

fn count(router: &Router, what: &str) -> u64 {
    router.json(&["status"])[what].as_u64().unwrap_or(u64::MAX)
}

fn waits(router: &Router, what: &str, number: u64) {
    eventually(&format!("{what} is not {number}"), || count(router, what) == number);
}

/// Our nftables tables, by family and name.
fn tables(lab: &Lab) -> Vec<String> {
    let listed = lab.rtr.run("nft list tables");
    listed.lines().filter(|line| line.contains("brickmoon_filters")).map(Into::into).collect()
}

/// How many tables there are as long as brickmoon has all ports: by name in the families inet and bridge, and on the user
/// path at ingress for what workers do not get.
fn usual(path: &str) -> usize {
    if path == "user" { 3 } else { 2 }
}

fn state(router: &Router, name: &str) -> String {
    let ports = router.json(&["show", "ports"]);
    let mut ports = ports["ports"].as_array().expect("ports").iter();
    let port = ports.find(|port| port["name"] == name);
    port.map_or_else(String::new, |port| port["state"].as_str().unwrap_or_default().into())
}

/// Puts `r2` into a bridge that has its addresses and MAC address; the bridge's second port leads to `x1`.
fn enslave(lab: &Lab) {
    let (v4, v6) = (Side::Low.v4(1), Side::Low.v6(1));
    lab.rtr.ip(&format!(
        "link add br0 address {} type bridge\nlink add x0 type veth peer name x1\nlink set x0 master br0\n\
         addr flush dev r2\nlink set r2 master br0\nlink set x0 up\nlink set x1 up\nlink set br0 up\n\
         addr add {v4}/24 dev br0\naddr add {v6}/64 dev br0 nodad",
        Side::Low.mac(1)
    ));
}

/// Undoes that, and returns a socket at the far end of `r2`, which was created again.
fn free(lab: &Lab, router: &Router) -> PacketSocket {
    lab.rtr.ip("link set r2 nomaster\nlink del br0\nlink del x0");
    waits(router, "nftables_ports", 0);
    lab.delete(Side::Low);
    lab.make_again(Side::Low, 1);
    eventually("the port is taken", || state(router, "r2") == "attached");
    lab.host(Side::Low).packet_socket(Side::Low.host())
}

#[test]
fn a_bridged_port_is_filtered() {
    with("closed-bridge", RULES, |lab, router, path| {
        enslave(lab);
        waits(router, "nftables_ports", 1);
        assert_eq!(count(router, "unfiltered_ports"), 0, "{path}");
        let from = lab.host(Side::Low).packet_socket(Side::Low.host());
        assert_eq!(
            count_passed(lab, &from, Side::Low.mac(1)),
            held(),
            "{path}: routed\n{}",
            lab.rtr.run("nft list ruleset")
        );
        // Frames that the bridge forwards are filtered, too; those to this machine are not.
        let (out, own) = (lab.rtr.packet_socket("x1"), lab.rtr.packet_socket("br0"));
        let to = |mac: Mac, address: &str, port| {
            ip_frame(mac, Side::Low.mac(2), &Ip4::tcp_syn(&Side::Low.v4(2), address, 4000, port).bytes())
        };
        let far = Side::Low.mac(9);
        let frames = [
            to(far, "203.0.113.9", 23),
            to(far, "203.0.113.9", 22),
            to(Side::Low.mac(1), &Side::Low.v4(1), 23),
        ];
        frames.iter().for_each(|frame| from.send(frame).expect("a frame"));
        let mut seen = Vec::new();
        eventually(&format!("{path}: allowed packets must arrive"), || {
            while let Ok(Some(captured)) = out.receive() {
                seen.push(captured.frame);
            }
            while let Ok(Some(captured)) = own.receive() {
                seen.push(captured.frame);
            }
            seen.contains(&frames[1]) && seen.contains(&frames[2])
        });
        assert!(!seen.contains(&frames[0]), "{path}: telnet must not cross the bridge");
        assert!(
            router.status_text().contains("nftables filters packets that arrive there"),
            "{}",
            router.status_text()
        );
        assert!(router.log().contains("port r2: nftables filters"), "{}", router.log());
        let metrics = router.get("/v1/metrics").unwrap_or_default();
        assert!(metrics.contains("brickmoon_nftables_ports{} 1"), "{path}");
        let from = free(lab, router);
        eventually("no table at ingress", || tables(lab).len() == usual(path));
        assert_eq!(count_passed(lab, &from, Side::Low.mac(1)), held(), "{path}: r2 is a port again");
        router.end(&[]);
        assert_eq!(tables(lab), Vec::<String>::new(), "{path}");
    });
}

#[test]
fn a_refused_port_is_filtered() {
    let Some(program) = ForeignProgram::compile("closed") else {
        return report::skip("closed-refused", "it needs clang");
    };
    with_paths("closed-refused", &["user"], RULES, |lab, router, path| {
        lab.delete(Side::Low);
        eventually("the port is missing", || state(router, "r2") == "missing");
        let (ours, theirs, far) = (Side::Low.mac(1), Side::Low.mac(2), lab.snk.name());
        lab.rtr.ip(&format!(
            "link add other address {ours} type veth peer name k1 address {theirs} netns {far}"
        ));
        // Another program is at XDP before the interface has the port's name.
        program.attach(&lab.rtr, "other", "xdpgeneric");
        lab.rtr.ip("link set other name r2");
        lab.host(Side::Low).ip("link set k1 arp off\nlink set k1 up");
        lab.bring_up(Side::Low);
        eventually("the port is refused", || state(router, "r2") == "refused");
        waits(router, "nftables_ports", 1);
        let from = lab.host(Side::Low).packet_socket(Side::Low.host());
        assert_eq!(count_passed(lab, &from, ours), held(), "{path}\n{}", lab.rtr.run("nft list ruleset"));
        router.end(&[]);
        assert_eq!(tables(lab), Vec::<String>::new(), "{path}");
    });
}

/// Sends forbidden packets to `r2` until stopped, and counts those that were accepted for sending.
fn stream(lab: &Lab, mac: Mac, stop: &AtomicBool, taken: &AtomicU64) {
    let socket = lab.host(Side::Low).packet_socket(Side::Low.host());
    let frames: Vec<_> = forbidden(0).iter().map(|packet| ip_frame(mac, Side::Low.mac(2), packet)).collect();
    while !stop.load(Ordering::Relaxed) {
        // Sending fails while the other end is down.
        let sent = frames.iter().filter(|frame| socket.send(frame).is_ok()).count();
        taken.fetch_add(sent as u64, Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn an_interface_that_is_created_again_is_filtered_from_its_first_packet() {
    with("closed-again", RULES, |lab, router, path| {
        let (mac, taken) = (Side::Low.mac(0x51), AtomicU64::new(0));
        let expected: Vec<_> =
            forbidden(0).iter().map(|packet| Side::Snk.to_neighbor(2, &routed(packet))).collect();
        lab.drain();
        for round in 0..10 {
            lab.delete(Side::Low);
            lab.make_again_down(Side::Low, 0x51);
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let sending = scope.spawn(|| stream(lab, mac, &stop, &taken));
                // Up immediately, whether brickmoon has it by then or not.
                lab.bring_up(Side::Low);
                eventually("the port is taken", || state(router, "r2") == "attached");
                stop.store(true, Ordering::Relaxed);
                sending.join().expect("the sender does not panic");
            });
            while let Ok(Some(captured)) = lab.socket(Side::Snk).receive() {
                assert!(
                    !expected.contains(&captured.frame),
                    "{path}: a forbidden packet passed in round {round}"
                );
            }
        }
        let taken = taken.load(Ordering::Relaxed);
        report::say(&format!(
            "closed: {path}: {taken} forbidden packets sent while r2 was created again, 0 came out"
        ));
        assert!(taken > 100, "{path}: too few packets were sent for a result: {taken}");
        let from = lab.host(Side::Low).packet_socket(Side::Low.host());
        assert_eq!(count_passed(lab, &from, mac), held(), "{path}");
        router.end(&[]);
    });
}

#[test]
fn filters_outlive_a_killed_daemon_until_stop_removes_them() {
    with("closed-killed", RULES, |lab, router, path| {
        let from = lab.host(Side::Low).packet_socket(Side::Low.host());
        eventually("tables are there", || tables(lab).len() == usual(path));
        router.kill();
        assert_eq!(
            count_passed(lab, &from, Side::Low.mac(1)),
            held(),
            "{path}\n{}",
            lab.rtr.run("nft list ruleset")
        );
        let output = router.ask("stop", &[]).expect("a daemon");
        let output = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.contains("nftables (tables brickmoon_filters"), "{path}: {output}");
        assert_eq!(tables(lab), Vec::<String>::new(), "{path}: {output}");
    });
}

#[test]
fn tables_follow_the_configuration_and_are_restored_after_a_flush() {
    with("closed-reload", RULES, |lab, router, path| {
        eventually("tables are there", || tables(lab).len() == usual(path));
        assert!(router.json(&["status"])["firewall"]["linux_only"].as_array().is_some_and(Vec::is_empty));
        lab.rtr.run("nft flush ruleset");
        eventually("tables are there again", || tables(lab).len() == usual(path));
        let open = RULES.replace("[filter]", "[filter]\nfail = 'open'");
        for config in [open.as_str(), ""] {
            let done = router.reload_with(&(ports(path) + config)).expect("a daemon");
            assert!(done.status.success(), "{path}: {done:?}");
            eventually("no table is left", || tables(lab).is_empty());
            let done = router.reload_with(&(ports(path) + RULES)).expect("a daemon");
            assert!(done.status.success(), "{path}: {done:?}");
            eventually("tables are there", || tables(lab).len() == usual(path));
        }
        // A configuration that nftables cannot express exactly is not applied in part.
        let rates = "[filter]\nrate_packets = 1000000\n";
        let done = router.reload_with(&(ports(path) + rates)).expect("a daemon");
        assert!(done.status.success(), "{path}: {done:?}");
        enslave(lab);
        waits(router, "nftables_ports", 1);
        assert!(
            router.status_text().contains("nftables drops all packets that Linux would forward"),
            "{}",
            router.status_text()
        );
        let from = lab.host(Side::Low).packet_socket(Side::Low.host());
        assert_eq!(count_passed(lab, &from, Side::Low.mac(1)), (0, 0), "{path}");
        let from = free(lab, router);
        let deadline = Instant::now() + PATIENCE;
        while count_passed(lab, &from, Side::Low.mac(1)).1 != held().1 {
            assert!(Instant::now() < deadline, "{path}: forwarded packets must arrive");
        }
        router.end(&[]);
        assert_eq!(tables(lab), Vec::<String>::new(), "{path}");
    });
}
