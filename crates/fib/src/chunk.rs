//! IPv4 in under 2 MiB: a 17-bit root and one block per slot, for caches that are cold or shared.
//!
//! ```text
//! address  [ 17 bits | 7 bits | 8 bits ]
//!               |         |        `----- only if there are routes longer than /24
//!          root[2^17]     v
//!          next hop, or a block: which /24s start a range (a bit each), and their next hops
//! ```
//!
//! # Layout, which readers outside this program may rely on
//!
//! Two arrays, little-endian, no pointers. `root` is 131,072 words of 32 bits; `words` is 64-bit words.
//!
//! ```text
//! entry of the root   bit 31  30   29..22  21..0
//!                         0   0    0       next hop, 0 to 65,535
//!                         1   0    0       offset of a block in words
//!                         1   1    0       offset of a deep block in words
//!
//! block   byte  0 ..  16   starts: bit k (of word k / 64, bit k % 64) is set where a range starts
//!              16 ..       next hops, 2 bytes each, in the order of the ranges
//!
//! deep    byte  0 ..  16   deep: bit k is set where /24 number k has longer routes
//!              16 ..       a block; at a set bit of deep its "next hop" is the offset, in words from
//!                          the start of the deep block, of a wide block for the fourth byte
//!              ....        those wide blocks
//!
//! wide    byte  0 ..  32   starts, of 256
//!              32          0
//!              33          how many bits are set in word 0 of starts
//!              34          in words 0 and 1
//!              35          in words 0 to 2
//!              36 ..       next hops
//! ```
//!
//! Finding key k (0 to 127) in a block takes two adjacent loads, and one more that in two of five lookups of a full
//! table is in the same cache line:
//!
//! ```text
//! n = how many bits of starts are set up to bit k, and with it      hop = half(7 + n)
//! ```
//!
//! with `half(i)` the two bytes at `2 * i`; bit 0 of starts is always set, so n is at least 1. In a wide
//! block it is `n = byte(32 + k / 64) + bits set in word k / 64 up to k` and `half(17 + n)`. No step
//! branches or loops. `words` has [`WORDS`](table::WORDS) words, a power of two, so a mask keeps any
//! index in bounds, which the BPF verifier can follow. A block never changes in place; a changed slot gets
//! another block by one 32-bit store, and the old one's words are reused only after a grace period.
//!
//! Readers that do not register (programs in the kernel) are represented by a handle that control keeps and that
//! delays the reuse of words: [`ReaderHandle::quiescent_at`](crate::published::ReaderHandle::quiescent_at).
//!
//! A bitmap, and not a byte per start, because it needs no search.

mod ranges;
mod space;
mod store;
mod table;

pub use ranges::{Ranges, hop, start};
pub use table::{OFFSET, Shape, Table, WORDS, load};

use crate::cpu::Kind;
use crate::memory::{Array, Filled, NotAttached, OutOfMemory, Pages, Source, prefetch};
use crate::{Fib, Form, NextHop, SharedFib};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

const SLOT_LENGTH: u8 = 17;
const ROOT: usize = 1 << SLOT_LENGTH;
const SHIFT: u8 = 32 - SLOT_LENGTH;
/// The entry has a block.
const BLOCK: u32 = 1 << 31;
/// The block is deep.
const DEEP: u32 = 1 << 30;
const DEEP_WORDS: u32 = 2;
/// The distance in bits from an entry to its number of words of `deep`, which is masked.
const DEEP_SHIFT: u32 = 29;
/// Keys of a block.
const KEYS: u32 = 128;
/// Halves of a block before its first next hop, less the one that every count includes.
const HALVES: u64 = 7;
/// Halves of a wide block before its first next hop, less the one that every count includes.
const WIDE_HALVES: u64 = 17;
/// Number of addresses that are looked up together.
const LANES: usize = 64;
/// Fewer than this are looked up one by one.
const FEW: usize = 16;

/// The table, for control, which builds and changes it.
pub type Chunk17 = Table<Blocks>;

/// The table, for workers.
#[derive(Debug)]
pub struct Chunk17Fib {
    root: Array<AtomicU32>,
    words: Array<AtomicU64>,
    form: Form,
    /// Whether vectors can count bits.
    #[cfg(target_arch = "x86_64")]
    counts: bool,
}

type Flat<'a> = (&'a [AtomicU32; ROOT], &'a [AtomicU64; WORDS]);

#[inline(always)]
fn word(words: &[AtomicU64; WORDS], at: u64) -> u64 {
    words[at as usize & (WORDS - 1)].load(Relaxed)
}

