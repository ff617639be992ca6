//! How soon a rule of Linux takes effect while packets flow: rules are added and removed in a stream, on both paths,
//! also while a batch of routes is being followed. Packets that were sent after a rule's command had returned, and
//! still arrived, were forwarded by the fast path although Linux would have dropped them. No packet that goes by flow may do so.

use bm_tests::flow::Stream;
use bm_tests::lab::{Ends, Lab};
use bm_tests::subject::{Forwarding, Router, Subject, each};
use bm_tests::{PATIENCE, command, report, sys};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Largest allowed median of the time that a rule takes.
const BOUND: Duration = Duration::from_millis(100);
/// How often each rule is added and removed.
const ROUNDS: usize = 5;
/// How long a rule stays, and how long there is none in between.
const STAYS: Duration = Duration::from_millis(220);
const GONE: Duration = Duration::from_millis(100);
/// Packets a second.
const RATE: u32 = 5_000;

/// A rule that drops the stream's packets, and what it needs to exist before.
struct Rule {
    name: &'static str,
    needs: &'static str,
    before: &'static str,
    add: &'static str,
    remove: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        name: "nftables",
        needs: "nft",
        before: "nft add table ip t; nft add chain ip t f '{ type filter hook forward priority 0; }'",
        add: "nft add rule ip t f ip daddr 10.9.9.9 drop",
        remove: "nft flush chain ip t f",
    },
    Rule {
        name: "legacy iptables",
        needs: "iptables-legacy",
        before: "iptables-legacy -F FORWARD",
        add: "iptables-legacy -A FORWARD -d 10.9.9.9 -j DROP",
        remove: "iptables-legacy -F FORWARD",
    },
    Rule {
        name: "xfrm",
        needs: "ip",
        before: "true",
        add: "ip xfrm policy add dir fwd src 0.0.0.0/0 dst 10.9.0.0/16 action block",
        remove: "ip xfrm policy flush",
    },
    Rule {
        name: "a tc filter",
        needs: "tc",
        before: "tc qdisc add dev r0 clsact",
        add: "tc filter add dev r0 ingress protocol ip bpf da bytecode '1,6 0 0 2'",
        remove: "tc filter del dev r0 ingress",
    },
];

/// When a rule was added and removed: just before each command, and after it had returned.
struct Marks {
    add: [Duration; 2],
    remove: [Duration; 2],
}

fn shell(lab: &Lab, line: &str) {
    lab.rtr.feed(line, "").unwrap_or_else(|why| panic!("{line}: {why}"));
}

/// Runs a command; returns when it began and when it had returned.
fn timed(lab: &Lab, line: &str) -> [Duration; 2] {
    let begin = sys::wall_clock();
    shell(lab, line);
    [begin, sys::wall_clock()]
}

/// Adds and removes a rule once.
fn add_and_remove(lab: &Lab, rule: &Rule) -> Marks {
    let add = timed(lab, rule.add);
    std::thread::sleep(STAYS);
    let remove = timed(lab, rule.remove);
    std::thread::sleep(GONE);
    Marks { add, remove }
}

/// When the last packet that came through was sent: time since a rule's command had returned, and since it had begun.
fn lag(passed: &[(u32, Duration)], marks: &Marks) -> [Duration; 2] {
    let last = passed.iter().map(|(_, sent)| *sent).filter(|sent| *sent < marks.remove[0]).max();
    let last = last.unwrap_or_default();
    [marks.add[1], marks.add[0]].map(|since| last.saturating_sub(since))
}

/// Asserts that no packet sent between two times was lost.
fn assert_whole(passed: &[(u32, Duration)], from: Duration, to: Duration, what: &str) {
    let numbers: Vec<u32> =
        passed.iter().filter(|(_, sent)| (from..to).contains(sent)).map(|(number, _)| *number).collect();
    let (first, last) = (numbers.first(), numbers.last());
    let (first, last) = first.zip(last).unwrap_or_else(|| panic!("{what}: nothing comes through"));
    let lost = (last - first + 1) as usize - numbers.len();
    assert_eq!(lost, 0, "{what}: of {} packets", last - first + 1);
}

/// Reports how long rules took, and compares the median with the bound.
fn judge(router: &Router, what: &str, passed: &[(u32, Duration)], rounds: &[Marks]) {
    let lags: Vec<_> = rounds.iter().map(|marks| lag(passed, marks)).collect();
    let of = |which: usize| {
        let mut list: Vec<f64> = lags.iter().map(|lag| lag[which].as_secs_f64() * 1e3).collect();
        list.sort_by(f64::total_cmp);
        [list[0], list[list.len() / 2], list[list.len() - 1]]
    };
    let ([least, median, most], since_begin) = (of(0), of(1));
    report::say(&format!(
        "{}: {what}: the last packet passed {least:.1}/{median:.1}/{most:.1} ms after the rule's command (least, median, \
         most of {}), {:.1} ms in the median after it was started",
        router.name(),
        rounds.len(),
        since_begin[1],
    ));
    assert!(median < BOUND.as_secs_f64() * 1e3, "{what}: {median:.1} ms\n{}", router.status_text());
    for (marks, next) in rounds.iter().zip(&rounds[1..]) {
        assert_whole(passed, marks.remove[1], next.add[0], &format!("{what}: after the rule was removed"));
    }
}

#[test]
fn a_rule_takes_effect_immediately_while_packets_flow() {
    each("in-time", Ends::Silent, |lab, router| {
        for rule in RULES {
            if !command::has(rule.needs) {
                report::skip("rules_in_time", &format!("{}: there is no {}", rule.name, rule.needs));
                continue;
            }
            shell(lab, rule.before);
            router.settle();
            let rounds = || (0..ROUNDS).map(|_| add_and_remove(lab, rule)).collect::<Vec<_>>();
            let (rounds, passed) = Stream::to("10.9.9.9", RATE).passed_during(lab, rounds);
            judge(router, rule.name, &passed, &rounds);
        }
    });
}

