//! What filters are asked about: the words of IPv4 headers from the one with the protocol on.

use std::arch::x86_64::*;

use bm_filter::{FIRST_WORD, Header, Matches, VectorsOn, Words};
use bm_wire::ethernet;

use super::super::LANES;
use super::vector::{columns, each, load_128};
use crate::filter::COMPLETE;

/// Frames of so many bytes have all that bit vectors of filters are compared with.
const WHOLE: usize = ethernet::HEADER_LEN + size_of::<Header>();
/// Where the words are in a frame: the last ones that rules are compared with.
const LOAD: usize = ethernet::HEADER_LEN + size_of::<u32>() * FIRST_WORD;
const _: () = assert!(LOAD + size_of::<__m128i>() == WHOLE);

/// What vectors find for eight IPv4 packets without options, and which of the packets have a complete transport header;
/// `None` if a frame does not have all that is compared.
///
/// # Safety
/// The CPU has AVX2, and each head refers to a frame of that length, which nobody changes meanwhile.
#[target_feature(enable = "avx2")]
pub(in super::super) unsafe fn filter(
    heads: &[*mut u8; LANES],
    frames: &[u16; LANES],
    packets: &[u16; LANES],
    vectors: &VectorsOn<'_>,
) -> Option<(Matches, u8)> {
    if at_least(frames, WHOLE as u16) != u8::MAX {
        return None;
    }
    // SAFETY: the frames are at least as long as the loads reach.
    let words: Words = unsafe { columns(heads, LOAD) };
    let found = vectors.find_eight(words.map(|word| _mm256_shuffle_epi8(word, each([3, 2, 1, 0]))));
    Some((found, at_least(packets, COMPLETE)))
}

/// A bit for each length that is not below the least one.
#[inline]
#[target_feature(enable = "avx2")]
fn at_least(lengths: &[u16; LANES], least: u16) -> u8 {
    let lengths = load_128(lengths);
    let is_longer = _mm_cmpeq_epi16(_mm_max_epu16(lengths, _mm_set1_epi16(least as i16)), lengths);
    _mm_movemask_epi8(_mm_packs_epi16(is_longer, is_longer)) as u8
}
