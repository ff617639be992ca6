//! IPv4: DIR-18-6-8 with packed blocks; a full table takes three MiB.
//!
//! ```text
//! address [ 18 bits | 6 bits | 2 bits | 6 bits ]
//!              |         |        |        '--------------------------.
//!         root[2^18]     |   fork: 4 entries, each a next hop or a block
//!         next hop, or a block --- value: next hop, or (in a wide block) a fork
//!
//! block: [ bitmap of 64 | values ... ]   bit i is set where value i differs from value i - 1, so the
//!                                        value of i is number popcount(bitmap up to i)
//! ```
//!
//! The number of bytes decides: of 64 adjacent /24s of a full table most have the same next hop as the previous one,
//! so a block takes 30 bytes instead of 128, mostly one cache line, and the whole is in the nearer caches. Values are
//! 16 bits. A /24 with longer routes in it has the value `DEEP`, and its fork is stored after the values; a block
//! with a larger next hop is *wide*, with values of 32 bits. In both cases lookups leave the fast path.
//!
//! Equal blocks are not shared: in a full table 2 % of them have an equal, which would not pay for finding it
//! (measured; with 16 /24s per block it would be 6 %).
//!
//! Changes copy: the block of each affected slot is rebuilt from the rib and linked with one store in the root, so
//! each address sees the old next hop or the new one. A change that does not fit has linked nothing. What was
//! unlinked is reused only after all readers have moved past it.

mod blocks;
mod builder;
mod sweep;
#[cfg(target_arch = "x86_64")]
mod vector;

pub use builder::Dir18;

use crate::cpu::{Form, Kind};
use crate::memory::{Array, Filled, OutOfMemory, Pages, prefetch};
use crate::{Fib, NextHop, NotAttached, SharedFib, Source};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Bits that the root takes.
const ROOT_LENGTH: u8 = 18;
const ROOT: usize = 1 << ROOT_LENGTH;
/// The most words for blocks: 128 MiB of address space, of which a full table touches two.
const WORDS: usize = 1 << 24;
/// A block that starts at the last word ends before this many more.
const PAST: usize = 64;
/// Addresses that are looked up together.
const LANES: usize = 64;
/// Bursts shorter than this are looked up without vectors.
const VECTOR_MIN: usize = 16;

/// In an entry: it names a block; else it is a next hop.
const BLOCK: u32 = 1 << 31;
/// In an entry that refers to a block: its values have 32 bits. As a value of a wide block: a fork.
const WIDE: u32 = 1 << 30 | BLOCK;
/// As a 16-bit value: there is a fork, after the values. No next hop of a narrow block is this large.
const DEEP: u32 = 0xffff;
/// The part of an entry with the position of the block.
const INDEX: u32 = WORDS as u32 - 1;

type Root = [AtomicU32; ROOT];
type Words = [AtomicU64; WORDS + PAST];

/// DIR-18-6-8 as workers read it.
#[derive(Debug)]
pub struct Dir18Fib {
    root: Array<AtomicU32>,
    /// Blocks and forks. The first words belong to none and stay zero.
    words: Array<AtomicU64>,
    form: Form,
}

/// Which value of a block with this bitmap belongs to `bit`.
#[inline(always)]
fn rank(bitmap: u64, bit: u32) -> usize {
    (bitmap & (2u64 << (bit & 63)).wrapping_sub(1)).count_ones() as usize
}

/// The value of `bit` in a block of 16-bit values.
#[inline(always)]
fn narrow(words: &Words, at: u32, bit: u32) -> u32 {
    let at = (at & INDEX) as usize;
    let rank = rank(words[at].load(Relaxed), bit);
    u32::from((words[at + 1 + rank / 4].load(Relaxed) >> (rank % 4 * 16)) as u16)
}

/// The value of `bit` in a block of 32-bit values.
#[inline(always)]
fn wide(words: &Words, at: u32, bit: u32) -> u32 {
    let at = (at & INDEX) as usize;
    let rank = rank(words[at].load(Relaxed), bit);
    (words[at + 1 + rank / 2].load(Relaxed) >> (rank % 2 * 32)) as u32
}

/// The value of `bit` for an entry of the root or of a fork: a next hop or a fork.
#[inline(always)]
fn value(words: &Words, entry: u32, bit: u32) -> u32 {
    match entry {
        WIDE.. => wide(words, entry, bit),
        BLOCK.. => match narrow(words, entry, bit) {
            DEEP => fork_behind(words, entry, bit),
            hop => hop,
        },
        _ => entry,
    }
}

