//! The hooks in `examples/lua`, each on a router in memory, byte by byte.

use std::path::Path;

use bm_lua::hook::HookSpec;
use serde_json::json;

use crate::{IN, OUT, Rig, WORLD, folder, spec};

const LEFT: usize = 0;
const RIGHT: usize = 1;
const OTHER: usize = 2;

/// The example `name` with `arguments`, on the usual router.
fn rig(name: &str, arguments: serde_json::Value, more: &str) -> Rig {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/lua");
    let spec = spec(root.join(name).join(format!("{name}.lua")), None);
    let world = format!("{WORLD}\n{more}");
    Rig::of(vec![HookSpec { arguments, ..spec }], folder(), &world).unwrap()
}

/// One's-complement sum of 16-bit words.
fn sum(bytes: &[u8], start: u32) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let sum = words.fold(start, |sum, word| sum + word);
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// An Ethernet frame with UDP or TCP (20 bytes) over IPv4, with correct checksums.
fn frame(
    macs: [[u8; 6]; 2],
    ttl: u8,
    protocol: u8,
    (source, from): ([u8; 4], u16),
    (destination, to): ([u8; 4], u16),
    payload: &[u8],
) -> Vec<u8> {
    let mut l4 = [from.to_be_bytes(), to.to_be_bytes()].concat();
    if protocol == 6 {
        l4.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
    } else {
        l4.extend((8 + payload.len() as u16).to_be_bytes());
        l4.extend([0, 0]);
    }
    l4.extend(payload);
    let pseudo = [&source[..], &destination, &[0, protocol], &(l4.len() as u16).to_be_bytes()].concat();
    let at = if protocol == 6 { 16 } else { 6 };
    let checksum = sum(&[pseudo, l4.clone()].concat(), 0);
    l4[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    let mut ip = vec![0x45, 0];
    ip.extend((20 + l4.len() as u16).to_be_bytes());
    ip.extend([0x12, 0x34, 0, 0, ttl, protocol, 0, 0]);
    ip.extend(source);
    ip.extend(destination);
    let checksum = sum(&ip, 0);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    [&macs[0][..], &macs[1], &[8, 0], &ip, &l4].concat()
}

const TO_LEFT: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 1, 9]];
const TO_RIGHT: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 2, 7]];
const FROM_LEFT: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 9], [2, 0, 0, 0, 0, 1]];
const FROM_RIGHT: [[u8; 6]; 2] = [[2, 0, 0, 0, 2, 7], [2, 0, 0, 0, 0, 2]];
const FROM_OTHER: [[u8; 6]; 2] = [[2, 0, 0, 0, 3, 5], [2, 0, 0, 0, 0, 3]];
const HOST: [u8; 4] = [192, 0, 2, 9];
const FAR: [u8; 4] = [8, 8, 8, 8];

#[test]
fn acl() {
    let mut rig = rig("acl", json!({ "ports": [23] }), "");
    let tcp = |port| frame(TO_LEFT, 64, 6, (HOST, 4000), (FAR, port), &[]);
    assert!(rig.lab.exchange(LEFT, &tcp(23)).is_silence());
    let passed = frame(FROM_RIGHT, 63, 6, (HOST, 4000), (FAR, 22), &[]);
    assert_eq!(rig.lab.exchange(LEFT, &tcp(22)).only(), Some((RIGHT, &passed[..])));
    assert_eq!(rig.lab.exchange(LEFT, &IN).only(), Some((RIGHT, &OUT[..])));
    assert_eq!(rig.count("drop/acl_blocked"), 1);
}

#[test]
fn rate_limit() {
    let mut rig = rig("rate-limit", json!({ "rate": 0.001, "burst": 3 }), "");
    (0..10).for_each(|_| rig.lab.send(LEFT, &IN));
    rig.lab.run();
    assert_eq!(rig.lab.take(RIGHT), vec![OUT.to_vec(); 3]);
    // Another source has its own bucket.
    let other = frame(TO_LEFT, 64, 17, ([192, 0, 2, 77], 1), (FAR, 2), &[]);
    assert_eq!(rig.lab.exchange(LEFT, &other).sent.len(), 1);
    assert_eq!(rig.count("drop/rate_limited"), 7);
}

#[test]
fn ecmp() {
    let arguments = json!({ "gateways": ["198.51.100.7", "203.0.113.5"] });
    let mut rig = rig("ecmp", arguments, "");
    let mut ports = [0; 3];
    for last in 0..64 {
        let source = [192, 0, 2, 10 + last];
        let mut chosen = Vec::new();
        for port in [1, 2, 3] {
            let packet = frame(TO_LEFT, 64, 17, (source, port), (FAR, 53), &[]);
            let answer = rig.lab.exchange(LEFT, &packet);
            let (out, bytes) = answer.only().unwrap();
            let macs = if out == RIGHT { FROM_RIGHT } else { FROM_OTHER };
            assert_eq!(bytes, frame(macs, 63, 17, (source, port), (FAR, 53), &[]));
            chosen.push(out);
        }
        assert!(
            chosen.iter().all(|out| *out == chosen[0]),
            "all packets of a pair of hosts must take the same path"
        );
        ports[chosen[0]] += 1;
    }
    assert!(ports[RIGHT] > 10 && ports[OTHER] > 10, "{ports:?}");
    // Packets with another next hop are not changed.
    let direct = frame(TO_LEFT, 64, 17, (HOST, 1), ([203, 0, 113, 5], 2), &[]);
    assert_eq!(rig.lab.exchange(LEFT, &direct).only().unwrap().0, OTHER);
    assert_eq!(rig.count("count/spread"), 64 * 3);
}

