//! How routes become blocks, whatever the form of a block: shared by [`Chunk17`](super::Chunk17) and by DXR, which
//! `bench lookup` compares with it.
//!
//! ```text
//! changes -> rib -> what each prefix owns -> ranges of the slots it touches -> blocks (put, not linked)
//!     all fit: link each slot by one store, release the old blocks      one does not: undo it all
//! ```
//!
//! Many changes are handled together, sorted by address, so that a slot's block is made once for all of them: changes
//! of different prefixes commute, and those of one stay in their order. If such a run does not fit, it is undone and
//! repeated one by one, so that a refusal names the change that caused it.

use super::ranges::Ranges;
use super::store::Store;
use crate::memory::{OutOfMemory, Source};
use crate::published::Readers;
use crate::rib::Rib;
use crate::{BuildFib, Change, Fib, NextHop, Shortage, TableFull};
use bm_wire::prefix::Prefix;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The most changes that are handled together. Their new blocks and the old ones exist at the same time.
const RUN: usize = 1 << 18;

/// Words that offsets can address.
pub const WORDS: usize = 1 << 22;

/// The form of the entries in the root and of the blocks below.
///
/// An entry with a block has its offset in the low 22 bits. Offset 0 is never a block.
pub trait Shape: Send + Sync + 'static {
    /// Bits of the address that select a slot; at least 16, so that starts in a slot fit into 16 bits.
    const SLOT_LENGTH: u8;
    /// Of these, this many of the last are looked up in a block of entries, shared when equal.
    const EXTENSION: u8;
    /// The reader.
    type Fib: Fib<Address = u32> + fmt::Debug + 'static;

    /// A reader of an empty table with arrays from `source`.
    ///
    /// # Errors
    /// If the source has no memory.
    fn reader(source: &Source) -> Result<Self::Fib, OutOfMemory>;
    /// Entries by slot; with an extension, offsets of blocks of entries.
    fn root(fib: &Self::Fib) -> &[AtomicU32];
    /// Where the blocks are.
    fn words(fib: &Self::Fib) -> &[AtomicU64];
    /// Appends the block of `ranges` (two at least) to `block`; returns the entry, its offset left 0.
    fn encode(ranges: &[u32], block: &mut Vec<u64>) -> u32;
    /// Where the block of an entry starts, unless the entry is a next hop.
    fn offset(entry: u32) -> Option<u32>;
    /// Appends the ranges of an entry that has a block.
    fn decode(words: &[AtomicU64], entry: u32, ranges: &mut Ranges);
}

/// The bits of an entry with the offset.
pub const OFFSET: u32 = WORDS as u32 - 1;

/// A table as control builds and changes it.
pub struct Table<F: Shape> {
    rib: Rib<u32>,
    painter: Painter<F>,
    /// The routes of a run before it.
    undo: Vec<(Prefix<u32>, Option<NextHop>)>,
}

/// The structure, and the change in progress.
struct Painter<F: Shape> {
    fib: Arc<F::Fib>,
    store: Store,
    /// With an extension: the entries by slot.
    shadow: Vec<u32>,
    /// The slot being changed, and its ranges.
    open: Option<u32>,
    ranges: Ranges,
    /// Slots with their new entries; by slot, one more than the position there; and the resulting entries in the
    /// root, where that differs.
    plan: Vec<(u32, u32)>,
    planned: Vec<u32>,
    plan_root: Vec<(u32, u32)>,
    block: Vec<u64>,
}

impl<F: Shape> Painter<F> {
    const SHIFT: u8 = 32 - F::SLOT_LENGTH;
    const SLOTS: usize = 1 << F::SLOT_LENGTH;

    fn new(readers: &Readers, source: &Source) -> Result<Self, OutOfMemory> {
        // Word 0 never belongs to a block: entry 0 is "no route", offset 0 the root's "not linked yet".
        let first = 1 << F::EXTENSION.saturating_sub(1);
        let fib = Arc::new(F::reader(source)?);
        Ok(Self {
            // What an entry cannot address is not used: DXR's array has padding at its end.
            store: Store::new(first, F::words(&fib).len().min(WORDS) as u32, readers),
            fib,
            planned: vec![0; Self::SLOTS],
            shadow: if F::EXTENSION > 0 { vec![0; Self::SLOTS] } else { Vec::new() },
            open: None,
            ranges: Ranges::default(),
            plan: Vec::new(),
            plan_root: Vec::new(),
            block: Vec::new(),
        })
    }

