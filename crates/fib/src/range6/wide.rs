//! A step by AVX-512: all sixteen cells of a line at once.

use super::line::{FIRST_CHILD, FORK_ENDS, HOPS, KIND, LEAF_ENDS, Line, NARROW, Word};
use super::search::{self, At, LANES, Step};
use super::{LINES, Range6Fib, key};
use crate::NextHop;
use std::arch::asm;
use std::arch::x86_64::{__m512i, _mm512_set1_epi32};
use std::sync::atomic::Ordering::Acquire;

/// Lanes that go down together: an eighth faster than eight of them on Zen 4.
const TURN: usize = 16;
/// What does not fill such a turn goes by so many.
const REST: usize = 8;

/// With one comparison of sixteen. Creating one requires that the CPU has AVX-512.
#[derive(Clone, Copy)]
struct Wide;

impl Step for Wide {
    type Key = __m512i;

    #[inline(always)]
    fn key(self, address: &u128) -> __m512i {
        // SAFETY: a `Wide` exists only below the functions of this file that ask for AVX-512.
        unsafe { _mm512_set1_epi32((*address >> 80) as i32) }
    }

    #[inline(always)]
    fn child(self, lines: &[Line; LINES], fork: At, key: __m512i) -> At {
        // SAFETY: as above.
        unsafe { child(lines, fork, key) }
    }

    #[inline(always)]
    fn word(self, lines: &[Line; LINES], leaf: At, address: &u128) -> Word {
        // SAFETY: as above.
        unsafe { word(lines, leaf, address) }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
fn child(lines: &[Line; LINES], fork: At, key: __m512i) -> At {
    let child: usize;
    // SAFETY: an `At` lies within the lines, on a boundary of 64 bytes. Others may store to single cells
    // meanwhile, so the load must be atomic for each of them: x86 is for what does not cross 8 aligned
    // bytes, and assembly keeps the compiler from loading otherwise. Loads here are not reordered with
    // later ones, so what a cell links is seen whole. The last instruction masks what is returned.
    unsafe {
        asm!(
            "vpcmpud {past}{{{ends}}}, {key}, [{lines} + {fork}], 6",
            "mov {first:e}, [{lines} + {fork} + {first_child}]",
            "kmovd {child:e}, {past}",
            "popcnt {child:e}, {child:e}",
            "add {child:e}, {first:e}",
            "shl {child:e}, 6",
            "and {child:e}, {mask}",
            past = out(kreg) _,
            ends = in(kreg) FORK_ENDS as u16,
            child = out(reg) child,
            first = out(reg) _,
            key = in(zmm_reg) key,
            lines = in(reg) lines,
            fork = in(reg) fork.offset(),
            first_child = const FIRST_CHILD * 4,
            mask = const At::MASK,
            options(pure, readonly, nostack),
        );
        At::masked(child)
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
fn word(lines: &[Line; LINES], leaf: At, address: &u128) -> Word {
    let (hop, kind): (u32, u32);
    // SAFETY: as above, and bits 16 to 47 of a u128 are its bytes 10 to 13 on this architecture. At most ten
    // cells count, so the two bytes lie in the line, as those behind them do.
    unsafe {
        asm!(
            "vmovdqa32 {cells}, [{lines} + {leaf}]",
            "vpcmpud {past}{{{ends}}}, {cells}, dword ptr [{address} + 10]{{1to16}}, 1",
            "kmovw {hop:e}, {past}",
            "popcnt {hop:e}, {hop:e}",
            "lea {hop:r}, [{leaf} + 2 * {hop:r}]",
            "movzx {hop:e}, word ptr [{lines} + {hop:r} + {hops}]",
            "movzx {kind:e}, word ptr [{lines} + {leaf} + {kind_at}]",
            cells = out(zmm_reg) _,
            past = out(kreg) _,
            ends = in(kreg) LEAF_ENDS as u16,
            hop = out(reg) hop,
            kind = out(reg) kind,
            lines = in(reg) lines,
            leaf = in(reg) leaf.offset(),
            address = in(reg) address,
            hops = const HOPS * 4,
            kind_at = const KIND * 4 + 2,
            options(pure, readonly, nostack),
        );
    }
    if kind != NARROW { leaf.line(lines).wide_word(key(*address, 0)) } else { Word(hop) }
}

/// See [`search::burst`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
pub fn burst(fib: &Range6Fib, addresses: &[u128], hops: &mut [NextHop]) {
    let (turns, rest) = addresses.split_at(addresses.len() / TURN * TURN);
    let (hops, hops_rest) = hops.split_at_mut(turns.len());
    search::burst::<_, TURN, { LANES / TURN }>(Wide, fib, turns, hops);
    if !rest.is_empty() {
        burst_rest(fib, rest, hops_rest);
    }
}

/// Separate, because steps are no longer inlined if there are too many.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
fn burst_rest(fib: &Range6Fib, addresses: &[u128], hops: &mut [NextHop]) {
    search::burst::<_, REST, { LANES / REST }>(Wide, fib, addresses, hops);
}

/// One address.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
pub fn single(fib: &Range6Fib, address: u128) -> NextHop {
    let (root, lines) = fib.flat();
    let word = Word(root[super::slot(address)].load(Acquire));
    search::from(Wide, lines, word, address, 0)
}
