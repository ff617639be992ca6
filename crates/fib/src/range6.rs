//! IPv6: a direct root of 16 bits, then search trees of range ends, one cache line per step.
//!
//! ```text
//! address [ 16 bits | 32 bits | 32 bits | 32 bits | 16 bits ]
//!              |        |          `- the next window: only below a range with longer routes
//!          root[2^16]   |
//!          next hop, or v
//!          fork: [ ends of children 0 .. 14           | first child ]   children lie side by side,
//!            |                                                          so one number names sixteen
//!          fork, leaf: [ ends of ranges 0 .. 9 | next hops 0 .. 10, two bytes each | ffff ]
//!                wide: [ ends of ranges 0 .. 5 | - - | words 0 .. 6              | - 0000 ]
//!                                                    `- a next hop, or a tree of the next window
//! ```
//!
//! Routes are split into ranges of equal next hop; a window of 32 bits is a B+-tree of the ranges' last keys. A step
//! of a lookup reads one cache line and counts the ends that are below the key: one vector comparison, no branch. The
//! number of steps depends on the number of routes around the address, however many prefix lengths there are: three
//! forks and a leaf on a full table. Sixteen bits of root and 32 of window end at /48, where nearly all routes end;
//! 32-bit keys take half the memory of 64. Nearly all leaves have two bytes per next hop; one is wide if a range
//! leads deeper, or a next hop is above 65,534.
//!
//! # Contract for other readers
//!
//! Two arrays of 32-bit cells in the machine's byte order: `root` of 2^16, and `lines` of 16 cells each,
//! aligned to 64 bytes. A search from BPF or from another process does this, for window 0, 1, 2, 3:
//!
//! ```text
//! word = root[address >> 112]
//! while word >> 31:                             at most 4 times: the windows
//!     key = 32 bits of the address, from bit 16 + 32 * window on; zeros follow the last bit
//!     line = word & 0x0fffffff
//!     repeat (word >> 28 & 7) times:            3 in window 0 of a full table, never over 7
//!         line = lines[line][15] + |{ i < 15: lines[line][i] < key }|
//!     if lines[line][15] >> 16 == 0xffff:
//!         n = |{ i < 10: lines[line][i] < key }|;  word = the two bytes at 40 + 2 * n of the line
//!     else:
//!         word = lines[line][8 + |{ i < 7: lines[line][i] < key }|]
//! next hop = word
//! ```
//!
//! Ends ascend, so the count is four halvings (three in a wide leaf), each a load, a comparison and an addition.
//! Indices must be masked to the array all the same: a reader that is not registered may read a line that is being
//! written. Cells that readers follow change with single aligned stores.
//!
//! # Changes
//!
//! Changes copy: the smallest subtree around the changed keys is rebuilt, its siblings are copied next to it, and one
//! store into the fork above links them; so each address sees the old next hop or the new one. What overflows is
//! split one level higher, as in a B+-tree. What was unlinked is reused only after all readers have moved past it.

mod arena;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod bulk;
mod change;
mod line;
mod search;
mod sweep;
mod tree;
mod writer;

use crate::cpu::{Form, Kind};
use crate::memory::{Array, Filled, OutOfMemory, prefetch};
use crate::published::Readers;
use crate::rib::Rib;
use crate::{BuildFib, Change, Fib, NextHop, NotAttached, SharedFib, Shortage, Source, TableFull};
use bm_wire::prefix::Prefix;
use line::{Line, Word};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use writer::{Link, Writer};

/// Bits that the root takes.
const ROOT_LENGTH: u8 = 16;
const ROOT: usize = 1 << ROOT_LENGTH;
/// Lines that there may be: 128 MiB of addresses, of which a full table touches 1.3.
const LINES: usize = 1 << 21;
/// The least number of levels of forks in a root slot's tree, so that lanes stay in step.
const LOW: u32 = 3;

/// The IPv6 table as workers read it.
#[derive(Debug)]
pub struct Range6Fib {
    root: Array<AtomicU32>,
    lines: Array<Line>,
    form: Form,
}

/// The part of `address` in the window at `depth` (0 follows the root).
#[inline(always)]
fn key(address: u128, depth: u32) -> u32 {
    (address << (u32::from(ROOT_LENGTH) + 32 * depth) >> 96) as u32
}

#[inline(always)]
fn slot(address: u128) -> usize {
    (address >> (128 - ROOT_LENGTH)) as usize
}

impl Range6Fib {
    fn new(source: &Source) -> Result<Self, OutOfMemory> {
        let (root, lines) = (source.array(ROOT, Filled::Whole)?, source.array(LINES, Filled::ByNeed)?);
        Ok(Self { root, lines, form: Form::best().without_avx512() })
    }

    /// The arrays with their lengths in the type, so that no index in a lookup needs a check.
    #[inline(always)]
    fn flat(&self) -> (&[AtomicU32; ROOT], &[Line; LINES]) {
        let root = (&*self.root).try_into().expect("made with this length");
        let lines = (&*self.lines).try_into().expect("made with this length");
        (root, lines)
    }

