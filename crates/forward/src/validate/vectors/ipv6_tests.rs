//! Checks that vectors give the same results for IPv6 frames as checking one at a time.

use std::sync::{Arc, OnceLock};

use bm_frame::{FramePool, Freelist};
use proptest::prelude::*;

use super::*;
use crate::compiled::key_of;
use crate::validate::{self, Facts, Packet};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// 2001:db8:1::9 > fd00::8, UDP of ten bytes, to our MAC.
const FRAME: [u8; 72] = {
    let mut frame = [0; 72];
    let head = [
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 9, 0x86, 0xdd, 0x6a, 0xbc, 0xde, 0xf0, 0, 18, 17, 64, 0x20, 1, 0xd,
        0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8,
    ];
    let mut at = 0;
    while at < head.len() {
        frame[at] = head[at];
        at += 1;
    }
    frame
};

fn list() -> Freelist {
    static DEPOT: OnceLock<Arc<FramePool>> = OnceLock::new();
    Freelist::new(DEPOT.get_or_init(|| FramePool::new(1024, 2048).unwrap()).clone(), 128)
}

/// A frame with some bytes changed, sometimes to a special value, and truncated.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let at = prop_oneof![0..54usize, prop::sample::select(vec![12usize, 13, 14, 18, 19, 20, 21, 22, 38])];
    let byte = prop_oneof![
        any::<u8>(),
        prop::sample::select(vec![
            0u8, 1, 42, 43, 44, 51, 60, 61, 75, 0x1f, 0x20, 0x3f, 0x40, 0xfb, 0xfc, 0xfd, 0xfe, 0xff
        ]),
    ];
    (prop::collection::vec((at, byte), 0..3), 54..73usize).prop_map(|(changes, length)| {
        let mut frame = FRAME.to_vec();
        changes.into_iter().for_each(|(at, byte)| frame[at] = byte);
        frame.truncate(length);
        frame
    })
}

/// The result for a single frame.
fn alone(frame: &[u8], closer: AheadOfFragment) -> Option<Packet<u128>> {
    let header = frame[14..].first_chunk()?;
    let is_ours = frame[..6] == MAC && frame[12..14] == [0x86, 0xdd];
    validate::common_ipv6(header, frame.len() - 14, closer).filter(|_| is_ours)
}

/// Which of the frames are common, with the destination and the facts of each; `None` if they are checked one by one.
fn together(
    form: Form,
    frames: &[[Option<Frame>; LANES]],
    asked: (MacKey, AheadOfFragment),
) -> Option<(u16, Vec<Packet<u128>>)> {
    let (mut destinations, mut lengths, mut ttl) = ([0; 2 * LANES], [0; 2 * LANES], [0; 2 * LANES]);
    let mut spent = [[0; 4]; 2 * LANES];
    let columns =
        Columns { destinations: &mut destinations, lengths: &mut lengths, ttl: &mut ttl, spent: &mut spent };
    let common = common_ipv6(form, frames, asked, columns)?;
    let packet = |lane: usize| {
        let facts = Facts { length: lengths[lane], ttl: ttl[lane], spent: spent[lane] };
        Packet { source: 0, destination: destinations[lane], facts }
    };
    Some((common, (0..LANES * frames.len()).map(packet).collect()))
}

/// Two eights of frames.
fn eights(list: &mut Freelist, bytes: impl Fn(usize) -> Vec<u8>) -> [[Option<Frame>; LANES]; 2] {
    [0, LANES].map(|from| std::array::from_fn(|lane| list.allocate_with(&bytes(from + lane))))
}

fn free(list: &mut Freelist, frames: [[Option<Frame>; LANES]; 2]) {
    frames.into_iter().flatten().flatten().for_each(|frame| list.free(frame));
}

fn vector_forms() -> impl Iterator<Item = Form> {
    Form::all().into_iter().filter(|&form| form != Form::SCALAR)
}

proptest! {
    #[test]
    fn all_fare_as_each_alone(
        bytes in prop::collection::vec(frame(), 2 * LANES),
        count in 1..3usize,
        closer in prop::sample::select(vec![AheadOfFragment::NONE, AheadOfFragment::ALL]),
    ) {
        let mut list = list();
        let frames = eights(&mut list, |lane| bytes[lane].clone());
        for form in Form::all() {
            let found = together(form, &frames[..count], (key_of(MAC), closer));
            prop_assert_eq!(found.is_none(), form == Form::SCALAR);
            let Some((common, found)) = found else { continue };
            prop_assert_eq!(u32::from(common) >> (count * LANES), 0);
            for (lane, found) in found.into_iter().enumerate() {
                let expected = alone(&bytes[lane], closer).map(|packet| Packet { source: 0, ..packet });
                prop_assert_eq!((common >> lane & 1 == 1).then_some(found), expected, "{:02x?}", bytes[lane]);
            }
        }
        free(&mut list, frames);
    }
}

#[test]
fn what_is_missing_or_short_goes_one_by_one() {
    let mut list = list();
    let mut frames = eights(&mut list, |_| FRAME.to_vec());
    let common = |form, frames: &_, mac| {
        together(form, frames, (mac, AheadOfFragment::NONE)).map(|(common, _)| common)
    };
    for form in vector_forms() {
        assert_eq!(common(form, &frames, key_of(MAC)), Some(0xffff));
        assert_eq!(common(form, &frames, MacKey::MAX), None, "a port without a MAC takes no frame here");
    }
    let taken = frames[1][1].take().unwrap();
    assert!(vector_forms().all(|form| common(form, &frames, key_of(MAC)).is_none()));
    frames[1][1] = Some(taken);
    frames[1][7].as_mut().unwrap().truncate(53);
    assert!(vector_forms().all(|form| common(form, &frames, key_of(MAC)).is_none()));
    free(&mut list, frames);
}

#[test]
fn no_hops_leave_what_is_beside_them_alone() {
    let mut list = list();
    let mut bytes = FRAME;
    bytes[21] = 0;
    let frames = eights(&mut list, |_| bytes.to_vec());
    for form in vector_forms() {
        let (common, found) = together(form, &frames, (key_of(MAC), AheadOfFragment::NONE)).unwrap();
        assert_eq!(common, 0xffff);
        assert!(found.iter().all(|packet| packet.facts.spent == [0, 18, 17, 255]), "{found:?}");
    }
    free(&mut list, frames);
}
