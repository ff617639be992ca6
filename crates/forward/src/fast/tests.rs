//! Every form of the check against the portable one, and that against what each frame is alone.

use std::net::Ipv4Addr;
use std::sync::{Arc, OnceLock};

use bm_fib::NextHop;
use bm_frame::{Frame, FramePool, Freelist};
use bm_wire::checksum;
use proptest::prelude::*;

use super::by_family::ByFamily;
use super::hop_cache::HopCache;
use super::lanes::NOTHING;
use super::*;
use crate::compiled::key_of;
use crate::stages::input::Arrival;
use crate::stages::{Facts, rewrite, validate};
use crate::testing::Lab;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// 192.0.2.9:12345 > 8.8.8.8:53, UDP, to our MAC.
const FRAME: [u8; 42] = [
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 9, 8, 0, 0x45, 0, 0, 28, 0x12, 0x34, 0, 0, 64, 17, 0x96, 0x84, 192, 0,
    2, 9, 8, 8, 8, 8, 0x30, 0x39, 0, 53, 0, 8, 0, 0,
];

/// 2001:db8:1::9 > fd00::8, UDP of ten bytes, to our MAC.
const FRAME_IPV6: [u8; 72] = [
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 9, 0x86, 0xdd, 0x6a, 0xbc, 0xde, 0xf0, 0, 18, 17, 64, 0x20, 1, 0xd,
    0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0x30, 0x39,
    0, 53, 0, 18, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10,
];

/// Frames for all cases: their memory is never returned.
fn list() -> Freelist {
    static POOL: OnceLock<Arc<FramePool>> = OnceLock::new();
    Freelist::new(POOL.get_or_init(|| FramePool::new(1024, 2048).unwrap()).clone(), 128)
}

fn local() -> LocalFilter {
    LocalFilter::of(&[Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(10, 0, 0, 1)])
}

