//! Bursts with AVX-512 and with AVX2.
//!
//! ```text
//! 16 lanes:  gather entries -> where each block is, and how far its bitmap is shifted
//! each lane: load bitmap -> shift -> popcount -> load value
//! 16 lanes:  next hop or value, and which need another step
//! ```
//!
//! AVX2 has eight lanes, and loads entries one by one, since its gathers are no faster.
//! One gather of the root loads all its cache lines at the same time. Within blocks single loads are faster than
//! gathers, which are slow on Zen 4, and the sums stay in vectors; prefetching them costs more than it saves if all
//! lanes have blocks (measured). Lanes whose entry is a next hop read the empty block. Lanes that the fast path
//! cannot handle are repeated one by one.

use super::{DEEP, Dir18Fib, INDEX, LANES, NextHop, Root, WIDE, Words, resolve, slot};
use crate::memory::prefetch;
use std::arch::x86_64::*;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

impl Dir18Fib {
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn lookup_avx2(&self, addresses: &[u32], hops: &mut [NextHop]) {
        let (root, words) = self.flat();
        let (by_32, rest) = addresses.as_chunks::<32>();
        let (hops_32, hops_rest) = hops.as_chunks_mut::<32>();
        for (addresses, hops) in by_32.iter().zip(hops_32) {
            lookup_eights::<32, 4>(root, words, addresses, hops);
        }
        let (by_8, rest) = rest.as_chunks::<8>();
        let (hops_8, hops_rest) = hops_rest.as_chunks_mut::<8>();
        for (addresses, hops) in by_8.iter().zip(hops_8) {
            lookup_eights::<8, 1>(root, words, addresses, hops);
        }
        self.lookup_scalar(rest, hops_rest);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn lookup_avx512(&self, addresses: &[u32], hops: &mut [NextHop]) {
        let (root, words) = self.flat();
        let (by_64, rest) = addresses.as_chunks::<LANES>();
        let (hops_64, hops_rest) = hops.as_chunks_mut::<LANES>();
        for (addresses, hops) in by_64.iter().zip(hops_64) {
            lookup_groups::<LANES, { LANES / 16 }>(root, words, addresses, hops);
        }
        let (by_16, rest) = rest.as_chunks::<16>();
        let (hops_16, hops_rest) = hops_rest.as_chunks_mut::<16>();
        for (addresses, hops) in by_16.iter().zip(hops_16) {
            lookup_groups::<16, 1>(root, words, addresses, hops);
        }
        self.lookup_avx2(rest, hops_rest);
    }
}

/// 16 lanes, shared by vector code and single loads.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Lanes([u32; 16]);

/// `N` addresses as `G` groups of 16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq,avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn lookup_groups<const N: usize, const G: usize>(
    root: &Root,
    words: &Words,
    addresses: &[u32; N],
    hops: &mut [NextHop; N],
) {
    let mut entries = [_mm512_setzero_si512(); G];
    // Where each lane's block is, and how far to shift its bitmap, which the value replaces later.
    let (mut blocks, mut values) = ([Lanes([0; 16]); G], [Lanes([0; 16]); G]);
    for (group, addresses) in addresses.as_chunks::<16>().0.iter().enumerate() {
        entries[group] = load_entries(root, addresses, &mut blocks[group], &mut values[group]);
    }
    for (blocks, values) in blocks.iter().zip(&mut values) {
        load_values(words, blocks, values);
    }
    let mut again = 0;
    for (group, hops) in hops.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        again |= u64::from(choose(entries[group], &values[group], hops)) << (group * 16);
    }
    while again != 0 {
        let lane = again.trailing_zeros() as usize % N;
        let entry = root[slot(addresses[lane])].load(Acquire);
        hops[lane] = resolve(words, entry, addresses[lane]);
        again &= again - 1;
    }
}

/// The entries of 16 addresses, the positions of their blocks (0 if there is none), and by how much a bitmap is
/// shifted so that it ends with the lane's bit: lower six bits, the others do not matter.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq,avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn load_entries(root: &Root, addresses: &[u32; 16], blocks: &mut Lanes, shifts: &mut Lanes) -> __m512i {
    // SAFETY: 16 addresses are read; each lane indexes the root by 18 bits, and a gather's load of an
    // aligned entry is whole. Control may store to the root meanwhile, and the compiler, to which a gather is a plain
    // read, may do it twice: the index of a block is masked after it, so both are inside. Both stores fill 16 aligned
    // lanes.
    unsafe {
        let address = _mm512_loadu_si512(addresses.as_ptr().cast());
        let entries = _mm512_i32gather_epi32::<4>(_mm512_srli_epi32::<14>(address), root.as_ptr().cast());
        let is_block = _mm512_movepi32_mask(entries);
        let block = _mm512_maskz_and_epi32(is_block, entries, _mm512_set1_epi32(INDEX as i32));
        _mm512_store_si512(blocks.0.as_mut_ptr().cast(), block);
        // 63 less the bit is its complement.
        let shift = _mm512_xor_si512(_mm512_srli_epi32::<8>(address), _mm512_set1_epi32(-1));
        _mm512_store_si512(shifts.0.as_mut_ptr().cast(), shift);
        entries
    }
}

/// Replaces the shift of each lane by its value.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq,avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn load_values(words: &Words, blocks: &Lanes, values: &mut Lanes) {
    for (block, value) in blocks.0.iter().zip(&mut values.0) {
        *value = load_value(words, *block, *value);
    }
}

