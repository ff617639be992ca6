//! TAP ports whose device fails: calls with errors, a queue that is full, an interface that is deleted and created again.
//!
//! ```text
//!  src ── r0 ┤           ├ r1 ── snk          other ports lose nothing
//!            │ brickmoon │
//!            └────┬──────┘
//!             tap:vm0 ── vm0, in snk          only what is counted is lost
//! ```

use bm_tests::faults::{Failed, Faults};
use bm_tests::flow::{self, Stream};
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::netns::Namespace;
use bm_tests::packet::{Ip4, ip_frame};
use bm_tests::subject::{Router, Subject};
use bm_tests::sys::{self, PacketSocket};
use bm_tests::{daemon, report};
use bm_wire::Mac;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The host behind the TAP, and the router's end of its link.
const FAR: &str = "10.66.0.2";
const FAR_MAC: Mac = Mac([2, 0, 0, 0, 9, 2]);
/// Packets a second in each of the streams.
const RATE: u32 = 2000;
/// A configuration for workers.
const CONFIG: &str = "[daemon]\nworkers = 1\n";

/// Runs a test on a daemon with the TAP in addition to `r0` and `r1`; `prepare` is called before it starts.
fn with_tap(test: &str, prepare: impl Fn(&mut Router), action: impl Fn(&Lab, &mut Router, &Tap)) {
    let Some(subject) = Subject::user(test) else { return };
    if !Path::new("/dev/net/tun").exists() {
        return report::skip(test, "needs /dev/net/tun");
    }
    let lab = Lab::new(test, Ends::Silent);
    let mut router = subject.start(&lab);
    router.end(&[]);
    prepare(&mut router);
    router.restart_with(&["r0", "r1", "tap:vm0"], CONFIG);
    let tap = Tap::new(&lab);
    router.settle();
    action(&lab, &mut router, &tap);
    router.settle();
    router.stop();
}

/// The other end of the TAP: an interface in the sink's namespace.
struct Tap {
    /// MAC of the router's end.
    router: Mac,
}

impl Tap {
    fn new(lab: &Lab) -> Self {
        let router = daemon::mac(&lab.rtr, "bm-vm0");
        lab.rtr.ip(&format!(
            "link set vm0 netns {}\naddr add 10.66.0.1/24 dev bm-vm0\n\
             neigh replace {FAR} lladdr {FAR_MAC} dev bm-vm0 nud permanent\n",
            lab.snk.name()
        ));
        lab.snk.ip("link set vm0 arp off\nlink set vm0 up\n");
        Self { router }
    }

    /// A packet of a stream from the far host to this address, as it comes from the TAP.
    fn frame(&self, to: &str) -> Vec<u8> {
        let template = &Stream::to(to, RATE).frames()[0];
        let payload = &template[template.len() - 20..];
        let mut packet = Ip4::udp_ports(FAR, to, 4000, 5000, payload);
        packet.payload[6..8].fill(0);
        ip_frame(self.router, FAR_MAC, &packet.bytes())
    }
}

/// Which numbered packets arrived at a socket.
fn receive(socket: &PacketSocket, stop: &AtomicBool) -> Vec<u32> {
    let (mut numbers, mut stopped) = (Vec::new(), false);
    while !stopped {
        stopped = stop.load(Ordering::Relaxed);
        sys::wait_readable(&[socket], Duration::from_millis(50)).expect("an open socket");
        while let Ok(Some(captured)) = socket.receive() {
            numbers
                .extend(flow::arrival(&captured.frame, captured.at, Side::Snk).map(|arrival| arrival.number));
        }
    }
    numbers
}

/// A stream: how many packets were sent, and which arrived.
struct Stretch {
    sent: u32,
    arrived: Vec<u32>,
}

impl Stretch {
    fn lost(&self) -> u64 {
        let arrived: BTreeSet<_> = self.arrived.iter().collect();
        assert_eq!(arrived.len(), self.arrived.len(), "packets arrived twice");
        u64::from(self.sent) - arrived.len() as u64
    }
}

