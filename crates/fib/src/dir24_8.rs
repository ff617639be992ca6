//! IPv4: DIR-24-8 (Gupta, Lin, McKeown 1998), the simplest of the structures, for comparison.
//!
//! ```text
//! address  [ 24 bits | 8 bits ]
//!               |         `------------.
//!          root[2^24]                blocks[..][256]
//!          0 .. boundary-1  a next hop     always next hops
//!          boundary .. 65535  block 65535 - entry ---^
//! ```
//!
//! Entries are two bytes. Next hops count up from 0 and blocks down from 65,535; `boundary` is one more than the
//! highest next hop that the table ever contained. Since it only increases, and only over values that never referred
//! to a block, a reader may have an older entry or an older boundary and never confuse the two kinds, provided that
//! it loads the boundary after the entry.
//!
//! Changes are made in place. A route owns the addresses within it that no longer route owns; setting or removing it
//! rewrites exactly these, with one store for each. A new block is filled before it is linked; a block that is
//! unlinked is reused only after all readers have moved past it.

#[cfg(target_arch = "x86_64")]
mod vector;

use crate::cpu::{Form, Kind};
use crate::memory::{Array, Filled, OutOfMemory, prefetch};
use crate::published::{Readers, Retired};
use crate::rib::Rib;
use crate::{BuildFib, Change, Fib, NextHop, NotAttached, SharedFib, Shortage, Source, TableFull};
use bm_wire::prefix::Prefix;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU16, AtomicU32};

const ROOT: usize = 1 << 24;
const BLOCK: usize = 256;
/// Prefixes longer than this need a block.
const ROOT_LENGTH: u8 = 24;
/// Addresses that are looked up together: batching gains little beyond.
const LANES: usize = 64;
/// Bursts shorter than this are looked up without gathers.
const VECTOR_MIN: usize = 16;

/// DIR-24-8 as workers read it.
#[derive(Debug)]
pub struct Dir24_8Fib {
    root: Array<AtomicU16>,
    /// Space for a block for every 16-bit value; unused space is never touched.
    blocks: Array<AtomicU16>,
    /// One number; in an array so that readers in other processes see it too.
    boundary: Array<AtomicU32>,
    form: Form,
}

/// Both arrays with their lengths in the type, so that no index below needs a check.
type Flat<'a> = &'a [AtomicU16; ROOT];

impl Dir24_8Fib {
    fn new(source: &Source) -> Result<Self, OutOfMemory> {
        Ok(Self {
            boundary: source.array(1, Filled::Whole)?,
            root: source.array(ROOT, Filled::Whole)?,
            blocks: source.array(ROOT, Filled::ByNeed)?,
            form: Form::best(),
        })
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    fn lookup_avx2(&self, addresses: &[u32], hops: &mut [NextHop]) {
        self.lookup_chunks(addresses, hops);
    }

    #[inline(always)]
    fn lookup_chunks(&self, addresses: &[u32], hops: &mut [NextHop]) {
        let (by_64, rest) = addresses.as_chunks::<LANES>();
        let (hops_64, hops_rest) = hops.as_chunks_mut::<LANES>();
        for (addresses, hops) in by_64.iter().zip(hops_64) {
            self.lookup_lanes(addresses, hops);
        }
        self.lookup_lanes(rest, hops_rest);
    }

    /// One more than the highest next hop: entries from here up refer to blocks.
    #[inline(always)]
    fn boundary(&self) -> u32 {
        self.boundary[0].load(Relaxed)
    }

    #[inline(always)]
    fn flat(array: &Array<AtomicU16>) -> Flat<'_> {
        (&**array).try_into().expect("both arrays are made with this length")
    }

    /// Up to `LANES` at once: the root's lines are all on their way before the first is needed.
    #[inline(always)]
    fn lookup_lanes(&self, addresses: &[u32], hops: &mut [NextHop]) {
        let (root, blocks) = (Self::flat(&self.root), Self::flat(&self.blocks));
        addresses.iter().for_each(|address| prefetch(&root[(address >> 8) as usize]));
        for (hop, address) in hops.iter_mut().zip(addresses) {
            *hop = NextHop(u32::from(root[(address >> 8) as usize].load(Acquire)));
        }
        let boundary = self.boundary();
        // Few addresses have longer routes, so most bursts have none and end here.
        if hops.iter().fold(0, |greatest, hop| hop.0.max(greatest)) >= boundary {
            self.lookup_long(blocks, boundary, addresses, hops);
        }
    }

