//! A link loses its carrier under load, and tables are published many times (checks 73, 76, 107).

use bm_tests::flow::{Outcome, Stream};
use bm_tests::lab::{Ends, Lab};
use bm_tests::report;
use bm_tests::subject::{Subject, each};
use std::time::Duration;

/// Packets a second.
const RATE: u32 = 10_000;
/// Tries with each subject: a busy machine may delay some of them.
const TRIES: usize = 5;
/// Time from the loss of the carrier to the last packet sent to that link.
const SHRINKS_WITHIN: Duration = Duration::from_millis(10);

/// Flows to many addresses, so that a group shares them among all its members.
fn spread() -> Stream {
    let destinations = (1..=48).map(|number| match number % 2 {
        0 => format!("10.81.0.{number}"),
        _ => format!("2001:db8:a081::{number:x}"),
    });
    Stream { destinations: destinations.collect(), rate: RATE }
}

fn groups(lab: &Lab) {
    lab.rtr.ip("nexthop add id 4 via 198.51.100.4 dev r1
nexthop add id 5 via 203.0.113.4 dev r2
nexthop add id 6 group 4/5
route add 10.81.0.0/16 nhid 6
nexthop add id 14 via 2001:db8:2::4 dev r1
nexthop add id 15 via 2001:db8:3::4 dev r2
nexthop add id 16 group 14/15
route add 2001:db8:a081::/48 nhid 16");
}

#[test]
fn a_group_shrinks_immediately_when_a_carrier_is_lost() {
    each("carrier", Ends::Silent, |lab, router| {
        groups(lab);
        router.settle();
        let mut spans = Vec::new();
        for _ in 0..TRIES {
            let ((), outcome) = spread().during(lab, || {
                std::thread::sleep(Duration::from_millis(200));
                lab.snk.ip("link set k0 down");
                std::thread::sleep(Duration::from_millis(200));
            });
            report::say(&format!("carrier: {}: {outcome}, over {:.1?}", router.name(), outcome.loss_span));
            assert!(outcome.at[1] > 0, "the group must have used both members: {outcome}");
            spans.push(outcome.loss_span);
            lab.snk.ip("link set k0 up");
            // Linux has removed the next hops and routes of that link.
            lab.rtr.ip("nexthop replace id 4 via 198.51.100.4 dev r1
nexthop replace id 6 group 4/5
nexthop replace id 14 via 2001:db8:2::4 dev r1
nexthop replace id 16 group 14/15");
            router.settle();
        }
        spans.sort();
        if router.is_brickmoon() {
            assert!(spans[TRIES / 2] <= SHRINKS_WITHIN, "{}: {spans:.1?}", router.name());
        }
    });
}

/// Sends packets while addresses and an MTU change; each change publishes a table.
fn published_a_hundred_times(lab: &Lab) -> Outcome {
    let ((), outcome) = spread().during(lab, || {
        for number in 1..=50 {
            lab.rtr
                .ip(&format!("addr add 10.200.0.{number}/32 dev r2\nlink set r2 mtu {}", 1280 + number % 20));
            std::thread::sleep(Duration::from_millis(20));
            lab.rtr.ip(&format!("addr del 10.200.0.{number}/32 dev r2"));
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    outcome
}

/// Runs this many times on the kernel path; no run may lose a packet.
fn publishes(test: &str, runs: u32) {
    let Some(subject) = Subject::kernel(test) else { return };
    let lab = Lab::new(test, Ends::Silent);
    let router = subject.start(&lab);
    groups(&lab);
    router.settle();
    for run in 1..=runs {
        let outcome = published_a_hundred_times(&lab);
        report::say(&format!("carrier: published 100 times, run {run}: {outcome}"));
        assert_eq!((outcome.lost(), outcome.out_of_order), (0, 0), "run {run}: {outcome}");
    }
    router.settle();
    router.stop();
}

#[test]
fn tables_published_a_hundred_times_lose_nothing() {
    publishes("publish", 1);
}

#[test]
#[ignore = "ten runs, a minute: cargo test -p bm-tests --test lifecycle carrier:: -- --ignored --nocapture"]
fn ten_runs_of_a_hundred_tables_lose_nothing() {
    publishes("publish-ten", 10);
}
