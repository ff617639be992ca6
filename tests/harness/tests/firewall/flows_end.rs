//! A flow ends with its connection, also one that goes without a packet: a tenth of a second after Linux has forgotten the
//! connection, or has another mark of it, no packet passes that Linux would drop.

use bm_tests::conversation::{Conversation, Heard, Host};
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::subject::{Forwarding, Router, Subject};
use bm_tests::{PATIENCE, connections};
use bm_wire::protocol::TCP;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

/// Only a SYN begins a connection, and none passes that is marked.
const RULES: &str = "table ip t { chain f { type filter hook forward priority 0; policy drop; ct mark 7 drop; \
     ct state established accept; tcp flags & (syn | ack) == syn ct state new accept; }; }";
const INSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 9);
/// How long packets may go by flow when Linux has forgotten or marked their connection.
const BOUND: Duration = Duration::from_millis(100);
/// Segments that are sent after that time.
const SEGMENTS: usize = 20;

/// Opens a connection from this port.
fn open(lab: &Lab, port: u16) -> (Conversation, Vec<bm_tests::exchange::Seen>) {
    let opener = Host::new(Side::Src, (INSIDE, port).into(), (OUTSIDE, 443).into());
    let mut seen = Vec::new();
    let opened = Conversation::open(lab, TCP, opener, Side::Snk, &mut seen);
    (opened.unwrap_or_else(|why| panic!("port {port}: {why}")), seen)
}

/// Sends packets that say nothing new until both directions go by flow.
fn wait_for_flows(lab: &Lab, router: &Router, conversation: &Conversation) {
    let (begin, before) = (Instant::now(), router.sent());
    while router.is_kernel() && (router.flows() < 2 || router.sent() < before + 2) {
        assert!(begin.elapsed() < PATIENCE, "not by flow\n{}", router.status_text());
        for by_opener in [true, false] {
            let crossed =
                conversation.cross(lab, by_opener, vec![conversation.repeat(by_opener)], &mut Vec::new());
            crossed.unwrap_or_else(|why| panic!("{why}\n{}", router.status_text()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a frame comes from this port.
fn is_from(frame: &[u8], port: u16) -> bool {
    Heard::of(frame).is_some_and(|heard| heard.source.port() == port)
}

/// Has a connection go by flow, ends it for Linux, and expects that no segment of it passes.
fn ends_by(lab: &Lab, router: &Router, port: u16, end: impl Fn()) {
    connections::forget(&lab.rtr);
    router.settle();
    router.clear_flows();
    let (mut conversation, _) = open(lab, port);
    wait_for_flows(lab, router, &conversation);
    end();
    std::thread::sleep(BOUND);
    for _ in 0..SEGMENTS {
        lab.send(Side::Src, &conversation.say(true, 100));
    }
    // What opens another one comes behind them.
    let (_, seen) = open(lab, port + 1);
    let passed = seen.iter().filter(|one| one.side == Side::Snk && is_from(&one.frame, port)).count();
    assert_eq!(
        passed,
        0,
        "{}: {passed} of {SEGMENTS} segments pass\n{}",
        router.name(),
        router.status_text()
    );
}

#[test]
fn a_flow_ends_with_its_connection() {
    for subject in Subject::with_tc("flow-ends") {
        if matches!(subject, Subject::Brickmoon { forwarding: Forwarding::User, .. }) {
            // Workers leave to Linux what goes by flow elsewhere.
            continue;
        }
        let lab = Lab::new("flow-ends", Ends::Silent);
        let router = subject.start_with_flows(&lab);
        lab.rtr.feed("nft -f -", RULES).unwrap_or_else(|why| panic!("{RULES}: {why}"));
        // Segments of a connection that Linux does not know are of a new one for it.
        ends_by(&lab, &router, 20_000, || connections::forget(&lab.rtr));
        ends_by(&lab, &router, 20_010, || {
            connections::mark(
                &lab.rtr,
                SocketAddrV4::new(INSIDE, 20_010),
                SocketAddrV4::new(OUTSIDE, 443),
                7,
            );
        });
        router.stop();
    }
}