    /// The second step for those that need one.
    fn lookup_long(&self, blocks: Flat<'_>, boundary: u32, addresses: &[u32], hops: &mut [NextHop]) {
        let (mut long, mut count) = ([0u8; LANES], 0);
        for (lane, hop) in hops.iter().enumerate().take(LANES) {
            long[count & (LANES - 1)] = lane as u8;
            count += usize::from(hop.0 >= boundary);
        }
        for lane in &long[..count.min(LANES)] {
            let lane = usize::from(*lane);
            prefetch(&blocks[place(hops[lane].0 as u16, addresses[lane])]);
        }
        for lane in &long[..count.min(LANES)] {
            let lane = usize::from(*lane);
            let entry = blocks[place(hops[lane].0 as u16, addresses[lane])].load(Acquire);
            hops[lane] = NextHop(u32::from(entry));
        }
    }

    /// Stores `value` for every address in `range`. Where it ends within a slot, the slot has a block.
    fn paint(&self, range: RangeInclusive<u32>, value: u16) {
        let (first, last) = (*range.start(), *range.end());
        let mut slot = first >> 8;
        if first & 0xff != 0 || (slot == last >> 8 && last & 0xff != 0xff) {
            let end = last.min(first | 0xff);
            self.paint_block(self.root[slot as usize].load(Relaxed), first & 0xff..=end & 0xff, value);
            slot += 1;
        }
        let whole_end = ((u64::from(last) + 1) >> 8) as u32;
        for entry in self.root.get(slot as usize..whole_end as usize).unwrap_or_default() {
            entry.store(value, Release);
        }
        if last & 0xff != 0xff && last >> 8 >= slot {
            self.paint_block(self.root[(last >> 8) as usize].load(Relaxed), 0..=last & 0xff, value);
        }
    }

    fn paint_block(&self, block: u16, range: RangeInclusive<u32>, value: u16) {
        let start = place(block, 0);
        for low in range {
            self.blocks[start + low as usize].store(value, Release);
        }
    }

    fn is_block(&self, entry: u16) -> bool {
        u32::from(entry) >= self.boundary()
    }
}

/// Where a block's entry for `address` is.
#[inline(always)]
fn place(block: u16, address: u32) -> usize {
    usize::from(!block) * BLOCK + (address & 0xff) as usize
}

impl Fib for Dir24_8Fib {
    type Address = u32;

    #[inline]
    fn lookup(&self, address: u32) -> NextHop {
        let entry = Self::flat(&self.root)[(address >> 8) as usize].load(Acquire);
        if !self.is_block(entry) {
            return NextHop(u32::from(entry));
        }
        NextHop(u32::from(Self::flat(&self.blocks)[place(entry, address)].load(Acquire)))
    }

    fn prefetch(&self, addresses: &[u32]) {
        let root = Self::flat(&self.root);
        addresses.iter().for_each(|address| prefetch(&root[(address >> 8) as usize]));
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
            _ => self.lookup_chunks(addresses, hops),
        }
    }

    fn form(&self) -> Form {
        self.form
    }

    fn pages(&self) -> crate::memory::Pages {
        self.root.pages()
    }
}

impl SharedFib for Dir24_8Fib {
    fn attach(source: &Source) -> Result<Self, NotAttached> {
        Ok(Self::new(source)?)
    }
}

/// DIR-24-8 as control builds and changes it.
#[derive(Debug)]
pub struct Dir24_8 {
    rib: Rib<u32>,
    fib: Arc<Dir24_8Fib>,
    /// The lowest value that ever named a block; all from here up are blocks.
    lowest_block: u32,
    free: Vec<u16>,
    retired: Retired<u16>,
}

impl Dir24_8 {
    fn set(&mut self, prefix: Prefix<u32>, hop: NextHop) -> Result<(), Shortage> {
        let value = self.admitted(hop)?;
        if prefix.length() > ROOT_LENGTH && self.linked(prefix).is_none() {
            self.link_new(prefix, value)?;
            self.rib.insert(prefix, hop);
        } else if self.rib.insert(prefix, hop) != Some(hop) {
            self.paint_owned(prefix, value);
        }
        Ok(())
    }

    fn remove(&mut self, prefix: Prefix<u32>) {
        if self.rib.remove(prefix).is_none() {
            return;
        }
        // This fits: whatever is in the rib was accepted.
        let value = self.rib.covering(prefix).map_or(NextHop::NONE, |(_, hop)| hop).0 as u16;
        match self.linked(prefix) {
            Some(block) if prefix.length() > ROOT_LENGTH && !self.needs_block(prefix) => {
                self.fib.root[slot(prefix)].store(value, Release);
                self.retired.push(block);
            }
            _ => self.paint_owned(prefix, value),
        }
    }

    /// The next hop as an entry; raises the boundary over it.
    fn admitted(&self, hop: NextHop) -> Result<u16, Shortage> {
        if hop.0 >= self.lowest_block {
            return Err(Shortage::NextHop(hop));
        }
        if hop.0 >= self.fib.boundary() {
            self.fib.boundary[0].store(hop.0 + 1, Release);
        }
        Ok(hop.0 as u16)
    }