/// The value behind a bitmap that is shifted so that it ends with the lane's bit.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn load_value(words: &Words, block: u32, shift: u32) -> u32 {
    debug_assert!((block as usize) < super::WORDS, "an index of a block");
    // SAFETY: `load_entries` and `find_blocks` left only indices below `WORDS`. A rank is 64 at most, so the value
    // lies within the `PAST` words behind. No word of a block is stored to while a reader may be at it.
    unsafe {
        let block = words.as_ptr().add(block as usize);
        let rank = ((*block).load(Relaxed) << (shift & 63)).count_ones() as usize;
        u32::from(block.add(1).cast::<u16>().add(rank).read())
    }
}

/// The next hops of 16 lanes: the entries themselves or the values; and which lanes need another step.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq,avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn choose(entries: __m512i, values: &Lanes, hops: &mut [NextHop; 16]) -> __mmask16 {
    let is_block = _mm512_movepi32_mask(entries);
    // SAFETY: 16 aligned lanes are read, and 16 next hops written, each a u32.
    let value = unsafe {
        let value = _mm512_load_si512(values.0.as_ptr().cast());
        _mm512_storeu_si512(hops.as_mut_ptr().cast(), _mm512_mask_mov_epi32(entries, is_block, value));
        value
    };
    let deep = _mm512_cmpeq_epi32_mask(value, _mm512_set1_epi32(DEEP as i32));
    deep | _mm512_cmpge_epu32_mask(entries, _mm512_set1_epi32(WIDE as i32))
}

/// Eight lanes, shared by vector code and single loads.
#[derive(Clone, Copy)]
#[repr(align(32))]
struct Eight([u32; 8]);

/// `N` addresses as `G` groups of eight.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn lookup_eights<const N: usize, const G: usize>(
    root: &Root,
    words: &Words,
    addresses: &[u32; N],
    hops: &mut [NextHop; N],
) {
    // Where each lane's block is, and how far to shift its bitmap, which the value replaces later.
    let (mut blocks, mut values) = ([Eight([0; 8]); G], [Eight([0; 8]); G]);
    for (hop, address) in hops.iter_mut().zip(addresses) {
        hop.0 = root[slot(*address)].load(Acquire);
    }
    let groups = addresses.as_chunks::<8>().0.iter().zip(hops.as_chunks::<8>().0);
    for ((addresses, entries), (blocks, shifts)) in groups.zip(blocks.iter_mut().zip(&mut values)) {
        find_blocks(addresses, entries, blocks, shifts);
        blocks.0.iter().for_each(|block| prefetch(&words[*block as usize & INDEX as usize]));
    }
    for (blocks, values) in blocks.iter().zip(&mut values) {
        for (block, value) in blocks.0.iter().zip(&mut values.0) {
            *value = load_value(words, *block, *value);
        }
    }
    let mut again = 0;
    for (group, (hops, values)) in hops.as_chunks_mut::<8>().0.iter_mut().zip(&values).enumerate() {
        again |= choose_8(hops, values) << (group * 8);
    }
    while again != 0 {
        let lane = again.trailing_zeros() as usize % N;
        let entry = root[slot(addresses[lane])].load(Acquire);
        hops[lane] = resolve(words, entry, addresses[lane]);
        again &= again - 1;
    }
}

/// The positions of the blocks of eight entries, 0 for those that are next hops, and the shifts as for sixteen.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn find_blocks(addresses: &[u32; 8], entries: &[NextHop; 8], blocks: &mut Eight, shifts: &mut Eight) {
    // SAFETY: eight words are read of each array, and written to each.
    unsafe {
        let entries = _mm256_loadu_si256(entries.as_ptr().cast());
        let block = _mm256_and_si256(entries, _mm256_set1_epi32(INDEX as i32));
        let block = _mm256_and_si256(block, _mm256_srai_epi32::<31>(entries));
        _mm256_store_si256(blocks.0.as_mut_ptr().cast(), block);
        let shift = _mm256_srli_epi32::<8>(_mm256_loadu_si256(addresses.as_ptr().cast()));
        // 63 less the bit is its complement.
        let shift = _mm256_xor_si256(shift, _mm256_set1_epi32(-1));
        _mm256_store_si256(shifts.0.as_mut_ptr().cast(), shift);
    }
}

/// Replaces eight entries by next hops, which come from their blocks where they have one. Returns a bit for each lane
/// that needs another step.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
#[inline]
fn choose_8(hops: &mut [NextHop; 8], values: &Eight) -> u64 {
    // SAFETY: eight words are read of each array, and eight next hops written, each a u32.
    let again = unsafe {
        let entries = _mm256_loadu_si256(hops.as_ptr().cast());
        let value = _mm256_load_si256(values.0.as_ptr().cast());
        // The sign of an entry says whether it names a block.
        let sign = _mm256_castsi256_ps(entries);
        let found = _mm256_blendv_ps(sign, _mm256_castsi256_ps(value), sign);
        _mm256_storeu_si256(hops.as_mut_ptr().cast(), _mm256_castps_si256(found));
        let deep = _mm256_cmpeq_epi32(value, _mm256_set1_epi32(DEEP as i32));
        let wide = _mm256_and_si256(entries, _mm256_slli_epi32::<1>(entries));
        _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_or_si256(deep, wide)))
    };
    u64::from(again as u8)
}
