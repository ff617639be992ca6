//! The daemon starts, stops and crashes while packets flow: Linux forwards whenever brickmoon does not.
//!
//! Neighbors are learned, not permanent, so the stream also shows that the kernel's entries were kept usable.

use bm_tests::flow::{Outcome, Stream};
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::pause;
use bm_tests::report;
use bm_tests::responder::Responder;
use bm_tests::subject::{Router, Subject, each};
use bm_tests::sys;
use std::time::Duration;

/// Packets a second of the flow.
const RATE: u32 = 10_000;
/// The goal on an idle machine is 50 ms. Only a router that does not hand over at all fails here.
const GAP_MAX: Duration = Duration::from_secs(1);

fn stream() -> Stream {
    Stream::to_all(&["10.9.9.9", "2001:db8:a000::9", "10.1.1.200"], RATE)
}

#[track_caller]
fn judge(router: &str, what: &str, outcome: &Outcome) {
    report::say(&format!("lifecycle: {router}: {what}: {outcome}"));
    assert!(outcome.longest_gap < GAP_MAX, "{router}: {what}: {outcome}");
    let lost = Duration::from_secs(1) * outcome.longest_loss / RATE;
    assert!(lost < GAP_MAX, "{router}: {what}: {outcome}");
}

/// A lab whose neighbors answer and are known.
fn warm(lab: &Lab) -> [Responder; 2] {
    let responders = [Side::Src, Side::Snk].map(|side| Responder::usual(lab, side));
    stream().for_a_while(lab, Duration::from_millis(300));
    responders
}

#[test]
fn until_its_end_it_shows_its_ports_or_says_why_not() {
    each("last-answers", Ends::Unknown, |lab, router| {
        let _responders = warm(lab);
        let Some(process) = router.process() else { return };
        sys::signal(process, libc::SIGTERM).unwrap_or_else(|error| panic!("SIGTERM: {error}"));
        while let Some(answer) = router.get("/v1/ports") {
            assert!(!answer.contains(r#""ports":[]"#), "{}: {answer}", router.name());
        }
        assert_eq!(router.end_status(), Some(0), "{}", router.name());
        router.restart();
        stream().for_a_while(lab, Duration::from_millis(300));
    });
}

#[test]
fn killed_while_packets_flow_and_started_again() {
    each("kill", Ends::Unknown, |lab, router| {
        let _responders = warm(lab);
        let name = router.name();
        let ((), outcome) = stream().during(lab, || pause(500));
        judge(name, "nothing happens", &outcome);
        assert_eq!(outcome.lost(), 0, "{name}: {outcome}");
        let ((), outcome) = stream().during(lab, || {
            pause(300);
            router.kill();
            pause(500);
        });
        judge(name, "kill -9", &outcome);
        let ((), outcome) = stream().during(lab, || {
            pause(300);
            router.restart();
            pause(500);
        });
        judge(name, "started again", &outcome);
        let ((), outcome) = stream().during(lab, || {
            for _ in 0..3 {
                router.kill();
                router.restart();
            }
        });
        judge(name, "killed and started three times", &outcome);
        router.settle();
        let outcome = stream().for_a_while(lab, Duration::from_millis(300));
        assert_eq!(outcome.lost(), 0, "{name}: {outcome}");
    });
}

#[test]
fn started_and_stopped_as_a_user_would() {
    for subject in Subject::all("stop") {
        let lab = Lab::new("stop", Ends::Unknown);
        let _responders = warm(&lab);
        let name = subject.to_string();
        let (router, outcome): (Router, _) = stream().during(&lab, || {
            pause(200);
            let router = subject.start(&lab);
            pause(300);
            router
        });
        judge(&name, "started", &outcome);
        let ((), outcome) = stream().during(&lab, || {
            pause(200);
            router.stop();
            pause(300);
        });
        judge(&name, "stopped", &outcome);
        let outcome = stream().for_a_while(&lab, Duration::from_millis(300));
        assert_eq!(outcome.lost(), 0, "{name}: Linux must forward after the stop: {outcome}");
        // No program stays attached to the links.
        let links = lab.rtr.run("ip link show");
        assert!(!links.contains("xdp"), "{name}: a program stays attached:\n{links}");
    }
}

#[test]
fn tables_change_while_the_daemon_is_down() {
    each("down", Ends::Silent, |lab, router| {
        router.kill();
        lab.rtr.ip("route add 10.90.0.0/16 via 198.51.100.4
route replace 10.1.0.0/16 via 198.51.100.8
route del 10.1.1.200/32
neigh replace 198.51.100.2 lladdr 02:00:00:00:01:99 dev r1 nud permanent");
        router.restart();
        router.settle();
        for (to, mac) in [("10.90.1.1", 4), ("10.1.2.3", 8), ("10.1.1.200", 5), ("10.9.9.9", 0x99)] {
            let packet = bm_tests::packet::Ip4::udp("192.0.2.2", to, 20).bytes();
            let expected = Side::Snk.to_neighbor(mac, &bm_tests::packet::routed(&packet));
            lab.drain();
            lab.send(Side::Src, &Side::Src.to_router(&packet));
            let found = lab.await_frame(Side::Snk, Duration::from_secs(2), |frame| frame == expected);
            assert!(found.is_some(), "{}: {to} does not leave by neighbor {mac:x}", router.name());
        }
    });
}

#[test]
fn stream_counts_are_plausible() {
    // The other tests rely on the stream's own arithmetic: without any disturbance, nothing is lost.
    for subject in Subject::all("plausible").into_iter().take(1) {
        let lab = Lab::new("plausible", Ends::Silent);
        let router = subject.start(&lab);
        let outcome = stream().for_a_while(&lab, Duration::from_millis(200));
        assert_eq!((outcome.lost(), outcome.twice, outcome.out_of_order), (0, 0, 0), "{outcome}");
        assert!(outcome.sent > RATE / 10, "{outcome}");
        router.stop();
    }
}