    /// The entry of a slot, as planned or as it is.
    fn entry(&self, slot: u32) -> u32 {
        if let Some((_, entry)) = self.plan.get((self.planned[slot as usize] as usize).wrapping_sub(1)) {
            return *entry;
        }
        match self.shadow.get(slot as usize) {
            Some(entry) => *entry,
            None => F::root(&self.fib)[slot as usize].load(Relaxed),
        }
    }

    /// Sets the next hop of all addresses `first..=last` to `value`.
    fn paint(&mut self, first: u32, last: u32, value: u16) -> Result<(), Shortage> {
        let (mut from, end) = (u64::from(first), u64::from(last) + 1);
        let in_slot = (1u64 << Self::SHIFT) - 1;
        while from < end {
            let slot = (from >> Self::SHIFT) as u32;
            let slot_end = (from | in_slot) + 1;
            if from & in_slot == 0 && slot_end <= end {
                self.close()?;
                self.plan(slot, u32::from(value));
            } else {
                self.open(slot)?;
                let last = (slot_end.min(end) - 1) & in_slot;
                self.ranges.paint((from & in_slot) as u16..=last as u16, in_slot as u16, value);
            }
            from = slot_end.min(end);
        }
        Ok(())
    }

    fn open(&mut self, slot: u32) -> Result<(), Shortage> {
        if self.open == Some(slot) {
            return Ok(());
        }
        self.close()?;
        let entry = self.entry(slot);
        self.ranges.clear();
        if F::offset(entry).is_some() {
            F::decode(F::words(&self.fib), entry, &mut self.ranges);
        } else {
            self.ranges.reset(entry as u16);
        }
        self.open = Some(slot);
        Ok(())
    }

    /// Puts the block of the open slot into the store and its entry into the plan.
    fn close(&mut self) -> Result<(), Shortage> {
        let Some(slot) = self.open.take() else { return Ok(()) };
        let entry = match self.ranges.single() {
            Some(hop) => u32::from(hop),
            None => {
                self.block.clear();
                let entry = F::encode(self.ranges.list(), &mut self.block);
                entry | self.store.put(F::words(&self.fib), &self.block)?
            }
        };
        self.plan(slot, entry);
        Ok(())
    }

    fn plan(&mut self, slot: u32, entry: u32) {
        let place = self.planned[slot as usize];
        if place == 0 {
            self.plan.push((slot, entry));
            self.planned[slot as usize] = self.plan.len() as u32;
            return;
        }
        let old = std::mem::replace(&mut self.plan[place as usize - 1].1, entry);
        F::offset(old).into_iter().for_each(|offset| self.store.release(offset));
    }

    /// Links all that is planned.
    fn commit(&mut self) -> Result<(), Shortage> {
        self.close()?;
        self.plan.iter().for_each(|(slot, _)| self.planned[*slot as usize] = 0);
        if F::EXTENSION > 0 {
            self.plan.sort_unstable();
            self.plan_extensions()?;
            for (slot, entry) in self.plan.drain(..) {
                let old = std::mem::replace(&mut self.shadow[slot as usize], entry);
                // Before the root is stored: what was released waits for readers only after that.
                self.plan_root.extend(F::offset(old).map(|offset| (u32::MAX, offset)));
            }
        } else {
            std::mem::swap(&mut self.plan, &mut self.plan_root);
        }
        let root = F::root(&self.fib);
        for (slot, entry) in self.plan_root.iter_mut().filter(|(slot, _)| *slot != u32::MAX) {
            *entry = root[*slot as usize].swap(*entry, Release);
        }
        for (slot, old) in self.plan_root.drain(..) {
            let block = if F::EXTENSION > 0 || slot == u32::MAX { Some(old) } else { F::offset(old) };
            block.filter(|offset| *offset != 0).into_iter().for_each(|offset| self.store.release(offset));
        }
        self.store.retire();
        Ok(())
    }

    /// Puts the blocks of entries that the plan changes.
    fn plan_extensions(&mut self) -> Result<(), Shortage> {
        let mut planned = self.plan.as_slice();
        while let Some((slot, _)) = planned.first() {
            let index = slot >> F::EXTENSION;
            let start = index << F::EXTENSION;
            let mut entries = self.shadow[start as usize..][..1 << F::EXTENSION].to_vec();
            let here = planned.partition_point(|(slot, _)| slot >> F::EXTENSION == index);
            planned[..here].iter().for_each(|(slot, entry)| entries[(slot - start) as usize] = *entry);
            planned = &planned[here..];
            self.block.clear();
            self.block.extend(entries.chunks(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32));
            let offset = self.store.put(F::words(&self.fib), &self.block)?;
            self.plan_root.push((index, offset));
        }
        Ok(())
    }

