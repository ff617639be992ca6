//! Every stage and every verdict.

use bm_graph::Stage;
use bm_stats::Reason;

use crate::{IN, OUT, Rig};

const LEFT: usize = 0;
const RIGHT: usize = 1;
const OTHER: usize = 2;

/// A hook that does `what` with every frame.
fn each(what: &str) -> String {
    format!(
        "local hook = require('brickmoon.hook')
         local own = hook.reason('own', 'a reason of the test')
         return function (burst)
            for i in burst.each() do {what} end
         end"
    )
}

#[test]
fn a_hook_that_does_nothing_changes_nothing() {
    for stage in Stage::ALL {
        let mut rig = Rig::new(stage, "return function (burst) end");
        assert_eq!(rig.lab.exchange(LEFT, &IN).only(), Some((RIGHT, &OUT[..])), "{stage:?}");
        let calls = u64::from(stage != Stage::Slow);
        assert_eq!((rig.count("calls"), rig.count("frames")), (calls, calls), "{stage:?}");
    }
}

#[test]
fn drops_with_a_reason_at_every_stage() {
    for stage in [Stage::Ingress, Stage::Lookup, Stage::Egress] {
        let mut rig = Rig::new(stage, &each("burst.drop(i, 'own')"));
        assert!(rig.lab.exchange(LEFT, &IN).is_silence(), "{stage:?}");
        assert_eq!(rig.lab.drops(), [(Reason::Hook, 1)], "{stage:?}");
        assert_eq!(rig.count("drop/own"), 1);
        assert_eq!(rig.report().reasons, [("own".to_string(), "a reason of the test".to_string())]);
    }
}

#[test]
fn drops_on_the_slow_path_too() {
    let mut rig = Rig::new(Stage::Slow, &each("burst.drop(i, own)"));
    let mut spent = IN;
    (spent[22], spent[24]) = (1, 0xd5);
    assert!(rig.lab.exchange(LEFT, &spent).is_silence());
    assert_eq!((rig.lab.drops(), rig.count("drop/own")), (vec![(Reason::Hook, 1)], 1));
    // Packets that the fast path forwards never reach the slow path.
    assert_eq!(rig.lab.exchange(LEFT, &IN).only(), Some((RIGHT, &OUT[..])));
}

#[test]
fn a_punted_frame_is_forwarded_unchanged() {
    for stage in [Stage::Ingress, Stage::Lookup] {
        let mut rig = Rig::new(stage, &each("burst.punt(i)"));
        // The slow path still forwards it.
        assert_eq!(rig.lab.exchange(LEFT, &IN).only(), Some((RIGHT, &OUT[..])), "{stage:?}");
        assert_eq!(rig.lab.passed_to_slow_path(), 1);
    }
    let mut rig = Rig::new(Stage::Ingress, &each("burst.mask:clear(i)"));
    assert_eq!(rig.lab.exchange(LEFT, &IN).only(), Some((RIGHT, &OUT[..])));
    assert_eq!(rig.lab.passed_to_slow_path(), 1);
}

#[test]
fn after_rewriting_a_frame_cannot_be_punted() {
    let mut rig = Rig::new(Stage::Egress, &each("burst.punt(i)"));
    assert!(rig.lab.exchange(LEFT, &IN).is_silence());
    assert_eq!(rig.lab.drops(), [(Reason::HookRefused, 1)]);
}

#[test]
fn the_slow_path_punts_to_linux() {
    let text = "return {
        ingress = function (burst) for i in burst.each() do burst.punt(i) end end,
        slow = function (burst) for i in burst.each() do burst.punt(i) end end,
    }";
    let mut rig = Rig::with(|spec| spec, text);
    let answer = rig.lab.exchange(LEFT, &IN);
    assert_eq!((answer.sent, answer.host), (vec![], vec![(LEFT, IN.to_vec())]));
    assert_eq!(rig.report().stages, [Stage::Ingress, Stage::Slow]);
}

#[test]
fn sends_a_frame_unchanged() {
    let port = "burst.send(i, 'other')";
    for (stage, bytes) in [(Stage::Ingress, IN), (Stage::Lookup, IN), (Stage::Egress, OUT)] {
        let mut rig = Rig::new(stage, &each(port));
        assert_eq!(rig.lab.exchange(LEFT, &IN).only(), Some((OTHER, &bytes[..])), "{stage:?}");
    }
    let text = "return {
        ingress = function (burst) for i in burst.each() do burst.punt(i) end end,
        slow = function (burst) for i in burst.each() do burst.send(i, 2) end end,
    }";
    let mut rig = Rig::with(|spec| spec, text);
    assert_eq!(rig.lab.exchange(LEFT, &IN).only(), Some((OTHER, &IN[..])));
    // A port that does not exist: the frame is counted, not lost.
    let mut rig = Rig::new(Stage::Ingress, &each("burst.send(i, 9)"));
    assert!(rig.lab.exchange(LEFT, &IN).is_silence());
    assert_eq!(rig.lab.drops(), [(Reason::NoOutput, 1)]);
}

