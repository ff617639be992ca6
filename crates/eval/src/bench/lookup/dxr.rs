//! A rival for IPv4: DXR (Zec, Rizzo, Mikuc: "DXR: Towards a Billion Routing Lookups per Second in Software", CCR
//! 2012), with the extension of FreeBSD's `fib_dxr`.
//!
//! ```text
//! address  [ D bits | X bits | the rest ]
//!             |         |         `------------------------------.
//!          root[2^D] -> block of 2^X entries, shared when equal   |
//!          entry: 10 bits how many ranges, 22 bits where          v
//!                 0 ranges: a next hop        block of ranges: [ start, next hop ] ..., by start
//! ```
//!
//! Without an extension (X = 0) the root contains the entries. A range is four bytes: its start within
//! its slot, and its next hop; the last one that does not start after the address applies. Blocks of ranges are
//! shared when equal. With 1,023 ranges or more, the block's first word counts them.
//!
//! The search has no branch, because on real tables branches are mispredicted at each step (14 to 50 ns per lookup).
//! The searches of a burst run in parallel, with one halving for all lanes before the next; with AVX-512 this ends
//! when sixteen ranges are left, which take one comparison.
//!
//! Absent: the paper's short ranges of two bytes, which can name 255 next hops. Here it is 65,536.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use bm_fib::chunk::{OFFSET, Ranges, Shape, Table, WORDS, hop, load, start};
use bm_fib::cpu::Kind;
use bm_fib::memory::{Array, Filled, NotAttached, OutOfMemory, Pages, Source, prefetch};
use bm_fib::{Fib, Form, NextHop, SharedFib};

/// Addresses that are looked up together.
const LANES: usize = 64;
/// Fewer than this are looked up one by one.
const FEW: usize = 16;
/// Ranges that one comparison handles.
const COMPARED: u32 = 16;
/// With this many ranges, or more, the block contains their number.
const MANY: u32 = 1023;
/// Words after the last one, so that a comparison may start at any.
const PADDING: usize = 8;

/// DXR as a writer builds and changes it, with a root of `D` bits and an extension of `X` more. `Dxr<18, 0>` is the paper's
/// D18R: 2.7 MiB for a full table.
pub type Dxr<const D: u8, const X: u8> = Table<Shared<D, X>>;

/// DXR as readers use it.
#[derive(Debug)]
pub struct DxrFib<const D: u8, const X: u8> {
    root: Array<AtomicU32>,
    words: Array<AtomicU64>,
    form: Form,
}

type Words = [AtomicU64; WORDS + PADDING];

/// The range at `index`; a word contains two.
#[inline(always)]
fn range_at(words: &Words, index: u32) -> u32 {
    (words[(index >> 1) as usize & (WORDS - 1)].load(Relaxed) >> (index % 2 * 32)) as u32
}

/// Where the ranges of `entry` are, and how many; none where it is a next hop.
#[inline(always)]
fn span(words: &Words, entry: u32) -> (u32, u32) {
    let (first, count) = ((entry & OFFSET) * 2, entry >> 22);
    if count < MANY { (first, count) } else { (first + 2, range_at(words, first)) }
}

impl<const D: u8, const X: u8> DxrFib<D, X> {
    const SLOT: u8 = D + X;

    fn new(source: &Source) -> Result<Self, OutOfMemory> {
        Ok(Self {
            root: source.array(1 << D, Filled::ByNeed)?,
            words: source.array(WORDS + PADDING, Filled::ByNeed)?,
            form: Form::best(),
        })
    }

    #[inline(always)]
    fn words(&self) -> &Words {
        (&*self.words).try_into().expect("made with this length")
    }

    /// The root's entry for `address`, or the position of the block with its entry.
    #[inline(always)]
    fn first(&self, address: u32) -> u32 {
        load(&self.root[(address >> (32 - D)) as usize])
    }

    /// Where the entry of `address` is in a block of entries at `block`, as a range is counted.
    #[inline(always)]
    fn extended(block: u32, address: u32) -> u32 {
        block * 2 + (address >> (32 - Self::SLOT) & ((1 << X) - 1))
    }

    /// Ranges that do not start after `address` are at most this, others above it.
    #[inline(always)]
    fn key(address: u32) -> u32 {
        (address & u32::MAX >> Self::SLOT) << 16 | 0xffff
    }