    /// Discards the planned change.
    fn abandon(&mut self) {
        self.open = None;
        self.plan.iter().for_each(|(slot, _)| self.planned[*slot as usize] = 0);
        let blocks = self.plan.drain(..).filter_map(|(_, entry)| F::offset(entry));
        blocks.chain(self.plan_root.drain(..).map(|(_, offset)| offset)).for_each(|o| self.store.release(o));
        self.store.retire();
    }

    /// Moves blocks down when there are many holes.
    fn compact(&mut self) {
        if !self.store.is_loose() {
            return;
        }
        self.store.join();
        if !self.store.is_loose() {
            return;
        }
        let moved = self.store.compact(F::words(&self.fib));
        if moved.is_empty() {
            return;
        }
        let relinked = |entry: u32| {
            let place = F::offset(entry).and_then(|offset| moved.place(offset));
            place.map(|place| entry & !OFFSET | place)
        };
        for entry in &mut self.shadow {
            *entry = relinked(*entry).unwrap_or(*entry);
        }
        for (index, entry) in F::root(&self.fib).iter().enumerate() {
            let old = entry.load(Relaxed);
            let new = if F::EXTENSION == 0 { relinked(old) } else { moved.place(old) };
            if let Some(new) = new {
                entry.store(new, Release);
            }
            if F::EXTENSION > 0 {
                let slots = &self.shadow[index << F::EXTENSION..][..1 << F::EXTENSION];
                let pairs = slots.chunks(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32);
                self.store.rewrite(F::words(&self.fib), new.unwrap_or(old), pairs);
            }
        }
        self.store.retire_moved(moved);
        self.store.reclaim();
    }
}

impl<F: Shape> Table<F> {
    /// Fills the empty structure from the rib. In its order shorter routes come first, so short routes fill the root
    /// and the longer ones of a slot then overwrite what they find there.
    fn fill(&mut self) -> Result<(), TableFull<u32>> {
        let Self { rib, painter, .. } = self;
        let (mut opened, mut at) = ((Prefix::default(), 0), u32::MAX);
        let full = |(prefix, applied), shortage| TableFull { prefix, applied, shortage };
        for (applied, (prefix, hop)) in rib.iter().enumerate() {
            let value = value(hop).map_err(|shortage| full((prefix, applied), shortage))?;
            let slot = prefix.first() >> Painter::<F>::SHIFT;
            if slot != at || prefix.length() <= F::SLOT_LENGTH {
                painter.settle().map_err(|shortage| full(opened, shortage))?;
                (opened, at) = ((prefix, applied), u32::MAX);
            }
            if prefix.length() <= F::SLOT_LENGTH {
                painter.fill_slots(slot, prefix.last() >> Painter::<F>::SHIFT, u32::from(value));
                continue;
            }
            at = slot;
            painter.paint(prefix.first(), prefix.last(), value).map_err(|shortage| full(opened, shortage))?;
        }
        painter.settle().and_then(|()| painter.link_extensions()).map_err(|shortage| full(opened, shortage))
    }

    /// All of these changes, or none.
    fn run<'a>(&mut self, changes: impl Iterator<Item = &'a Change<u32>>) -> Result<(), Shortage> {
        let mut done = Ok(());
        for change in changes {
            done = self.change(change);
            if done.is_err() {
                break;
            }
        }
        let done = done.and_then(|()| self.painter.commit());
        if done.is_err() {
            self.painter.abandon();
            for (prefix, old) in self.undo.drain(..).rev() {
                match old {
                    Some(hop) => self.rib.insert(prefix, hop),
                    None => self.rib.remove(prefix),
                };
            }
        }
        self.undo.clear();
        done
    }

    fn change(&mut self, change: &Change<u32>) -> Result<(), Shortage> {
        let prefix = change.prefix();
        let (old, value) = match *change {
            Change::Set(_, hop) => {
                let value = value(hop)?;
                let old = self.rib.insert(prefix, hop);
                if old == Some(hop) {
                    return Ok(());
                }
                (old, value)
            }
            Change::Remove(_) => {
                let Some(old) = self.rib.remove(prefix) else { return Ok(()) };
                // This fits: whatever is in the rib was accepted.
                (Some(old), self.rib.covering(prefix).map_or(NextHop::NONE, |(_, hop)| hop).0 as u16)
            }
        };
        self.undo.push((prefix, old));
        let mut from = u64::from(prefix.first());
        for (longer, _) in self.rib.nearest_within(prefix) {
            if from < u64::from(longer.first()) {
                self.painter.paint(from as u32, longer.first() - 1, value)?;
            }
            from = u64::from(longer.last()) + 1;
        }
        if from <= u64::from(prefix.last()) {
            self.painter.paint(from as u32, prefix.last(), value)?;
        }
        Ok(())
    }

    /// Sorted by address; each prefix's changes stay in their order.
    fn run_sorted(&mut self, changes: &[Change<u32>]) -> Result<(), Shortage> {
        let numbered = changes.iter().enumerate();
        let mut order: Vec<u64> =
            numbered.map(|(i, change)| u64::from(change.prefix().first()) << 32 | i as u64).collect();
        order.sort_unstable();
        self.run(order.into_iter().map(|key| &changes[key as u32 as usize]))
    }

    fn one_by_one(&mut self, changes: &[Change<u32>], before: usize) -> Result<(), TableFull<u32>> {
        for (i, change) in changes.iter().enumerate() {
            let (prefix, applied) = (change.prefix(), before + i);
            self.run([change].into_iter()).map_err(|shortage| TableFull { prefix, applied, shortage })?;
        }
        Ok(())
    }

    /// Bytes of the blocks that are linked.
    pub fn live_bytes(&self) -> usize {
        self.painter.store.live() * size_of::<u64>()
    }

    /// Bytes up to the end of the highest block: [`Self::live_bytes`], holes, and what readers may use.
    pub fn extent_bytes(&self) -> usize {
        self.painter.store.extent() * size_of::<u64>()
    }

    /// How many blocks there are, equal ones counted once.
    pub fn blocks(&self) -> usize {
        self.painter.store.blocks()
    }

    /// The reader, for functions that only this structure has.
    pub(crate) fn fib(&self) -> &F::Fib {
        &self.painter.fib
    }
}

