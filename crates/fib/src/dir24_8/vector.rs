//! Bursts with AVX-512: the root is gathered after prefetches, the few blocks are read one by one.
//!
//! ```text
//! 64 lanes: prefetch lines of the root -> 4 gathers of 16 -> lanes that name a block, one by one
//! ```
//!
//! A gather by itself waits for its slowest cache line, and four fill the CPU's window; with prefetched lines the
//! Zipf pattern is an eighth faster, and nothing slower (measured).

use super::{Dir24_8Fib, LANES, NextHop, place};
use crate::memory::prefetch;
use std::arch::x86_64::*;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::fence;

impl Dir24_8Fib {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn lookup_avx512(&self, addresses: &[u32], hops: &mut [NextHop]) {
        let (by_64, rest) = addresses.as_chunks::<LANES>();
        let (hops_64, hops_rest) = hops.as_chunks_mut::<LANES>();
        for (addresses, hops) in by_64.iter().zip(hops_64) {
            self.lookup_groups::<LANES>(addresses, hops);
        }
        let (by_16, rest) = rest.as_chunks::<16>();
        let (hops_16, hops_rest) = hops_rest.as_chunks_mut::<16>();
        for (addresses, hops) in by_16.iter().zip(hops_16) {
            self.lookup_groups::<16>(addresses, hops);
        }
        self.lookup_lanes(rest, hops_rest);
    }

    /// `N` addresses, by 16.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    #[inline]
    fn lookup_groups<const N: usize>(&self, addresses: &[u32; N], hops: &mut [NextHop; N]) {
        let (root, blocks) = (Self::flat(&self.root), Self::flat(&self.blocks));
        for address in addresses {
            prefetch(&root[(address >> 8) as usize]);
        }
        let groups = addresses.as_chunks::<16>().0.iter();
        for (addresses, hops) in groups.zip(hops.as_chunks_mut::<16>().0) {
            // SAFETY: 16 addresses are read and 16 next hops written, each a u32. Entries are loaded in
            // aligned pairs, which 23 bits of an address index, so none lies outside the root. Control may store to the
            // root meanwhile: the load of a pair is whole, and all that follows goes by what was written to `hops`.
            unsafe {
                let address = _mm512_loadu_si512(addresses.as_ptr().cast());
                let pairs = _mm512_srli_epi32::<9>(address);
                let pairs = _mm512_i32gather_epi32::<4>(pairs, root.as_ptr().cast());
                // The odd entry is the upper half of a pair.
                let odd = _mm512_and_si512(_mm512_srli_epi32::<4>(address), _mm512_set1_epi32(16));
                let entries = _mm512_and_si512(_mm512_srlv_epi32(pairs, odd), _mm512_set1_epi32(0xffff));
                _mm512_storeu_si512(hops.as_mut_ptr().cast(), entries);
            }
        }
        // The boundary counts only if it is loaded after the entries, and blocks are read after both.
        fence(Acquire);
        let boundary = _mm512_set1_epi32(self.boundary() as i32);
        let mut long = 0;
        for (group, hops) in hops.as_chunks::<16>().0.iter().enumerate() {
            // SAFETY: 16 next hops are read.
            let entries = unsafe { _mm512_loadu_si512(hops.as_ptr().cast()) };
            long |= u64::from(_mm512_cmpge_epu32_mask(entries, boundary)) << (group * 16);
        }
        while long != 0 {
            let lane = long.trailing_zeros() as usize % N;
            let entry = blocks[place(hops[lane].0 as u16, addresses[lane])].load(Acquire);
            hops[lane] = NextHop(u32::from(entry));
            long &= long - 1;
        }
    }
}
