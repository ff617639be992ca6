//! What happens to packets while none of a hook's versions runs, and that light traffic is no reason for that.

use std::time::{Duration, Instant};

use bm_graph::Stage;
use bm_lua::hook::{Budget, Health, HookSpec, OnFailure};
use bm_stats::Reason;

use crate::{IN, OUT, Rig};

const LEFT: usize = 0;
const RIGHT: usize = 1;

/// A hook that fails with its second burst.
const FAILS: &str = "local seen = 0
    local function fail (burst) seen = seen + 1 if seen == 2 then error('bad luck') end end";

fn rig(stage: Stage, on_failure: Option<OnFailure>, declares: &str) -> Rig {
    let text = format!("{FAILS} {declares} return fail");
    Rig::with(|spec| HookSpec { stage: Some(stage), on_failure, ..spec }, &text)
}

#[test]
fn packets_of_a_hook_that_does_not_run_are_dropped_or_given_to_linux() {
    for stage in [Stage::Ingress, Stage::Lookup, Stage::Egress] {
        let mut drops = rig(stage, Some(OnFailure::Drop), "");
        let mut linux = rig(stage, Some(OnFailure::Linux), "");
        for rig in [&mut drops, &mut linux] {
            assert_eq!(rig.lab.exchange(LEFT, &IN).only(), Some((RIGHT, &OUT[..])), "{stage:?}");
        }
        for round in 1..=3 {
            assert!(drops.lab.exchange(LEFT, &IN).is_silence(), "{stage:?}");
            assert_eq!(drops.lab.drops(), [(Reason::HookFailed, round)]);
            let answer = linux.lab.exchange(LEFT, &IN);
            // Only the burst in which it fails after rewriting cannot be given to Linux any more.
            let lost = stage == Stage::Egress && round == 1;
            let expected = if lost { vec![] } else { vec![(LEFT, IN.to_vec())] };
            assert_eq!((answer.sent, answer.host), (vec![], expected), "{stage:?} {round}");
        }
        assert_eq!(linux.lab.dropped(Reason::HookRefused), u64::from(stage == Stage::Egress));
    }
}

#[test]
fn packets_on_the_slow_path_are_dropped_or_given_to_linux() {
    // Its TTL has expired.
    let mut spent = IN;
    (spent[22], spent[24]) = (1, 0xd5);
    let mut drops = rig(Stage::Slow, Some(OnFailure::Drop), "");
    let mut linux = rig(Stage::Slow, Some(OnFailure::Linux), "");
    drops.lab.exchange(LEFT, &spent);
    linux.lab.exchange(LEFT, &spent);
    for round in 1..=2 {
        assert!(drops.lab.exchange(LEFT, &spent).is_silence());
        assert_eq!(drops.lab.dropped(Reason::HookFailed), round);
        let answer = linux.lab.exchange(LEFT, &spent);
        assert_eq!((answer.sent, answer.host), (vec![], vec![(LEFT, spent.to_vec())]));
    }
    for rig in [&mut drops, &mut linux] {
        assert_eq!(rig.lab.exchange(LEFT, &IN).only(), Some((RIGHT, &OUT[..])), "not on the slow path");
    }
}

#[test]
fn a_hook_that_declares_a_reason_fails_closed_by_default() {
    let declares = "require('brickmoon.hook').reason('blocked')";
    for (declares, on_failure, passes) in [
        (declares, None, false),
        ("", None, true),
        (declares, Some(OnFailure::Pass), true),
        ("", Some(OnFailure::Drop), false),
    ] {
        let mut rig = rig(Stage::Ingress, on_failure, declares);
        rig.lab.exchange(LEFT, &IN);
        for _ in 0..2 {
            assert_eq!(rig.lab.exchange(LEFT, &IN).is_silence(), !passes, "{declares:?} {on_failure:?}");
        }
        let report = rig.report();
        assert_eq!(report.on_failure, if passes { OnFailure::Pass } else { OnFailure::Drop });
        assert_eq!((report.running, report.health), (None, Health::Failed));
        // A version that runs ends it.
        rig.reload("return function (burst) end").unwrap();
        assert_eq!(rig.lab.exchange(LEFT, &IN).only(), Some((RIGHT, &OUT[..])));
    }
}

/// Packets one at a time, with cold caches, on a machine that has other things to do: each takes many cycles by the
/// clock, all of them together hardly any of a core.
#[test]
fn light_traffic_ejects_no_hook() {
    let budget = Budget { cycles: 1, percent: 25, patience: Duration::ZERO };
    let dropping = "local hook = require('brickmoon.hook')
        local own = hook.reason('own')
        return function (burst) for i in burst.each() do burst.drop(i, own) end end";
    let mut rig = Rig::with(|spec| HookSpec { stage: Some(Stage::Ingress), budget, ..spec }, dropping);
    let begin = Instant::now();
    let mut sent = 0;
    while begin.elapsed() < Duration::from_secs(2) {
        assert!(rig.lab.exchange(LEFT, &IN).is_silence());
        sent += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((rig.count("drop/own"), rig.report().health), (sent, Health::Good));
}
