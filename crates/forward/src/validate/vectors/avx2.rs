//! The AVX2 forms: eight frames.

mod ipv4;
mod ipv6;

use std::arch::x86_64::*;

use bm_frame::Frame;

use super::LANES;
use crate::avx2::{all, each, fours, load, load_128, may_be_local, store, store_128};

pub(super) use ipv4::common_ipv4;
pub(crate) use ipv6::Ipv6Headers;
pub(super) use ipv6::common_ipv6;

/// In a choice of bytes: none, a zero.
const NONE: u8 = 0x80;

/// The first bytes of each frame, and how long each is.
#[inline]
#[target_feature(enable = "avx2")]
fn heads<const HEAD: usize>(frames: &[Option<Frame>; LANES]) -> Option<([&[u8; HEAD]; LANES], __m256i)> {
    let mut heads = [&[0; HEAD]; LANES];
    let mut lengths = [0; LANES];
    for ((head, length), frame) in heads.iter_mut().zip(&mut lengths).zip(frames) {
        let data = frame.as_ref()?.data();
        (*head, *length) = (data.first_chunk()?, data.len() as i32);
    }
    let [a, b, c, d, e, f, g, h] = lengths;
    Some((heads, _mm256_setr_epi32(a, b, c, d, e, f, g, h)))
}

/// The words of all frames from `FROM` on, one vector for each position: an 8 by 8 transposition without the last two
/// rows.
#[inline]
#[target_feature(enable = "avx2")]
fn fields<const FROM: usize, const HEAD: usize>(heads: &[&[u8; HEAD]; LANES]) -> [__m256i; 6] {
    const { assert!(FROM + size_of::<__m256i>() <= HEAD) };
    let mut rows = [_mm256_setzero_si256(); LANES];
    for (row, head) in rows.iter_mut().zip(heads) {
        let Some(bytes) = head[FROM..].first_chunk::<{ size_of::<__m256i>() }>() else { unreachable!() };
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

#[inline]
#[target_feature(enable = "avx2")]
fn halves(vector: __m128i) -> [u16; LANES] {
    let mut halves = [0; LANES];
    store_128(&mut halves, vector);
    halves
}

/// A bit for each lane that is all ones.
#[inline]
#[target_feature(enable = "avx2")]
fn bits(lanes: __m256i) -> u8 {
    _mm256_movemask_ps(_mm256_castsi256_ps(lanes)) as u8
}
