//! Bursts with AVX-512, and the scalar way with BMI2 and POPCNT.
//!
//! ```text
//! 16 lanes: gather entries -> gather 8 + 8 bitmaps -> popcount -> gather values
//! ```
//!
//! Gathers are slow on Zen 4 when all is in the first cache, but here the lines come from the second and
//! third, and a prefetch ahead of a gather, or loads one by one in its place, cost more than they save
//! (measured). Lanes whose entry is a next hop take no part in the later gathers. Lanes that the quick
//! way cannot tell are done again, one by one.

use super::{DEEP, Dir18Fib, INDEX, LANES, NextHop, Root, WIDE, Words, resolve, slot};
use std::arch::x86_64::*;
use std::sync::atomic::Ordering::Acquire;

impl Dir18Fib {
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn lookup_avx2(&self, addresses: &[u32], hops: &mut [NextHop]) {
        self.lookup_scalar(addresses, hops);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn lookup_avx512(&self, addresses: &[u32], hops: &mut [NextHop]) {
        let flat = self.flat();
        let (by_64, rest) = addresses.as_chunks::<LANES>();
        let (hops_64, hops_rest) = hops.as_chunks_mut::<LANES>();
        for (addresses, hops) in by_64.iter().zip(hops_64) {
            lookup_groups::<LANES, { LANES / 16 }>(flat, addresses, hops);
        }
        let (by_16, rest) = rest.as_chunks::<16>();
        let (hops_16, hops_rest) = hops_rest.as_chunks_mut::<16>();
        for (addresses, hops) in by_16.iter().zip(hops_16) {
            lookup_groups::<16, 1>(flat, addresses, hops);
        }
        self.lookup_avx2(rest, hops_rest);
    }
}

/// `N` addresses as `G` groups of 16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq,avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn lookup_groups<const N: usize, const G: usize>(
    (root, words): (&Root, &Words),
    addresses: &[u32; N],
    hops: &mut [NextHop; N],
) {
    let mut entries = [_mm512_setzero_si512(); G];
    for (entries, addresses) in entries.iter_mut().zip(addresses.as_chunks::<16>().0) {
        // SAFETY: 16 addresses are read; each lane indexes the root by 18 bits, and a gather's load of
        // an aligned entry is whole.
        *entries = unsafe {
            let address = _mm512_loadu_si512(addresses.as_ptr().cast());
            _mm512_i32gather_epi32::<4>(_mm512_srli_epi32::<14>(address), root.as_ptr().cast())
        };
    }
    let mut again = 0;
    let groups = addresses.as_chunks::<16>().0.iter().zip(hops.as_chunks_mut::<16>().0);
    for (group, (addresses, hops)) in groups.enumerate() {
        let (found, unsure) = values(words, entries[group], addresses);
        // SAFETY: 16 next hops, each a u32.
        unsafe { _mm512_storeu_si512(hops.as_mut_ptr().cast(), found) };
        again |= u64::from(unsure) << (group * 16);
    }
    while again != 0 {
        let lane = again.trailing_zeros() as usize % N;
        let entry = root[slot(addresses[lane])].load(Acquire);
        hops[lane] = resolve(words, entry, addresses[lane]);
        again &= again - 1;
    }
}

/// What 16 entries lead to for these addresses, and which of it needs another way.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq,avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn values(words: &Words, entries: __m512i, addresses: &[u32; 16]) -> (__m512i, __mmask16) {
    let is_block = _mm512_movepi32_mask(entries);
    let block = _mm512_and_si512(entries, _mm512_set1_epi32(INDEX as i32));
    // SAFETY: 16 addresses are read.
    let address = unsafe { _mm512_loadu_si512(addresses.as_ptr().cast()) };
    let bit = _mm512_and_si512(_mm512_srli_epi32::<8>(address), _mm512_set1_epi32(63));
    let low = ranks(words, is_block as u8, _mm512_castsi512_si256(block), _mm512_castsi512_si256(bit));
    let high = ranks(
        words,
        (is_block >> 8) as u8,
        _mm512_extracti64x4_epi64::<1>(block),
        _mm512_extracti64x4_epi64::<1>(bit),
    );
    let rank = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
    // In units of two bytes: four a word, and the bitmap first.
    let place = _mm512_add_epi32(_mm512_slli_epi32::<2>(block), _mm512_add_epi32(rank, _mm512_set1_epi32(4)));
    // SAFETY: a rank is 64 at most and a block's index below `WORDS`, so four bytes from here lie within
    // the `PAST` words behind. No word of a block is stored to while a reader may be at it.
    let pair = unsafe {
        _mm512_mask_i32gather_epi32::<2>(_mm512_setzero_si512(), is_block, place, words.as_ptr().cast())
    };
    let value = _mm512_and_si512(pair, _mm512_set1_epi32(0xffff));
    let deep = _mm512_cmpeq_epi32_mask(value, _mm512_set1_epi32(DEEP as i32));
    let wide = _mm512_cmpge_epu32_mask(entries, _mm512_set1_epi32(WIDE as i32));
    (_mm512_mask_mov_epi32(entries, is_block, value), deep | wide)
}

/// Which values of the blocks belong to these bits, in eight lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq,avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn ranks(words: &Words, is_block: __mmask8, block: __m256i, bit: __m256i) -> __m256i {
    // SAFETY: a block's index is below `WORDS`.
    let bitmap = unsafe {
        _mm512_mask_i32gather_epi64::<8>(_mm512_setzero_si512(), is_block, block, words.as_ptr().cast())
    };
    let up_to = _mm512_sllv_epi64(_mm512_set1_epi64(2), _mm512_cvtepu32_epi64(bit));
    let up_to = _mm512_sub_epi64(up_to, _mm512_set1_epi64(1));
    _mm512_cvtepi64_epi32(_mm512_popcnt_epi64(_mm512_and_si512(bitmap, up_to)))
}
