//! Floods of fragments that never become a datagram: first, middle, last, overlapping and tiny ones of many
//! identifications, of both families, through the router and to the router itself.
//!
//! What Linux forwards, brickmoon forwards: each fragment by itself, byte by byte, unless Linux tracks connections. Then
//! Linux reassembles, so none of them leaves the router, and whole datagrams pass. In either case ordinary packets are
//! not lost, and memory does not grow.

use bm_tests::flow::{Outcome, Stream};
use bm_tests::lab::{Ends, Lab, SIDES, Side};
use bm_tests::packet::{self, Ip4, Ip6, fragments4, get16, pattern, routed};
use bm_tests::subject::{Router, each};
use bm_tests::sys::{self, PacketSocket};
use bm_tests::usage::Usage;
use bm_tests::{command, daemon, report};
use bm_wire::protocol::{FRAGMENT, ICMP, ICMPV6, UDP};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const HOST: &str = "192.0.2.2";
const HOST6: &str = "2001:db8:1::2";
/// The router's own addresses.
const ROUTER: &str = "192.0.2.1";
const ROUTER6: &str = "2001:db8:1::1";
/// Addresses behind it.
const FAR: &str = "10.9.9.8";
const FAR6: &str = "2001:db8:a000::8";

/// Fragments of a flood.
const FLOOD: u32 = 12_000;
/// Floods with which memory is compared, after one that fills what is kept in reserve.
const FLOODS: u32 = 2;
/// After as many fragments the router is pinged once by each family.
const PING_EVERY: u32 = 100;
/// By how much the daemon's resident memory may grow, since it comes in huge pages of 2 MiB. (Its share of memory, PSS,
/// also changes when another daemon ends.) The packets of the floods that are compared have 9 MB.
const NOISE_KIB: u64 = 4 << 10;
/// Bytes in each fragment of a whole datagram.
const PIECE: usize = 800;

/// Where fragments begin, how many bytes they have, and whether more follow. Bytes 1,304 to 2,400 never come, so no
/// datagram is complete.
const SHAPES: [(u16, usize, bool); 6] = [
    (0, 1208, true),
    (1208, 8, true),
    (2400, 100, false),
    // Overlaps with the first.
    (600, 704, true),
    // Tiny: only the header of UDP, and eight bytes behind it.
    (0, 8, true),
    (8, 8, true),
];

/// A fragment of a flood: to which address it goes, and its packet.
fn fragment(flood: u32, number: u32) -> (bool, Vec<u8>) {
    let [is_ipv6, to_router] = [number & 1 != 0, number & 2 != 0];
    // The shapes of one identification follow each other. Those of two floods differ, also in 16 bits.
    let index = number / 4;
    let (offset, length, more) = SHAPES[index as usize % SHAPES.len()];
    let id = FLOOD * flood + index / SHAPES.len() as u32;
    let data = pattern(length);
    let packet = if is_ipv6 {
        Ip6::new(HOST6, if to_router { ROUTER6 } else { FAR6 }, UDP, data).fragment(offset, more, id).bytes()
    } else {
        let flags = (offset / 8) | if more { Ip4::MF } else { 0 };
        let packet = Ip4::new(HOST, if to_router { ROUTER } else { FAR }, UDP, data);
        packet.id(id as u16).flags(flags).bytes()
    };
    (to_router, packet)
}

/// Pings of the router, by both families.
fn pings(number: u32) -> [Vec<u8>; 2] {
    [packet::echo4(HOST, ROUTER, number, 56).bytes(), packet::echo6(HOST6, ROUTER6, number, 56).bytes()]
}

/// Receives all frames at the three ends until it is stopped.
fn receive(sockets: &[PacketSocket; 3], stop: &AtomicBool) -> Vec<(Side, Vec<u8>)> {
    let (mut frames, mut stopped) = (Vec::new(), false);
    while !stopped {
        stopped = stop.load(Ordering::Relaxed);
        sys::wait_readable(&sockets.each_ref(), Duration::from_millis(50)).expect("open sockets");
        for (side, socket) in SIDES.into_iter().zip(sockets) {
            while let Some(captured) = socket.receive().expect("an open socket") {
                frames.push((side, captured.frame));
            }
        }
    }
    frames
}

/// What came of a flood.
struct Came {
    /// How often each fragment left the router, whatever its destination.
    fragments: BTreeMap<Vec<u8>, u32>,
    /// Answers to pings, of both families.
    answers: [u32; 2],
    /// What happened to the stream of ordinary packets.
    stream: Outcome,
}

/// Whether a packet is a fragment, of either family.
fn is_fragment(packet: &[u8]) -> bool {
    match packet.first().map(|first| first >> 4) {
        Some(4) => get16(packet, 6) & 0x3fff != 0,
        Some(6) => packet.get(6) == Some(&FRAGMENT),
        _ => false,
    }
}

/// Whether a packet is an answer to a ping: of IPv4, and of IPv6.
fn is_answer(packet: &[u8]) -> [bool; 2] {
    let at = |index: usize| packet.get(index).copied();
    [
        at(0) == Some(0x45) && at(9) == Some(ICMP) && at(20) == Some(0),
        at(0) == Some(0x60) && at(6) == Some(ICMPV6) && at(40) == Some(129),
    ]
}

