//! The check with AVX2: eight frames at once.

mod filter;
mod ipv4;
mod ipv6;
mod vector;

use std::arch::x86_64::*;

use super::LANES;
use vector::store_128;

pub(super) use filter::filter;
pub(super) use ipv4::ipv4;
pub(super) use ipv6::ipv6;

/// Stores eight lengths, which are below 65,536.
#[inline]
#[target_feature(enable = "avx2")]
fn store_lengths(to: &mut [u16; LANES], lengths: __m256i) {
    let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(lengths, lengths));
    store_128(to, _mm256_castsi256_si128(both));
}

/// The greatest of eight numbers below 65,536.
#[inline]
#[target_feature(enable = "avx2")]
fn greatest(numbers: __m256i) -> u16 {
    let four = _mm_max_epu32(_mm256_castsi256_si128(numbers), _mm256_extracti128_si256::<1>(numbers));
    let two = _mm_max_epu32(four, _mm_unpackhi_epi64(four, four));
    let one = _mm_max_epu32(two, _mm_shuffle_epi32::<1>(two));
    u16::try_from(_mm_cvtsi128_si32(one)).unwrap_or(u16::MAX)
}

/// A bit for each lane that is all ones.
#[inline]
#[target_feature(enable = "avx2")]
fn bits(lanes: __m256i) -> u32 {
    _mm256_movemask_ps(_mm256_castsi256_ps(lanes)) as u32
}