#[test]
fn writes_into_packets() {
    let mut rig = Rig::new(Stage::Egress, &each("burst.packet[i].data[42] = 68"));
    let mut expected = OUT;
    expected[42] = b'D';
    assert_eq!(rig.lab.exchange(LEFT, &IN).only(), Some((RIGHT, &expected[..])));
}

#[test]
fn chooses_the_next_hop() {
    // 203.0.113.5, behind "other", instead of what the table says.
    let text = each("if burst.family == 4 then burst.next_hop[i] = burst.route4(0xcb007105) end");
    let mut rig = Rig::new(Stage::Lookup, &text);
    let mut expected = OUT;
    expected[..12].copy_from_slice(&[2, 0, 0, 0, 3, 5, 2, 0, 0, 0, 0, 3]);
    assert_eq!(rig.lab.exchange(LEFT, &IN).only(), Some((OTHER, &expected[..])));
    // An invalid next hop is handled like a missing route.
    let mut rig = Rig::new(Stage::Lookup, &each("burst.next_hop[i] = 0xffffff"));
    assert!(rig.lab.exchange(LEFT, &IN).host.is_empty());
}

#[test]
fn sees_the_input_and_output_ports_of_a_frame() {
    let text = "local hook = require('brickmoon.hook')
        local out, came = hook.counter('out'), hook.counter('came')
        return function (burst)
           for i in burst.each() do out:add(burst.out[i]) came:add(burst.port + 10 * burst.packet[i].port) end
        end";
    let mut rig = Rig::new(Stage::Egress, text);
    let mut frame = IN;
    frame[5] = 3;
    rig.lab.exchange(OTHER, &frame);
    assert_eq!((rig.count("count/out"), rig.count("count/came")), (1, 22));
}

#[test]
fn sends_additional_copies() {
    let text = "local packet = require('core.packet')
        return function (burst)
           for i in burst.each() do assert(burst.emit(packet.clone(burst.packet[i]), 'other')) end
        end";
    for (stage, bytes) in [(Stage::Ingress, IN), (Stage::Egress, OUT)] {
        let mut rig = Rig::new(stage, text);
        let answer = rig.lab.exchange(LEFT, &IN);
        assert_eq!(answer.sent, [(RIGHT, OUT.to_vec()), (OTHER, bytes.to_vec())], "{stage:?}");
    }
}

#[test]
fn a_whole_burst_keeps_its_order() {
    // Every third frame is dropped, every fifth punted; the rest must leave in the order of arrival.
    let text = "local hook = require('brickmoon.hook')
        hook.reason('third')
        return function (burst)
           for i = 0, burst.count - 1 do
              local n = burst.packet[i].data[45]
              if n % 3 == 0 then burst.drop(i, 'third') elseif n % 5 == 0 then burst.punt(i) end
           end
        end";
    let mut rig = Rig::new(Stage::Ingress, text);
    let frame = |n: u8| {
        let mut frame = IN;
        frame[45] = n;
        frame
    };
    for _ in 0..20 {
        (0..=255).for_each(|n| rig.lab.send(LEFT, &frame(n)));
        rig.lab.run();
        let sent: Vec<u8> = rig.lab.take(RIGHT).iter().map(|frame| frame[45]).collect();
        let fast: Vec<u8> = (0..=255).filter(|n| n % 3 != 0 && n % 5 != 0).collect();
        let slow: Vec<u8> = (0..=255).filter(|n| n % 3 != 0 && n % 5 == 0).collect();
        let (punted, passed): (Vec<u8>, Vec<u8>) = sent.into_iter().partition(|n| n % 5 == 0);
        assert_eq!((passed, punted), (fast, slow));
    }
    assert_eq!(rig.count("drop/third"), 20 * 86);
    rig.lab.check();
}

#[test]
fn arguments_reach_the_file() {
    let text = "local hook, args = require('brickmoon.hook'), ...
        local n = hook.counter('n')
        return function (burst) n:add(args.step * #args.list) end";
    let arguments = serde_json::json!({ "step": 7, "list": ["a", "b"] });
    let change = |spec| bm_lua::hook::HookSpec { stage: Some(Stage::Ingress), arguments, ..spec };
    let mut rig = Rig::with(change, text);
    rig.lab.exchange(LEFT, &IN);
    assert_eq!(rig.count("count/n"), 14);
}