#[test]
fn mirror() {
    let mut rig = rig("mirror", json!({ "from": "right", "to": "other" }), "");
    let answer = rig.lab.exchange(LEFT, &IN);
    assert_eq!(answer.sent, [(RIGHT, OUT.to_vec()), (OTHER, OUT.to_vec())]);
    let direct = frame(TO_LEFT, 64, 17, (HOST, 1), ([203, 0, 113, 5], 2), &[]);
    assert_eq!(rig.lab.exchange(LEFT, &direct).sent.len(), 1);
    // More than fit in a burst: every packet leaves, and packets without a copy are counted.
    (0..200).for_each(|_| rig.lab.send(LEFT, &IN));
    rig.lab.run();
    assert_eq!(rig.lab.take(RIGHT).len(), 200);
    assert_eq!(rig.lab.take(OTHER).len() as u64 + rig.count("count/missed"), 200);
}

#[test]
fn dns_filter() {
    let mut rig = rig("dns-filter", json!({ "largest": 100, "resolvers": ["9.9.9.9"] }), "");
    let answer = |from, bytes| frame(TO_LEFT, 64, 17, (from, 53), (FAR, 4000), &vec![0; bytes]);
    let query = |kind| {
        let question = [&[0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2][..], b"bm", &[0, 0, kind, 0, 1]].concat();
        frame(TO_LEFT, 64, 17, (HOST, 4000), (FAR, 53), &question)
    };
    for (packet, reason) in [
        (answer([9, 9, 9, 9], 93), Some("dns_large")),
        (answer([1, 2, 3, 4], 12), Some("dns_stranger")),
        (query(255), Some("dns_any")),
        (answer([9, 9, 9, 9], 92), None),
        (query(1), None),
        (IN.to_vec(), None),
    ] {
        let sent = rig.lab.exchange(LEFT, &packet).sent.len();
        assert_eq!(sent, usize::from(reason.is_none()), "{reason:?}");
        if let Some(reason) = reason {
            assert_eq!(rig.count(&format!("drop/{reason}")), 1);
        }
    }
}

#[test]
fn nat44() {
    const OUTSIDE: [u8; 4] = [198, 18, 0, 1];
    let arguments = json!({ "inside": "192.0.2", "outside": "198.18.0.1" });
    let more = "neighbor 192.0.2.9 left 02:00:00:00:01:09";
    let mut rig = rig("nat44", arguments, more);
    for (protocol, first) in [(17, 1024), (6, 1024)] {
        for (port, external) in [(4000, first), (4001, first + 1)] {
            let payload: &[u8] = if protocol == 6 { &[] } else { b"question" };
            let out = frame(TO_LEFT, 64, protocol, (HOST, port), (FAR, 80), payload);
            let expected = frame(FROM_RIGHT, 63, protocol, (OUTSIDE, external), (FAR, 80), payload);
            let slow = rig.lab.passed_to_slow_path();
            // The first packet takes the slow path, the second the fast path; both leave in the same form.
            for passed in [1, 1] {
                assert_eq!(rig.lab.exchange(LEFT, &out).only(), Some((RIGHT, &expected[..])));
                assert_eq!(rig.lab.passed_to_slow_path() - slow, passed);
            }
            let answer = frame(TO_RIGHT, 60, protocol, (FAR, 80), (OUTSIDE, external), payload);
            let expected = frame(FROM_LEFT, 59, protocol, (FAR, 80), (HOST, port), payload);
            assert_eq!(rig.lab.exchange(RIGHT, &answer).only(), Some((LEFT, &expected[..])));
        }
    }
    assert_eq!((rig.count("count/bindings"), rig.count("count/out"), rig.count("count/back")), (4, 4, 4));
    // Bindings survive a reload.
    let (set, specs) = (rig.set.clone(), rig.specs.clone());
    let reloading = std::thread::spawn(move || set.reload(&specs));
    while !reloading.is_finished() {
        rig.lab.run();
    }
    reloading.join().unwrap().unwrap();
    let answer = frame(TO_RIGHT, 60, 17, (FAR, 80), (OUTSIDE, 1025), b"late");
    let expected = frame(FROM_LEFT, 59, 17, (FAR, 80), (HOST, 4001), b"late");
    assert_eq!(rig.lab.exchange(RIGHT, &answer).only(), Some((LEFT, &expected[..])));
}
