//! IPv6.
//!
//! ```text
//! frame 0:  mac | mac . | . | . type class | . length | next TTL source | ...   one load a frame, from byte 0 on
//! frame 1:  ...
//!            '-> transposed: first word of all eight, second word of all eight, ...
//! frame 0:  destination | frame 1: destination                                   one more, two to a vector
//! ```

use std::arch::x86_64::*;

use bm_wire::{ethernet, ipv6, protocol};

use super::super::chunk::{CheckResult, Chunk};
use super::super::lanes::Lanes;
use super::super::{Criteria, FastFamily, LANES};
use super::vector::{all, each, fours, load, load_128, store};
use super::{bits, greatest, store_lengths};
use crate::stages::NextHeaders;

/// Bytes of both headers.
const HEAD: usize = <u128 as FastFamily>::HEAD;
/// Where the destination begins.
const DESTINATION: usize = HEAD - size_of::<u128>();
/// The word that starts with the type, and which bits of it matter: the type, and the version after it.
const KIND: (u32, u32) = {
    let [high, low] = ethernet::ethertype::IPV6.to_be_bytes();
    (u32::from_le_bytes([high, low, 0x60, 0]), u32::from_le_bytes([0xff, 0xff, 0xf0, 0]))
};
/// In a choice of bytes: none, a zero.
const NONE: u8 = 0x80;

/// As [`FastFamily::check`](super::super::FastFamily::check).
///
/// # Safety
/// The heads of these groups refer to [`HEAD`] bytes each, which nobody changes meanwhile.
#[target_feature(enable = "avx2")]
pub(in super::super) unsafe fn ipv6(
    chunk: &mut Chunk<u128>,
    groups: usize,
    criteria: Criteria<'_>,
) -> CheckResult {
    let Chunk { lanes: Lanes { heads, frame_lengths, .. }, lengths, destinations, ttl_words, .. } = chunk;
    let (mut plain, mut padded, mut longest) = (0, _mm256_setzero_si256(), _mm256_setzero_si256());
    let columns = heads.0.as_chunks::<LANES>().0.iter().zip(frame_lengths.as_chunks::<LANES>().0);
    let to = lengths.as_chunks_mut::<LANES>().0.iter_mut().zip(destinations.as_chunks_mut::<LANES>().0);
    let to = to.zip(ttl_words.as_chunks_mut::<LANES>().0);
    for (group, ((heads, frame_lengths), ((lengths, destinations), ttl_words))) in
        columns.zip(to).enumerate().take(groups)
    {
        // SAFETY: the caller's promise.
        let heads: [&[u8; HEAD]; LANES] = heads.map(|head| unsafe { &*head.cast() });
        let frame_lengths = _mm256_cvtepu16_epi32(load_128(frame_lengths));
        let headers = Ipv6Headers::read(&heads, frame_lengths, criteria, destinations);
        let has_hop = _mm256_cmpgt_epi32(headers.hop_limit, all(1));
        plain |= bits(_mm256_and_si256(headers.plain, has_hop)) << (group * LANES);
        padded = _mm256_or_si256(padded, _mm256_cmpgt_epi32(headers.room, headers.length));
        longest = _mm256_max_epu32(longest, headers.length);
        store_lengths(lengths, headers.length);
        store(ttl_words, headers.ttl_word);
    }
    CheckResult { plain, longest: greatest(longest), padded: _mm256_testz_si256(padded, padded) == 0 }
}

/// What eight frames say, a number each.
struct Ipv6Headers {
    /// All ones where the frame is plain, but for its hop limit.
    plain: __m256i,
    /// Bytes of the packet, and how many there are for it.
    length: __m256i,
    room: __m256i,
    hop_limit: __m256i,
    /// The words with the hop limit as the packet leaves.
    ttl_word: __m256i,
}

