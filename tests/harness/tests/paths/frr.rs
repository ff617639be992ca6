//! FRR fills the kernel's tables by BGP: 100,000 routes announced, moved and withdrawn.
//!
//! The speaker is where the routes lead to, like a transit provider. The test measures how long after the last change
//! in the kernel the subject has all routes, and how many packets to other routes are lost meanwhile: none may be.

use bm_tests::bgp::{Prefix, Speaker};
use bm_tests::flow::Stream;
use bm_tests::frr::Frr;
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::packet::Ip4;
use bm_tests::report;
use bm_tests::spread;
use bm_tests::subject::{Router, each};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// Routes announced.
const ROUTES: u32 = 100_000;
/// The neighbors that they are spread over: 3 to 9 of the sink.
const NEXT_HOPS: u32 = 7;
/// How long FRR may take for all of them; it adds about 10,000 a second here.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the mirror may lag. The goal is 1 s on a quiet machine; the figure is reported.
const LAG: Duration = Duration::from_secs(10);

fn prefix(number: u32) -> Prefix {
    (Ipv4Addr::from(20 << 24 | number << 8), 24)
}

/// Neighbor that a route leads to, after `shift` moves.
fn neighbor(number: u32, shift: u32) -> u8 {
    (3 + (number / 100 + shift) % NEXT_HOPS) as u8
}

fn routes(shift: u32) -> Vec<(Prefix, Ipv4Addr)> {
    let next_hop = |number| Side::Snk.v4(neighbor(number, shift)).parse().expect("an address");
    (0..ROUTES).map(|number| (prefix(number), next_hop(number))).collect()
}

/// Prefixes in the kernel's main table.
fn kernel_prefixes(lab: &Lab) -> u32 {
    let text = lab.rtr.within(|| std::fs::read_to_string("/proc/thread-self/net/fib_triestat"));
    let text = text.unwrap_or_else(|error| panic!("fib_triestat: {error}"));
    let main = text.split_once("Main:").map_or(&*text, |(_, main)| main);
    let line = main.lines().find_map(|line| line.trim().strip_prefix("Prefixes:"));
    line.and_then(|count| count.trim().parse().ok())
        .unwrap_or_else(|| panic!("fib_triestat has no count:\n{text}"))
}

/// Whether the last routes of each neighbor have arrived: FRR roughly keeps the order.
fn moved(lab: &Lab, shift: u32) -> bool {
    let last = (ROUTES - 100 * NEXT_HOPS + 99..ROUTES).step_by(100);
    let lines: String = last.clone().map(|number| format!("route show {}/24\n", prefix(number).0)).collect();
    let shown = lab.rtr.ip(&lines);
    let via = |number| format!("via {} ", Side::Snk.v4(neighbor(number, shift)));
    shown.lines().count() == last.clone().count()
        && shown.lines().zip(last).all(|(line, number)| line.contains(&via(number)))
}

/// Waits until the kernel has the requested routes, then measures how long the subject takes to have them, too.
fn measure(lab: &Lab, router: &Router, what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}: FRR takes too long: {} prefixes", kernel_prefixes(lab));
        std::thread::sleep(Duration::from_millis(20));
    }
    let in_kernel = start.elapsed();
    let last = Instant::now();
    router.settle();
    let lag = last.elapsed();
    report::say(&format!(
        "frr: {}: {what}: in the kernel after {:.2} s, verified equal {:.0} ms later",
        router.name(),
        in_kernel.as_secs_f64(),
        lag.as_secs_f64() * 1e3
    ));
    assert!(lag < LAG, "{what}: the mirror lags {lag:?}");
}

/// Asserts that packets to routes all over the table leave by the announced neighbor.
fn assert_forwarded(lab: &Lab, router: &Router, shift: u32) {
    let numbers: Vec<u32> = (0..ROUTES).step_by(199).collect();
    let packet = |index: usize| {
        let to = Ipv4Addr::from(u32::from(prefix(numbers[index]).0) + 1).to_string();
        Ip4::udp_ports(&Side::Src.v4(2), &to, 4000, 5000, &spread::label(index as u32)).bytes()
    };
    let packets: Vec<_> = (0..numbers.len()).map(packet).collect();
    let exits = spread::exits(lab, &packets);
    for (index, number) in numbers.iter().enumerate() {
        let expected = (Side::Snk, Side::Snk.mac(neighbor(*number, shift)));
        let name = router.name();
        assert_eq!(exits.get(&(index as u32)), Some(&expected), "{name}: {:?}", prefix(*number));
    }
}

#[test]
fn bgp_feeds_and_withdraws_a_table() {
    if let Some(why) = Frr::missing() {
        report::skip("frr", &why);
        return;
    }
    each("frr", Ends::Hosts, |lab, router| {
        for n in 3..10 {
            let (address, mac) = (Side::Snk.v4(n), Side::Snk.mac(n));
            lab.rtr.ip(&format!("neigh replace {address} lladdr {mac} dev r1 nud permanent"));
        }
        // The neighbor entry of the undisturbed stream must never have to be resolved.
        lab.rtr.ip(&format!(
            "neigh replace {} lladdr {} dev r1 nud permanent",
            Side::Snk.v4(2),
            Side::Snk.mac(2)
        ));
        let peer = Side::Snk.v4(2);
        let _frr = Frr::start(
            &lab.rtr,
            65_000,
            &format!(
                " bgp router-id 198.51.100.1\n no bgp ebgp-requires-policy\n neighbor {peer} remote-as 65001"
            ),
        );
        let mut speaker = Speaker::connect(&lab.snk, &Side::Snk.v4(1), 65_001, &peer);
        let before = kernel_prefixes(lab);
        let undisturbed = Stream::to("10.9.9.9", 1000);
        let ((), outcome) = undisturbed.during(lab, || {
            speaker.announce(&routes(0));
            measure(lab, router, "100,000 announced", || kernel_prefixes(lab) == before + ROUTES);
            assert_forwarded(lab, router, 0);
            speaker.announce(&routes(1));
            measure(lab, router, "100,000 moved", || moved(lab, 1));
            assert_forwarded(lab, router, 1);
            let prefixes: Vec<Prefix> = (0..ROUTES).map(prefix).collect();
            speaker.withdraw(&prefixes);
            measure(lab, router, "100,000 withdrawn", || kernel_prefixes(lab) == before);
        });
        report::say(&format!("frr: {}: another route meanwhile: {outcome}", router.name()));
        assert_eq!(outcome.lost(), 0, "{}: {outcome}", router.name());
        // A worker that gets no CPU time for 40 ms counts as hung: Linux takes over, and packets overtake those that
        // wait for the worker. Such a pause shows in the stream itself; without one, the order must be kept.
        let paused = outcome.longest_gap >= Duration::from_millis(30);
        assert!(outcome.out_of_order == 0 || paused, "{}: {outcome}", router.name());
    });
}
