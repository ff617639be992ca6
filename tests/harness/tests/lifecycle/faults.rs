//! System calls of the daemon fail, chosen by a seed: no memory, no descriptors, no buffers, interrupted calls, short
//! reads, maps and programs that the kernel refuses, a time of day that jumps. Meanwhile tables change and packets
//! flow.
//!
//! Packets keep flowing, forwarded by brickmoon or by Linux; nothing hangs or ends; afterwards tables equal those of
//! Linux, and accounts add up. `BM_SEED` sets the first seed, `BM_FAULT_SEEDS` their number; a failure names its seeds.

use bm_tests::faults::{CONTROL_CLOCK, Failed, Faults};
use bm_tests::flow::Stream;
use bm_tests::lab::{Ends, Lab, SIDES};
use bm_tests::pause;
use bm_tests::report;
use bm_tests::subject::{Router, Subject};
use std::time::{Duration, Instant};

/// Seeds on each path.
const SEEDS: u64 = 500;
/// After this many seeds, tables must be correct again.
const BETWEEN: u64 = 50;
/// How long that may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Changes, each with the command that undoes it.
const CHANGES: [[&str; 2]; 8] = [
    ["ip xfrm policy add src 10.250.0.0/16 dst 10.251.0.0/16 dir fwd action block", "ip xfrm policy flush"],
    ["ip route replace 10.77.0.0/16 via 198.51.100.3", "ip route replace 10.77.0.0/16 via 198.51.100.4"],
    ["ip -6 route replace 2001:db8:d000::/36 via 2001:db8:2::9", "ip -6 route del 2001:db8:d000::/36"],
    [
        "ip neigh replace 198.51.100.33 lladdr 02:00:00:00:01:33 dev r1 nud permanent",
        "ip neigh del 198.51.100.33 dev r1",
    ],
    ["ip addr add 198.51.100.77/24 dev r1", "ip addr del 198.51.100.77/24 dev r1"],
    ["sysctl -qw net.ipv4.fib_multipath_hash_policy=1", "sysctl -qw net.ipv4.fib_multipath_hash_policy=0"],
    ["ip link set r2 mtu 1290", "ip link set r2 mtu 1300"],
    ["ip route replace blackhole 10.78.0.0/16", "ip route del 10.78.0.0/16"],
];

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

/// Waits until the tables equal those of Linux and the daemon answers again.
fn recovered(router: &mut Router, process: Option<u32>, after: u64) {
    let begin = Instant::now();
    loop {
        assert_eq!(router.process(), process, "seed {after}: the daemon was replaced by another");
        let verify = router.ask("verify", &[]).expect("a daemon");
        if verify.status.success() {
            return;
        }
        let output = String::from_utf8_lossy(&verify.stdout).into_owned();
        assert!(begin.elapsed() < PATIENCE, "seed {after}: {output}\n{}", router.log());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Injects faults with one seed, while something changes.
fn one_seed(lab: &Lab, faults: &Faults, seed: u64) -> Failed {
    let [change, back] = CHANGES[seed as usize % CHANGES.len()];
    faults.begin(seed, 16 << (seed % 5)).expect("the file is there");
    lab.rtr.run(change);
    pause(10);
    lab.rtr.run(back);
    pause(10);
    faults.end().expect("the file is there")
}

/// Runs all seeds on one path.
fn seeds(lab: &Lab, router: &mut Router) {
    router.end(&[]);
    let faults = Faults::of(router, lab.rtr.name()).expect("a folder for files");
    router.restart_with(&SIDES.map(|side| side.router()), "[daemon]\nmetrics = \"127.0.0.1:9187\"\n");
    let process = router.process();
    let (first, count) = (number("BM_SEED", 1), number("BM_FAULT_SEEDS", SEEDS));
    let mut failed = Failed::default();
    let stream = Stream::to_all(&["10.9.9.9", "2001:db8:a000::9"], 1000);
    let begin = Instant::now();
    let ((), outcome) = stream.during(lab, || {
        for seed in first..first + count {
            failed.add(&one_seed(lab, &faults, seed));
            if (seed - first) % BETWEEN == BETWEEN - 1 {
                recovered(router, process, seed);
            }
        }
        recovered(router, process, first + count);
    });
    let name = router.name();
    report::say(&format!("faults: {name}, {count} seeds in {:?}: {failed}; {outcome}", begin.elapsed()));
    assert!(failed.sum() > count, "too few faults were injected: {failed}");
    for kind in ["receive", "wait", "open"] {
        assert!(failed.of(kind) > 0, "no fault of this kind was injected: {kind}");
    }
    assert_eq!((outcome.lost(), outcome.twice), (0, 0), "{outcome}\n{}", router.log());
    assert!(!router.log().contains("panicked"), "{}", router.log());
}

#[test]
fn packets_keep_flowing_while_system_calls_fail() {
    for subject in Subject::all("faults") {
        if subject == Subject::Linux {
            continue;
        }
        let lab = Lab::new("faults", Ends::Silent);
        let mut router = subject.start(&lab);
        seeds(&lab, &mut router);
        router.settle();
        router.stop();
    }
}

/// A panic of the control thread in the shipped program: the daemon ends, for its supervisor to start it again, and
/// packets are forwarded meanwhile: by Linux, or by the program that the kernel path leaves behind.
#[test]
fn a_panic_of_control_ends_the_daemon() {
    for subject in Subject::all("panics").into_iter().filter(|subject| *subject != Subject::Linux) {
        let lab = Lab::new("panics", Ends::Silent);
        let mut router = subject.start(&lab);
        let name = router.name();
        router.end(&[]);
        let faults = Faults::of(&mut router, lab.rtr.name()).expect("a folder for files");
        router.restart();
        router.settle();
        let stream = Stream::to_all(&["10.9.9.9", "2001:db8:a000::9"], 1000);
        let (took, outcome) = stream.during(&lab, || {
            let begin = Instant::now();
            faults.begin_only(&[CONTROL_CLOCK], 1, 1024).expect("the file is there");
            assert_eq!(router.end_status(), Some(1), "{name}: {}", router.log());
            begin.elapsed()
        });
        let log = router.log();
        for line in ["panicked at", "thread bm-control panicked: the daemon ends and must be restarted"] {
            assert!(log.contains(line), "{name}: {log}");
        }
        report::say(&format!("faults: {name}: ended {took:?} after a panic of control: {outcome}"));
        // What was in the rings of the workers is lost, as after `kill -9`.
        assert!(outcome.lost() <= if router.is_kernel() { 0 } else { 100 }, "{name}: {outcome}");
        faults.end().expect("the file is there");
        router.restart();
        router.settle();
        assert_eq!(stream.for_a_while(&lab, Duration::from_millis(300)).lost(), 0, "{name}");
        router.stop();
    }
}
