//! `reload`: changes take effect immediately, those that are not possible are reported, and packets and counters
//! continue.

use bm_tests::lab::{Ends, Lab, SIDES, Side};
use bm_tests::packet::{Ip4, routed};
use bm_tests::subject::{Forwarding, Router, Subject};

/// A port that cannot be opened, which is not known before.
const UNREADABLE: &str = "[[port]]\ndevice = 'pcap:/nonexistent/none.pcap'\n";

/// A configuration of ports by the names of the router's interfaces.
fn ports(names: &[&str]) -> String {
    names.iter().map(|name| format!("[[port]]\ndevice = '{name}'\n")).collect()
}

/// Runs a test on workers with these ports in the configuration.
fn on_workers(test: &str, names: &[&str], action: impl FnOnce(&Lab, &mut Router)) {
    let is_user =
        |subject: &Subject| matches!(subject, Subject::Brickmoon { forwarding: Forwarding::User, .. });
    let Some(subject) = Subject::all(test).into_iter().find(is_user) else { return };
    let lab = Lab::new(test, Ends::Silent);
    let mut router = subject.start(&lab);
    router.end(&[]);
    router.restart_with(&[], &ports(names));
    action(&lab, &mut router);
    router.settle();
    router.stop();
}

/// Sends a packet from one side, which must leave by another.
fn crosses(lab: &Lab, from: Side, to: Side) {
    let packet = Ip4::udp(&from.v4(2), ["172.16.0.7", "10.9.9.9", "10.2.3.4"][to as usize], 20).bytes();
    let expected = to.to_neighbor(2, &routed(&packet));
    let heard = lab.exchange(&[(from, from.to_router(&packet))], 1, true);
    let came = heard.seen.iter().filter(|seen| seen.side == to && seen.frame == expected).count();
    assert_eq!(came, 1, "{from:?} to {to:?}: {:?}", heard.seen);
}

/// Reloads, which must be refused. Returns the message.
fn refuses(router: &Router, config: &str) -> String {
    let done = router.reload_with(config).expect("a daemon");
    let output = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(!done.status.success(), "{output}");
    output
}

/// Reloads, which must succeed. Returns the message.
fn reloads(router: &Router, config: &str) -> String {
    let done = router.reload_with(config).expect("a daemon");
    let output = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    assert!(done.status.success(), "{output}");
    output
}

fn shown(router: &Router, what: &str) -> serde_json::Value {
    let reply = router.ask("show", &[what, "--json"]).expect("a daemon");
    serde_json::from_slice(&reply.stdout).expect("show prints JSON")
}

/// Frames sent on a port, by the name of its interface.
fn sent(router: &Router, port: &str) -> Option<u64> {
    let ports = shown(router, "ports");
    let port = ports["ports"].as_array()?.iter().find(|one| one["name"] == port)?.clone();
    port["account"]["sent"].as_u64()
}

#[test]
fn restarted_workers_continue_their_counters() {
    let names = SIDES.map(Side::router);
    on_workers("reload-count", &names, |lab, router| {
        crosses(lab, Side::Src, Side::Snk);
        let used = router.counters_used();
        let breaths = |router: &Router| shown(router, "workers")["workers"][0]["breaths"].as_u64();
        let mut before = (sent(router, "r0"), breaths(router));
        for poll in 1..=4 {
            let output = reloads(router, &format!("{}[daemon]\npoll_us = {poll}\n", ports(&names)));
            assert!(output.contains("daemon.poll_us"), "{output}");
            crosses(lab, Side::Src, Side::Snk);
            let now = (sent(router, "r0"), breaths(router));
            assert!(now.0 > before.0 && now.1 > before.1, "{now:?} after {before:?}");
            before = now;
        }
        assert_eq!(router.counters_used(), used);
    });
}

#[test]
fn a_configuration_with_an_error_changes_nothing() {
    let names = SIDES.map(Side::router);
    on_workers("reload-undo", &names, |lab, router| {
        crosses(lab, Side::Src, Side::Snk);
        let rule = "[[filter.rule]]\naction = 'drop'\nprotocol = 'udp'\n";
        let tap = "[[port]]\ndevice = 'tap:x'\npath = 'kernel'\n";
        let output = refuses(router, &format!("{}{rule}{tap}", ports(&names)));
        assert!(output.contains("tap:x: the kernel path needs"), "{output}");
        // That is known before anything changes. This shows when the port is opened, after the others have been closed.
        let output = refuses(router, &format!("{}{rule}{UNREADABLE}", ports(&names)));
        assert!(output.contains("none.pcap") && output.contains("nothing has changed"), "{output}");
        // Neither the ports nor the filters have changed.
        crosses(lab, Side::Src, Side::Snk);
        let output = reloads(router, &format!("{}{rule}", ports(&names)));
        assert!(output.contains("filter.rule") && !output.contains("restarted"), "{output}");
    });
}

