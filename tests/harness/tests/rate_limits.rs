//! Checks 46 and 57: errors are rate-limited with the kernel's settings, and echo is not starved by it.

use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::packet::{Ip4, Ip6, echo4, echo6};
use bm_tests::report;
use bm_tests::subject::each;
use std::time::{Duration, Instant};

const HOST: &str = "192.0.2.2";
const ROUTER: &str = "192.0.2.1";
const HOST6: &str = "2001:db8:1::2";
const ROUTER6: &str = "2001:db8:1::1";
/// Packets that ask for an error, and as many echo requests between them.
const ASKED: u32 = 200;

/// The kernel's own defaults, which the lab switches off.
fn default_limits(lab: &Lab) {
    lab.rtr.set(&[
        ("net.ipv4.icmp_ratemask", "6168"),
        ("net.ipv4.icmp_ratelimit", "1000"),
        ("net.ipv4.icmp_msgs_per_sec", "1000"),
        ("net.ipv4.icmp_msgs_burst", "50"),
        ("net.ipv6.icmp.ratelimit", "1000"),
    ]);
}

/// Sends both kinds in turn; how many errors and how many echo replies came back, and how long did it take?
fn answers(lab: &Lab, spent: &[u8], echo: &[u8], error: u8, reply: u8) -> (usize, usize, f64) {
    lab.drain();
    let begin = Instant::now();
    for _ in 0..ASKED {
        lab.send(Side::Src, &Side::Src.to_router(spent));
        lab.send(Side::Src, &Side::Src.to_router(echo));
        std::thread::sleep(Duration::from_millis(1));
    }
    let frames = lab.collect(Side::Src, Duration::from_millis(300));
    let kind = |frame: &[u8]| {
        let at = if frame[14] >> 4 == 6 { 54 } else { 34 };
        frame.get(at).copied()
    };
    let count = |wanted| frames.iter().filter(|frame| kind(frame) == Some(wanted)).count();
    (count(error), count(reply), begin.elapsed().as_secs_f64())
}

/// Most errors that one address may get in a time: six at once, then so many a second.
fn most(seconds: f64, per_second: f64) -> usize {
    6 + (seconds * per_second).ceil() as usize
}

#[test]
fn errors_are_limited_and_echo_is_not() {
    each("rate", Ends::Silent, |lab, router| {
        default_limits(lab);
        router.settle();
        // Nothing announces these settings: give a mirror that looks now and then its time.
        std::thread::sleep(Duration::from_millis(1200));
        let spent = Ip4::udp(HOST, "10.9.9.9", 20).ttl(1).bytes();
        let (errors, replies, seconds) = answers(lab, &spent, &echo4(HOST, ROUTER, 7, 20).bytes(), 11, 0);
        report::say(&format!("rate: {}: IPv4: {errors} of {ASKED} errors, {replies} replies", router.name()));
        assert!((1..=most(seconds, 1.0)).contains(&errors), "{}: {errors} in {seconds:.1} s", router.name());
        assert_eq!(replies, ASKED as usize, "{}: echo is starved", router.name());
        let spent = Ip6::udp(HOST6, "2001:db8:a000::9", 20).hop_limit(1).bytes();
        let (errors, replies, seconds) = answers(lab, &spent, &echo6(HOST6, ROUTER6, 7, 20).bytes(), 3, 129);
        report::say(&format!("rate: {}: IPv6: {errors} of {ASKED} errors, {replies} replies", router.name()));
        // For a route of /64 Linux divides the second by four: six at once, then four a second.
        assert!((1..=most(seconds, 4.0)).contains(&errors), "{}: {errors} in {seconds:.1} s", router.name());
        assert_eq!(replies, ASKED as usize, "{}: echo is starved", router.name());
    });
}
