//! The search with AVX2: one step down a trie for eight packets at once.

#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::field::Field;
use super::{Matches, Rules, SizedRules, VectorsOn, WORDS, first};
use crate::key::TOGETHER;

/// The first word of the header that is compared, the one with the protocol.
pub const FIRST_WORD: usize = 2;
/// The words of eight headers from [`FIRST_WORD`] on, as numbers: with protocol, source, destination and ports.
pub type Words = [__m256i; 4];

impl VectorsOn<'_> {
    /// What is found for each of eight packets, as [`find_each`](Self::find_each).
    ///
    /// # Safety
    /// Only for callers that have not enabled AVX2 themselves: the CPU must have it.
    #[target_feature(enable = "avx2")]
    pub fn find_eight(&self, words: Words) -> Matches {
        match &self.vectors.sized {
            SizedRules::Four(rules) => rules.find_eight(first(&self.interface), words),
            SizedRules::Eight(rules) => rules.find_eight(self.interface, words),
        }
    }
}

/// Rules, four words in each.
type Vector = [__m256i; WORDS / 4];

/// The rules that eight packets match so far.
struct Matching {
    /// By the fields whose values are equal for all packets, or that no rule distinguishes.
    all: Vector,
    /// By the other fields, if there are any.
    each: Option<[Vector; TOGETHER]>,
}

impl<const W: usize> Rules<W> {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn find_eight(&self, interface: [u64; W], words: Words) -> Matches {
        let mut matching = Matching { all: vector(&interface), each: None };
        for field in &self.fields {
            field.narrow_eight(words, &mut matching);
        }
        let Matching { all, each } = matching;
        if is_empty(all) {
            return Matches::NONE;
        }
        let each = each.unwrap_or([all; TOGETHER]).map(|each| and(each, all));
        if each.iter().all(|each| is_empty(*each)) {
            return Matches::NONE;
        }
        self.meaning(&each.map(|each| {
            let mut words = [0; W];
            for (words, each) in words.as_chunks_mut::<4>().0.iter_mut().zip(each) {
                // SAFETY: the array has as many bytes, and the store needs no alignment.
                unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), each) };
            }
            words
        }))
    }
}

impl<const W: usize> Field<W> {
    /// As [`narrow`](Self::narrow).
    #[inline]
    #[target_feature(enable = "avx2")]
    fn narrow_eight(&self, words: Words, matching: &mut Matching) {
        let (place, levels, root, trie, vectors) = self.parts();
        // The first byte on top.
        let shift = _mm_cvtsi32_si128(24 - place.shift as i32);
        let word = _mm256_sll_epi32(words[place.word - FIRST_WORD], shift);
        let mut at = _mm256_set1_epi32(root as i32);
        let ends = _mm256_set1_epi32(0xff);
        for level in 0..levels {
            // The search has ended for all.
            if _mm256_testz_si256(at, ends) == 1 {
                break;
            }
            let shift = _mm_cvtsi32_si128(24 - 8 * level as i32);
            let byte = _mm256_and_si256(_mm256_srl_epi32(word, shift), at);
            let byte = _mm256_and_si256(byte, ends);
            at = load(trie, _mm256_add_epi32(_mm256_srli_epi32::<8>(at), byte));
        }
        let numbers = _mm256_srli_epi32::<8>(at);
        all_below(numbers, vectors.len());
        let first = _mm_cvtsi128_si32(_mm256_castsi256_si128(numbers));
        let others = _mm256_xor_si256(numbers, _mm256_set1_epi32(first));
        // SAFETY: there are more vectors than any of these numbers, as was just checked; the same below.
        let vector_of = |number: u32| unsafe { vectors.get_unchecked(number as usize) };
        if _mm256_testz_si256(others, others) == 1 {
            matching.all = and(matching.all, vector(vector_of(first as u32)));
            return;
        }
        let each = matching.each.get_or_insert([[_mm256_set1_epi32(-1); WORDS / 4]; TOGETHER]);
        for (each, number) in each.iter_mut().zip(array(numbers)) {
            *each = and(*each, vector(vector_of(number)));
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn and(one: Vector, other: Vector) -> Vector {
    std::array::from_fn(|at| _mm256_and_si256(one[at], other[at]))
}

#[inline]
#[target_feature(enable = "avx2")]
fn is_empty(vector: Vector) -> bool {
    vector.iter().all(|four| _mm256_testz_si256(*four, *four) == 1)
}

/// The words of a vector, and zeros.
#[inline]
#[target_feature(enable = "avx2")]
fn vector<const W: usize>(words: &[u64; W]) -> Vector {
    let words = words.as_chunks::<4>().0;
    std::array::from_fn(|at| words.get(at).map_or(_mm256_setzero_si256(), |words| four(words)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn four(words: &[u64; 4]) -> __m256i {
    // SAFETY: the array has as many bytes, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

/// # Panics
/// If a number, below 2^31, is not below the limit.
#[inline]
#[target_feature(enable = "avx2")]
fn all_below(numbers: __m256i, limit: usize) {
    let above = _mm256_cmpgt_epi32(numbers, _mm256_set1_epi32(limit as i32 - 1));
    assert!(_mm256_testz_si256(above, above) == 1, "tries refer to words and vectors that exist");
}

#[inline]
#[target_feature(enable = "avx2")]
fn array(numbers: __m256i) -> [u32; TOGETHER] {
    let mut array = [0; TOGETHER];
    // SAFETY: the array has as many bytes, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(array.as_mut_ptr().cast(), numbers) };
    array
}

/// The words of a trie at these places.
///
/// # Panics
/// If a place is not in the trie.
#[inline]
#[target_feature(enable = "avx2")]
fn load(trie: &[u32], places: __m256i) -> __m256i {
    all_below(places, trie.len());
    // SAFETY: no place is beyond the trie, as was just checked, nor negative: each is the sum of 24 bits and a byte.
    unsafe { _mm256_i32gather_epi32::<4>(trie.as_ptr().cast(), places) }
}