#[test]
fn requests_are_answered_while_workers_restart() {
    let names = SIDES.map(Side::router);
    on_workers("reload-ask", &names, |lab, router| {
        crosses(lab, Side::Src, Side::Snk);
        let done = std::sync::atomic::AtomicBool::new(false);
        let is_done = || done.load(std::sync::atomic::Ordering::Relaxed);
        std::thread::scope(|scope| {
            let asks = ["status", "workers", "ports", "apps"].map(|what| {
                let (router, is_done) = (&*router, &is_done);
                scope.spawn(move || {
                    while !is_done() {
                        let asked = match what {
                            "status" => router.ask("status", &[]),
                            what => router.ask("show", &[what]),
                        };
                        let asked = asked.expect("a daemon");
                        let error = String::from_utf8_lossy(&asked.stderr);
                        assert!(asked.status.success(), "{what}: {error}");
                    }
                })
            });
            for poll in 1..=5 {
                reloads(router, &format!("{}[daemon]\npoll_us = {poll}\n", ports(&names)));
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            asks.into_iter().for_each(|asking| asking.join().expect("answers"));
        });
        crosses(lab, Side::Src, Side::Snk);
    });
}

/// The ports in `show ports`, with their paths.
fn shown_ports(router: &Router) -> Vec<(String, String)> {
    let ports = shown(router, "ports");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_string();
    let ports = ports["ports"].as_array().into_iter().flatten();
    ports.map(|port| (text(&port["name"]), text(&port["path"]))).collect()
}

#[test]
fn ports_are_added_and_removed() {
    on_workers("reload-port", &["r0", "r1"], |lab, router| {
        let on_workers = |names: &[&str]| names.iter().map(|name| ((*name).into(), "user".into())).collect();
        crosses(lab, Side::Src, Side::Snk);
        let output = reloads(router, &ports(&["r0", "r1", "r2"]));
        assert!(output.contains("workers restarted: port.xdp:r2"), "{output}");
        let all: Vec<_> = on_workers(&["r0", "r1", "r2"]);
        assert_eq!(shown_ports(router), all);
        crosses(lab, Side::Src, Side::Low);
        crosses(lab, Side::Low, Side::Snk);
        assert!(sent(router, "r2") >= Some(1), "Linux must have forwarded what came in on r2");
        // The first port is removed, so all others get another number.
        reloads(router, &ports(&["r1", "r2"]));
        let left: Vec<_> = on_workers(&["r1", "r2"]);
        assert_eq!(shown_ports(router), left);
        let before = sent(router, "r2");
        crosses(lab, Side::Low, Side::Snk);
        assert!(sent(router, "r2") > before);
        crosses(lab, Side::Src, Side::Snk);
        assert_eq!(sent(router, "r0"), None, "it must be left to Linux");
    });
}

#[test]
fn ports_that_need_too_much_memory_are_refused() {
    on_workers("reload-full", &["r0"], |lab, router| {
        let rings = "[daemon]\nring = 16384\n";
        let output = refuses(router, &format!("{}{rings}", ports(&["r0", "r1", "r2"])));
        assert!(output.contains("3 ports and 1 worker need 63488 frames"), "{output}");
        // Without a configured size, rings are as large as the memory allows.
        reloads(router, &ports(&["r0", "r1"]));
        crosses(lab, Side::Src, Side::Snk);
        let shown = shown(router, "ports");
        assert_eq!([0, 1, 2].map(|at| shown["ports"][at]["ring"].as_u64()), [Some(8192), Some(8192), None]);
    });
}

#[test]
fn interfaces_created_by_the_daemon_keep_their_addresses() {
    let tap = "[[port]]\ndevice = 'tap:vm0'\n[[port]]\ndevice = 'tap:vm1'\n";
    on_workers("reload-tap", &["r0", "r1", "r2"], |lab, router| {
        let all = format!("{}{tap}", ports(&["r0", "r1", "r2"]));
        // One exists already, as for a virtual machine, and has only one queue.
        lab.rtr.run("ip tuntap add dev vm1 mode tap");
        reloads(router, &all);
        lab.rtr.ip("addr add 203.0.113.129/25 dev bm-vm0");
        lab.rtr.ip("neigh add 203.0.113.130 lladdr 02:00:00:00:09:02 nud permanent dev bm-vm0");
        lab.rtr.ip("route add 10.77.0.0/16 via 203.0.113.130");
        let state = || {
            let of = |line: &str| lab.rtr.run(line);
            let asked =
                ["-4 addr show bm-vm0", "neigh show dev bm-vm0 nud permanent", "route show 10.77.0.0/16"];
            let index =
                |name: &str| of(&format!("ip -o link show {name}")).split(':').next().map(String::from);
            let answers = asked.map(|what| of(&format!("ip -o {what}"))).concat();
            (answers, ["vm0", "bm-vm0"].map(index))
        };
        let before = state();
        assert!(before.0.contains("203.0.113.129") && before.0.contains("02:00:00:00:09:02"), "{before:?}");
        for poll in 1..=3 {
            let output = reloads(router, &format!("{all}[daemon]\npoll_us = {poll}\n"));
            assert!(output.contains("restarted"), "{output}");
            assert_eq!(state(), before);
        }
        // Also across a reload that fails halfway.
        let output = refuses(router, &(ports(&["r0", "r1"]) + tap + UNREADABLE));
        assert!(output.contains("none.pcap") && output.contains("nothing has changed"), "{output}");
        assert_eq!(state(), before);
        crosses(lab, Side::Src, Side::Snk);
        reloads(router, &ports(&["r0", "r1", "r2"]));
        let left = lab.rtr.run("ip -o link");
        assert!(
            !left.contains("vm0") && !left.contains("bm-vm1"),
            "they must be removed with their port: {left}"
        );
        assert!(left.contains("vm1"), "an interface that existed before must stay");
    });
}