/// Sends a flood beside a stream of ordinary packets and pings.
fn flood(lab: &Lab, flood: u32) -> Came {
    let sockets = SIDES.map(|side| lab.host(side).packet_socket(side.host()));
    let stop = AtomicBool::new(false);
    let bystander = Stream::to_all(&["10.9.9.9", "2001:db8:a000::9"], 2000);
    let (stream, frames) = std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&sockets, &stop));
        let ((), stream) = bystander.during(lab, || {
            for number in 0..FLOOD {
                lab.send(Side::Src, &Side::Src.to_router(&fragment(flood, number).1));
                if number % PING_EVERY == 0 {
                    pings(number).iter().for_each(|ping| lab.send(Side::Src, &Side::Src.to_router(ping)));
                }
                if number % 200 == 199 {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
        stop.store(true, Ordering::Relaxed);
        (stream, receiving.join().expect("the receiver does not panic"))
    });
    let mut came = Came { fragments: BTreeMap::new(), answers: [0; 2], stream };
    for (side, frame) in frames {
        let packet = &frame[14..];
        for (count, is_one) in came.answers.iter_mut().zip(is_answer(packet)) {
            *count += u32::from(is_one && side == Side::Src);
        }
        if is_fragment(packet) {
            *came.fragments.entry(frame).or_default() += 1;
        }
    }
    came
}

/// Asserts that nothing ordinary was lost.
fn ordinary_packets_pass(came: &Came, name: &str) {
    assert_eq!((came.stream.lost(), came.stream.twice), (0, 0), "{name}: {}", came.stream);
    assert_eq!(came.answers, [FLOOD / PING_EVERY; 2], "{name}: answers to pings");
}

/// Runs floods, `check`s what came of each, and asserts that the daemon needs no more memory for the last ones.
fn floods(lab: &Lab, router: &mut Router, check: impl Fn(u32, &Came)) {
    let name = router.name();
    let usage = |process: Option<u32>| process.map(|process| Usage::of(process).expect("a daemon"));
    let mut before = None;
    for number in 0..=FLOODS {
        let came = flood(lab, number);
        ordinary_packets_pass(&came, name);
        check(number, &came);
        let now = usage(router.process());
        report::say(&format!(
            "fragments: {name}: flood {number}: {} left it; meanwhile {}; {}",
            came.fragments.len(),
            came.stream,
            now.map_or_else(String::new, |now| now.to_string())
        ));
        // The first one fills what is kept in reserve.
        before = before.or(now);
    }
    let Some((before, after)) = before.zip(usage(router.process())) else { return };
    assert!(after.rss_kib <= before.rss_kib + NOISE_KIB, "{name}: memory grows: {before}, then {after}");
    assert!(after.bpf_kib <= before.bpf_kib, "{name}: {before}, then {after}");
    assert!(after.descriptors <= before.descriptors, "{name}: {before}, then {after}");
}

#[test]
fn each_fragment_is_forwarded_by_itself() {
    each("fragments", Ends::Silent, |lab, router| {
        let name = router.name();
        floods(lab, router, |flood, came| {
            let mut expected: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
            for (to_router, packet) in (0..FLOOD).map(|number| fragment(flood, number)) {
                if !to_router {
                    *expected.entry(Side::Snk.to_neighbor(2, &routed(&packet))).or_default() += 1;
                }
            }
            let missing = expected.iter().filter(|(frame, count)| came.fragments.get(*frame) != Some(count));
            assert_eq!(missing.count(), 0, "{name}: of {} fragments", FLOOD / 2);
            assert_eq!(came.fragments.len(), expected.len(), "{name}: fragments that nobody sent");
        });
    });
}

/// Sends a whole datagram in fragments; returns whether Linux has put it together and sent it on, in whatever pieces.
fn whole_datagram_passes(lab: &Lab, id: u16) -> bool {
    let whole = Ip4::udp(HOST, FAR, 2 * PIECE).id(id);
    lab.drain();
    // Made by the code that computes what a router's fragments look like, so their TTL is one less.
    for piece in fragments4(&whole.bytes(), PIECE) {
        lab.send(Side::Src, &Side::Src.to_router(&piece));
    }
    let is_last = |frame: &[u8]| {
        let packet = &frame[14..];
        packet[0] == 0x45 && get16(packet, 4) == id && is_fragment(packet) && get16(packet, 6) & Ip4::MF == 0
    };
    lab.await_frame(Side::Snk, Duration::from_millis(500), is_last).is_some()
}

/// Tracks connections of the machine itself, so that Linux reassembles what it forwards.
const TRACK: &str =
    "nft table inet t { chain own { type filter hook input priority 0; ct state invalid counter; }; }";
/// Incomplete datagrams are given up after a second, so that the test need not wait for longer.
const SHORT: [(&str, &str); 3] = [
    ("net.ipv4.ipfrag_time", "1"),
    ("net.ipv6.ip6frag_time", "1"),
    ("net.netfilter.nf_conntrack_frag6_timeout", "1"),
];

#[test]
fn no_fragment_passes_where_connections_are_tracked() {
    if !command::has("nft") {
        return report::skip("fragments", "needs nft");
    }
    each("tracked", Ends::Silent, |lab, router| {
        lab.rtr.run(TRACK);
        lab.rtr.set(&SHORT);
        router.settle();
        let name = router.name();
        // A lone fragment is the sign that Linux reassembles: it passes until then.
        daemon::eventually("fragments are left to Linux, which reassembles them", || {
            let (_, lone) = fragment(FLOODS + 1, 0);
            lab.drain();
            lab.send(Side::Src, &Side::Src.to_router(&lone));
            lab.await_frame(Side::Snk, Duration::from_millis(300), |frame| is_fragment(&frame[14..]))
                .is_none()
        });
        assert!(whole_datagram_passes(lab, 1), "{name}");
        floods(lab, router, |_, came| {
            assert_eq!(came.fragments.len(), 0, "{name}: fragments of datagrams that are not whole");
        });
        // Linux's room for incomplete datagrams is full, and empty again when their time is over.
        let mut id = 2;
        daemon::eventually("whole datagrams pass again", || {
            id += 1;
            whole_datagram_passes(lab, id)
        });
    });
}