    /// The entries of all lanes.
    #[inline(always)]
    fn entries(&self, addresses: &[u32; LANES]) -> [u32; LANES] {
        let (words, mut entries) = (self.words(), [0; LANES]);
        for i in 0..LANES {
            entries[i] = self.first(addresses[i]);
        }
        if X == 0 {
            return entries;
        }
        for i in 0..LANES {
            entries[i] = Self::extended(entries[i], addresses[i]);
        }
        for place in &entries {
            prefetch(&words[(place >> 1) as usize & (WORDS - 1)]);
        }
        for entry in &mut entries {
            *entry = range_at(words, *entry);
        }
        entries
    }

    /// `LANES` at once: one step for all of them before the next, so that their cache misses overlap, with loads and
    /// sums separate, so that the compiler turns the sums into vectors. `last` finds the range among at most
    /// `compared` that are left; it gets the index of the first, their number, and the key.
    #[inline(always)]
    fn lookup_lanes(
        &self,
        addresses: &[u32; LANES],
        hops: &mut [NextHop; LANES],
        compared: u32,
        last: impl Fn(&Words, u32, u32, u32) -> u32,
    ) {
        let (words, entries) = (self.words(), self.entries(addresses));
        let (mut firsts, mut counts, mut keys) = ([0u32; LANES], [0u32; LANES], [0u32; LANES]);
        let mut most = 0;
        for i in 0..LANES {
            counts[i] = entries[i] >> 22;
            firsts[i] = if counts[i] == 0 { 0 } else { (entries[i] & OFFSET) * 2 };
            keys[i] = Self::key(addresses[i]);
            most = most.max(counts[i]);
        }
        for i in 0..LANES {
            let nearest = if counts[i] > compared { counts[i] / 2 } else { 0 };
            prefetch(&words[((firsts[i] + nearest) >> 1) as usize & (WORDS - 1)]);
        }
        if most == MANY {
            for i in 0..LANES {
                (firsts[i], counts[i]) = if counts[i] == 0 { (0, 0) } else { span(words, entries[i]) };
                most = most.max(counts[i]);
            }
        }
        let mut probes = [0u32; LANES];
        while most > compared {
            for i in 0..LANES {
                let half = if counts[i] > compared { counts[i] / 2 } else { 0 };
                probes[i] = range_at(words, firsts[i] + half);
            }
            for i in 0..LANES {
                let half = if counts[i] > compared { counts[i] / 2 } else { 0 };
                firsts[i] += if probes[i] <= keys[i] { half } else { 0 };
                counts[i] -= half;
            }
            most -= most / 2;
        }
        for i in 0..LANES {
            probes[i] = last(words, firsts[i], counts[i], keys[i]);
        }
        for i in 0..LANES {
            let is_hop = entries[i] >> 22 == 0;
            hops[i] = NextHop(if is_hop { entries[i] } else { probes[i] & 0xffff });
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "popcnt,bmi1,bmi2,lzcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    fn burst_avx512(&self, addresses: &[u32], hops: &mut [NextHop]) {
        self.burst(addresses, hops, COMPARED, |words, first, count, key| compared(words, first, count, key));
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "popcnt,bmi1,bmi2,lzcnt,avx2")]
    fn burst_avx2(&self, addresses: &[u32], hops: &mut [NextHop]) {
        self.burst(addresses, hops, 1, |words, first, _, _| range_at(words, first));
    }

    /// Whole groups of lanes together; the rest one by one or, if it is long, padded to a group.
    #[inline(always)]
    fn burst(
        &self,
        addresses: &[u32],
        hops: &mut [NextHop],
        compared: u32,
        last: impl Fn(&Words, u32, u32, u32) -> u32 + Copy,
    ) {
        let (groups, rest) = addresses.as_chunks::<LANES>();
        let (found, rest_found) = hops.as_chunks_mut::<LANES>();
        // Loops, not closures: those would be compiled without the caller's instruction set.
        for (addresses, hops) in groups.iter().zip(found) {
            self.lookup_lanes(addresses, hops, compared, last);
        }
        if rest.len() < FEW {
            for (hop, address) in rest_found.iter_mut().zip(rest) {
                *hop = self.lookup(*address);
            }
            return;
        }
        let (mut padded, mut found) = ([0; LANES], [NextHop::NONE; LANES]);
        padded[..rest.len()].copy_from_slice(rest);
        self.lookup_lanes(&padded, &mut found, compared, last);
        rest_found.copy_from_slice(&found[..rest.len()]);
    }
}

