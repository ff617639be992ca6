//! Without a daemon, the kernel path must not forward by outdated tables: after `kill -9`, the first change in Linux
//! hands everything to Linux. Until then the kernel path keeps forwarding, and nothing is lost.
//!
//! Linux's count of forwarded packets, which does not include those of XDP, shows who forwards.

use bm_tests::flow::Stream;
use bm_tests::lab::{Ends, Lab, SIDES, Side, by_linux};
use bm_tests::packet::{Ip4, routed};
use bm_tests::pause;
use bm_tests::report;
use bm_tests::subject::{Router, Subject};
use bm_tests::sys;
use std::time::{Duration, Instant};

/// How long it may take on a busy machine until Linux gets the packets; on an idle one it takes 10 ms.
const BOUND: Duration = Duration::from_millis(500);
/// A long time in which nothing must happen.
const QUIET: Duration = Duration::from_millis(1500);

/// Settings before the daemon starts, which some changes need.
const BEFORE: &str = "\
ip link add x0 type veth peer name x1
ip link set x0 up
ip link set x1 up
ip nexthop add id 7 via 198.51.100.4 dev r1
ip route add 10.55.0.0/16 nhid 7
ip addr add 198.51.100.78/24 dev r1
";

/// One change per line: description | command | command that undoes it.
const CHANGES: &str = "\
a route is moved | ip route replace 10.1.1.200/32 via 198.51.100.3 | ip route replace 10.1.1.200/32 via 198.51.100.6
a route is deleted | ip route del 10.1.1.200/32 | ip route add 10.1.1.200/32 via 198.51.100.6
a blackhole is added | ip route add blackhole 10.77.0.0/16 | ip route del blackhole 10.77.0.0/16
an IPv6 route is deleted | ip -6 route del 2001:db8:b000::/36 | ip -6 route add 2001:db8:b000::/36 via 2001:db8:3::2
an IPv6 route is added | ip -6 route add 2001:db8:d000::/36 via 2001:db8:3::2 | ip -6 route del 2001:db8:d000::/36
a next hop is replaced | ip nexthop replace id 7 via 198.51.100.5 dev r1 | ip nexthop replace id 7 via 198.51.100.4 dev r1
a neighbor has another MAC | ip neigh replace 198.51.100.9 lladdr 02:00:00:00:01:99 dev r1 nud permanent | ip neigh replace 198.51.100.9 lladdr 02:00:00:00:01:09 dev r1 nud permanent
a neighbor is deleted | ip neigh del 198.51.100.9 dev r1 | ip neigh replace 198.51.100.9 lladdr 02:00:00:00:01:09 dev r1 nud permanent
an IPv6 neighbor is deleted | ip neigh del 2001:db8:2::9 dev r1 | ip neigh replace 2001:db8:2::9 lladdr 02:00:00:00:01:09 dev r1 nud permanent
an address is added | ip addr add 198.51.100.77/24 dev r1 | ip addr del 198.51.100.77/24 dev r1
an address is removed | ip addr del 198.51.100.78/24 dev r1 | ip addr add 198.51.100.78/24 dev r1
a link goes down | ip link set x0 down | ip link set x0 up
a link has another MTU | ip link set x0 mtu 1400 | ip link set x0 mtu 1500
a rule is added | ip rule add from 10.250.0.0/16 table 100 | ip rule del from 10.250.0.0/16 table 100
a setting changes | sysctl -qw net.ipv4.fib_multipath_hash_policy=1 | sysctl -qw net.ipv4.fib_multipath_hash_policy=0
a setting of an interface changes | sysctl -qw net.ipv4.conf.x0.rp_filter=1 | sysctl -qw net.ipv4.conf.x0.rp_filter=0
another setting of an interface changes | sysctl -qw net.ipv4.conf.x0.accept_local=1 | sysctl -qw net.ipv4.conf.x0.accept_local=0
nftables has a table | nft add table inet stale | nft delete table inet stale
iptables-nft has a rule | iptables-nft -A FORWARD -s 10.250.0.1 -j DROP | nft flush ruleset
legacy iptables has a rule | iptables-legacy -A FORWARD -s 10.250.0.1 -j DROP | iptables-legacy -F FORWARD
an IPsec policy is added | ip xfrm policy add src 10.250.0.0/16 dst 10.251.0.0/16 dir fwd action block | ip xfrm policy flush
a qdisc is added | tc qdisc add dev x0 root tbf rate 1gbit burst 100k latency 50ms | tc qdisc del dev x0 root
";

