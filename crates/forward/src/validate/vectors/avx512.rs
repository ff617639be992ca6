//! The AVX-512 forms: sixteen frames.

mod ipv4;
mod ipv6;

use std::arch::x86_64::*;

use bm_frame::Frame;

pub(super) use ipv4::common_ipv4;
pub(super) use ipv6::common_ipv6;

/// Frames at once.
const LANES: usize = 16;

/// The first bytes of each frame, and its length; `None` if one is missing, too short, or does not start as expected.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn heads<const HEAD: usize>(
    frames: &[Option<Frame>; LANES],
    begins_well: impl Fn(&[u8; HEAD]) -> bool,
) -> Option<([&[u8; HEAD]; LANES], __m256i)> {
    let mut heads = [&[0; HEAD]; LANES];
    let mut lengths = [0; LANES];
    for ((head, length), frame) in heads.iter_mut().zip(&mut lengths).zip(frames) {
        let data = frame.as_ref()?.data();
        (*head, *length) = (data.first_chunk()?, data.len() as i16);
        if !begins_well(head) {
            return None;
        }
    }
    let [a, b, c, d, e, f, g, h, rest @ ..] = lengths;
    let near = _mm_setr_epi16(a, b, c, d, e, f, g, h);
    let [a, b, c, d, e, f, g, h] = rest;
    Some((heads, _mm256_set_m128i(_mm_setr_epi16(a, b, c, d, e, f, g, h), near)))
}

/// Rows of 32 bytes from `from` on, of two frames each.
///
/// Two frames per row, four apart, so that the words of all come out in order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn rows<const FROM: usize, const HEAD: usize>(heads: &[&[u8; HEAD]; LANES]) -> [[__m512i; 4]; 2] {
    const { assert!(FROM + size_of::<__m256i>() <= HEAD) };
    let row = |first: usize| {
        // SAFETY: both loads end within the arrays by the assertion, and ask for no alignment.
        let [near, far] =
            [first, first + 4].map(|at| unsafe { _mm256_loadu_si256(heads[at].as_ptr().add(FROM).cast()) });
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(near), far)
    };
    [[row(0), row(1), row(2), row(3)], [row(8), row(9), row(10), row(11)]]
}

/// Of the words that two [`fours`] found at one position, those of the first half of each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn first_words(near: __m512i, far: __m512i) -> __m512i {
    _mm512_shuffle_i64x2::<0b10_00_10_00>(near, far)
}

/// Those of the second half.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn second_words(near: __m512i, far: __m512i) -> __m512i {
    _mm512_shuffle_i64x2::<0b11_01_11_01>(near, far)
}

/// Four rows transposed within each quarter: words 0, 1, 2 and 3 of each, and for the row's other half words 4, 5, 6
/// and 7.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn fours([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, ab2) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (cd, cd2) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(ab2, cd2),
        _mm512_unpackhi_epi64(ab2, cd2),
    ]
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn all(value: u32) -> __m512i {
    _mm512_set1_epi32(value as i32)
}

/// The same choice of four bytes for every word: each pair of digits is a byte of the word, or 0x80 for zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn each(choice: u32) -> __m512i {
    // A quarter counts its bytes from its own first, and its words start four bytes apart.
    let words = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c));
    _mm512_or_si512(all(choice), words)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store(to: &mut [u16; LANES], vector: __m256i) {
    // SAFETY: the array is as many bytes as the vector, and this store asks for no alignment.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), vector) };
}

/// Stores words, or words as four bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store_words<T: Word>(to: &mut [T; LANES], vector: __m512i) {
    const { assert!(size_of::<[T; LANES]>() == size_of::<__m512i>()) };
    // SAFETY: the array is as many bytes as the vector by the assertion, any bytes are a `Word`, and this store asks
    // for no alignment.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), vector) };
}

/// Four bytes, whatever they are.
trait Word {}
impl Word for u32 {}
impl Word for [u8; 4] {}
