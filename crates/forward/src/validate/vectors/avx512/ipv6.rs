//! IPv6.
//!
//! ```text
//! frame 0:  mac | mac . | . | . type class | . length | next hops source | ...   one load a frame, from byte 0 on
//! frame 1:  ...
//!            '-> turned round: first word of all sixteen, second word of all sixteen, ...
//! frame 0:  destination | frame 1: destination | ...                             one more, four to a vector
//! ```

use std::arch::x86_64::*;

use bm_frame::Frame;
use bm_wire::{ethernet, ipv6, protocol};

use super::super::ColumnsIpv6;
use super::{LANES, all, each, first_words, fours, heads, rows, second_words, store, store_words};
use crate::compiled::MacKey;

/// Bytes that are read of each frame: both headers.
const HEAD: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN;
/// Where the destination begins.
const DESTINATION: usize = HEAD - size_of::<u128>();

/// The word that the type begins, and which bits of it matter: the type, and the version behind it.
const KIND: (u32, u32) = {
    let [high, low] = ethernet::ethertype::IPV6.to_be_bytes();
    (u32::from_le_bytes([high, low, 0x60, 0]), u32::from_le_bytes([0xff, 0xff, 0xf0, 0]))
};

/// As [`common_ipv6`](super::super::common_ipv6).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) fn common_ipv6(
    frames: &[Option<Frame>; LANES],
    mac: MacKey,
    to: ColumnsIpv6<'_>,
) -> Option<u16> {
    // A key begins with two bytes of zero; one that does not is no address.
    let [0, 0, a, b, c, d, rest @ ..] = mac.to_le_bytes() else { return None };
    let (heads, lengths) = heads(frames, |_: &[u8; HEAD]| true)?;
    let [to_mac, to_rest, kind, length, next] = fields(&heads);
    let spent = spent(length, next);
    let length = _mm512_shuffle_epi8(length, each(0x8080_0203));
    let length = _mm512_add_epi32(length, all(ipv6::HEADER_LEN as u32));
    let room = _mm512_sub_epi32(_mm512_cvtepu16_epi32(lengths), all(ethernet::HEADER_LEN as u32));
    let first = destinations(&heads, to.destinations);
    // What differs from how it should be, in the bits that matter.
    let to_rest = _mm512_xor_si512(to_rest, all(u32::from(u16::from_le_bytes(rest))));
    let kind = _mm512_xor_si512(kind, all(KIND.0));
    let differs = [
        _mm512_xor_si512(to_mac, all(u32::from_le_bytes([a, b, c, d]))),
        _mm512_and_si512(to_rest, all(0xffff)),
        _mm512_and_si512(kind, all(KIND.1)),
    ];
    let [a, b, c] = differs;
    let differs = _mm512_or_si512(_mm512_or_si512(a, b), c);
    const { assert!(protocol::HOP_BY_HOP == 0) };
    let fits = _mm512_cmple_epu32_mask(length, room) & _mm512_test_epi32_mask(next, all(0xff));
    let common = fits & _mm512_testn_epi32_mask(differs, differs);

    store(to.lengths, _mm512_cvtepi32_epi16(length));
    let hops = _mm512_and_si512(_mm512_srli_epi32::<8>(next), all(0xff));
    store(to.hops, _mm512_cvtepi32_epi16(hops));
    store_words(to.spent, spent);
    Some(common & is_plain(_mm512_srli_epi32::<16>(next)) & is_plain(first))
}

/// Words 0, 1, 3, 4 and 5 of all frames, one vector for each place.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn fields(heads: &[&[u8; HEAD]; LANES]) -> [__m512i; 5] {
    let [near, far] = rows::<0, HEAD>(heads);
    let [near0, near1, _, near3] = fours(near);
    let [far0, far1, _, far3] = fours(far);
    [
        first_words(near0, far0),
        first_words(near1, far1),
        first_words(near3, far3),
        second_words(near0, far0),
        second_words(near1, far1),
    ]
}

/// Writes all destinations, and gives the first word of each as it stands in its frame.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn destinations(heads: &[&[u8; HEAD]; LANES], to: &mut [u128; LANES]) -> __m512i {
    let mut fours = [_mm512_setzero_si512(); 4];
    for ((four, heads), to) in fours.iter_mut().zip(heads.as_chunks::<4>().0).zip(to.as_chunks_mut::<4>().0) {
        // SAFETY: each load ends where its array does, and asks for no alignment.
        let [a, b, c, d] =
            heads.map(|head| unsafe { _mm_loadu_si128(head.as_ptr().add(DESTINATION).cast()) });
        let near = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b);
        let far = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(c), d);
        *four = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(near), far);
        store_numbers(to, *four);
    }
    // Within each quarter, the first words of frames four apart; then all in order.
    let [a, b, c, d] = fours;
    let words = _mm512_unpacklo_epi64(_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_epi32(order, words)
}

/// Stores four addresses in network order as numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store_numbers(to: &mut [u128; 4], addresses: __m512i) {
    let turn = _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    let numbers = _mm512_shuffle_epi8(addresses, _mm512_broadcast_i32x4(turn));
    // SAFETY: the array is as many bytes as the vector, any bytes are a number, and this store asks for no alignment.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), numbers) };
}

/// The words of length, next header and hops, one hop spent.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn spent(length: __m512i, next: __m512i) -> __m512i {
    // Byte by byte: no hops at all must not borrow from what is beside them.
    let next = _mm512_sub_epi8(next, all(0x100));
    _mm512_or_si512(_mm512_srli_epi32::<16>(length), _mm512_slli_epi32::<16>(next))
}