    /// The block of the slot that `prefix` starts in.
    fn linked(&self, prefix: Prefix<u32>) -> Option<u16> {
        let entry = self.fib.root[slot(prefix)].load(Relaxed);
        self.fib.is_block(entry).then_some(entry)
    }

    fn needs_block(&self, prefix: Prefix<u32>) -> bool {
        let slot = Prefix::containing(prefix.first(), ROOT_LENGTH).expect("24 is within 32");
        self.rib.has_longer_within(slot, ROOT_LENGTH)
    }

    /// Gives the slot of `prefix` a block, in which `prefix` has its value from the start.
    fn link_new(&mut self, prefix: Prefix<u32>, value: u16) -> Result<(), Shortage> {
        let block = self.take_block()?;
        let root = &self.fib.root[slot(prefix)];
        self.fib.paint_block(block, 0..=0xff, root.load(Relaxed));
        self.fib.paint_block(block, prefix.first() & 0xff..=prefix.last() & 0xff, value);
        root.store(block, Release);
        Ok(())
    }

    fn take_block(&mut self) -> Result<u16, Shortage> {
        if self.free.is_empty() {
            self.reclaim();
        }
        if let Some(block) = self.free.pop() {
            return Ok(block);
        }
        if self.lowest_block <= self.fib.boundary() {
            return Err(Shortage::Blocks);
        }
        self.lowest_block -= 1;
        Ok(self.lowest_block as u16)
    }

    /// Stores `value` for what `prefix` owns: all of it except the longer routes within.
    fn paint_owned(&self, prefix: Prefix<u32>, value: u16) {
        let mut from = u64::from(prefix.first());
        for (longer, _) in self.rib.nearest_within(prefix) {
            if from < u64::from(longer.first()) {
                self.fib.paint(from as u32..=longer.first() - 1, value);
            }
            from = u64::from(longer.last()) + 1;
        }
        if from <= u64::from(prefix.last()) {
            self.fib.paint(from as u32..=prefix.last(), value);
        }
    }

    /// In the rib's order shorter ones come first, so each may overwrite all of its range.
    fn paint_all(&mut self) -> Result<(), TableFull<u32>> {
        let rib = std::mem::take(&mut self.rib);
        for (applied, (prefix, hop)) in rib.iter().enumerate() {
            let painted = self.admitted(hop).and_then(|value| {
                if prefix.length() > ROOT_LENGTH && self.linked(prefix).is_none() {
                    return self.link_new(prefix, value);
                }
                self.fib.paint(prefix.first()..=prefix.last(), value);
                Ok(())
            });
            painted.map_err(|shortage| TableFull { prefix, applied, shortage })?;
        }
        self.rib = rib;
        Ok(())
    }
}

fn slot(prefix: Prefix<u32>) -> usize {
    (prefix.first() >> 8) as usize
}

impl BuildFib for Dir24_8 {
    type Address = u32;

    fn build_in(
        routes: impl IntoIterator<Item = (Prefix<u32>, NextHop)>,
        readers: &Readers,
        source: &Source,
    ) -> Result<Self, TableFull<u32>> {
        let fib = Dir24_8Fib::new(source).map_err(TableFull::no_memory)?;
        fib.boundary[0].store(1, Release);
        let mut table = Self {
            rib: routes.into_iter().collect(),
            fib: Arc::new(fib),
            lowest_block: 1 << 16,
            free: Vec::new(),
            retired: Retired::new(readers),
        };
        table.paint_all()?;
        Ok(table)
    }

    fn reader(&self) -> Arc<dyn Fib<Address = u32>> {
        self.fib.clone()
    }

    fn apply(&mut self, changes: &[Change<u32>]) -> Result<(), TableFull<u32>> {
        for (applied, change) in changes.iter().enumerate() {
            match *change {
                Change::Remove(prefix) => self.remove(prefix),
                Change::Set(prefix, hop) => {
                    self.set(prefix, hop).map_err(|shortage| TableFull { prefix, applied, shortage })?;
                }
            }
        }
        Ok(())
    }

    fn rib(&self) -> &Rib<u32> {
        &self.rib
    }

    fn memory_bytes(&self) -> usize {
        (ROOT + ((1 << 16) - self.lowest_block as usize) * BLOCK) * size_of::<u16>()
    }

