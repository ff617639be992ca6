//! Packets that are not to be forwarded: control traffic for Linux (check 65), fragments that can never be reassembled
//! (check 38), and garbage. Another flow must not be affected by any of them.

use bm_tests::flow::Stream;
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::packet::{self, Ip4, Ip6};
use bm_tests::report;
use bm_tests::subject::each;
use bm_wire::Mac;
use bm_wire::protocol::HOP_BY_HOP;
use std::time::Duration;

const HOST: &str = "192.0.2.2";
const ROUTER: &str = "192.0.2.1";
const HOST6: &str = "2001:db8:1::2";
const ROUTER6: &str = "2001:db8:1::1";
/// Number of frames of a flood.
const FLOOD: u32 = 20_000;

/// A stream of both families through the router.
fn bystander() -> Stream {
    Stream::to_all(&["10.9.9.9", "2001:db8:a000::9"], 1000)
}

/// Sends frames at a pace that a slow machine keeps up with.
fn flood(lab: &Lab, frame: impl Fn(u32) -> Vec<u8>) {
    for number in 0..FLOOD {
        lab.send(Side::Src, &frame(number));
        if number % 200 == 199 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn multicast_listener_query_reaches_the_host() {
    each("mld", Ends::Silent, |lab, router| {
        // A general query (RFC 3810 5.1) that requests immediate reports.
        let body = [&[0, 1, 0, 0][..], &[0; 16], &[2, 1, 0, 0]].concat();
        let query = Ip6::icmp("fe80::2", "ff02::1", 130, 0, &body)
            .hop_limit(1)
            .extension(HOP_BY_HOP, &[0, 5, 2, 0, 0, 1, 0]);
        let frame = packet::ip_frame(Mac([0x33, 0x33, 0, 0, 0, 1]), Side::Src.mac(2), &query.bytes());
        // Skips what was reported without a query when the link came up.
        lab.collect(Side::Src, Duration::from_millis(300));
        lab.drain();
        lab.send(Side::Src, &frame);
        let is_report = |frame: &[u8]| frame.get(20) == Some(&HOP_BY_HOP) && frame.get(62) == Some(&143);
        let report = lab.await_frame(Side::Src, Duration::from_secs(3), is_report);
        assert!(report.is_some(), "{}: no report of multicast listeners", router.name());
        // Without another stream the daemon would not have sent anything.
        assert_eq!(bystander().for_a_while(lab, Duration::from_millis(50)).lost(), 0);
    });
}

#[test]
fn fragments_that_can_never_be_reassembled() {
    each("reassembly", Ends::Silent, |lab, router| {
        let ((), outcome) = bystander().during(lab, || {
            flood(lab, |number| {
                if number % 2 == 0 {
                    let packet = Ip4::udp(HOST, ROUTER, 1200).id(number as u16).flags(Ip4::MF);
                    Side::Src.to_router(&packet.bytes())
                } else {
                    let packet = Ip6::udp(HOST6, ROUTER6, 1200).fragment(0, true, number);
                    Side::Src.to_router(&packet.bytes())
                }
            });
        });
        report::say(&format!("reassembly: {}: {FLOOD} first fragments; meanwhile {outcome}", router.name()));
        assert_eq!(outcome.lost(), 0, "{}: {outcome}", router.name());
    });
}

/// Pseudo-random numbers, the same in each run (splitmix64).
fn mixed(seed: u64) -> u64 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// A packet with some bytes changed after the MAC addresses, and often truncated or extended.
fn rubbish(number: u32) -> Vec<u8> {
    let random = |salt: u64| mixed(u64::from(number) << 8 | salt);
    let packet = match random(0) % 6 {
        0 => Ip4::udp(HOST, "10.9.9.8", 40).bytes(),
        1 => Ip4::udp(HOST, "10.2.9.8", 1400).options(&[7, 7, 4, 0, 0, 0, 0]).bytes(),
        2 => packet::echo4(HOST, "10.9.9.8", 7, 40).bytes(),
        3 => Ip6::udp(HOST6, "2001:db8:a000::8", 40).bytes(),
        4 => Ip6::udp(HOST6, "2001:db8:b000::8", 1400).extension(HOP_BY_HOP, &[0, 1, 4, 0, 0, 0, 0]).bytes(),
        _ => Ip6::udp(HOST6, "2001:db8:a000::8", 40).fragment(0, true, number).bytes(),
    };
    let mut frame = Side::Src.to_router(&packet);
    for change in 1..=random(1) % 4 {
        let at = 12 + (random(10 + change) % 60) as usize;
        if let Some(byte) = frame.get_mut(at) {
            *byte = random(20 + change) as u8;
        }
    }
    match random(2) % 4 {
        0 => frame.truncate(14 + (random(3) % 60) as usize),
        1 => frame.resize((frame.len() + (random(3) % 40) as usize).min(1514), 0xaa),
        _ => {}
    }
    frame
}

#[test]
fn garbage_only_changes_counters() {
    each("rubbish", Ends::Silent, |lab, router| {
        let ((), outcome) = bystander().during(lab, || flood(lab, rubbish));
        report::say(&format!("garbage: {}: {FLOOD} frames; meanwhile {outcome}", router.name()));
        assert_eq!(outcome.lost(), 0, "{}: {outcome}", router.name());
        // Stopping the router checks that accounts add up and each drop has a reason.
    });
}
