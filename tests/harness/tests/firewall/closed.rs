//! Filters on interfaces whose packets brickmoon does not get: nftables filters there by the same rules, and these
//! are removed afterwards. On both paths.

use bm_tests::binary::binary;
use bm_tests::daemon::eventually;
use bm_tests::foreign::ForeignProgram;
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::packet::{Ip4, Ip6, echo4, ip_frame, reply4, routed};
use bm_tests::subject::{Router, Subject};
use bm_tests::sys::{self, PacketSocket};
use bm_tests::{PATIENCE, command, report};
use bm_wire::Mac;
use std::path::Path;
use std::process::{Child, Stdio};
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
/// path at ingress for what workers do not get, and the owned one, which marks what they hand to Linux.
fn usual(path: &str) -> usize {
    if path == "user" { 4 } else { 2 }
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

/// Sends frames to `r2` until stopped, and counts those that were accepted for sending.
fn stream(lab: &Lab, frames: &[Vec<u8>], stop: &AtomicBool, taken: &AtomicU64) {
    let socket = lab.host(Side::Low).packet_socket(Side::Low.host());
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
        let frames: Vec<_> =
            forbidden(0).iter().map(|packet| ip_frame(mac, Side::Low.mac(2), packet)).collect();
        let expected: Vec<_> =
            forbidden(0).iter().map(|packet| Side::Snk.to_neighbor(2, &routed(packet))).collect();
        lab.drain();
        for round in 0..10 {
            lab.delete(Side::Low);
            lab.make_again_down(Side::Low, 0x51);
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let sending = scope.spawn(|| stream(lab, &frames, &stop, &taken));
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
        // The tables may need a moment longer than the port.
        eventually("allowed packets pass", || count_passed(lab, &from, mac).1 > 0);
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

/// Filters that Linux cannot apply in place of workers, and how many packets a second pass them.
const UNTRANSLATABLE: [(&str, &str, u64); 3] = [
    ("rates", "[filter]\nrate_packets = 1\nrate_burst = 1\n", 1),
    ("sources", "[filter]\nreverse_path = 'strict'\n", 0),
    ("two tags", RULES, 0),
];

/// The packet that these filters drop, and the frame that brings it to `r2`.
fn dropped_by(filters: &str) -> (Vec<u8>, Vec<u8>) {
    let from = if filters == "sources" { "10.9.9.8".into() } else { Side::Low.v4(2) };
    let packet = Ip4::tcp_syn(&from, "10.9.9.9", 4000, 23).bytes();
    let frame = Side::Low.to_router(&packet);
    let tags: &[u8] = if filters == "two tags" { &[0x81, 0, 0, 0, 0x81, 0, 0, 0] } else { &[] };
    (packet, [&frame[..12], tags, &frame[12..]].concat())
}

/// Starts a daemon after a killed one, with the same socket and file.
fn start_again(lab: &Lab, router: &Router) -> Child {
    let socket = router.socket().expect("a daemon");
    let file = Path::new(&socket).with_file_name("brickmoon.toml");
    let mut command = lab.rtr.command(binary().expect("a binary"));
    command.arg("up").arg("--socket").arg(&socket).arg("--config").arg(file);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    eventually("the daemon answers", || router.ask("status", &[]).is_some_and(|done| done.status.success()));
    child
}

/// Whether a packet through this machine comes out of `x1`: Linux sends it there, since `x0` is no port.
fn reaches_linux(lab: &Lab) {
    let packet = Ip4::udp_ports(&Side::Low.v4(3), "100.64.9.9", 4000, 5000, &[1; 20]).bytes();
    let out = lab.rtr.packet_socket("x1");
    eventually("Linux forwards what workers hand to it", || {
        lab.send(Side::Low, &Side::Low.to_router(&packet));
        let mut came = false;
        while let Ok(Some(captured)) = out.receive() {
            came |= captured.frame.ends_with(&routed(&packet));
        }
        came
    });
}

/// Whether this machine answers at its address on `r2`.
fn answers(lab: &Lab) {
    let request = echo4(&Side::Low.v4(2), &Side::Low.v4(1), 0x7_0001, 8);
    let reply = reply4(&request).bytes();
    eventually("this machine answers", || {
        lab.send(Side::Low, &Side::Low.to_router(&request.bytes()));
        let mut came = false;
        while let Ok(Some(captured)) = lab.socket(Side::Low).receive() {
            // The identification is Linux's choice.
            came |= captured.frame.len() >= 14 + reply.len() && captured.frame[26..] == reply[12..];
        }
        came
    });
}

/// What may happen to the workers of a daemon; it is dead in the end. `more` is what the configuration has besides ports.
fn lose_workers(lab: &Lab, router: &mut Router, more: &str) {
    let pause = || std::thread::sleep(Duration::from_millis(300));
    pause();
    let process = router.process().expect("a daemon");
    sys::signal(process, libc::SIGSTOP).expect("it is there");
    pause();
    sys::signal(process, libc::SIGCONT).expect("it is there");
    reaches_linux(lab);
    let all = ports("user");
    let without_r0 = all.replace("[[port]]\ndevice = 'r0'\npath = 'user'\n", "");
    // A port less, or one more, restarts the workers.
    for ports in [without_r0, all] {
        let done = router.reload_with(&(ports + more)).expect("a daemon");
        assert!(done.status.success(), "{done:?}");
        reaches_linux(lab);
    }
    router.kill();
    pause();
    answers(lab);
}

/// Runs an action in a stream of these frames; returns how many of the packets in them came out.
fn passed_during(lab: &Lab, (packet, frame): &(Vec<u8>, Vec<u8>), action: impl FnOnce()) -> u64 {
    let (stop, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    let out = Side::Snk.to_neighbor(2, &routed(packet));
    lab.drain();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| stream(lab, std::slice::from_ref(frame), &stop, &taken));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(action));
        stop.store(true, Ordering::Relaxed);
        sending.join().expect("the sender does not panic");
        if let Err(why) = done {
            std::panic::resume_unwind(why);
        }
    });
    let mut passed = 0;
    while let Ok(Some(captured)) = lab.socket(Side::Snk).receive() {
        passed += u64::from(captured.frame == out);
    }
    report::say(&format!("closed: {} frames sent, {passed} came out", taken.load(Ordering::Relaxed)));
    passed
}

