//! A step by AVX2: the sixteen cells of a line in two vectors.
//!
//! ```text
//! min(key, end) == key   where the end is not below the key, two bytes for each of sixteen cells
//! not, and only ends     two bits for each end below the key, so the count is twice what is wanted
//! ```
//!
//! Packing two vectors of eight cells into one leaves cells 8 to 11 ahead of 4 to 7, which does not matter for a count.

use super::line::{FIRST_CHILD, HOPS, KIND, Line, NARROW, Word};
use super::search::{self, At, Step};
use super::{LINES, Range6Fib, key};
use crate::NextHop;
use std::arch::asm;
use std::arch::x86_64::{__m256i, _mm256_set1_epi32};
use std::sync::atomic::Ordering::Acquire;

/// Lanes that go down together, and how often before their leaves are read.
const TURN: usize = 8;
const TURNS: usize = 4;
/// The ends of a fork, two bits each in the order after packing: all but the last cell.
const FORK_ENDS: u32 = 0x3fff_ffff;
/// The ends of a leaf: cells 0 to 3, 8 and 9, and 4 to 7.
const LEAF_ENDS: u32 = 0x00ff_0fff;

/// With two comparisons of eight. Creating one requires that the CPU has AVX2, BMI1 and POPCNT.
#[derive(Clone, Copy)]
struct Halves;

impl Step for Halves {
    type Key = __m256i;

    #[inline(always)]
    fn key(self, address: &u128) -> __m256i {
        // SAFETY: a `Halves` exists only below the functions of this file that ask for AVX2.
        unsafe { _mm256_set1_epi32((*address >> 80) as i32) }
    }

    #[inline(always)]
    fn child(self, lines: &[Line; LINES], fork: At, key: __m256i) -> At {
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
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn child(lines: &[Line; LINES], fork: At, key: __m256i) -> At {
    let child: usize;
    // SAFETY: an `At` lies within the lines, on a boundary of 64 bytes. Others may store to single cells
    // meanwhile, so the load must be atomic for each of them: x86 is for what does not cross 8 aligned
    // bytes, and assembly keeps the compiler from loading otherwise. Loads here are not reordered with
    // later ones, so what a cell links is seen whole. The last instruction masks what is returned.
    unsafe {
        asm!(
            "vpminud {near}, {key}, ymmword ptr [{lines} + {fork}]",
            "vpminud {far}, {key}, ymmword ptr [{lines} + {fork} + 32]",
            "vpcmpeqd {near}, {near}, {key}",
            "vpcmpeqd {far}, {far}, {key}",
            "vpackssdw {near}, {near}, {far}",
            "vpmovmskb {past:e}, {near}",
            "mov {child:e}, dword ptr [{lines} + {fork} + {first_child}]",
            "andn {past:e}, {past:e}, {ends:e}",
            "popcnt {past:e}, {past:e}",
            "lea {child:e}, [{past:r} + 2 * {child:r}]",
            "shl {child:e}, 5",
            "and {child:e}, {mask}",
            near = out(ymm_reg) _,
            far = out(ymm_reg) _,
            past = out(reg) _,
            child = out(reg) child,
            key = in(ymm_reg) key,
            lines = in(reg) lines,
            fork = in(reg) fork.offset(),
            ends = in(reg) FORK_ENDS,
            first_child = const FIRST_CHILD * 4,
            mask = const At::MASK,
            options(pure, readonly, nostack),
        );
        At::masked(child)
    }
}

#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn word(lines: &[Line; LINES], leaf: At, address: &u128) -> Word {
    let (hop, kind): (u32, u32);
    // SAFETY: as above, and bits 16 to 47 from the top of a u128 are its bytes 10 to 13 on this architecture. At most
    // ten cells count, so the two bytes lie in the line, as those behind them do.
    unsafe {
        asm!(
            "vpbroadcastd {key}, dword ptr [{address} + 10]",
            "vpminud {near}, {key}, ymmword ptr [{lines} + {leaf}]",
            "vpminud {far}, {key}, ymmword ptr [{lines} + {leaf} + 32]",
            "vpcmpeqd {near}, {near}, {key}",
            "vpcmpeqd {far}, {far}, {key}",
            "vpackssdw {near}, {near}, {far}",
            "vpmovmskb {hop:e}, {near}",
            "movzx {kind:e}, word ptr [{lines} + {leaf} + {kind_at}]",
            "andn {hop:e}, {hop:e}, {ends:e}",
            "popcnt {hop:e}, {hop:e}",
            "add {hop:r}, {leaf}",
            "movzx {hop:e}, word ptr [{lines} + {hop:r} + {hops}]",
            key = out(ymm_reg) _,
            near = out(ymm_reg) _,
            far = out(ymm_reg) _,
            hop = out(reg) hop,
            kind = out(reg) kind,
            lines = in(reg) lines,
            leaf = in(reg) leaf.offset(),
            ends = in(reg) LEAF_ENDS,
            address = in(reg) address,
            hops = const HOPS * 4,
            kind_at = const KIND * 4 + 2,
            options(pure, readonly, nostack),
        );
    }
    if kind != NARROW { leaf.line(lines).wide_word(key(*address, 0)) } else { Word(hop) }
}

/// See [`search::burst`].
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub fn burst(fib: &Range6Fib, addresses: &[u128], hops: &mut [NextHop]) {
    search::burst::<_, TURN, TURNS>(Halves, fib, addresses, hops);
}

/// One address.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub fn single(fib: &Range6Fib, address: u128) -> NextHop {
    let (root, lines) = fib.flat();
    let word = Word(root[super::slot(address)].load(Acquire));
    search::from(Halves, lines, word, address, 0)
}