/// Runs a test on the kernel path with the settings of [`BEFORE`].
fn on_kernel(test: &str, action: impl FnOnce(&Lab, &mut Router)) {
    let Some(subject) = Subject::kernel(test) else { return };
    let lab = Lab::new(test, Ends::Silent);
    BEFORE.lines().for_each(|line| drop(lab.rtr.run(line)));
    let mut router = subject.start(&lab);
    let status = router.ask("status", &["--json"]).expect("a daemon's command");
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    if status["tables_watched_by"].is_null() {
        report::skip(test, &format!("nothing outlives the daemon here: {}", status["notes"]));
        return;
    }
    action(&lab, &mut router);
}

/// A stream to neighbors that no test changes.
fn stream() -> Stream {
    Stream::to_all(&["10.9.9.9", "2001:db8:a000::9"], 4000)
}

/// How long after `since` Linux forwards.
fn until_linux_forwards(lab: &Lab, before: u64, since: Instant, what: &str) -> Duration {
    while by_linux(lab) == before {
        assert!(since.elapsed() < Duration::from_secs(20), "{what}: Linux does not forward");
        std::thread::sleep(Duration::from_micros(200));
    }
    since.elapsed()
}

/// Kills the daemon during a stream and makes a change; returns how long it took until Linux forwarded.
fn handed_over(lab: &Lab, router: &mut Router, what: &str, change: &str) -> Duration {
    let (took, outcome) = stream().during(lab, || {
        pause(100);
        router.kill();
        // Long enough for the end of the process to be complete, so that only the change matters.
        pause(400);
        let before = by_linux(lab);
        pause(200);
        assert_eq!(by_linux(lab), before, "{what}: Linux must not forward before anything has changed");
        lab.rtr.run(change);
        until_linux_forwards(lab, before, Instant::now(), what)
    });
    assert_eq!((outcome.lost(), outcome.twice), (0, 0), "{what}: {outcome}");
    took
}

#[test]
fn the_first_change_without_a_daemon_hands_everything_to_linux() {
    on_kernel("first", |lab, router| {
        let mut worst = Duration::ZERO;
        for line in CHANGES.lines() {
            let parts: Vec<&str> = line.split(" | ").collect();
            let [what, change, back] = parts[..] else { panic!("three parts: {line}") };
            let took = handed_over(lab, router, what, change);
            report::say(&format!(
                "stale: {what}: Linux forwards {:.1} ms after it",
                took.as_secs_f64() * 1e3
            ));
            assert!(took < BOUND, "{what}: {took:?}");
            worst = worst.max(took);
            lab.rtr.run(back);
            router.restart();
            router.settle();
        }
        report::say(&format!("stale: at worst {:.1} ms", worst.as_secs_f64() * 1e3));
    });
}

#[test]
fn changes_that_a_killed_daemon_had_not_read_count() {
    on_kernel("unread", |lab, router| {
        lab.leaves_by("10.1.1.200", 6);
        // The daemon gets no chance to read the change.
        sys::signal(router.process().expect("a daemon"), libc::SIGSTOP).expect("kill -STOP");
        lab.rtr.ip("route replace 10.1.1.200/32 via 198.51.100.3");
        router.kill();
        let since = Instant::now();
        std::thread::sleep(BOUND);
        lab.leaves_by("10.1.1.200", 3);
        report::say(&format!("stale: followed within {:?} of the death", since.elapsed()));
        // The next daemon has the change in its tables.
        router.restart();
        let before = by_linux(lab);
        lab.leaves_by("10.1.1.200", 3);
        assert_eq!(by_linux(lab), before);
    });
}

/// Linux does not use a route after its lifetime, but announces that only when it removes it, up to half a minute later.
#[test]
fn the_end_of_a_lifetime_hands_everything_to_linux() {
    on_kernel("ends", |lab, router| {
        let (took, outcome) = stream().during(lab, || {
            lab.rtr.ip("-6 route add 2001:db8:e000::/36 via 2001:db8:3::2 expires 4");
            let since = Instant::now();
            pause(500);
            router.kill();
            pause(400);
            let before = by_linux(lab);
            pause(500);
            assert_eq!(by_linux(lab), before, "Linux must not forward before anything has changed");
            until_linux_forwards(lab, before, since, "the end of a lifetime")
        });
        assert_eq!((outcome.lost(), outcome.twice), (0, 0), "{outcome}");
        report::say(&format!("stale: Linux forwards {took:?} after a route for 4 s was added"));
        assert!(took < Duration::from_secs(4), "{took:?}");
    });
}