#[test]
fn nothing_passes_a_port_of_workers_without_its_workers() {
    for (name, filters, per_second) in UNTRANSLATABLE {
        with_paths(&format!("closed-{}", &name[..3]), &["user"], filters, |lab, router, _| {
            lab.rtr.ip("link add x0 type veth peer name x1\nlink set x0 up\nlink set x1 up\n\
                 route add 100.64.9.0/24 dev x0\n\
                 neigh add 100.64.9.9 lladdr 02:00:00:00:00:99 dev x0 nud permanent");
            reaches_linux(lab);
            let (begin, frame) = (Instant::now(), dropped_by(name));
            let mut again = None;
            let passed = passed_during(lab, &frame, || {
                lose_workers(lab, router, filters);
                again = Some(start_again(lab, router));
                reaches_linux(lab);
            });
            // Each start of the workers forgets how many packets a source has sent.
            let may_pass = per_second * (begin.elapsed().as_secs() + 6);
            assert!(
                passed <= may_pass,
                "{name}: {passed} packets passed\n{}",
                lab.rtr.run("nft list ruleset")
            );
            answers(lab);
            router.end(&[]);
            again.expect("a daemon").wait().expect("it has ended");
            assert_eq!(tables(lab), Vec::<String>::new(), "{name}");
        });
    }
}

#[test]
fn linux_forwards_without_workers_if_filters_fail_open() {
    let open = |(name, filters, _): (&str, &str, u64)| {
        (name.to_owned(), filters.replace("[filter]", "[filter]\nfail = 'open'"))
    };
    for (name, filters) in UNTRANSLATABLE.map(open) {
        with_paths(&format!("open-{}", &name[..3]), &["user"], &filters, |lab, router, _| {
            let passed = passed_during(lab, &dropped_by(&name), || {
                router.kill();
                std::thread::sleep(Duration::from_millis(300));
            });
            assert!(passed > 100, "{name}: {passed}");
        });
    }
}

#[test]
fn stop_in_another_mount_namespace_leaves_a_running_daemon_its_tables() {
    with("closed-mounts", RULES, |lab, router, path| {
        eventually("tables are there", || tables(lab).len() == usual(path));
        let socket = router.socket().expect("a daemon");
        let folder = std::path::Path::new(&socket).parent().expect("a folder").display().to_string();
        let binary = bm_tests::binary::binary().expect("the subject has one");
        // Its files are hidden there, as for a daemon with a /run of its own.
        let hidden = format!("mount -t tmpfs none {folder} && {} stop --socket {socket}", binary.display());
        let output =
            lab.rtr.command("unshare").args(["--mount", "sh", "-c", &hidden]).output().expect("unshare");
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && why.contains("in another mount namespace"), "{path}: {why}");
        assert_eq!(tables(lab).len(), usual(path), "{path}");
        assert_eq!(router.json(&["status"])["ready"], true, "{path}");
    });
}