/// The header summed up anew.
fn sealed(mut frame: Vec<u8>) -> Vec<u8> {
    if let Some(header) = frame.get(14..34) {
        let sum = checksum::ipv4_header(header);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

/// A frame with some bytes changed, mostly with a right checksum, or none at all.
fn frames() -> impl Strategy<Value = Option<Vec<u8>>> {
    let sealed_change = (0..34usize, any::<u8>(), any::<bool>());
    let changed = (prop::collection::vec(sealed_change, 0..2), 0..64usize).prop_map(|(changes, length)| {
        let mut frame = FRAME.to_vec();
        frame.resize(length.max(20), 0);
        for (at, byte, seals) in changes {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
            frame = if seals { sealed(frame) } else { frame };
        }
        frame
    });
    let numbered = (any::<u16>(), 0..=255u8, 42..64usize).prop_map(|(id, ttl, length)| {
        let mut frame = FRAME.to_vec();
        frame[18..20].copy_from_slice(&id.to_be_bytes());
        frame[22] = ttl;
        frame.resize(length, 0);
        sealed(frame)
    });
    prop_oneof![8 => changed.prop_map(Some), 8 => numbered.prop_map(Some), 1 => Just(None)]
}

/// IPv6 frames, often with a byte that matters changed.
fn frames_ipv6() -> impl Strategy<Value = Option<Vec<u8>>> {
    let at = prop_oneof![0..54usize, prop::sample::select(vec![12usize, 13, 14, 18, 19, 20, 21, 22, 38])];
    let byte = prop_oneof![
        any::<u8>(),
        prop::sample::select(vec![
            0u8, 1, 2, 42, 43, 44, 51, 60, 61, 75, 0x1f, 0x20, 0x3f, 0x40, 0xfb, 0xfc, 0xfd, 0xfe, 0xff
        ]),
    ];
    let changed = (prop::collection::vec((at, byte), 0..3), 20..80usize).prop_map(|(changes, length)| {
        let mut frame = FRAME_IPV6.to_vec();
        changes.into_iter().for_each(|(at, byte)| frame[at] = byte);
        frame.resize(length, 0);
        frame
    });
    prop_oneof![8 => changed.prop_map(Some), 4 => (0..=255u8, 72..80usize).prop_map(|(hop_limit, length)| {
        let mut frame = FRAME_IPV6.to_vec();
        frame[21] = hop_limit;
        frame.resize(length, 0);
        Some(frame)
    }), 1 => Just(None)]
}

/// A family whose frames are checked one by one.
trait Alone: FastFamily {
    /// What a frame contains, if the packet behind its Ethernet header is plain.
    fn packet(frame: &[u8], excluded: NextHeaders) -> Option<validate::Packet<Self>>;
}

impl Alone for u32 {
    fn packet(frame: &[u8], _: NextHeaders) -> Option<validate::Packet<Self>> {
        let packet = portable::plain_ipv4(frame.get(14..)?.first_chunk()?, frame.len() - 14)?;
        (frame[12..14] == [8, 0] && !local().may_hold(packet.source)).then_some(packet)
    }
}

impl Alone for u128 {
    fn packet(frame: &[u8], excluded: NextHeaders) -> Option<validate::Packet<Self>> {
        let packet = portable::plain_ipv6(frame.get(14..)?.first_chunk()?, frame.len() - 14, excluded)?;
        (frame[12..14] == [0x86, 0xdd]).then_some(packet)
    }
}

/// What a plain frame contains, whether it has padding.
fn alone<A: Alone>(frame: &[u8], excluded: NextHeaders) -> Option<(Facts, A, bool)> {
    let packet = A::packet(frame, excluded)?;
    let plain = frame[..6] == MAC && packet.facts.ttl > 1;
    let padded = frame.len() - 14 > usize::from(packet.facts.length);
    plain.then_some((packet.facts, packet.destination, padded))
}

/// The chunk as a form left it.
fn checked<A: FastFamily>(form: Form, frames: &mut [Option<Frame>], excluded: NextHeaders) -> Chunk<A> {
    let mut chunk = Chunk::new();
    chunk.gather(frames);
    // SAFETY: the frames are not touched in between.
    unsafe { chunk.check(form, Criteria { mac: key_of(MAC), local: &local(), excluded }) };
    chunk
}

fn compare<A: Alone>(cases: &[Option<Vec<u8>>], excluded: NextHeaders) -> Result<(), TestCaseError> {
    let mut list = list();
    let allocated = |bytes: &Option<Vec<u8>>| bytes.as_ref().and_then(|bytes| list.allocate_with(bytes));
    let mut frames: Vec<Option<Frame>> = cases.iter().map(allocated).collect();
    for form in Form::all() {
        let chunk = checked::<A>(form, &mut frames, excluded);
        let mut padded = false;
        prop_assert_eq!(chunk.plain & !every(cases.len()), 0);
        for (lane, case) in cases.iter().enumerate() {
            let expected = case.as_deref().and_then(|frame| alone(frame, excluded));
            prop_assert_eq!(chunk.plain >> lane & 1 == 1, expected.is_some(), "{} {:02x?}", form, case);
            let Some((facts, destination, has_padding)) = expected else { continue };
            padded |= has_padding;
            prop_assert_eq!(chunk.lengths[lane], facts.length);
            prop_assert!(chunk.longest >= facts.length);
            prop_assert_eq!(chunk.destinations[lane], destination);
            prop_assert_eq!(chunk.ttl_words[lane].to_le_bytes(), facts.ttl_word);
        }
        // In vain at worst.
        prop_assert!(chunk.padded || !padded);
    }
    frames.into_iter().flatten().for_each(|frame| list.free(frame));
    Ok(())
}

proptest! {
    #[test]
    fn each_lane_fares_as_its_frame_alone(cases in prop::collection::vec(frames(), 1..=CHUNK)) {
        compare::<u32>(&cases, NextHeaders::NONE)?;
    }

    #[test]
    fn each_ipv6_lane_fares_as_its_frame_alone(
        cases in prop::collection::vec(frames_ipv6(), 1..=CHUNK),
        excludes in any::<bool>(),
    ) {
        compare::<u128>(&cases, if excludes { NextHeaders::ALL } else { NextHeaders::NONE })?;
    }
}

/// A frame that takes one byte through all its values.
fn all_values(frame: &[u8], at: usize) -> Vec<Option<Vec<u8>>> {
    let with = |byte| {
        let mut frame = frame.to_vec();
        frame[at] = byte;
        Some(frame)
    };
    (0..=255u8).map(with).collect()
}

#[test]
fn all_next_headers_hop_limits_and_first_bytes_of_ipv6_agree() {
    for at in [14, 20, 21, 22, 38] {
        for excluded in [NextHeaders::ALL, NextHeaders::NONE] {
            let frames = all_values(&FRAME_IPV6, at);
            frames.chunks(CHUNK).for_each(|cases| compare::<u128>(cases, excluded).unwrap());
        }
    }
}

/// All checksums that a header can have, right and wrong: every identification, and the sum as it is, one more, and
/// the other zero.
#[test]
fn checksums_of_all_values_agree() {
    let headers = (0..=u16::MAX).map(|id| {
        let mut frame = FRAME.to_vec();
        frame[18..20].copy_from_slice(&id.to_be_bytes());
        let mut frame = sealed(frame);
        let sum = u16::from_be_bytes([frame[24], frame[25]]);
        let sum = match id % 7 {
            5 => sum.wrapping_add(1),
            _ if sum == 0 => 0xffff,
            _ => sum,
        };
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        Some(frame)
    });
    let headers: Vec<_> = headers.collect();
    headers.chunks(CHUNK).for_each(|cases| compare::<u32>(cases, NextHeaders::NONE).unwrap());
}

#[test]
fn all_first_bytes_of_addresses_agree() {
    for at in [26, 30] {
        let frames: Vec<_> = all_values(&FRAME, at).into_iter().map(|frame| frame.map(sealed)).collect();
        frames.chunks(CHUNK).for_each(|cases| compare::<u32>(cases, NextHeaders::NONE).unwrap());
    }
}

fn every_byte_of_the_mac_counts_in<A: FastFamily>(frame: &[u8]) {
    let mut list = list();
    for at in 0..MAC.len() {
        let mut other = frame.to_vec();
        other[at] ^= 1;
        let mut frames: Vec<_> = [frame, &other].iter().map(|bytes| list.allocate_with(bytes)).collect();
        for form in Form::all() {
            let chunk = checked::<A>(form, &mut frames, NextHeaders::NONE);
            assert_eq!(chunk.plain, 1, "{form}: byte {at}");
        }
        frames.into_iter().flatten().for_each(|frame| list.free(frame));
    }
}

#[test]
fn every_byte_of_the_mac_counts() {
    every_byte_of_the_mac_counts_in::<u32>(&FRAME);
    every_byte_of_the_mac_counts_in::<u128>(&FRAME_IPV6);
}

/// The places of the frames of a family, all of which are in lanes, with this length, or are none that it can be.
fn gathered<A: FastFamily>(sorted: &ByFamily, frames: &[Option<Frame>], length: usize) -> Vec<usize> {
    let (mut chunk, mut places) = (Chunk::<A>::new(), Vec::new());
    for first in (0..sorted.places::<A>().len()).step_by(CHUNK) {
        chunk.gather_sorted(sorted, first);
        let lanes = &chunk.lanes;
        for lane in 0..lanes.count {
            let place = chunk.place_of::<true>(0, lane);
            let data = frames[place].as_ref().map_or(&[][..], Frame::data);
            let whole = data.len() >= 54;
            assert_eq!(whole, data.len() == length, "place {place}");
            let head = if whole { data.as_ptr() } else { NOTHING.as_ptr() };
            assert_eq!(
                (lanes.heads.0[lane].cast_const(), data.len() * usize::from(whole)),
                (head, usize::from(lanes.frame_lengths[lane]))
            );
            places.push(place);
        }
        let unused = lanes.count..lanes.count.next_multiple_of(LANES);
        assert!(lanes.heads.0[unused].iter().all(|head| head.cast_const() == NOTHING.as_ptr()));
    }
    places
}

/// Every frame is in a lane of its family, and each is where its place says.
#[test]
fn sorting_loses_no_frame() {
    let mut list = list();
    let padded = [&FRAME[..], &[0; 18]].concat();
    let kinds: [Option<&[u8]>; 6] =
        [Some(&padded), Some(&FRAME_IPV6), Some(&FRAME), Some(&FRAME_IPV6[..53]), Some(&FRAME_IPV6), None];
    let mut frames: Vec<_> = (0..200usize)
        .map(|place| kinds[place * place % 23 % kinds.len()].and_then(|bytes| list.allocate_with(bytes)))
        .collect();
    let mut sorted = ByFamily::new();
    for _ in 0..2 {
        sorted.clear();
        for first in (0..frames.len()).step_by(2 * CHUNK) {
            let end = frames.len().min(first + 2 * CHUNK);
            sorted.add(&mut frames[first..end], first);
        }
        let mut all = gathered::<u32>(&sorted, &frames, padded.len());
        all.extend(gathered::<u128>(&sorted, &frames, FRAME_IPV6.len()));
        all.sort_unstable();
        assert!(all.into_iter().eq(0..200));
    }
    frames.into_iter().flatten().for_each(|frame| list.free(frame));
}

#[test]
fn bits_of_so_many_lanes() {
    assert_eq!([0, 1, 31, 32, 99].map(every), [0, 1, u32::MAX >> 1, u32::MAX, u32::MAX]);
}

/// Every kind of interface and of next hop.
const LINES: &str = "
    interface lan 0 02:00:00:00:00:01 192.0.2.1/24 2001:db8:1::1/64
    interface short 1 02:00:00:00:00:02 mtu 600 198.51.100.1/24 2001:db8:2::1/64
    interface down 2 02:00:00:00:00:03 down 203.0.113.1/24
    interface lan.7 0 02:00:00:00:00:01 vlan 7 10.7.0.1/16
    neighbor 192.0.2.7 lan 02:00:00:00:01:07
    neighbor 198.51.100.7 short 02:00:00:00:01:08
    neighbor 203.0.113.7 down 02:00:00:00:01:09
    neighbor 10.7.0.7 lan.7 02:00:00:00:01:0a
    route 8.0.0.0/16 via 192.0.2.7 lan
    route 8.1.0.0/16 via 192.0.2.7 lan mtu 300
    route 8.2.0.0/16 via 198.51.100.7 short
    route 8.3.0.0/16 via 203.0.113.7 down
    route 8.4.0.0/16 via 10.7.0.7 lan.7
    route 8.5.0.0/16 group 192.0.2.7 lan 1 198.51.100.7 short 1
    route 8.6.0.0/16 blackhole
    route 8.7.0.0/16 via 192.0.2.99 lan
    route 8.8.0.0/16 group 192.0.2.7 lan 1 10.7.0.7 lan.7 1
";

/// A plain packet of this length from one of several sources, padded.
fn plain(source: u8, length: u16, padding: usize) -> Vec<u8> {
    let mut frame = FRAME.to_vec();
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    frame[29] = source | 0x10;
    frame.resize(14 + usize::from(length) + padding, 0);
    sealed(frame)
}

proptest! {
    /// Chunks are rewritten as the stages do it, whatever their next hops are.
    #[test]
    fn chunks_are_rewritten_as_by_the_stages(
        cases in prop::collection::vec(
            (0..24u32, any::<u8>(), prop_oneof![8 => 28..60u16, 1 => 290..700u16], 0..20usize),
            1..=CHUNK,
        ),
        is_plain in any::<bool>(),
    ) {
        static TABLES: OnceLock<Tables> = OnceLock::new();
        let tables = TABLES.get_or_init(|| Lab::new(LINES).tables());
        let (mut list, mut hop_cache) = (list(), HopCache::new());
        let frame = |&(_, source, length, padding): &(u32, u8, u16, usize)| plain(source, length, padding);
        let mut frames: Vec<_> = cases.iter().map(|case| list.allocate_with(&frame(case))).collect();
        let mut chunk = checked::<u32>(Form::best(), &mut frames, NextHeaders::NONE);
        prop_assert_eq!(chunk.plain, every(cases.len()));
        for (hop, case) in chunk.hops.iter_mut().zip(&cases) {
            // Mostly two next hops that forward, or all kinds.
            *hop = NextHop(if is_plain { case.0 % 2 + 1 } else { case.0 });
        }
        let hops = chunk.hops;
        let mut ports = vec![0; cases.len()];
        // SAFETY: the frames are not touched in between.
        let done = unsafe { chunk.rewrite(tables, &mut hop_cache, &mut ports) };
        chunk.cut_padding(done, |lane, length| frames[lane].as_mut().unwrap().truncate(length));
        for (lane, case) in cases.iter().enumerate() {
            let mut alone = list.allocate_with(&frame(case)).unwrap();
            let facts = Facts::ipv4(alone.data()[14..].first_chunk().unwrap());
            let arrival = Arrival { interface: u16::MAX, network: 14, family: bm_wire::Family::V4 };
            let expected = rewrite::rewrite::<u32>(tables, hops[lane], facts, &arrival, &mut alone);
            let found = frames[lane].as_mut().unwrap();
            let port = match done >> lane & 1 {
                1 => Ok(ports[lane]),
                _ => {
                    prop_assert_eq!(found.data(), frame(case), "it must be left as it was");
                    chunk.rewrite_as_stages(tables, None, lane, found)
                }
            };
            prop_assert_eq!(port, expected);
            prop_assert_eq!(found.data(), alone.data());
            // Nothing that forwards without a tag is left, or this path would be of no use.
            let (_, entry) = tables.next_hops.resolve(chunk.hops[lane], 0);
            let egress = tables.compiled.egress.get(usize::from(entry.interface()));
            let is_simple = entry.is_forward() && egress.is_some_and(|egress| egress.tag.is_none());
            prop_assert!(done >> lane & 1 == 1 || !is_simple || expected.is_err());
            list.free(alone);
        }
        frames.into_iter().flatten().for_each(|frame| list.free(frame));
    }
}
