//! Bursts with AVX-512, and the scalar way with BMI2 and POPCNT.
//!
//! ```text
//! 16 lanes: gather entries -> where the blocks are -> 8 + 8 bitmaps -> popcount -> 8 + 8 value words
//! ```
//!
//! Entries are gathered; bitmaps and values are loaded one by one into vectors, since gathers of eight
//! bytes cost more than they save on Zen 4. A lane whose entry is a next hop reads the empty block,
//! which is always in the cache. Lanes with wide blocks are done again, one by one.

use super::{Dir18Fib, INDEX, LANES, NextHop, WIDE, Words, resolve};
use std::arch::x86_64::*;
use std::sync::atomic::Ordering::Relaxed;

impl Dir18Fib {
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn lookup_avx2(&self, addresses: &[u32], hops: &mut [NextHop]) {
        for (addresses, hops) in addresses.chunks(LANES).zip(hops.chunks_mut(LANES)) {
            self.lookup_lanes(addresses, hops);
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn lookup_avx512(&self, addresses: &[u32], hops: &mut [NextHop]) {
        let (by_64, rest) = addresses.as_chunks::<64>();
        let (hops_64, hops_rest) = hops.as_chunks_mut::<64>();
        for (addresses, hops) in by_64.iter().zip(hops_64) {
            self.lookup_groups::<64, 4>(addresses, hops);
        }
        let (by_16, rest) = rest.as_chunks::<16>();
        let (hops_16, hops_rest) = hops_rest.as_chunks_mut::<16>();
        for (addresses, hops) in by_16.iter().zip(hops_16) {
            self.lookup_groups::<16, 1>(addresses, hops);
        }
        self.lookup_avx2(rest, hops_rest);
    }

    /// `N` addresses as `G` groups of 16.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn lookup_groups<const N: usize, const G: usize>(&self, addresses: &[u32; N], hops: &mut [NextHop; N]) {
        let (root, words) = self.flat();
        let mut places = [0u32; N];
        let mut entries = [_mm512_setzero_si512(); G];
        for group in 0..G {
            // SAFETY: 16 addresses of the group lie in `addresses`, 16 places in `places`; each lane
            // indexes the root by 18 bits, and a gather of one aligned entry is one load.
            let (found, of_group) = unsafe {
                let address = _mm512_loadu_si512(addresses.as_ptr().add(group * 16).cast());
                let slots = _mm512_srli_epi32::<14>(address);
                (
                    _mm512_i32gather_epi32::<4>(slots, root.as_ptr().cast()),
                    places.as_mut_ptr().add(group * 16),
                )
            };
            let index = _mm512_set1_epi32(INDEX as i32);
            let place = _mm512_maskz_and_epi32(_mm512_movepi32_mask(found), found, index);
            // SAFETY: 16 places from here, as above.
            unsafe { _mm512_storeu_si512(of_group.cast(), place) };
            entries[group] = found;
            places[group * 16..][..16]
                .iter()
                .for_each(|place| super::prefetch(&words[(place & INDEX) as usize]));
        }
        let mut any_wide = 0;
        for (group, entries) in entries.into_iter().enumerate() {
            let wide = _mm512_cmpge_epu32_mask(entries, _mm512_set1_epi32(WIDE as i32));
            any_wide |= u64::from(wide) << (group * 16);
            let low = eight(words, lanes(addresses, group * 2), lanes(&places, group * 2));
            let high = eight(words, lanes(addresses, group * 2 + 1), lanes(&places, group * 2 + 1));
            let values = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            let is_block = _mm512_movepi32_mask(entries);
            let found = _mm512_mask_mov_epi32(entries, is_block, values);
            // SAFETY: 16 next hops of the group lie in `hops`, and a next hop is a u32.
            unsafe { _mm512_storeu_si512(hops.as_mut_ptr().add(group * 16).cast(), found) };
        }
        while any_wide != 0 {
            let lane = any_wide.trailing_zeros() as usize % N;
            let entry = root[super::slot(addresses[lane])].load(super::Acquire);
            hops[lane] = resolve(words, entry, addresses[lane]);
            any_wide &= any_wide - 1;
        }
    }
}

/// Eight of `all`.
#[inline(always)]
fn lanes<const N: usize>(all: &[u32; N], eighth: usize) -> &[u32; 8] {
    all[eighth * 8..][..8].try_into().expect("eight")
}

/// The values of eight addresses in the narrow blocks at `places`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq,avx2")]
fn eight(words: &Words, addresses: &[u32; 8], places: &[u32; 8]) -> __m256i {
    let load = |places: &[u32; 8], past: usize| {
        let at = |lane: usize| words[(places[lane] & INDEX) as usize + past].load(Relaxed) as i64;
        _mm512_set_epi64(at(7), at(6), at(5), at(4), at(3), at(2), at(1), at(0))
    };
    // SAFETY: both have eight of four bytes.
    let (address, place) = unsafe {
        (_mm256_loadu_si256(addresses.as_ptr().cast()), _mm256_loadu_si256(places.as_ptr().cast()))
    };
    let bit = _mm256_and_si256(_mm256_srli_epi32::<8>(address), _mm256_set1_epi32(63));
    let up_to = _mm512_sllv_epi64(_mm512_set1_epi64(2), _mm512_cvtepu32_epi64(bit));
    let up_to = _mm512_sub_epi64(up_to, _mm512_set1_epi64(1));
    let rank = _mm512_popcnt_epi64(_mm512_and_si512(load(places, 0), up_to));
    let by_four = _mm512_cvtepi64_epi32(_mm512_srli_epi64::<2>(rank));
    let mut holding = [0u32; 8];
    // SAFETY: eight of four bytes.
    unsafe { _mm256_storeu_si256(holding.as_mut_ptr().cast(), _mm256_add_epi32(place, by_four)) };
    let shift = _mm512_slli_epi64::<4>(_mm512_and_si512(rank, _mm512_set1_epi64(3)));
    let value = _mm512_srlv_epi64(load(&holding, 1), shift);
    _mm256_and_si256(_mm512_cvtepi64_epi32(value), _mm256_set1_epi32(0xffff))
}
