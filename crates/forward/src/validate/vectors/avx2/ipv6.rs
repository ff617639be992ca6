//! IPv6.
//!
//! ```text
//! frame 0:  mac | mac . | . | . type class | . length | next TTL source | ...   one load a frame, from byte 0 on
//! frame 1:  ...
//!            '-> turned round: first word of all eight, second word of all eight, ...
//! frame 0:  destination | frame 1: destination                                   one more, two to a vector
//! ```

use std::arch::x86_64::*;

use bm_frame::Frame;
use bm_wire::{ethernet, ipv6, protocol};

use super::super::{Columns, IPV6_DESTINATION, IPV6_HEAD, IPV6_KIND};
use super::{LANES, NONE, all, bits, each, fields, halves, heads, load_128, store};
use crate::compiled::MacKey;
use crate::validate::AheadOfFragment;

/// As [`common_ipv6`](super::super::common_ipv6).
#[target_feature(enable = "avx2")]
pub(in super::super) fn common_ipv6(
    frames: &[[Option<Frame>; LANES]],
    asked: (MacKey, AheadOfFragment),
    mut to: Columns<'_, u128>,
) -> Option<u16> {
    let mut common = 0;
    for (at, frames) in frames.iter().enumerate() {
        common |= u16::from(eight(frames, asked, to.eight(at)?)?) << (at * LANES);
    }
    Some(common)
}

/// Which of eight frames are of the common sort.
#[inline]
#[target_feature(enable = "avx2")]
fn eight(
    frames: &[Option<Frame>; LANES],
    asked: (MacKey, AheadOfFragment),
    to: Columns<'_, u128, LANES>,
) -> Option<u8> {
    // A key starts with two zero bytes; otherwise it is not an address.
    let [0, 0, ..] = asked.0.to_le_bytes() else { return None };
    let (heads, lengths) = heads::<IPV6_HEAD>(frames)?;
    let Ipv6Headers { common, length, hop_limit, spent, .. } =
        Ipv6Headers::read(&heads, lengths, asked, to.destinations);
    // Four of each, then the other four; transposed, all of each.
    let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(length, hop_limit));
    *to.lengths = halves(_mm256_castsi256_si128(both));
    *to.ttl = halves(_mm256_extracti128_si256::<1>(both));
    store(to.spent, spent);
    Some(bits(common))
}

/// What eight frames say, a number each.
pub(crate) struct Ipv6Headers {
    /// All ones where the frame is untagged, for the MAC address, and of the common sort.
    pub common: __m256i,
    /// Bytes of the packet, and how many there are for it.
    pub length: __m256i,
    pub room: __m256i,
    pub hop_limit: __m256i,
    /// The words with the hop limit as the packet leaves.
    pub spent: __m256i,
}

impl Ipv6Headers {
    /// Reads frames of these lengths, and writes their destinations.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn read(
        heads: &[&[u8; IPV6_HEAD]; LANES],
        frame_lengths: __m256i,
        (mac, closer): (MacKey, AheadOfFragment),
        destinations: &mut [u128; LANES],
    ) -> Self {
        let [_, _, a, b, c, d, rest @ ..] = mac.to_le_bytes();
        let [to_mac, to_rest, _, kind, length, next] = fields::<0, IPV6_HEAD>(heads);
        let spent = spent(length, next);
        let length = _mm256_shuffle_epi8(length, each([3, 2, NONE, NONE]));
        let length = _mm256_add_epi32(length, all(ipv6::HEADER_LEN as u32));
        let room = _mm256_sub_epi32(frame_lengths, all(ethernet::HEADER_LEN as u32));
        let first = write_destinations(heads, destinations);
        const { assert!(protocol::HOP_BY_HOP == 0) };
        let next_header = _mm256_and_si256(next, all(0xff));
        let place = _mm256_sub_epi32(next_header, all(AheadOfFragment::FIRST.into()));
        let ahead = _mm256_and_si256(_mm256_srlv_epi32(all(closer.0), place), all(1));
        let special =
            _mm256_or_si256(_mm256_cmpeq_epi32(next_header, all(0)), _mm256_cmpeq_epi32(ahead, all(1)));
        let mut common = _mm256_cmpeq_epi32(to_mac, all(u32::from_le_bytes([a, b, c, d])));
        for (word, mask, value) in
            [(to_rest, 0xffff, u32::from(u16::from_le_bytes(rest))), (kind, IPV6_KIND.1, IPV6_KIND.0)]
        {
            common =
                _mm256_and_si256(common, _mm256_cmpeq_epi32(_mm256_and_si256(word, all(mask)), all(value)));
        }
        common = _mm256_andnot_si256(_mm256_or_si256(special, _mm256_cmpgt_epi32(length, room)), common);
        common = _mm256_and_si256(common, is_plain(_mm256_srli_epi32::<16>(next)));
        common = _mm256_and_si256(common, is_plain(first));
        let hop_limit = _mm256_and_si256(_mm256_srli_epi32::<8>(next), all(0xff));
        Self { common, length, room, hop_limit, spent }
    }
}

/// Writes all destinations, and returns the first word of each as in its frame.
#[inline]
#[target_feature(enable = "avx2")]
fn write_destinations(heads: &[&[u8; IPV6_HEAD]; LANES], to: &mut [u128; LANES]) -> __m256i {
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
fn destination(head: &[u8; IPV6_HEAD]) -> __m128i {
    const { assert!(IPV6_DESTINATION + size_of::<__m128i>() == IPV6_HEAD) };
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
fn spent(length: __m256i, next: __m256i) -> __m256i {
    // Byte by byte: a hop limit of 0 must not borrow from what is next to it.
    let next = _mm256_sub_epi8(next, all(0x100));
    _mm256_or_si256(_mm256_srli_epi32::<16>(length), _mm256_slli_epi32::<16>(next))
}

/// Lanes whose address, which begins with the lowest byte, is of 2000::/3 or fc00::/7.
#[inline]
#[target_feature(enable = "avx2")]
fn is_plain(first: __m256i) -> __m256i {
    let begins = |with: u32, bits: u32| _mm256_cmpeq_epi32(_mm256_and_si256(first, all(bits)), all(with));
    _mm256_or_si256(begins(0x20, 0xe0), begins(0xfc, 0xfe))
}
