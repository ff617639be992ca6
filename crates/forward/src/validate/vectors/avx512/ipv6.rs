//! IPv6.
//!
//! ```text
//! frame 0:  mac | mac . | . | . type class | . length | next TTL source | ...   one load a frame, from byte 0 on
//! frame 1:  ...
//!            '-> turned round: first word of all sixteen, second word of all sixteen, ...
//! frame 0:  destination | frame 1: destination | ...                             one more, four to a vector
//! ```

use std::arch::x86_64::*;

use bm_frame::Frame;
use bm_wire::{ethernet, ipv6, protocol};

use super::super::{Columns, IPV6_DESTINATION, IPV6_HEAD, IPV6_KIND};
use super::{LANES, all, each, first_words, fours, heads, rows, second_words, store, store_words};
use crate::compiled::MacKey;
use crate::validate::AheadOfFragment;

/// As [`common_ipv6`](super::super::common_ipv6).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in super::super) fn common_ipv6(
    frames: &[Option<Frame>; LANES],
    (mac, closer): (MacKey, AheadOfFragment),
    to: &mut Columns<'_, u128>,
) -> Option<u16> {
    // A key starts with two zero bytes; otherwise it is not an address.
    let [0, 0, a, b, c, d, rest @ ..] = mac.to_le_bytes() else { return None };
    let (heads, lengths) = heads(frames, |_: &[u8; IPV6_HEAD]| true)?;
    let [to_mac, to_rest, kind, length, next] = fields(&heads);
    let spent = spent(length, next);
    let length = _mm512_shuffle_epi8(length, each(0x8080_0203));
    let length = _mm512_add_epi32(length, all(ipv6::HEADER_LEN as u32));
    let room = _mm512_sub_epi32(_mm512_cvtepu16_epi32(lengths), all(ethernet::HEADER_LEN as u32));
    let first = destinations(&heads, to.destinations);
    // Differences to the expected values, in the bits that matter.
    let to_rest = _mm512_xor_si512(to_rest, all(u32::from(u16::from_le_bytes(rest))));
    let kind = _mm512_xor_si512(kind, all(IPV6_KIND.0));
    let differs = [
        _mm512_xor_si512(to_mac, all(u32::from_le_bytes([a, b, c, d]))),
        _mm512_and_si512(to_rest, all(0xffff)),
        _mm512_and_si512(kind, all(IPV6_KIND.1)),
    ];
    let [a, b, c] = differs;
    let differs = _mm512_or_si512(_mm512_or_si512(a, b), c);
    const { assert!(protocol::HOP_BY_HOP == 0) };
    let place = _mm512_sub_epi32(_mm512_and_si512(next, all(0xff)), all(AheadOfFragment::FIRST.into()));
    let differs = _mm512_or_si512(differs, _mm512_and_si512(_mm512_srlv_epi32(all(closer.0), place), all(1)));
    let fits = _mm512_cmple_epu32_mask(length, room) & _mm512_test_epi32_mask(next, all(0xff));
    let common = fits & _mm512_testn_epi32_mask(differs, differs);

    store(to.lengths, _mm512_cvtepi32_epi16(length));
    let ttl = _mm512_and_si512(_mm512_srli_epi32::<8>(next), all(0xff));
    store(to.ttl, _mm512_cvtepi32_epi16(ttl));
    store_words(to.spent, spent);
    Some(common & is_plain(_mm512_srli_epi32::<16>(next)) & is_plain(first))
}

/// Words 0, 1, 3, 4 and 5 of all frames, one vector for each position.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn fields(heads: &[&[u8; IPV6_HEAD]; LANES]) -> [__m512i; 5] {
    let [near, far] = rows::<0, IPV6_HEAD>(heads);
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

/// Writes all destinations, and returns the first word of each as in its frame.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn destinations(heads: &[&[u8; IPV6_HEAD]; LANES], to: &mut [u128; LANES]) -> __m512i {
    let mut fours = [_mm512_setzero_si512(); 4];
    for ((four, heads), to) in fours.iter_mut().zip(heads.as_chunks::<4>().0).zip(to.as_chunks_mut::<4>().0) {
        // SAFETY: each load ends where its array does, and asks for no alignment.
        let [a, b, c, d] =
            heads.map(|head| unsafe { _mm_loadu_si128(head.as_ptr().add(IPV6_DESTINATION).cast()) });
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

/// The words with length, next header and hop limit, with the hop limit decremented.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn spent(length: __m512i, next: __m512i) -> __m512i {
    // Byte by byte: a hop limit of 0 must not borrow from what is next to it.
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
