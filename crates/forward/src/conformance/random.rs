//! Random bytes: nothing panics, every account adds up, no frame is lost (a [`Lab`] asserts that).

use bm_graph::{HookBurst, Stage, StageHook, Stages};
use proptest::prelude::*;

use super::frames::{LEFT_HOST, LEFT_MAC, V4, V6, frame};
use super::{LEFT, LINES, lab};
use crate::testing::Lab;

/// A valid packet of some kind.
fn valid() -> impl Strategy<Value = Vec<u8>> {
    let destinations = prop::sample::select(vec![
        "8.8.8.8",
        "9.9.9.9",
        "192.0.2.1",
        "198.51.100.50",
        "224.0.0.5",
        "255.255.255.255",
        "77.1.1.1",
    ]);
    let options = prop::collection::vec(any::<u8>(), 0..=10).prop_map(|mut bytes| {
        bytes.truncate(bytes.len() / 4 * 4);
        bytes
    });
    let ipv4 = (destinations, 0..3u8, any::<u16>(), options, 0..1500usize).prop_map(
        |(destination, ttl, fragment, options, length)| {
            V4 { ttl, fragment, options, payload: vec![0x5a; length.min(1460)], ..V4::to(destination) }
                .bytes()
        },
    );
    let destinations = prop::sample::select(vec![
        "2001:db8:8::8",
        "2001:db8:9::9",
        "2001:db8:1::1",
        "ff02::1",
        "fe80::1",
        "2001:db8:2::5",
    ]);
    let next = prop::sample::select(vec![0, 17, 43, 44, 58, 60]);
    let ipv6 = (destinations, 0..3u8, next, prop::collection::vec(any::<u8>(), 0..1460)).prop_map(
        |(destination, hop_limit, next_header, payload)| {
            V6 { hop_limit, next_header, payload, ..V6::to(destination) }.bytes()
        },
    );
    prop_oneof![ipv4, ipv6]
}

/// A frame: mostly a valid packet with some bytes changed, possibly its length, possibly with tags.
pub(super) fn frames() -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let mutated = (valid(), changes, 0..3usize, prop::option::weighted(0.1, 0..1500usize)).prop_map(
        |(mut packet, changes, tags, length)| {
            for (at, byte) in changes {
                let at = at.index(packet.len().min(60));
                packet[at] = byte;
            }
            let kind = if packet[0] >> 4 == 6 { [0x86, 0xdd] } else { [8, 0] };
            let tags = [0x81, 0, 0, 0].repeat(tags);
            let mut bytes = [&LEFT_MAC[..], &LEFT_HOST, &tags, &kind, &packet].concat();
            bytes.truncate(length.unwrap_or(usize::MAX));
            bytes
        },
    );
    let noise = prop::collection::vec(any::<u8>(), 0..200);
    let headed = (prop::sample::select(vec![0x0800, 0x86dd, 0x8100, 0x88a8]), noise.clone())
        .prop_map(|(kind, bytes)| frame(LEFT_MAC, LEFT_HOST, kind, &bytes));
    prop_oneof![8 => mutated, 1 => noise, 2 => headed]
}

/// Routes with several next hops, and one through a VLAN, besides those of [`LINES`].
fn more_lines() -> String {
    let more = "
        interface right.7 1 02:00:00:00:00:02 vlan 7 10.7.0.1/16
        neighbor 10.7.0.7 right.7 02:00:00:00:02:77
        route 8.1.0.0/16 group 198.51.100.7 right 1 203.0.113.5 narrow 1 10.7.0.7 right.7 2
        route 8.2.0.0/16 via 10.7.0.7 right.7
        route 2001:db8:a::/48 group 2001:db8:2::7 right 1 2001:db8:3::5 narrow 1
    ";
    [LINES, more].concat()
}

/// A hook behind the lookup that does nothing.
pub(super) struct Idle;

impl StageHook for Idle {
    fn begin(&mut self) -> Stages {
        Stages::NONE.with(Stage::Lookup)
    }

    fn run(&mut self, _stage: Stage, _burst: &mut HookBurst<'_>) {}
}

/// Plain packets, possibly padded or too large for one of the interfaces.
fn plain() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let destination = prop::sample::select(vec!["8.8.8.8", "9.9.9.9", "8.1.2.3", "8.2.3.4", "192.0.2.9"]);
    let payload = prop_oneof![8 => 8..40usize, 1 => 0..8usize, 1 => 1250..1290usize];
    let packet = (destination, payload, 2..=255u8, any::<u16>(), 0..3usize).prop_map(
        |(destination, length, ttl, id, padding)| {
            let packet = V4 { ttl, id, payload: vec![0x5a; length], ..V4::to(destination) };
            padded(packet.sent(), padding)
        },
    );
    prop::collection::vec(packet, 1..70)
}

