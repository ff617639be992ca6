//! Vectors of eight words.

use std::arch::x86_64::*;

use crate::compiled::LocalFilter;

/// What vectors are loaded from and stored to.
///
/// # Safety
/// Numbers, for which any bytes are a value, without padding.
pub(super) unsafe trait Number: Copy {}

// SAFETY: a number.
unsafe impl Number for u8 {}
// SAFETY: a number.
unsafe impl Number for u16 {}
// SAFETY: a number.
unsafe impl Number for u32 {}
// SAFETY: a number.
unsafe impl Number for u128 {}
// SAFETY: four numbers.
unsafe impl Number for [u8; 4] {}

/// The bytes of an array.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load_128<T: Number, const N: usize>(from: &[T; N]) -> __m128i {
    const { assert!(size_of::<[T; N]>() == size_of::<__m128i>()) };
    // SAFETY: the array is as many bytes as the vector by the assertion, and this load needs no alignment.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

/// The bytes of an array.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load<T: Number, const N: usize>(from: &[T; N]) -> __m256i {
    const { assert!(size_of::<[T; N]>() == size_of::<__m256i>()) };
    // SAFETY: the array is as many bytes as the vector by the assertion, and this load needs no alignment.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

/// Fills an array.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store_128<T: Number, const N: usize>(to: &mut [T; N], vector: __m128i) {
    const { assert!(size_of::<[T; N]>() == size_of::<__m128i>()) };
    // SAFETY: the array is as many bytes as the vector by the assertion, any bytes are numbers, and this store asks for
    // no alignment.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), vector) };
}

/// Fills an array.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn store<T: Number, const N: usize>(to: &mut [T; N], vector: __m256i) {
    const { assert!(size_of::<[T; N]>() == size_of::<__m256i>()) };
    // SAFETY: the array is as many bytes as the vector by the assertion, any bytes are numbers, and this store asks for
    // no alignment.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), vector) };
}

/// 1 for each address, in host order, that may be one of this machine, 0 for others.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn may_be_local(addresses: __m256i, local: &LocalFilter) -> __m256i {
    let hash = _mm256_mullo_epi32(addresses, all(LocalFilter::FACTOR));
    let hash = _mm256_srli_epi32::<{ 32 - LocalFilter::HASH_BITS as i32 }>(hash);
    // SAFETY: a hash above its low five bits is the index of a word, four bytes long, of the filter's bits; it is in
    // bounds since the hash has as many values as there are bits.
    let words =
        unsafe { _mm256_i32gather_epi32::<4>(local.bits().as_ptr().cast(), _mm256_srli_epi32::<5>(hash)) };
    let bit = _mm256_srlv_epi32(words, _mm256_and_si256(hash, all(31)));
    _mm256_and_si256(bit, all(1))
}

/// Transposes four rows of four words, in each half.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn fours([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (ab, ab2) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (cd, cd2) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ab2, cd2),
        _mm256_unpackhi_epi64(ab2, cd2),
    ]
}

/// Four words of each of eight frames from this offset on, one vector for each position.
///
/// # Safety
/// 16 bytes from the offset on are read of each frame.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn columns(heads: &[*mut u8; 8], from: usize) -> [__m256i; 4] {
    let mut rows = [_mm256_setzero_si256(); 4];
    for (lane, row) in rows.iter_mut().enumerate() {
        // SAFETY: the caller's promise; the loads ask for no alignment.
        let [near, far] =
            [lane, lane + 4].map(|lane| unsafe { _mm_loadu_si128(heads[lane].add(from).cast()) });
        *row = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(near), far);
    }
    fours(rows)
}

/// This value in every word.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn all(value: u32) -> __m256i {
    _mm256_set1_epi32(value as i32)
}

/// A selection of four bytes for `_mm256_shuffle_epi8`, the same for every word.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn each([a, b, c, d]: [u8; 4]) -> __m256i {
    let first = _mm256_set1_epi32(i32::from_le_bytes([a, b, c, d]));
    // Each word counts its bytes from its own first; a byte that selects zero still does.
    let words =
        _mm256_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c, 0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c);
    _mm256_or_si256(first, words)
}
