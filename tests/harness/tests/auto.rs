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

    // XDP cannot redirect to a veth whose far end has neither GRO nor an XDP program; workers can send there.
    lab.host(Side::Snk).run("ethtool -K k0 gro off");
    router.restart_choosing(&ALL, "");
    assert_eq!(path(&router).0, "mixed", "only that port must use workers");
    let reply = router.ask("show", &["ports", "--json"]).expect("a daemon");
    let ports: serde_json::Value = serde_json::from_slice(&reply.stdout).expect("show prints JSON");
    let paths: Vec<_> = (0..3).map(|port| ports["ports"][port]["path"].clone()).collect();
    assert_eq!(paths, ["kernel", "user", "kernel"]);
    let why = ports["ports"][1]["path_reason"].as_str().unwrap_or_default();
    assert!(why.starts_with("XDP cannot send through r1"), "{why}");
    forwards(&lab, "to a veth without GRO");
    SIDES.iter().for_each(|side| lab.receive_offload(*side));
    router.end(&[]);

    // The programs of the kernel path are detached when workers are to forward.
    router.restart_choosing(&ALL, "");
    router.end(&["--keep"]);
    router.restart_choosing(&ALL, "[daemon]\nworkers = 1\n");
    forwards(&lab, "workers after the kernel");
    router.stop();
}