    fn reclaim(&mut self) {
        self.free.extend(self.retired.take_passed());
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use Change::{Remove, Set};

    fn p(text: &str) -> Prefix<u32> {
        text.parse().unwrap()
    }

    fn at(table: &Dir24_8, text: &str) -> u32 {
        let address = p(text).first();
        let mut hops = [NextHop(u32::MAX)];
        table.fib.lookup_burst(&[address], &mut hops);
        assert_eq!(hops[0], table.fib.lookup(address));
        hops[0].0
    }

    fn build(routes: &[(&str, u32)], readers: &Readers) -> Result<Dir24_8, TableFull<u32>> {
        Dir24_8::build(routes.iter().map(|(prefix, hop)| (p(prefix), NextHop(*hop))), readers)
    }

    #[test]
    fn a_change_of_the_shorter_leaves_the_longer_alone() {
        let mut table = build(&[("10.0.0.0/8", 1), ("10.0.0.128/26", 2)], &Readers::new()).unwrap();
        table.apply(&[Set(p("10.0.0.0/8"), NextHop(3)), Set(p("0.0.0.0/0"), NextHop(9))]).unwrap();
        let seen = ["10.0.0.127", "10.0.0.128", "10.0.0.191", "10.0.0.192", "10.255.255.255", "11.0.0.0"];
        assert_eq!(seen.map(|address| at(&table, address)), [3, 2, 2, 3, 3, 9]);
        table.apply(&[Remove(p("10.0.0.0/8"))]).unwrap();
        assert_eq!(seen.map(|address| at(&table, address)), [9, 2, 2, 9, 9, 9]);
    }

    #[test]
    fn a_block_comes_back_only_after_all_readers_moved_on() {
        let readers = Readers::new();
        let mut reader = readers.register();
        let mut table = build(&[("10.0.0.1/32", 1)], &readers).unwrap();
        let one_block = table.memory_bytes();
        let flap = [Remove(p("10.0.0.1/32")), Set(p("10.9.0.1/32"), NextHop(2))];
        table.apply(&flap).unwrap();
        assert_eq!(table.memory_bytes(), one_block + 512, "the first may still be read");
        reader.quiescent();
        table.apply(&[Set(p("10.8.0.1/32"), NextHop(3))]).unwrap();
        assert_eq!(table.memory_bytes(), one_block + 512);
        assert_eq!(["10.0.0.1", "10.9.0.1", "10.8.0.1", "10.8.0.2"].map(|a| at(&table, a)), [0, 2, 3, 0]);
    }

    #[test]
    fn refuses_what_does_not_fit_and_stays_as_it_was() {
        let too_far = [("10.0.0.0/8", 65_535), ("10.0.0.1/32", 1)];
        let refused = build(&too_far, &Readers::new()).unwrap_err();
        assert_eq!((refused.prefix, refused.shortage), (p("10.0.0.1/32"), Shortage::Blocks));
        let refused = build(&[("10.0.0.0/8", 65_536)], &Readers::new()).unwrap_err();
        assert_eq!(refused.shortage, Shortage::NextHop(NextHop(65_536)));

        let mut table = build(&[("10.0.0.1/32", 1)], &Readers::new()).unwrap();
        let changes = [
            Set(p("10.1.0.0/16"), NextHop(65_534)),
            Set(p("10.2.0.1/32"), NextHop(2)),
            Set(p("10.3.0.0/16"), NextHop(3)),
        ];
        let refused = table.apply(&changes).unwrap_err();
        assert_eq!(refused, TableFull { prefix: p("10.2.0.1/32"), applied: 1, shortage: Shortage::Blocks });
        assert_eq!(
            ["10.0.0.1", "10.1.2.3", "10.2.0.1", "10.3.0.0"].map(|a| at(&table, a)),
            [1, 65_534, 0, 0]
        );
        assert_eq!(table.rib().len(), 2);
        let refused = table.apply(&[Set(p("10.3.0.0/16"), NextHop(65_535))]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "no room for the route to 10.3.0.0/16: next hop number 65535 is too large for a table entry; \
             use fewer distinct next hops"
        );
    }

    #[test]
    fn bursts_of_any_length_agree_with_single_lookups_in_every_form() {
        let routes = [("0.0.0.0/1", 1), ("10.0.0.0/25", 2), ("10.0.1.7/32", 3), ("255.255.255.0/24", 4)];
        let table = build(&routes, &Readers::new()).unwrap();
        let lengths = [0, 1, 15, 16, 17, 63, 64, 65, 95, 200];
        for (form, len) in Form::all().into_iter().flat_map(|form| lengths.map(|len| (form, len))) {
            let addresses: Vec<u32> = (0..len)
                .map(|i| if i % 5 == 4 { u32::MAX - i * 151 % 512 } else { 0x0a00_0000 + i * 37 % 512 })
                .collect();
            let mut hops = vec![NextHop(99); len as usize + 1];
            table.fib.lookup_burst_by(form, &addresses, &mut hops);
            let singly: Vec<NextHop> = addresses.iter().map(|a| table.fib.lookup(*a)).collect();
            let expected = (&singly[..], NextHop(99));
            assert_eq!((&hops[..len as usize], hops[len as usize]), expected, "{form}");
        }
    }
}