/// The bits in a block's two words for keys up to `key`.
#[inline(always)]
fn up_to(key: u32) -> [u64; 2] {
    let (mask, second) = ((2u64 << (key & 63)).wrapping_sub(1), u64::from(key >> 6 & 1).wrapping_neg());
    [mask | second, mask & second]
}

/// Which half in the array of words is the next hop of `key`, in the block at `block`.
#[inline(always)]
fn half(words: &[AtomicU64; WORDS], block: u64, key: u32) -> u64 {
    let [first, second] = up_to(key);
    let n = (word(words, block) & first).count_ones() + (word(words, block + 1) & second).count_ones();
    block * 4 + HALVES + u64::from(n)
}

/// Which half in the array of words is the next hop of `key`, in the wide block at `block`.
#[inline(always)]
fn wide_half(words: &[AtomicU64; WORDS], block: u64, key: u32) -> u64 {
    let at = u64::from(key >> 6);
    let starts = word(words, block + at) & (2u64 << (key & 63)).wrapping_sub(1);
    let before = word(words, block + 4) >> (8 * at) & 0xff;
    block * 4 + WIDE_HALVES + before + u64::from(starts.count_ones())
}

/// The two bytes of half number `half`.
#[inline(always)]
fn value(words: &[AtomicU64; WORDS], half: u64) -> u32 {
    u32::from((word(words, half >> 2) >> (half % 4 * 16)) as u16)
}

/// The key of an address in its block.
#[inline(always)]
fn key(address: u32) -> u32 {
    address >> 8 & (KEYS - 1)
}

/// Where the block for the /24s starts.
#[inline(always)]
fn block(entry: u32) -> u64 {
    u64::from((entry & OFFSET) + (entry >> DEEP_SHIFT & DEEP_WORDS))
}

/// The next hop for `found` in a deep block: itself, or what the fourth byte selects.
#[inline(always)]
fn deeper(words: &[AtomicU64; WORDS], entry: u32, address: u32, found: u32) -> u32 {
    let (deep, key) = (u64::from(entry & OFFSET), key(address));
    if word(words, deep + u64::from(key >> 6)) >> (key & 63) & 1 == 0 {
        return found;
    }
    value(words, wide_half(words, deep + u64::from(found), address & 0xff))
}

impl Chunk17Fib {
    fn new(source: &Source) -> Result<Self, OutOfMemory> {
        Ok(Self {
            root: source.array(ROOT, Filled::ByNeed)?,
            words: source.array(WORDS, Filled::ByNeed)?,
            form: Form::best(),
            #[cfg(target_arch = "x86_64")]
            counts: is_x86_feature_detected!("avx512vpopcntdq"),
        })
    }