    /// One address by this form.
    #[inline(always)]
    fn lookup_by(&self, form: Form, address: u128) -> NextHop {
        match form.kind() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the form is the proof that the CPU has AVX2.
            Kind::Avx2 | Kind::Avx512 => unsafe { avx2::single(self, address) },
            _ => {
                let (root, lines) = self.flat();
                let word = Word(root[slot(address)].load(Acquire));
                search::from(search::Halving, lines, word, address, 0)
            }
        }
    }
}

impl Fib for Range6Fib {
    type Address = u128;

    #[inline]
    fn lookup(&self, address: u128) -> NextHop {
        self.lookup_by(self.form, address)
    }

    fn prefetch(&self, addresses: &[u128]) {
        let (root, _) = self.flat();
        addresses.iter().for_each(|address| prefetch(&root[slot(*address)]));
    }

    fn lookup_burst_by(&self, form: Form, addresses: &[u128], hops: &mut [NextHop]) {
        let hops = &mut hops[..addresses.len()];
        match form.kind() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the form is the proof that the CPU has AVX2.
            Kind::Avx2 | Kind::Avx512 => unsafe { avx2::burst(self, addresses, hops) },
            _ => search::burst::<_, 8, 8>(search::Halving, self, addresses, hops),
        }
    }

    fn form(&self) -> Form {
        self.form
    }

    fn pages(&self) -> crate::memory::Pages {
        self.lines.pages()
    }
}

impl SharedFib for Range6Fib {
    fn attach(source: &Source) -> Result<Self, NotAttached> {
        Ok(Self::new(source)?)
    }
}

/// The IPv6 table as control builds and changes it.
#[derive(Debug)]
pub struct Range6 {
    rib: Rib<u128>,
    writer: Writer,
    /// By root slot: changes that its tree took since it was packed.
    patience: Vec<u32>,
}

impl Range6 {
    fn set(&mut self, prefix: Prefix<u128>, hop: NextHop) -> Result<(), Shortage> {
        if !Word::can_name(hop) {
            return Err(Shortage::NextHop(hop));
        }
        let old = self.rib.insert(prefix, hop);
        if old == Some(hop) {
            return Ok(());
        }
        self.refresh(prefix).inspect_err(|_| self.put_back(prefix, old))
    }

    fn remove(&mut self, prefix: Prefix<u128>) -> Result<(), Shortage> {
        let old = self.rib.remove(prefix);
        if old.is_none() {
            return Ok(());
        }
        self.refresh(prefix).inspect_err(|_| self.put_back(prefix, old))
    }

    fn put_back(&mut self, prefix: Prefix<u128>, old: Option<NextHop>) {
        match old {
            Some(hop) => self.rib.insert(prefix, hop),
            None => self.rib.remove(prefix),
        };
    }

    /// Fills the empty structure from the rib: short routes fill the root in order, then each slot with longer ones
    /// gets its tree.
    fn fill(&mut self) -> Result<(), TableFull<u128>> {
        let mut slots: Vec<(usize, Prefix<u128>, usize)> = Vec::new();
        for (applied, (prefix, hop)) in self.rib.iter().enumerate() {
            let at = slot(prefix.first());
            if !Word::can_name(hop) {
                return Err(TableFull { prefix, applied, shortage: Shortage::NextHop(hop) });
            }
            if prefix.length() <= ROOT_LENGTH {
                let values = &self.writer.fib.root[at..=slot(prefix.last())];
                values.iter().for_each(|value| value.store(hop.0, Release));
            } else if slots.last().is_none_or(|(last, ..)| *last != at) {
                slots.push((at, prefix, applied));
            }
        }
        for (at, prefix, applied) in slots {
            let word = self.slot_tree(at).map_err(|shortage| TableFull { prefix, applied, shortage })?;
            self.writer.stores.push((Link::Root(at), word.0));
            self.writer.carry_out();
        }
        Ok(())
    }
}

impl BuildFib for Range6 {
    type Address = u128;

    fn build_in(
        routes: impl IntoIterator<Item = (Prefix<u128>, NextHop)>,
        readers: &Readers,
        source: &Source,
    ) -> Result<Self, TableFull<u128>> {
        let fib = Arc::new(Range6Fib::new(source).map_err(TableFull::no_memory)?);
        let mut table = Self {
            rib: routes.into_iter().collect(),
            writer: Writer::new(fib, readers),
            patience: vec![0; ROOT],
        };
        table.fill()?;
        Ok(table)
    }

    fn reader(&self) -> Arc<dyn Fib<Address = u128>> {
        self.writer.fib.clone()
    }

    fn apply(&mut self, changes: &[Change<u128>]) -> Result<(), TableFull<u128>> {
        if self.bulk(changes) {
            return Ok(());
        }
        for (applied, change) in changes.iter().enumerate() {
            let done = match *change {
                Change::Set(prefix, hop) => self.set(prefix, hop),
                Change::Remove(prefix) => self.remove(prefix),
            };
            done.map_err(|shortage| TableFull { prefix: change.prefix(), applied, shortage })?;
        }
        Ok(())
    }

    fn rib(&self) -> &Rib<u128> {
        &self.rib
    }

    fn memory_bytes(&self) -> usize {
        ROOT * size_of::<u32>() + self.writer.arena.ever_used() * size_of::<Line>()
    }

    fn reclaim(&mut self) {
        self.writer.arena.reclaim();
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