impl Ipv6Headers {
    /// Reads frames of these lengths, and writes their destinations.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn read(
        heads: &[&[u8; HEAD]; LANES],
        frame_lengths: __m256i,
        criteria: Criteria<'_>,
        destinations: &mut [u128; LANES],
    ) -> Self {
        let [_, _, a, b, c, d, rest @ ..] = criteria.mac.to_le_bytes();
        let [to_mac, to_rest, _, kind, length, next] = fields(heads);
        let ttl_word = ttl_after(length, next);
        let length = _mm256_shuffle_epi8(length, each([3, 2, NONE, NONE]));
        let length = _mm256_add_epi32(length, all(ipv6::HEADER_LEN as u32));
        let room = _mm256_sub_epi32(frame_lengths, all(ethernet::HEADER_LEN as u32));
        let first = write_destinations(heads, destinations);
        const { assert!(protocol::HOP_BY_HOP == 0) };
        let next_header = _mm256_and_si256(next, all(0xff));
        let place = _mm256_sub_epi32(next_header, all(NextHeaders::FIRST.into()));
        let ahead = _mm256_and_si256(_mm256_srlv_epi32(all(criteria.excluded.0), place), all(1));
        let special =
            _mm256_or_si256(_mm256_cmpeq_epi32(next_header, all(0)), _mm256_cmpeq_epi32(ahead, all(1)));
        let mut plain = _mm256_cmpeq_epi32(to_mac, all(u32::from_le_bytes([a, b, c, d])));
        for (word, mask, value) in
            [(to_rest, 0xffff, u32::from(u16::from_le_bytes(rest))), (kind, KIND.1, KIND.0)]
        {
            plain =
                _mm256_and_si256(plain, _mm256_cmpeq_epi32(_mm256_and_si256(word, all(mask)), all(value)));
        }
        plain = _mm256_andnot_si256(_mm256_or_si256(special, _mm256_cmpgt_epi32(length, room)), plain);
        plain = _mm256_and_si256(plain, is_unicast(_mm256_srli_epi32::<16>(next)));
        plain = _mm256_and_si256(plain, is_unicast(first));
        let hop_limit = _mm256_and_si256(_mm256_srli_epi32::<8>(next), all(0xff));
        Self { plain, length, room, hop_limit, ttl_word }
    }
}

/// Writes all destinations, and returns the first word of each as in its frame.
#[inline]
#[target_feature(enable = "avx2")]
fn write_destinations(heads: &[&[u8; HEAD]; LANES], to: &mut [u128; LANES]) -> __m256i {
    let mut pairs = [_mm256_setzero_si256(); LANES / 2];
    for ((pair, heads), to) in pairs.iter_mut().zip(heads.as_chunks::<2>().0).zip(to.as_chunks_mut::<2>().0) {
        let [near, far] = heads.map(|head| destination(head));
        *pair = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(near), far);
        store_numbers(to, *pair);
    }
    // Within each half, the first words of frames two apart; then all in order.
    let [a, b, c, d] = pairs;
    let words = _mm256_unpacklo_epi64(_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    _mm256_permutevar8x32_epi32(words, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

/// The last bytes of a head.
#[inline]
#[target_feature(enable = "avx2")]
fn destination(head: &[u8; HEAD]) -> __m128i {
    const { assert!(DESTINATION + size_of::<__m128i>() == HEAD) };
    let Some(bytes) = head.last_chunk::<{ size_of::<__m128i>() }>() else { unreachable!() };
    load_128(bytes)
}

/// Stores two addresses in network order as numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn store_numbers(to: &mut [u128; 2], addresses: __m256i) {
    let turn = _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    let numbers = _mm256_shuffle_epi8(addresses, _mm256_broadcastsi128_si256(turn));
    store(to, numbers);
}

/// The words with length, next header and hop limit, with the hop limit decremented.
#[inline]
#[target_feature(enable = "avx2")]
fn ttl_after(length: __m256i, next: __m256i) -> __m256i {
    // Byte by byte: a hop limit of 0 must not borrow from what is next to it.
    let next = _mm256_sub_epi8(next, all(0x100));
    _mm256_or_si256(_mm256_srli_epi32::<16>(length), _mm256_slli_epi32::<16>(next))
}

/// Lanes whose address, which begins with the lowest byte, is of 2000::/3 or fc00::/7.
#[inline]
#[target_feature(enable = "avx2")]
fn is_unicast(first: __m256i) -> __m256i {
    let is_global = _mm256_cmpeq_epi32(_mm256_and_si256(first, all(0xe0)), all(0x20));
    let is_unique_local = _mm256_cmpeq_epi32(_mm256_and_si256(first, all(0xfe)), all(0xfc));
    _mm256_or_si256(is_global, is_unique_local)
}

/// The words of all frames one vector for each position: an 8 by 8 transposition without the last two
/// rows.
#[inline]
#[target_feature(enable = "avx2")]
fn fields(heads: &[&[u8; HEAD]; LANES]) -> [__m256i; 6] {
    let mut rows = [_mm256_setzero_si256(); LANES];
    for (row, head) in rows.iter_mut().zip(heads) {
        let Some(bytes) = head.first_chunk::<{ size_of::<__m256i>() }>() else { unreachable!() };
        *row = load(bytes);
    }
    // Of four frames each: words 0 and 4, 1 and 5, 2 and 6, 3 and 7.
    let [near0, near1, near2, near3] = fours([rows[0], rows[1], rows[2], rows[3]]);
    let [far0, far1, far2, far3] = fours([rows[4], rows[5], rows[6], rows[7]]);
    [
        _mm256_permute2x128_si256::<0x20>(near0, far0),
        _mm256_permute2x128_si256::<0x20>(near1, far1),
        _mm256_permute2x128_si256::<0x20>(near2, far2),
        _mm256_permute2x128_si256::<0x20>(near3, far3),
        _mm256_permute2x128_si256::<0x31>(near0, far0),
        _mm256_permute2x128_si256::<0x31>(near1, far1),
    ]
}
