//! Every form of the check against the portable one, and that against what each frame is alone.

use std::net::Ipv4Addr;
use std::sync::{Arc, OnceLock};

use bm_frame::{FramePool, Freelist};
use bm_wire::checksum;
use proptest::prelude::*;

use super::*;
use crate::compiled::key_of;
use crate::validate;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// 192.0.2.9:12345 > 8.8.8.8:53, UDP, to our MAC.
const FRAME: [u8; 42] = [
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 9, 8, 0, 0x45, 0, 0, 28, 0x12, 0x34, 0, 0, 64, 17, 0x96, 0x84, 192, 0,
    2, 9, 8, 8, 8, 8, 0x30, 0x39, 0, 53, 0, 8, 0, 0,
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

/// What a plain frame contains, whether it has padding.
fn alone(frame: &[u8]) -> Option<(validate::Facts, u32, bool)> {
    let head = frame.first_chunk::<HEAD>()?;
    let packet = validate::common_ipv4(head.last_chunk()?, frame.len() - 14)?;
    let plain = frame[..6] == MAC
        && frame[12..14] == [8, 0]
        && packet.facts.ttl > 1
        && !local().may_hold(packet.source);
    let padded = frame.len() - 14 > usize::from(packet.facts.length);
    plain.then_some((packet.facts, packet.destination, padded))
}

/// The chunk as a form left it.
fn checked(form: Form, frames: &mut [Option<Frame>], mac: MacKey) -> Chunk {
    let mut chunk = Chunk::new();
    chunk.gather(frames);
    // SAFETY: the frames are not touched in between.
    unsafe { chunk.check(form, mac, &local()) };
    chunk
}

fn compare(cases: &[Option<Vec<u8>>]) -> Result<(), TestCaseError> {
    let mut list = list();
    let allocated = |bytes: &Option<Vec<u8>>| bytes.as_ref().and_then(|bytes| list.allocate_with(bytes));
    let mut frames: Vec<Option<Frame>> = cases.iter().map(allocated).collect();
    for form in Form::all() {
        let chunk = checked(form, &mut frames, key_of(MAC));
        let mut padded = false;
        prop_assert_eq!(chunk.plain & !every(cases.len()), 0);
        for (lane, case) in cases.iter().enumerate() {
            let expected = case.as_deref().and_then(alone);
            prop_assert_eq!(chunk.plain >> lane & 1 == 1, expected.is_some(), "{} {:02x?}", form, case);
            let Some((facts, destination, has_padding)) = expected else { continue };
            padded |= has_padding;
            prop_assert_eq!(chunk.lengths[lane], facts.length);
            prop_assert_eq!(chunk.destinations[lane], destination);
            prop_assert_eq!(chunk.spent[lane].to_le_bytes(), facts.spent);
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
        compare(&cases)?;
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
    headers.chunks(CHUNK).for_each(|cases| compare(cases).unwrap());
}

#[test]
fn all_first_bytes_of_addresses_agree() {
    for at in [26, 30] {
        let frames: Vec<_> = (0..=255u8)
            .map(|first| {
                let mut frame = FRAME.to_vec();
                frame[at] = first;
                Some(sealed(frame))
            })
            .collect();
        frames.chunks(CHUNK).for_each(|cases| compare(cases).unwrap());
    }
}

#[test]
fn every_byte_of_the_mac_counts() {
    let mut list = list();
    for at in 0..MAC.len() {
        let mut frame = FRAME;
        frame[at] ^= 1;
        let mut frames: Vec<_> = [FRAME, frame].iter().map(|bytes| list.allocate_with(bytes)).collect();
        for form in Form::all() {
            assert_eq!(checked(form, &mut frames, key_of(MAC)).plain, 1, "{form}: byte {at}");
        }
        frames.into_iter().flatten().for_each(|frame| list.free(frame));
    }
}

#[test]
fn bits_of_so_many_lanes() {
    assert_eq!([0, 1, 31, 32, 99].map(every), [0, 1, u32::MAX >> 1, u32::MAX, u32::MAX]);
}