impl<F: Shape> Painter<F> {
    /// While filling: closes the open slot and links it.
    fn settle(&mut self) -> Result<(), Shortage> {
        self.close()?;
        while let Some((slot, entry)) = self.plan.pop() {
            self.planned[slot as usize] = 0;
            self.fill_slots(slot, slot, entry);
        }
        Ok(())
    }

    /// During filling: there are no readers yet, and no block is replaced.
    fn fill_slots(&mut self, first: u32, last: u32, entry: u32) {
        let slots = first as usize..=last as usize;
        if F::EXTENSION > 0 {
            self.shadow[slots].fill(entry);
        } else {
            F::root(&self.fib)[slots].iter().for_each(|slot| slot.store(entry, Release));
        }
    }

    /// While filling: the blocks of entries, once all entries are there.
    fn link_extensions(&mut self) -> Result<(), Shortage> {
        if F::EXTENSION > 0 {
            for index in 0..Self::SLOTS as u32 >> F::EXTENSION {
                self.plan.push((index << F::EXTENSION, self.shadow[(index << F::EXTENSION) as usize]));
            }
            self.plan_extensions()?;
            self.plan.clear();
            let root = F::root(&self.fib);
            self.plan_root.drain(..).for_each(|(slot, offset)| root[slot as usize].store(offset, Release));
        }
        Ok(())
    }
}

/// A next hop as stored in blocks.
fn value(hop: NextHop) -> Result<u16, Shortage> {
    u16::try_from(hop.0).map_err(|_| Shortage::NextHop(hop))
}

impl<F: Shape> BuildFib for Table<F> {
    type Address = u32;

    fn build_in(
        routes: impl IntoIterator<Item = (Prefix<u32>, NextHop)>,
        readers: &Readers,
        source: &Source,
    ) -> Result<Self, TableFull<u32>> {
        let painter = Painter::new(readers, source).map_err(TableFull::no_memory)?;
        let mut table = Self { rib: routes.into_iter().collect(), painter, undo: Vec::new() };
        table.fill()?;
        Ok(table)
    }

    fn reader(&self) -> Arc<dyn Fib<Address = u32>> {
        self.painter.fib.clone()
    }

    fn apply(&mut self, changes: &[Change<u32>]) -> Result<(), TableFull<u32>> {
        self.reclaim();
        for (turn, run) in changes.chunks(RUN).enumerate() {
            if run.len() == 1 || self.run_sorted(run).is_err() {
                self.one_by_one(run, turn * RUN)?;
            }
        }
        self.reclaim();
        self.painter.compact();
        Ok(())
    }

    fn rib(&self) -> &Rib<u32> {
        &self.rib
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(F::root(self.fib())) + self.painter.store.extent() * size_of::<u64>()
    }

    fn reclaim(&mut self) {
        self.painter.store.reclaim();
    }
}

impl<F: Shape> fmt::Debug for Table<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table of {}", self.rib.len())
    }
}

/// An entry that readers load.
#[inline(always)]
pub fn load(entry: &AtomicU32) -> u32 {
    entry.load(Acquire)
}
