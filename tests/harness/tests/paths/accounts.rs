//! Byte counters of ports: every byte received and every byte sent, on both paths.

use bm_tests::lab::{Ends, Side};
use bm_tests::packet::{Ip4, Ip6, routed};
use bm_tests::subject::{Router, each};

/// Bytes received and sent on the port that packets arrive on.
fn bytes(router: &Router) -> [u64; 2] {
    let reply = router.ask("show", &["ports", "--json"]).expect("a daemon");
    let ports: serde_json::Value = serde_json::from_slice(&reply.stdout).expect("show prints JSON");
    let account = &ports["ports"][0]["account"];
    ["received_bytes", "sent_bytes"].map(|name| account[name].as_u64().expect("a number"))
}

#[test]
fn bytes_of_forwarded_and_refused_frames_are_counted() {
    each("bytes", Ends::Silent, |lab, router| {
        if !router.is_brickmoon() {
            return;
        }
        let before = bytes(router);
        let mut expected = [0; 2];
        let packets = [
            Ip4::udp("192.0.2.2", "10.9.9.9", 20).bytes(),
            Ip4::udp("192.0.2.2", "10.9.9.9", 1400).bytes(),
            // ESP, which no sender leaves to be completed: it stays with the path under test.
            Ip6::new("2001:db8:1::2", "2001:db8:a000::9", 50, vec![0; 700]).bytes(),
        ];
        for packet in packets {
            let heard = lab.exchange(&[(Side::Src, Side::Src.to_router(&packet))], 1, true);
            let out = Side::Snk.to_neighbor(2, &routed(&packet));
            assert!(heard.seen.iter().any(|seen| seen.frame == out), "{}: a packet is lost", router.name());
            expected[0] += 14 + packet.len() as u64;
            expected[1] += 14 + packet.len() as u64;
        }
        // Each exchange ends with additional packets, a fence, so the test checks bounds.
        let mut broken = Side::Src.to_router(&Ip4::udp("192.0.2.2", "10.9.9.9", 1000).bytes());
        broken[24] ^= 0xff;
        let fenced = bytes(router);
        lab.exchange(&[(Side::Src, broken.clone())], 0, true);
        let after = bytes(router);
        let grown = [0, 1].map(|at| fenced[at] - before[at]);
        assert!(grown[0] >= expected[0] && grown[1] >= expected[1], "{}: {grown:?}", router.name());
        assert!(grown[0] < expected[0] + 4000, "{}: {grown:?} of {expected:?}", router.name());
        let refused = [0, 1].map(|at| after[at] - fenced[at]);
        assert!(refused[0] >= broken.len() as u64 && refused[1] < 1000, "{}: {refused:?}", router.name());
    });
}