#[test]
fn events_that_change_no_table_do_not_end_forwarding() {
    on_kernel("refresh", |lab, router| {
        lab.rtr.run("ip neigh replace 198.51.100.9 lladdr 02:00:00:00:01:09 dev r1 nud reachable");
        let ((), outcome) = stream().during(lab, || {
            router.kill();
            pause(400);
            let before = by_linux(lab);
            // A neighbor is confirmed and becomes stale, another namespace changes, and a file is read.
            lab.rtr.run("ip neigh replace 198.51.100.9 lladdr 02:00:00:00:01:09 dev r1 nud stale");
            lab.rtr.run("ip neigh replace 198.51.100.9 lladdr 02:00:00:00:01:09 dev r1 nud reachable");
            lab.rtr.run("sysctl -qw net.ipv4.fib_multipath_hash_policy=0");
            lab.rtr.run("ip route show");
            lab.snk.ip("route add blackhole 10.99.0.0/16");
            lab.snk.run("nft add table inet other");
            lab.snk.run("sysctl -qw net.ipv4.fib_multipath_hash_policy=1");
            std::thread::sleep(QUIET);
            assert_eq!(by_linux(lab), before, "Linux forwards");
        });
        assert_eq!((outcome.lost(), outcome.twice), (0, 0), "{outcome}");
    });
}

/// Whether the kernel path forwards: a stream arrives without any help from Linux.
fn in_xdp(lab: &Lab) -> bool {
    let before = by_linux(lab);
    let outcome = stream().for_a_while(lab, Duration::from_millis(200));
    assert_eq!((outcome.lost(), outcome.twice), (0, 0), "{outcome}");
    by_linux(lab) == before
}

#[test]
fn tables_kept_on_purpose_are_watched_as_well() {
    on_kernel("kept", |lab, router| {
        router.end(&["--keep"]);
        pause(300);
        assert!(in_xdp(lab), "kept");
        lab.rtr.ip("route add blackhole 10.77.0.0/16");
        std::thread::sleep(BOUND);
        assert!(!in_xdp(lab), "it must not forward by old tables");
        router.restart();
        assert!(in_xdp(lab), "taken over");
        router.settle();
        router.end(&[]);
    });
}

/// The number of the watching process.
fn number(by: &str) -> u32 {
    by.strip_prefix("process ").and_then(|number| number.parse().ok()).expect("process N")
}

/// Ends the watching process with a signal, and waits until it is gone.
fn end_watcher(by: &str, signal: i32) {
    let process = number(by);
    sys::signal(process, signal).expect("it is there");
    let begin = Instant::now();
    let gone = || {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    };
    while !gone() {
        assert!(begin.elapsed() < Duration::from_secs(20), "the watcher must end");
        pause(10);
    }
}

fn watched_by(router: &Router) -> Option<String> {
    let status = router.ask("status", &["--json"]).expect("a daemon's command");
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    status["tables_watched_by"].as_str().map(String::from)
}

#[test]
fn the_watcher_is_restarted_and_its_end_ends_forwarding() {
    on_kernel("watcher", |lab, router| {
        let first = watched_by(router).expect("watched");
        end_watcher(&first, libc::SIGKILL);
        let begin = Instant::now();
        let second = loop {
            assert!(begin.elapsed() < Duration::from_secs(20), "another watcher must start");
            match watched_by(router) {
                Some(other) if other != first => break other,
                _ => pause(20),
            }
        };
        router.kill();
        pause(300);
        assert!(in_xdp(lab), "without a daemon");
        // As systemd ends remaining processes of a service.
        end_watcher(&second, libc::SIGTERM);
        assert!(!in_xdp(lab), "without a watcher Linux must forward");
        assert!(
            SIDES
                .iter()
                .all(|side| lab.rtr.run(&format!("ip link show dev {}", side.router())).contains("xdp"))
        );
    });
}

