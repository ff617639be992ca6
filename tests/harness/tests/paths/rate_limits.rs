//! Checks 46 and 57: errors are rate-limited by the kernel's settings, and echo replies are not affected.

use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::packet::{Ip4, Ip6, echo4, echo6};
use bm_tests::report;
use bm_tests::subject::each;
use std::time::{Duration, Instant};

const HOST: &str = "192.0.2.2";
const ROUTER: &str = "192.0.2.1";
const HOST6: &str = "2001:db8:1::2";
const ROUTER6: &str = "2001:db8:1::1";
/// Number of packets that cause an error, and of echo requests between them.
const ASKED: u32 = 200;

/// Restores the kernel's defaults, which the lab switches off.
fn default_limits(lab: &Lab) {
    lab.rtr.set(&[
        ("net.ipv4.icmp_ratemask", "6168"),
        ("net.ipv4.icmp_ratelimit", "1000"),
        ("net.ipv4.icmp_msgs_per_sec", "1000"),
        ("net.ipv4.icmp_msgs_burst", "50"),
        ("net.ipv6.icmp.ratelimit", "1000"),
    ]);
}

/// Sends both kinds in turn; returns the number of errors, the number of echo replies, and the time it took.
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

/// The most errors that one address may get in this time: six at once, then this many a second.
fn most(seconds: f64, per_second: f64) -> usize {
    6 + (seconds * per_second).ceil() as usize
}

#[test]
fn errors_are_limited_and_echo_is_not() {
    each("rate", Ends::Silent, |lab, router| {
        default_limits(lab);
        router.settle();
        // The kernel does not announce these settings, so a mirror needs time to poll them.
        std::thread::sleep(Duration::from_millis(1200));
        let spent = Ip4::udp(HOST, "10.9.9.9", 20).ttl(1).bytes();
        let (errors, replies, seconds) = answers(lab, &spent, &echo4(HOST, ROUTER, 7, 20).bytes(), 11, 0);
        report::say(&format!("rate: {}: IPv4: {errors} of {ASKED} errors, {replies} replies", router.name()));
        assert!((1..=most(seconds, 1.0)).contains(&errors), "{}: {errors} in {seconds:.1} s", router.name());
        assert_eq!(replies, ASKED as usize, "{}: echo replies are missing", router.name());
        let spent = Ip6::udp(HOST6, "2001:db8:a000::9", 20).hop_limit(1).bytes();
        let (errors, replies, seconds) = answers(lab, &spent, &echo6(HOST6, ROUTER6, 7, 20).bytes(), 3, 129);
        report::say(&format!("rate: {}: IPv6: {errors} of {ASKED} errors, {replies} replies", router.name()));
        // For a /64 route Linux divides the interval by four: six at once, then four a second.
        assert!((1..=most(seconds, 4.0)).contains(&errors), "{}: {errors} in {seconds:.1} s", router.name());
        assert_eq!(replies, ASKED as usize, "{}: echo replies are missing", router.name());
    });
}
