//! IPv6: the checks of the general path's AVX2 form, and that of the hop limit.

use std::arch::x86_64::*;

use super::super::{Asked, Checked, Chunk, LANES, Lanes};
use super::{bits, greatest, store_lengths};
use crate::avx2::{all, load_128, store};
use crate::rewrite::IPV6_HEAD as HEAD;
use crate::validate::vectors::Ipv6Headers;

/// As [`PlainFamily::check`](super::super::PlainFamily::check).
///
/// # Safety
/// The heads of these groups refer to [`HEAD`] bytes each, which nobody changes meanwhile.
#[target_feature(enable = "avx2")]
pub(in super::super) unsafe fn ipv6(chunk: &mut Chunk<u128>, groups: usize, asked: Asked<'_>) -> Checked {
    let Chunk { lanes: Lanes { heads, frame_lengths, .. }, lengths, destinations, spent, .. } = chunk;
    let (mut plain, mut padded, mut longest) = (0, _mm256_setzero_si256(), _mm256_setzero_si256());
    let columns = heads.0.as_chunks::<LANES>().0.iter().zip(frame_lengths.as_chunks::<LANES>().0);
    let to = lengths.as_chunks_mut::<LANES>().0.iter_mut().zip(destinations.as_chunks_mut::<LANES>().0);
    let to = to.zip(spent.as_chunks_mut::<LANES>().0);
    for (group, ((heads, frame_lengths), ((lengths, destinations), spent))) in
        columns.zip(to).enumerate().take(groups)
    {
        // SAFETY: the caller's promise.
        let heads: [&[u8; HEAD]; LANES] = heads.map(|head| unsafe { &*head.cast() });
        let frame_lengths = _mm256_cvtepu16_epi32(load_128(frame_lengths));
        let headers = Ipv6Headers::read(&heads, frame_lengths, (asked.mac, asked.closer), destinations);
        let has_hop = _mm256_cmpgt_epi32(headers.hop_limit, all(1));
        plain |= bits(_mm256_and_si256(headers.common, has_hop)) << (group * LANES);
        padded = _mm256_or_si256(padded, _mm256_cmpgt_epi32(headers.room, headers.length));
        longest = _mm256_max_epu32(longest, headers.length);
        store_lengths(lengths, headers.length);
        store(spent, headers.spent);
    }
    Checked { plain, longest: greatest(longest), padded: _mm256_testz_si256(padded, padded) == 0 }
}