/// Number of routes in a batch.
const ROUTES: u32 = 50_000;

/// Commands that make all of them lead to this neighbor of the sink.
fn routes(neighbor: u32) -> String {
    let to = |number: u32| format!("{}.{}.{}.0/24", 20 + (number >> 16), number >> 8 & 255, number & 255);
    let line = |number| format!("route replace {} via 198.51.100.{neighbor}\n", to(number));
    (0..ROUTES).map(line).collect()
}

#[test]
fn a_rule_does_not_wait_for_a_batch_of_routes() {
    each("in-batch", Ends::Silent, |lab, router| {
        let rule = &RULES[2];
        let (batches, done) = ([2, 3].map(routes), AtomicBool::new(false));
        let change_routes = || {
            for batch in batches.iter().cycle() {
                lab.rtr.feed("ip -batch -", batch).unwrap_or_else(|why| panic!("{why}"));
                if done.load(Ordering::Relaxed) {
                    return;
                }
            }
        };
        let rounds = || {
            std::thread::scope(|scope| {
                scope.spawn(change_routes);
                std::thread::sleep(Duration::from_millis(300));
                let rounds: Vec<_> = (0..ROUNDS).map(|_| add_and_remove(lab, rule)).collect();
                done.store(true, Ordering::Relaxed);
                rounds
            })
        };
        let (rounds, passed) = Stream::to("10.9.9.9", RATE).passed_during(lab, rounds);
        judge(router, &format!("xfrm, while {ROUTES} routes change again and again"), &passed, &rounds);
    });
}

/// Packets a second of a flow, if the machine can send as many.
const RATE_OF_FLOW: u32 = 100_000;

/// A change of the ruleset that drops a flow, and back.
struct Change {
    name: &'static str,
    needs: &'static str,
    before: &'static str,
    drop: &'static str,
    pass: &'static str,
}

const CHANGES: &[Change] = &[
    Change {
        name: "nft add rule",
        needs: "nft",
        before: "nft 'add table ip t; add chain ip t f { type filter hook forward priority 0; }; add rule ip t f counter'",
        drop: "nft add rule ip t f ip daddr 10.9.9.9 drop",
        pass: "nft 'flush chain ip t f; add rule ip t f counter'",
    },
    Change {
        name: "nft add element",
        needs: "nft",
        before: "nft 'flush chain ip t f; add set ip t bad { type ipv4_addr; }; add rule ip t f ip daddr @bad drop'",
        drop: "nft add element ip t bad '{ 10.9.9.9 }'",
        pass: "nft delete element ip t bad '{ 10.9.9.9 }'",
    },
    Change {
        name: "nft flush ruleset, and another one",
        needs: "nft",
        before: "nft 'flush chain ip t f; add rule ip t f counter'",
        drop: "nft 'flush ruleset; add table ip u; add chain ip u f { type filter hook forward priority 0; policy drop; }'",
        pass: "nft 'flush ruleset; add table ip t; add chain ip t f { type filter hook forward priority 0; }; \
               add rule ip t f counter'",
    },
    Change {
        name: "iptables -I",
        needs: "iptables-nft",
        before: "nft flush ruleset; iptables-nft -A FORWARD -j ACCEPT",
        drop: "iptables-nft -I FORWARD -d 10.9.9.9 -j DROP",
        pass: "iptables-nft -D FORWARD -d 10.9.9.9 -j DROP",
    },
];

/// Waits until the router forwards the stream by flow.
fn wait_for_flow(router: &Router) {
    let (begin, before) = (Instant::now(), router.sent());
    while router.flows() == 0 || router.sent() == before {
        assert!(begin.elapsed() < PATIENCE, "not by flow\n{}", router.status_text());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Drops the stream once and lets it pass again: when the first command had returned, and when the second one began.
fn drop_and_pass(lab: &Lab, router: &Router, change: &Change) -> (Duration, Duration) {
    if router.is_kernel() {
        wait_for_flow(router);
    }
    let [_, dropped] = timed(lab, change.drop);
    std::thread::sleep(GONE);
    let [passes, _] = timed(lab, change.pass);
    (dropped, passes)
}

#[test]
fn a_flow_ends_before_the_command_that_drops_it_returns() {
    for subject in Subject::with_tc("flow-in-time") {
        if matches!(subject, Subject::Brickmoon { forwarding: Forwarding::User, .. }) {
            // Workers leave to Linux what goes by flow elsewhere.
            continue;
        }
        let lab = Lab::new("flow-in-time", Ends::Silent);
        let router = subject.start_with_flows(&lab);
        for change in CHANGES {
            if !command::has(change.needs) {
                report::skip("rules_in_time", &format!("{}: there is no {}", change.name, change.needs));
                continue;
            }
            shell(&lab, change.before);
            router.settle();
            let (rounds, passed) = Stream::to("10.9.9.9", RATE_OF_FLOW).passed_during(&lab, || {
                (0..ROUNDS).map(|_| drop_and_pass(&lab, &router, change)).collect::<Vec<_>>()
            });
            let late = passed.iter().filter(|(_, sent)| {
                rounds.iter().any(|(dropped, passes)| (*dropped..*passes).contains(sent))
            });
            let (late, name) = (late.count(), router.name());
            report::say(&format!(
                "{name}: {}, {ROUNDS} times: {late} packets passed after the command, {} of {} in all",
                change.name,
                passed.len(),
                passed.last().map_or(0, |(number, _)| number + 1)
            ));
            assert_eq!(late, 0, "{name}: {}\n{}", change.name, router.status_text());
        }
        router.stop();
    }
}
