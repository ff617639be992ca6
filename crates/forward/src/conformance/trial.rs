//! A trial of a frame says what the router then does with it.

use proptest::prelude::*;

use super::random::frames;
use super::{LEFT, LINES};
use crate::testing::Lab;
use crate::{Disposition, DryRun, Now};

/// Time on the clock of a new lab.
const NOW: Now = Now { monotonic_ns: 1_000_000_000, midnight_ms: 0x0102_0304 };

/// Those that routes lead through.
const ROUTERS: [&str; 4] = ["198.51.100.7", "203.0.113.5", "2001:db8:2::7", "2001:db8:3::5"];

/// Routes in addition to [`LINES`], among them shorter and longer ones than those.
fn routes() -> impl Strategy<Value = String> {
    let hop4 = prop::sample::select(vec![
        "via 198.51.100.7 right",
        "via 203.0.113.5 narrow",
        "via 203.0.113.5 narrow mtu 600",
        "via 192.0.2.9 left",
        "via 198.51.100.99 right",
        "group 198.51.100.7 right 1 203.0.113.5 narrow 3",
        "dev right",
        "host",
        "blackhole",
        "unreachable",
        "prohibit",
    ]);
    let hop6 = prop::sample::select(vec![
        "via 2001:db8:2::7 right",
        "via 2001:db8:3::5 narrow",
        "group 2001:db8:2::7 right 2 2001:db8:3::5 narrow 1",
        "host",
        "blackhole",
        "unreachable",
        "prohibit",
    ]);
    let ipv4 = (prop::sample::select(vec!["8.8.8.8", "9.9.9.9", "77.1.1.1"]), 0..=32u8, hop4)
        .prop_map(|(address, length, hop)| format!("route {address}/{length} {hop}\n"));
    let ipv6 = (prop::sample::select(vec!["2001:db8:8::8", "2001:db8:9::9"]), 0..=128u8, hop6)
        .prop_map(|(address, length, hop)| format!("route {address}/{length} {hop}\n"));
    prop::collection::vec(prop_oneof![ipv4, ipv6], 0..12).prop_map(|lines| lines.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_trial_says_what_the_router_does(routes in routes(), sent in prop::collection::vec(frames(), 1..24)) {
        let mut trial = DryRun::new().unwrap();
        let text = format!("{LINES}{routes}");
        for frame in &sent {
            // A new router for each: packets that wait, and limits, are not the trial's.
            let mut lab = Lab::new(&text);
            let tables = lab.tables();
            let outcome = trial.run(&tables, LEFT, frame, NOW).unwrap();
            prop_assert_eq!(lab.drops(), vec![], "a trial counts nothing");
            prop_assert!(!ROUTERS.iter().any(|router| lab.used(router)), "a trial marks no next hop");
            let answer = lab.exchange(LEFT, frame);
            let is = |fate| fate == outcome.fate;
            prop_assert_eq!(lab.passed_to_slow_path() == 1, outcome.verdict.is_some(), "{:?}", outcome.verdict);
            prop_assert_eq!(!answer.host.is_empty(), is(Disposition::Linux));
            let waits = lab.asked().first().map(|(_, neighbor)| *neighbor);
            match outcome.fate {
                Disposition::Dropped(reason) => prop_assert_eq!(lab.dropped(reason), 1),
                Disposition::Held { neighbor, .. } => prop_assert_eq!(waits, Some(neighbor)),
                Disposition::Sent | Disposition::Linux => prop_assert_eq!(lab.drops(), vec![]),
            }
            let without_ids = |frames: Vec<_>| frames.into_iter().map(without_id).collect::<Vec<_>>();
            let said = outcome.sent.iter().map(|(port, frame)| (usize::from(*port), frame.clone())).collect();
            prop_assert_eq!(without_ids(said), without_ids(answer.sent));
            if let (Disposition::Sent, Some(routed)) = (outcome.fate, outcome.routed) {
                let (out, _) = routed.neighbor.unwrap();
                prop_assert_eq!(tables.interfaces[usize::from(out)].port, outcome.sent[0].0);
                prop_assert!(routed.length <= routed.mtu || outcome.sent.len() > 1);
            }
        }
    }
}

/// A frame without the identification of its IPv4 packet, which is random in ICMP errors, and without its checksum.
fn without_id((port, mut frame): (usize, Vec<u8>)) -> (usize, Vec<u8>) {
    if frame[12..14] == [8, 0] {
        frame[18..20].fill(0);
        frame[24..26].fill(0);
    }
    (port, frame)
}
