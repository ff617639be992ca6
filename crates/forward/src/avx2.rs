//! Vectors of eight words, as the AVX2 forms of [`crate::validate`] and [`crate::plain`] use them.

use std::arch::x86_64::*;

/// Transposes four rows of four words, in each half.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn fours([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab, ab2) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (cd, cd2) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ab2, cd2),
        _mm256_unpackhi_epi64(ab2, cd2),
    ]
}

/// This value in every word.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn all(value: u32) -> __m256i {
    _mm256_set1_epi32(value as i32)
}

/// A selection of four bytes for `_mm256_shuffle_epi8`, the same for every word.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn each([a, b, c, d]: [u8; 4]) -> __m256i {
    let first = _mm256_set1_epi32(i32::from_le_bytes([a, b, c, d]));
    // Each word counts its bytes from its own first; a byte that selects zero still does.
    let words =
        _mm256_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c, 0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c);
    _mm256_or_si256(first, words)
}