/// The last of `count` ranges (at most 16) from `first` on that is not above `key`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,bmi2,popcnt")]
#[inline]
fn compared(words: &Words, first: u32, count: u32, key: u32) -> u32 {
    use std::arch::x86_64::_bzhi_u32;
    let first = first & (WORDS as u32 * 2 - 1);
    let not_above: u32;
    // SAFETY: `first` is within the words, and the 64 bytes from there reach at most into the padding.
    // Others may store to these words, so each must be loaded as by an atomic: x86 does for any four
    // bytes in their place, and assembly keeps the compiler from loading otherwise.
    unsafe {
        std::arch::asm!(
            "vpbroadcastd {keys}, {key:e}",
            "vpcmpud {mask}, {keys}, [{words} + 4*{first}], 5",
            "kmovw {not_above:e}, {mask}",
            keys = out(zmm_reg) _,
            key = in(reg) key,
            mask = out(kreg) _,
            words = in(reg) words.as_ptr(),
            first = in(reg) u64::from(first),
            not_above = out(reg) not_above,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    let place = _bzhi_u32(not_above, count).count_ones().wrapping_sub(1) & (COMPARED - 1);
    range_at(words, first + place)
}

impl<const D: u8, const X: u8> Fib for DxrFib<D, X> {
    type Address = u32;

    #[inline(always)]
    fn lookup(&self, address: u32) -> NextHop {
        let (words, mut entry) = (self.words(), self.first(address));
        if X > 0 {
            entry = range_at(words, Self::extended(entry, address));
        }
        if entry >> 22 == 0 {
            return NextHop(entry);
        }
        let (mut first, mut count) = span(words, entry);
        let key = Self::key(address);
        while count > 1 {
            let half = count / 2;
            // A product, not a conditional: the compiler would turn that into a branch.
            first += half * u32::from(range_at(words, first + half) <= key);
            count -= half;
        }
        NextHop(range_at(words, first) & 0xffff)
    }

    fn prefetch(&self, addresses: &[u32]) {
        addresses.iter().for_each(|address| prefetch(&self.root[(address >> (32 - D)) as usize]));
    }

    fn lookup_burst_by(&self, form: Form, addresses: &[u32], hops: &mut [NextHop]) {
        let hops = &mut hops[..addresses.len()];
        match form.kind() {
            // SAFETY: whoever has the form has its instructions.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { self.burst_avx512(addresses, hops) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { self.burst_avx2(addresses, hops) },
            _ => self.burst(addresses, hops, 1, |words, first, _, _| range_at(words, first)),
        }
    }

    fn form(&self) -> Form {
        self.form
    }

    fn pages(&self) -> Pages {
        self.words.pages()
    }
}

impl<const D: u8, const X: u8> SharedFib for DxrFib<D, X> {
    fn attach(source: &Source) -> Result<Self, NotAttached> {
        Ok(Self::new(source)?)
    }
}

/// The form of [`Dxr`]'s blocks.
#[derive(Debug)]
pub struct Shared<const D: u8, const X: u8>;

impl<const D: u8, const X: u8> Shape for Shared<D, X> {
    const SLOT_LENGTH: u8 = {
        assert!(D + X >= 16 && D + X <= 24, "starts have 16 bits, and more slots than 2^24 are no use");
        D + X
    };
    const EXTENSION: u8 = X;
    type Fib = DxrFib<D, X>;

    fn reader(source: &Source) -> Result<DxrFib<D, X>, OutOfMemory> {
        DxrFib::new(source)
    }

    fn root(fib: &DxrFib<D, X>) -> &[AtomicU32] {
        &fib.root
    }

    fn words(fib: &DxrFib<D, X>) -> &[AtomicU64] {
        &fib.words
    }

    fn encode(ranges: &[u32], block: &mut Vec<u64>) -> u32 {
        let count = ranges.len() as u32;
        block.extend((count >= MANY).then_some(u64::from(count)));
        // An odd last range is padded with one that no address reaches.
        let pairs = ranges.chunks(2).map(|pair| (pair[0], pair.get(1).copied().unwrap_or(u32::MAX)));
        block.extend(pairs.map(|(low, high)| u64::from(low) | u64::from(high) << 32));
        count.min(MANY) << 22
    }

    fn offset(entry: u32) -> Option<u32> {
        (entry >> 22 != 0).then_some(entry & OFFSET)
    }

    fn decode(words: &[AtomicU64], entry: u32, ranges: &mut Ranges) {
        let words: &Words = words.try_into().expect("made with this length");
        let (first, count) = span(words, entry);
        for range in (first..first + count).map(|index| range_at(words, index)) {
            ranges.push(start(range), hop(range));
        }
    }
}