#[test]
fn killing_the_watcher_ends_forwarding_by_the_kernel_path() {
    on_kernel("murder", |lab, router| {
        let watcher = watched_by(router).expect("watched");
        router.kill();
        pause(600);
        assert!(in_xdp(lab), "without a daemon");
        let (took, outcome) = stream().during(lab, || {
            let before = by_linux(lab);
            pause(100);
            let since = Instant::now();
            end_watcher(&watcher, libc::SIGKILL);
            until_linux_forwards(lab, before, since, "SIGKILL to the watcher")
        });
        assert_eq!((outcome.lost(), outcome.twice), (0, 0), "{outcome}");
        report::say(&format!("stale: Linux forwards {took:?} after SIGKILL to the watcher"));
        // 400 ms on an idle machine.
        assert!(took < Duration::from_secs(2), "{took:?}");
    });
}

/// Daemon and watcher are stopped, as by a frozen cgroup; the daemon is killed, Linux's tables change, and the watcher
/// continues: it must not let the kernel path forward for a moment before it has noticed.
#[test]
fn a_watcher_that_was_stopped_looks_before_it_renews_the_lease() {
    on_kernel("thawed", |lab, router| {
        let watcher = number(&watched_by(router).expect("watched"));
        let stream = Stream::to("10.1.1.200", 10_000);
        let (changed, passed) = stream.passed_during(lab, || {
            pause(100);
            sys::signal(watcher, libc::SIGSTOP).expect("it is there");
            router.kill();
            pause(1500);
            lab.rtr.ip("route replace blackhole 10.1.1.200/32");
            pause(300);
            let changed = sys::wall_clock();
            sys::signal(watcher, libc::SIGCONT).expect("it is there");
            pause(500);
            changed
        });
        assert!(passed.iter().any(|(_, sent)| *sent < changed), "nothing arrived before");
        let stale = passed.iter().filter(|(_, sent)| *sent > changed).count();
        assert_eq!(stale, 0, "packets were forwarded by the tables of before");
    });
}

#[test]
fn without_a_watcher_nothing_outlives_the_daemon() {
    on_kernel("unwatched", |lab, router| {
        router.end(&[]);
        router.set_variable("BRICKMOON_WATCHER", "off");
        router.restart();
        assert_eq!(watched_by(router), None);
        let status = router.ask("status", &[]).expect("a daemon's command");
        let output = String::from_utf8_lossy(&status.stdout).into_owned();
        assert!(
            output.contains("will end with the daemon: cannot start the process that watches its tables"),
            "{output}"
        );
        assert!(in_xdp(lab), "with a daemon");
        let keep = router.ask("stop", &["--keep"]).expect("a daemon's command");
        assert!(!keep.status.success(), "there must be nothing to keep");
        router.kill();
        std::thread::sleep(BOUND);
        assert!(!in_xdp(lab), "without one");
        assert!(!lab.rtr.run("ip link show dev r0").contains("xdp"), "the program must be detached");
    });
}

#[test]
fn settings_are_followed_while_the_daemon_lives() {
    const TRIES: u32 = 5;
    on_kernel("settings", |lab, router| {
        lab.rtr.ip("route add 10.60.0.0/16 nexthop via 198.51.100.4 nexthop via 198.51.100.5");
        router.settle();
        // Only the ports of these flows differ.
        let ways = || {
            let stream = |port: u16| {
                let packet = Ip4::udp_ports("192.0.2.2", "10.60.1.1", port, 5000, b"flow").bytes();
                lab.drain();
                lab.send(Side::Src, &Side::Src.to_router(&packet));
                let [four, five] = [4, 5].map(|n| Side::Snk.to_neighbor(n, &routed(&packet)));
                let came = lab
                    .await_frame(Side::Snk, Duration::from_secs(2), |frame| frame == four || frame == five);
                came.expect("it arrives").frame == four
            };
            let mut all: Vec<bool> = (4000..4024).map(stream).collect();
            all.dedup();
            all.len() > 1
        };
        for (turn, policy) in [1, 0].into_iter().cycle().take(TRIES as usize).enumerate() {
            lab.rtr.run(&format!("sysctl -qw net.ipv4.fib_multipath_hash_policy={policy}"));
            let begin = Instant::now();
            while ways() != (policy == 1) {
                assert!(
                    begin.elapsed() < Duration::from_secs(20),
                    "turn {turn}: the setting must be followed"
                );
            }
            report::say(&format!("stale: hash policy {policy} followed after {:?}", begin.elapsed()));
            assert!(begin.elapsed() < Duration::from_secs(2), "turn {turn}: {:?}", begin.elapsed());
        }
    });
}