/// The same for IPv6.
fn plain_ipv6() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let destination =
        prop::sample::select(vec!["2001:db8:8::8", "2001:db8:9::9", "2001:db8:a::a", "2001:db8:2::5"]);
    let payload = prop_oneof![8 => 0..40usize, 1 => 1430..1470usize];
    let packet =
        (destination, payload, 1..=255u8, 0..3usize).prop_map(|(destination, length, hop_limit, padding)| {
            let packet = V6 { hop_limit, payload: vec![0x5a; length], ..V6::to(destination) };
            padded(packet.sent(), padding)
        });
    prop::collection::vec(packet, 1..70)
}

/// A frame of at least 60 bytes, followed by `padding` bytes.
pub(super) fn padded(mut frame: Vec<u8>, padding: usize) -> Vec<u8> {
    frame.resize(frame.len().max(60) + padding, 0);
    frame
}

/// Plain packets of both families, in any order.
fn plain_mixed() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let both = (plain(), plain_ipv6()).prop_map(|(ipv4, ipv6)| [ipv4, ipv6].concat());
    both.prop_shuffle()
}

/// Runs of plain frames, with some of any kind in between.
pub(super) fn mostly_plain() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let others = prop::collection::vec(frames(), 0..3);
    let own = Just(vec![V4 { source: "198.51.100.1", ..V4::to("8.8.8.8") }.sent()]);
    let runs = prop::collection::vec(
        prop_oneof![4 => plain(), 4 => plain_ipv6(), 4 => plain_mixed(), 4 => others, 1 => own],
        1..9,
    );
    runs.prop_map(|runs| runs.concat().into_iter().take(300).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_frames_are_accounted_for(frames in prop::collection::vec(frames(), 1..60)) {
        let mut lab = lab();
        for frame in &frames {
            lab.send(LEFT, frame);
        }
        lab.run();
        lab.check();
        lab.pass(10);
        lab.pass(4000);
        lab.check();
    }

    #[test]
    fn what_is_forwarded_has_right_headers(frames in prop::collection::vec(frames(), 1..40)) {
        let mut lab = lab();
        for frame in &frames {
            lab.send(LEFT, frame);
        }
        lab.run();
        for (_, frame) in lab.answer().sent {
            let packet = &frame[14..];
            match bm_wire::ipv4::Ipv4::parse(packet) {
                Ok(ip) => prop_assert!(ip.checksum_ok() && usize::from(ip.total_len()) == packet.len()),
                Err(_) => prop_assert_eq!(bm_wire::ipv6::Ipv6::parse(packet).unwrap().total_len(), packet.len()),
            }
        }
    }

    /// A burst goes through its stages together; each of its frames must be treated as if it were alone.
    #[test]
    fn a_burst_fares_as_its_frames_one_by_one(frames in prop::collection::vec(frames(), 1..60)) {
        let (mut together, mut apart) = (lab(), lab());
        let mut expected = crate::testing::Answer::default();
        for frame in &frames {
            together.send(LEFT, frame);
            let answer = apart.exchange(LEFT, frame);
            expected.sent.extend(answer.sent);
            expected.host.extend(answer.host);
        }
        together.run();
        let mut found = together.answer();
        for answer in [&mut found, &mut expected] {
            // The slow path's frames leave after the fast path's.
            answer.sent.sort_unstable();
            answer.host.sort_unstable();
        }
        prop_assert_eq!(found.sent, expected.sent);
        prop_assert_eq!(found.host, expected.host);
        prop_assert_eq!(together.drops(), apart.drops());
    }

    /// What takes the fast path, or that with a hook behind the lookup, leaves as if it had taken the stages: the same bytes
    /// in the same order, and the same in every account.
    #[test]
    fn the_fast_path_agrees_with_the_stages(frames in mostly_plain()) {
        let text = more_lines();
        let hooked = Lab::with_hooks(&text, |_| [Some(Box::new(Idle)), None]);
        let mut labs = [Lab::new(&text), hooked, Lab::with_stages_only(&text)];
        for lab in &mut labs {
            for burst in frames.chunks(100) {
                burst.iter().for_each(|frame| lab.send(LEFT, frame));
                lab.run();
            }
            lab.check();
        }
        let [found @ .., expected] = labs.each_mut().map(|lab| (lab.answer(), lab.accounts()));
        for found in found {
            prop_assert_eq!(found.0.sent, expected.0.sent.clone());
            prop_assert_eq!(found.0.host, expected.0.host.clone());
            prop_assert_eq!(found.1, expected.1.clone());
        }
    }

    /// Frames that are described by their mbufs fare as all others: the same bytes in the same order, and the same in
    /// every account.
    #[test]
    fn frames_described_by_mbufs_fare_as_others(frames in mostly_plain()) {
        let (mut mbufs, mut others) = (Lab::with_mbufs(&more_lines()), Lab::new(&more_lines()));
        for lab in [&mut mbufs, &mut others] {
            for burst in frames.chunks(100) {
                burst.iter().filter(|frame| frame.len() >= 14).for_each(|frame| lab.send(LEFT, frame));
                lab.run();
            }
            lab.check();
        }
        let (found, expected) = (mbufs.answer(), others.answer());
        prop_assert_eq!(found.sent, expected.sent);
        prop_assert_eq!(found.host, expected.host);
        prop_assert_eq!(mbufs.accounts(), others.accounts());
    }
}