    #[inline(always)]
    fn flat(&self) -> Flat<'_> {
        let root = (&*self.root).try_into().expect("made with this length");
        let words = (&*self.words).try_into().expect("made with this length");
        (root, words)
    }

    /// `LANES` at once, one step for all of them before the next, so that their cache misses overlap; loads and sums
    /// are separate, so that the compiler turns the sums into vectors.
    #[inline(always)]
    fn lookup_lanes(&self, addresses: &[u32; LANES], hops: &mut [NextHop; LANES]) {
        let (root, words) = self.flat();
        let (mut entries, mut blocks) = ([0u32; LANES], [0u32; LANES]);
        for i in 0..LANES {
            entries[i] = load(&root[(addresses[i] >> SHIFT) as usize]);
        }
        for i in 0..LANES {
            let is_block = ((entries[i] as i32) >> 31) as u32;
            blocks[i] = ((entries[i] & OFFSET) + (entries[i] >> DEEP_SHIFT & DEEP_WORDS)) & is_block;
        }
        for i in 0..LANES {
            prefetch(&words[blocks[i] as usize & (WORDS - 1)]);
        }
        let (mut starts, mut second) = ([0u64; LANES], [0u64; LANES]);
        for i in 0..LANES {
            starts[i] = words[blocks[i] as usize & (WORDS - 1)].load(Relaxed);
            second[i] = words[(blocks[i] + 1) as usize & (WORDS - 1)].load(Relaxed);
        }
        let (mut halves, mut at) = ([0u32; LANES], [0u32; LANES]);
        for i in 0..LANES {
            let up_to = up_to(addresses[i] >> 8);
            let n = (starts[i] & up_to[0]).count_ones() + (second[i] & up_to[1]).count_ones();
            halves[i] = (blocks[i] * 4 + HALVES as u32).wrapping_add(n);
            at[i] = halves[i] >> 2 & OFFSET;
        }
        for i in 0..LANES {
            prefetch(&words[at[i] as usize & (WORDS - 1)]);
        }
        for i in 0..LANES {
            starts[i] = words[at[i] as usize & (WORDS - 1)].load(Relaxed);
        }
        let mut deep = 0u32;
        for i in 0..LANES {
            let found = (starts[i] >> (halves[i] % 4 * 16)) as u32 & 0xffff;
            let is_block = ((entries[i] as i32) >> 31) as u32;
            hops[i] = NextHop((found & is_block) | (entries[i] & !is_block));
            deep |= entries[i] & DEEP;
        }
        if deep != 0 {
            for i in 0..LANES {
                if entries[i] & DEEP != 0 {
                    hops[i] = NextHop(deeper(words, entries[i], addresses[i], hops[i].0));
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "popcnt,bmi1,bmi2,lzcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    #[target_feature(enable = "avx512vpopcntdq")]
    fn burst_avx512(&self, addresses: &[u32], hops: &mut [NextHop]) {
        self.burst(addresses, hops);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "popcnt,bmi1,bmi2,lzcnt,avx2")]
    fn burst_avx2(&self, addresses: &[u32], hops: &mut [NextHop]) {
        self.burst(addresses, hops);
    }

    /// Whole groups of lanes together; the rest one by one or, if it is long, padded to a group.
    #[inline(always)]
    fn burst(&self, addresses: &[u32], hops: &mut [NextHop]) {
        let (groups, rest) = addresses.as_chunks::<LANES>();
        let (found, rest_found) = hops.as_chunks_mut::<LANES>();
        // Loops, not closures: those would be compiled without the caller's instruction set.
        for (addresses, hops) in groups.iter().zip(found) {
            self.lookup_lanes(addresses, hops);
        }
        if rest.len() < FEW {
            for (hop, address) in rest_found.iter_mut().zip(rest) {
                *hop = self.lookup(*address);
            }
            return;
        }
        let (mut padded, mut found) = ([0; LANES], [NextHop::NONE; LANES]);
        padded[..rest.len()].copy_from_slice(rest);
        self.lookup_lanes(&padded, &mut found);
        rest_found.copy_from_slice(&found[..rest.len()]);
    }
}

impl Fib for Chunk17Fib {
    type Address = u32;

    #[inline(always)]
    fn lookup(&self, address: u32) -> NextHop {
        let (root, words) = self.flat();
        let entry = load(&root[(address >> SHIFT) as usize]);
        if entry & BLOCK == 0 {
            return NextHop(entry);
        }
        let found = value(words, half(words, block(entry), key(address)));
        if entry & DEEP == 0 {
            return NextHop(found);
        }
        NextHop(deeper(words, entry, address, found))
    }

    fn prefetch(&self, addresses: &[u32]) {
        let (root, _) = self.flat();
        addresses.iter().for_each(|address| prefetch(&root[(address >> SHIFT) as usize]));
    }

    fn lookup_burst_by(&self, form: Form, addresses: &[u32], hops: &mut [NextHop]) {
        let hops = &mut hops[..addresses.len()];
        match form.kind() {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 if self.counts => {
                // SAFETY: whoever has the form has its instructions, and `counts` tells of VPOPCNTDQ.
                unsafe { self.burst_avx512(addresses, hops) }
            }
            #[cfg(target_arch = "x86_64")]
            // SAFETY: whoever has either form has AVX2's instructions.
            Kind::Avx512 | Kind::Avx2 => unsafe { self.burst_avx2(addresses, hops) },
            _ => self.burst(addresses, hops),
        }
    }

    fn form(&self) -> Form {
        self.form
    }

    fn pages(&self) -> Pages {
        self.words.pages()
    }
}

impl SharedFib for Chunk17Fib {
    fn attach(source: &Source) -> Result<Self, NotAttached> {
        Ok(Self::new(source)?)
    }
}

/// The form of [`Chunk17`]'s blocks.
#[derive(Debug)]
pub struct Blocks;

impl Shape for Blocks {
    const SLOT_LENGTH: u8 = SLOT_LENGTH;
    const EXTENSION: u8 = 0;
    type Fib = Chunk17Fib;

    fn reader(source: &Source) -> Result<Chunk17Fib, OutOfMemory> {
        Chunk17Fib::new(source)
    }

    fn root(fib: &Chunk17Fib) -> &[AtomicU32] {
        &fib.root
    }

    fn words(fib: &Chunk17Fib) -> &[AtomicU64] {
        fib.words.writable()
    }

    fn encode(ranges: &[u32], block: &mut Vec<u64>) -> u32 {
        if ranges.iter().all(|range| start(*range) & 0xff == 0) {
            append(block, ranges.iter().map(|r| ((start(*r) >> 8) as u8, hop(*r))));
            return BLOCK;
        }
        encode_deep(ranges, block);
        BLOCK | DEEP
    }

    fn offset(entry: u32) -> Option<u32> {
        (entry & BLOCK != 0).then_some(entry & OFFSET)
    }

    fn decode(words: &[AtomicU64], entry: u32, ranges: &mut Ranges) {
        let deep = (entry & OFFSET) as usize;
        each(words, block(entry) as usize, 2, |key, value| {
            let third = u16::from(key) << 8;
            let deep_bits = words[deep + usize::from(key >> 6)].load(Relaxed);
            if entry & DEEP != 0 && deep_bits >> (key & 63) & 1 == 1 {
                each(words, deep + usize::from(value), 4, |key, value| {
                    ranges.push(third | u16::from(key), value);
                });
            } else {
                ranges.push(third, value);
            }
        });
    }
}

/// Words of a block with this many ranges.
fn len(ranges: usize) -> usize {
    (2 * (HALVES as usize + 1 + ranges)).div_ceil(8)
}

/// Words of a wide block with this many ranges.
fn wide_len(ranges: usize) -> usize {
    (2 * (WIDE_HALVES as usize + 1 + ranges)).div_ceil(8)
}

/// Appends a block.
fn append(block: &mut Vec<u64>, ranges: impl ExactSizeIterator<Item = (u8, u16)>) {
    let at = block.len();
    block.resize(at + len(ranges.len()), 0);
    put(&mut block[at..], HALVES as usize + 1, ranges);
}

/// Appends a wide block.
fn append_wide(block: &mut Vec<u64>, ranges: impl ExactSizeIterator<Item = (u8, u16)>) {
    let at = block.len();
    block.resize(at + wide_len(ranges.len()), 0);
    let block = &mut block[at..];
    put(block, WIDE_HALVES as usize + 1, ranges);
    let mut before = 0;
    for word in 0..3 {
        before += u64::from(block[word].count_ones());
        block[4] |= before << (8 * (word + 1));
    }
}

/// Writes starts, and next hops from half number `first` on.
fn put(block: &mut [u64], first: usize, ranges: impl Iterator<Item = (u8, u16)>) {
    for ((key, value), half) in ranges.zip(first..) {
        block[usize::from(key >> 6)] |= 1 << (key & 63);
        block[half / 4] |= u64::from(value) << (half % 4 * 16);
    }
}

/// A deep block: the /24s that need one get a wide block for the fourth byte.
fn encode_deep(ranges: &[u32], block: &mut Vec<u64>) {
    let (mut deep, mut top) = ([0u64; DEEP_WORDS as usize], Vec::<(u8, u16)>::new());
    // By index into `top`: the ranges within that /24.
    let mut below: Vec<(usize, Vec<(u8, u16)>)> = Vec::new();
    let (mut rest, mut value, mut was_deep) = (ranges, 0, false);
    for key in 0..KEYS as u8 {
        let here = rest.partition_point(|range| start(*range) >> 8 <= u16::from(key));
        let (inner, behind) = rest.split_at(here);
        rest = behind;
        let at_its_start = inner.first().is_some_and(|range| start(*range) & 0xff == 0);
        if inner.len() > usize::from(at_its_start) {
            let carried = (!at_its_start).then_some((0, value));
            let own = inner.iter().map(|range| (start(*range) as u8, hop(*range)));
            below.push((top.len(), carried.into_iter().chain(own).collect()));
            deep[usize::from(key >> 6)] |= 1 << (key & 63);
            top.push((key, 0));
        } else if !inner.is_empty() || was_deep {
            top.push((key, inner.first().map_or(value, |range| hop(*range))));
        }
        was_deep = inner.len() > usize::from(at_its_start);
        value = inner.last().map_or(value, |range| hop(*range));
    }
    let mut place = DEEP_WORDS as usize + len(top.len());
    for (index, inner) in &below {
        top[*index].1 = place as u16;
        place += wide_len(inner.len());
    }
    block.extend(deep);
    append(block, top.into_iter());
    below.into_iter().for_each(|(_, inner)| append_wide(block, inner.into_iter()));
}

/// Each range of the block at `at`, with `starts` words of starts: key and value.
fn each(words: &[AtomicU64], at: usize, starts: u8, mut range: impl FnMut(u8, u16)) {
    // In wide blocks, four counts follow.
    let mut half = at * 4 + if starts == 2 { HALVES } else { WIDE_HALVES } as usize + 1;
    for word in 0..starts {
        let mut starts = words[at + usize::from(word)].load(Relaxed);
        while starts != 0 {
            let value = words[half / 4].load(Relaxed) >> (half % 4 * 16);
            range(word << 6 | starts.trailing_zeros() as u8, value as u16);
            starts &= starts - 1;
            half += 1;
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