/// The fork of `bit` in a narrow block: forks are in the order of their values, after all of them.
fn fork_behind(words: &Words, entry: u32, bit: u32) -> u32 {
    let at = (entry & INDEX) as usize;
    let bitmap = words[at].load(Relaxed);
    let values_before = 0..rank(bitmap, bit);
    let forks_before = values_before
        .filter(|value| words[at + 1 + value / 4].load(Relaxed) >> (value % 4 * 16) & 0xffff == 0xffff)
        .count();
    let values = bitmap.count_ones() as usize + 1;
    let word = words[at + 1 + values.div_ceil(4) + forks_before / 2].load(Relaxed);
    (word >> (forks_before % 2 * 32)) as u32
}

/// The entry of quarter `quarter` of a /24 that has longer routes.
#[inline(always)]
fn fork_entry(words: &Words, fork: u32, quarter: u32) -> u32 {
    let word = words[(fork & INDEX) as usize + (quarter as usize & 3) / 2].load(Acquire);
    (word >> (quarter % 2 * 32)) as u32
}

/// The next hop for an entry of the root, resolved completely.
#[inline]
fn resolve(words: &Words, entry: u32, address: u32) -> NextHop {
    let mut found = value(words, entry, address >> 8 & 63);
    if found >= BLOCK {
        found = value(words, fork_entry(words, found, address >> 6 & 3), address & 63);
    }
    NextHop(found)
}

impl Dir18Fib {
    fn new(source: &Source) -> Result<Self, OutOfMemory> {
        Ok(Self {
            root: source.array(ROOT, Filled::Whole)?,
            words: source.array(WORDS + PAST, Filled::ByNeed)?,
            form: Form::best(),
        })
    }

    /// Both arrays with their lengths in the type, so that no index below needs a check.
    #[inline(always)]
    fn flat(&self) -> (&Root, &Words) {
        let root = (&*self.root).try_into().expect("made with this length");
        let words = (&*self.words).try_into().expect("made with this length");
        (root, words)
    }

    /// Up to `LANES` at once, without vectors: no branch depends on the kind of an entry, except for those that the
    /// fast path cannot handle.
    #[inline(always)]
    fn lookup_lanes(&self, addresses: &[u32], hops: &mut [NextHop]) {
        let (root, words) = self.flat();
        for (hop, address) in hops.iter_mut().zip(addresses) {
            let entry = root[slot(*address)].load(Acquire);
            prefetch(&words[block(entry)]);
            *hop = NextHop(entry);
        }
        for (hop, address) in hops.iter_mut().zip(addresses) {
            let entry = hop.0;
            let found = narrow(words, block(entry) as u32, address >> 8 & 63);
            hop.0 = if entry < BLOCK { entry } else { found };
            if entry >= WIDE || found == DEEP {
                *hop = resolve(words, entry, *address);
            }
        }
    }

    #[inline(always)]
    fn lookup_scalar(&self, addresses: &[u32], hops: &mut [NextHop]) {
        for (addresses, hops) in addresses.chunks(LANES).zip(hops.chunks_mut(LANES)) {
            self.lookup_lanes(addresses, hops);
        }
    }
}

#[inline(always)]
fn slot(address: u32) -> usize {
    (address >> (32 - ROOT_LENGTH)) as usize
}

/// The position of the block to which `entry` refers, or the empty one.
#[inline(always)]
fn block(entry: u32) -> usize {
    (entry & INDEX & ((entry as i32) >> 31) as u32) as usize
}

impl Fib for Dir18Fib {
    type Address = u32;

    #[inline]
    fn lookup(&self, address: u32) -> NextHop {
        let (root, words) = self.flat();
        resolve(words, root[slot(address)].load(Acquire), address)
    }

    fn prefetch(&self, addresses: &[u32]) {
        let (root, _) = self.flat();
        addresses.iter().for_each(|address| prefetch(&root[slot(*address)]));
    }

    fn lookup_burst_by(&self, form: Form, addresses: &[u32], hops: &mut [NextHop]) {
        let hops = &mut hops[..addresses.len()];
        match form.kind() {
            // SAFETY: a form is proof that the CPU has what it is made of.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 if addresses.len() >= VECTOR_MIN => unsafe { self.lookup_avx512(addresses, hops) },
            // SAFETY: as above; what AVX-512 was detected with includes all of this.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 | Kind::Avx2 => unsafe { self.lookup_avx2(addresses, hops) },
            _ => self.lookup_scalar(addresses, hops),
        }
    }

    fn form(&self) -> Form {
        self.form
    }

    fn pages(&self) -> Pages {
        self.words.pages()
    }
}

impl SharedFib for Dir18Fib {
    fn attach(source: &Source) -> Result<Self, NotAttached> {
        Ok(Self::new(source)?)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