/// Runs streams of frames from a socket to another while `action` runs.
fn streams<const N: usize>(
    of: [(&PacketSocket, Vec<u8>, &PacketSocket); N],
    action: impl FnOnce(),
) -> [Stretch; N] {
    let [sent, received] = [AtomicBool::new(false), AtomicBool::new(false)];
    std::thread::scope(|scope| {
        let (sent, received) = (&sent, &received);
        let running = of.map(|(from, frame, to)| {
            let receiving = scope.spawn(move || receive(to, received));
            let sending = scope.spawn(move || flow::send(|frame| from.send(frame), vec![frame], RATE, sent));
            (sending, receiving)
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(action));
        sent.store(true, Ordering::Relaxed);
        let running =
            running.map(|(sending, receiving)| (sending.join().expect("it does not panic"), receiving));
        std::thread::sleep(Duration::from_millis(500));
        received.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        running
            .map(|(sent, receiving)| Stretch { sent, arrived: receiving.join().expect("it does not panic") })
    })
}

/// The streams of a test: past the TAP, to it, and from it. Each has sockets of its own.
fn three_streams(lab: &Lab, tap: &Tap, action: impl FnOnce()) -> [Stretch; 3] {
    let from_source = |to: &str| Stream::to(to, RATE).frames().remove(0);
    let source = || lab.src.packet_socket("s0");
    let (past, to) = ((source(), lab.snk.packet_socket("k0")), (source(), lab.snk.packet_socket("vm0")));
    // By another way than the first stream.
    let from = (lab.snk.packet_socket("vm0"), lab.src.packet_socket("s0"));
    streams(
        [
            (&past.0, from_source("10.9.9.9"), &past.1),
            (&to.0, from_source(FAR), &to.1),
            (&from.0, tap.frame("172.16.9.9"), &from.1),
        ],
        action,
    )
}

fn port(router: &Router) -> Value {
    let ports = router.json(&["show", "ports"]);
    let all = ports["ports"].as_array().into_iter().flatten();
    all.into_iter().find(|port| port["name"] == "bm-vm0").unwrap_or_else(|| panic!("{ports}")).clone()
}

/// Whether each lost packet of a stream was counted. Linux's own packets (neighbor and router solicitations, MLD reports)
/// are lost and counted as well.
fn counts_losses(counted: u64, lost: u64) -> bool {
    counted.checked_sub(lost).is_some_and(|own| own <= 20)
}

#[test]
fn only_counted_packets_are_lost_while_calls_on_a_tap_fail() {
    let faults = std::cell::RefCell::new(None);
    let prepare = |router: &mut Router| {
        let name = format!("bm-taps-{}", std::process::id());
        *faults.borrow_mut() = Some(Faults::of(router, &name).expect("a folder for files"));
    };
    with_tap("taps", prepare, |lab, router, tap| {
        let faults = faults.borrow();
        let faults = faults.as_ref().expect("it was prepared");
        let (process, mut failed) = (router.process(), Failed::default());
        let of = three_streams(lab, tap, || {
            for seed in 1..=100 {
                faults
                    .begin_only(&["tap-read", "tap-write"], seed, 16 << (seed % 5))
                    .expect("the file is there");
                std::thread::sleep(Duration::from_millis(20));
                failed.add(&faults.end().expect("the file is there"));
            }
        });
        let [past, to, from] = &of;
        let refused = router.dropped("transmit_error");
        report::say(&format!(
            "taps: {failed}; lost of {} past, {} to and {} from the TAP: {}, {}, {}; {refused} counted",
            past.sent,
            to.sent,
            from.sent,
            past.lost(),
            to.lost(),
            from.lost()
        ));
        assert!(failed.of("tap-read") > 100 && failed.of("tap-write") > 100, "too few faults: {failed}");
        assert_eq!(router.process(), process, "{}", router.log());
        assert_eq!(
            (past.lost(), from.lost()),
            (0, 0),
            "frames that are not read are read later\n{}",
            router.log()
        );
        let all_counted = refused > 0 && counts_losses(refused, to.lost());
        assert!(all_counted, "{}", router.log());
        assert!(!router.log().contains("panicked"), "{}", router.log());
        let after = three_streams(lab, tap, || std::thread::sleep(Duration::from_millis(300)));
        assert_eq!(after.map(|stretch| stretch.lost()), [0; 3], "it does not recover: {}", router.log());
    });
}

/// Linux keeps frames for the daemon in the queue of the interface, and counts what does not fit there.
#[test]
fn a_full_queue_of_a_tap_loses_what_linux_counts() {
    with_tap(
        "tapfull",
        |_| {},
        |lab, router, tap| {
            let process = router.process().expect("a daemon");
            // In the TAP, and in the host TAP of its port.
            let dropped_in = |namespace: &Namespace, interface: &str| {
                let said = namespace.run(&format!("ip -s -j link show dev {interface}"));
                let links: Value = serde_json::from_str(&said).expect("JSON");
                links[0]["stats64"]["tx"]["dropped"].as_u64().unwrap_or_else(|| panic!("{said}"))
            };
            let counted = || [dropped_in(&lab.snk, "vm0"), dropped_in(&lab.rtr, "bm-vm0")];
            let before = counted();
            let [past, to, from] = three_streams(lab, tap, || {
                std::thread::sleep(Duration::from_millis(200));
                sys::signal(process, libc::SIGSTOP).expect("it is there");
                std::thread::sleep(Duration::from_secs(2));
                sys::signal(process, libc::SIGCONT).expect("it is there");
                std::thread::sleep(Duration::from_millis(300));
            });
            let after = counted();
            let counted = [0, 1].map(|at| after[at] - before[at]);
            report::say(&format!(
                "taps: full: lost {} past, {} to and {} from it; {counted:?}",
                past.lost(),
                to.lost(),
                from.lost()
            ));
            assert!(counted[0] > 1000 && counted[1] > 1000, "the queues were not full: {counted:?}");
            let all_counted = counts_losses(counted[0], from.lost()) && counts_losses(counted[1], to.lost());
            assert!(all_counted, "{}", router.log());
            assert_eq!(past.lost(), 0, "Linux forwards");
            let after = three_streams(lab, tap, || std::thread::sleep(Duration::from_millis(300)));
            assert_eq!(after.map(|stretch| stretch.lost()), [0; 3], "it does not recover: {}", router.log());
        },
    );
}

#[test]
fn a_deleted_tap_disturbs_no_other_port() {
    with_tap(
        "tapgone",
        |_| {},
        |lab, router, tap| {
            let process = router.process();
            let [past, to, _] = three_streams(lab, tap, || {
                std::thread::sleep(Duration::from_millis(200));
                lab.snk.ip("link del vm0\n");
                std::thread::sleep(Duration::from_millis(300));
                // Somebody else's interface of the same name is not the port's.
                lab.rtr.ip("tuntap add vm0 mode tap\nlink set vm0 up\n");
                std::thread::sleep(Duration::from_millis(300));
            });
            assert_eq!(past.lost(), 0, "{}", router.log());
            assert_eq!(router.process(), process, "{}", router.log());
            let why = port(router)["state_reason"].as_str().unwrap_or_default().to_owned();
            assert!(why.contains("vm0 was deleted"), "{why}\n{}", port(router));
            assert!(router.log().contains("TAP interface vm0 was deleted"), "{}", router.log());
            let refused = router.dropped("transmit_error");
            assert!(to.lost() > 0 && refused > 0, "{} lost, {refused} refused: {}", to.lost(), port(router));
            router.settle();
            // A new daemon uses the interface that is there now.
            router.end(&[]);
            router.restart_with(&["r0", "r1", "tap:vm0"], CONFIG);
            let tap = Tap::new(lab);
            router.settle();
            assert!(port(router)["state_reason"].is_null(), "{}", port(router));
            let after = three_streams(lab, &tap, || std::thread::sleep(Duration::from_millis(300)));
            assert_eq!(after.map(|stretch| stretch.lost()), [0; 3], "{}", router.log());
            let received = port(router)["account"]["received"].as_u64();
            assert!(received.is_some_and(|received| received > 0), "{}", port(router));
        },
    );
}