/// Lanes whose address, which begins with the lowest byte, is of 2000::/3 or fc00::/7.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn is_plain(first: __m512i) -> __mmask16 {
    let begins =
        |with: u32, bits: u32| _mm512_testn_epi32_mask(_mm512_xor_si512(first, all(with)), all(bits));
    begins(0x20, 0xe0) | begins(0xfc, 0xfe)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, OnceLock};

    use bm_fib::Form;
    use bm_frame::{Depot, Freelist};
    use proptest::prelude::*;

    use super::*;
    use crate::compiled::key_of;
    use crate::validate::{self, Facts, Packet, vectors};

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    /// 2001:db8:1::9 > fd00::8, UDP of ten bytes, to our MAC.
    const FRAME: [u8; 72] = {
        let mut frame = [0; 72];
        let head = [
            2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 9, 0x86, 0xdd, 0x6a, 0xbc, 0xde, 0xf0, 0, 18, 17, 64, 0x20, 1,
            0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8,
        ];
        let mut at = 0;
        while at < head.len() {
            frame[at] = head[at];
            at += 1;
        }
        frame
    };

    fn list() -> Freelist {
        static DEPOT: OnceLock<Arc<Depot>> = OnceLock::new();
        Freelist::new(DEPOT.get_or_init(|| Depot::new(1024, 2048).unwrap()).clone(), 128)
    }

    /// A frame with some bytes changed, now and then to one that matters, and cut.
    fn frame() -> impl Strategy<Value = Vec<u8>> {
        let at = prop_oneof![0..54usize, prop::sample::select(vec![12usize, 13, 14, 18, 19, 20, 21, 22, 38])];
        let byte = prop_oneof![
            any::<u8>(),
            prop::sample::select(vec![0u8, 1, 0x1f, 0x20, 0x3f, 0x40, 0xfb, 0xfc, 0xfd, 0xfe, 0xff]),
        ];
        (prop::collection::vec((at, byte), 0..3), 54..73usize).prop_map(|(changes, length)| {
            let mut frame = FRAME.to_vec();
            changes.into_iter().for_each(|(at, byte)| frame[at] = byte);
            frame.truncate(length);
            frame
        })
    }

    /// What one at a time finds in a frame.
    fn alone(frame: &[u8]) -> Option<Packet<u128>> {
        let header = frame[14..].first_chunk()?;
        let is_ours = frame[..6] == MAC && frame[12..14] == [0x86, 0xdd];
        validate::common_ipv6(header, frame.len() - 14).filter(|_| is_ours)
    }

    /// Which of sixteen are common, with the destination and the facts of each; nothing where no form looks at sixteen.
    fn together(frames: &[Option<Frame>; LANES], mac: MacKey) -> Option<(u16, Vec<(u128, Facts)>)> {
        let (mut destinations, mut lengths, mut hops) = ([0; LANES], [0; LANES], [0; LANES]);
        let mut spent = [[0; 4]; LANES];
        let columns = ColumnsIpv6 {
            destinations: &mut destinations,
            lengths: &mut lengths,
            hops: &mut hops,
            spent: &mut spent,
        };
        assert_eq!(vectors::common_ipv6(Form::SCALAR, frames, mac, columns), None);
        let columns = ColumnsIpv6 {
            destinations: &mut destinations,
            lengths: &mut lengths,
            hops: &mut hops,
            spent: &mut spent,
        };
        let common = vectors::common_ipv6(Form::best(), frames, mac, columns)?;
        let found = (0..LANES).map(|lane| {
            let facts = Facts { length: lengths[lane], hops: hops[lane], spent: spent[lane] };
            (destinations[lane], facts)
        });
        Some((common, found.collect()))
    }

    proptest! {
        #[test]
        fn sixteen_fare_as_each_alone(bytes in prop::collection::vec(frame(), LANES)) {
            let mut list = list();
            let frames = std::array::from_fn(|lane| list.allocate_with(&bytes[lane]));
            let found = together(&frames, key_of(MAC));
            prop_assert_eq!(found.is_some(), Form::best().has_avx512());
            for (lane, bytes) in bytes.iter().enumerate() {
                let Some((common, found)) = &found else { break };
                let expected = alone(bytes);
                prop_assert_eq!(common >> lane & 1 == 1, expected.is_some(), "{:02x?}", bytes);
                if let Some(packet) = expected {
                    prop_assert_eq!(found[lane], (packet.destination, packet.facts));
                }
            }
            frames.into_iter().flatten().for_each(|frame| list.free(frame));
        }
    }

    #[test]
    fn what_is_missing_or_short_goes_one_by_one() {
        let mut list = list();
        let mut frames: [_; LANES] = std::array::from_fn(|_| list.allocate_with(&FRAME));
        let expected = Form::best().has_avx512().then_some(0xffff);
        assert_eq!(together(&frames, key_of(MAC)).map(|(common, _)| common), expected);
        assert_eq!(together(&frames, MacKey::MAX), None, "a port without a MAC takes no frame here");
        let taken = frames[9].take().unwrap();
        assert_eq!(together(&frames, key_of(MAC)), None);
        frames[9] = Some(taken);
        frames[15].as_mut().unwrap().truncate(53);
        assert_eq!(together(&frames, key_of(MAC)), None);
        frames.into_iter().flatten().for_each(|frame| list.free(frame));
    }

    #[test]
    fn no_hops_leave_what_is_beside_them_alone() {
        let mut list = list();
        let mut bytes = FRAME;
        bytes[21] = 0;
        let frames: [_; LANES] = std::array::from_fn(|_| list.allocate_with(&bytes));
        if let Some((common, found)) = together(&frames, key_of(MAC)) {
            assert_eq!(common, 0xffff);
            assert!(found.iter().all(|(_, facts)| facts.spent == [0, 18, 17, 255]), "{found:?}");
        }
        frames.into_iter().flatten().for_each(|frame| list.free(frame));
    }
}
