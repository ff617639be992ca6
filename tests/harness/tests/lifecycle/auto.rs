//! The path that the daemon chooses by itself: the kernel path, unless something in use needs workers.

use bm_tests::flow::Stream;
use bm_tests::lab::{Ends, Lab, SIDES, Side};
use bm_tests::report;
use bm_tests::subject::{Router, Subject};
use std::time::Duration;

const ALL: [&str; 3] = ["r0", "r1", "r2"];

/// The path in use, and why.
fn path(router: &Router) -> (String, String) {
    let reply = router.ask("status", &["--json"]).expect("a daemon");
    let status: serde_json::Value = serde_json::from_slice(&reply.stdout).expect("status prints JSON");
    let text = |key: &str| status[key].as_str().unwrap_or_default().to_string();
    (text("path"), text("path_reason"))
}

/// What each port is attached to, and why.
fn attached(router: &Router) -> [(String, String); 3] {
    let ports = router.json(&["show", "ports"]);
    [0, 1, 2].map(|port| {
        let text = |key: &str| ports["ports"][port][key].as_str().unwrap_or_default().to_string();
        (text("attach"), text("attach_reason"))
    })
}

fn forwards(lab: &Lab, what: &str) {
    let stream = Stream::to_all(&["10.9.9.9", "2001:db8:a000::9", "10.1.1.200"], 5_000);
    let outcome = stream.for_a_while(lab, Duration::from_millis(300));
    report::say(&format!("auto: {what}: {outcome}"));
    assert_eq!(outcome.lost(), 0, "{what}: {outcome}");
}

#[test]
fn the_kernel_unless_something_in_use_needs_workers() {
    let Some(subject) = Subject::kernel("auto") else { return };
    let lab = Lab::new("auto", Ends::Silent);
    let mut router = subject.start(&lab);
    router.end(&[]);

    router.restart_choosing(&ALL, "");
    assert_eq!(path(&router), ("kernel".into(), "nothing in use needs workers".into()));
    forwards(&lab, "in the kernel");
    router.end(&[]);

    router.restart_choosing(&ALL, "[daemon]\nworkers = 1\n");
    assert_eq!(path(&router), ("user".into(), "workers or cores are configured".into()));
    forwards(&lab, "with workers");
    router.end(&[]);

    // XDP cannot redirect to a veth whose far end has neither GRO nor an XDP program; tc can.
    lab.host(Side::Snk).run("ethtool -K k0 gro off");
    router.restart_choosing(&ALL, "");
    assert_eq!(path(&router).0, "kernel");
    let [r0, r1, r2] = attached(&router);
    assert_eq!([&*r0.0, &*r1.0, &*r2.0], ["tc"; 3]);
    assert!(r0.1.starts_with("hosts on r0"), "{}", r0.1);
    assert!(r1.1.starts_with("XDP cannot send through r1"), "{}", r1.1);
    let before = router.sent();
    forwards(&lab, "to a veth without GRO");
    assert!(router.sent() > before, "{}", router.status_text());
    SIDES.iter().for_each(|side| lab.receive_offload(*side));
    router.end(&[]);

    // The programs of the kernel path are detached when workers are to forward.
    router.restart_choosing(&ALL, "");
    router.end(&["--keep"]);
    router.restart_choosing(&ALL, "[daemon]\nworkers = 1\n");
    forwards(&lab, "workers after the kernel");
    router.stop();
}

/// For workers no slot holds such a frame, and the far ends are as Linux creates a veth.
#[test]
fn large_mtus_do_not_need_workers() {
    let Some(subject) = Subject::kernel("auto-mtu") else { return };
    let lab = Lab::new("auto-mtu", Ends::Hosts);
    let mut router = subject.start(&lab);
    router.end(&[]);
    for side in [Side::Src, Side::Snk] {
        lab.rtr.ip(&format!("link set {} mtu 9000", side.router()));
        lab.host(side).ip(&format!("link set {} mtu 9000", side.host()));
        lab.host(side).run(&format!("ethtool -K {} gro off", side.host()));
    }
    router.restart_choosing(&["r0", "r1"], "");
    assert_eq!(path(&router), ("kernel".into(), "nothing in use needs workers".into()));
    let [r0, r1, _] = attached(&router);
    assert_eq!([&*r0.0, &*r1.0], ["tc", "tc"]);
    // The first ones wait for neighbors.
    lab.src.run("ping -c 3 -i 0.2 -W 5 -q 198.51.100.2");
    let before = router.sent();
    let output = lab.src.run("ping -c 5 -i 0.2 -W 5 -s 8000 -M do 198.51.100.2");
    assert!(output.contains(" 0% packet loss"), "{output}");
    assert!(router.sent() >= before + 10, "{}", router.status_text());
    router.stop();
}
