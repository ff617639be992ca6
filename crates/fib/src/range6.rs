//! IPv6: a direct root, then nodes of sixteen range starts.
//!
//! ```text
//! address [ 20 bits | 32 bits | 32 bits | 32 bits | 12 bits ]
//!              |        |          `- the next window: only below a start with longer routes
//!          root[2^20]   |
//!          next hop, or v
//!          node: [ start 0 .. start 15 ]      the last start that is not past the key wins:
//!                [ value 0 .. value 15 ]      a next hop, a node of this window, or of the next
//! ```
//!
//! Routes are cut into ranges of equal next hop; within a window of 32 bits the starts of the ranges
//! form a search tree of nodes of sixteen (two cache lines each: starts, values). A step of a lookup is
//! one comparison of sixteen keys, without a branch, and the number of steps follows the number of
//! routes around the address: three or four on a full table, however many prefix lengths there are.
//! 32-bit keys, not 64: they halve the memory, and four fit a vector of the oldest x86-64.
//!
//! Changes copy: the node around the changed range is made anew from the rib and linked by one store
//! into the value that named the old one, so each address sees the old next hop or the new one. A node
//! that overflows is split and its parent copied, as in a B+-tree. What was unlinked is used again only
//! after all readers have moved past it.

mod change;
mod node;
mod sweep;
mod tree;

use crate::memory::{Array, Filled, OutOfMemory, prefetch};
use crate::published::Readers;
use crate::rib::Rib;
use crate::{BuildFib, Change, Fib, Lack, NextHop, NotAttached, SharedFib, Source, TableFull};
use bm_wire::prefix::Prefix;
use node::{Node, Word};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};
use tree::Nodes;

/// Bits that the root takes: enough to part the registries' blocks, few enough to stay at 4 MiB.
const ROOT_LENGTH: u8 = 20;
const ROOT: usize = 1 << ROOT_LENGTH;
/// Nodes that there may be: 128 MiB of addresses, of which a full table touches 4.
const NODES: usize = 1 << 20;
/// Addresses that are looked up together.
const LANES: usize = 64;

/// The IPv6 table as workers read it.
#[derive(Debug)]
pub struct Range6Fib {
    root: Array<AtomicU32>,
    nodes: Array<Node>,
}

/// What the window at `depth` (0 follows the root) holds of `address`.
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
        Ok(Self { root: source.array(ROOT, Filled::Whole)?, nodes: source.array(NODES, Filled::ByNeed)? })
    }

    /// The arrays with their lengths in the type, so that no index in a lookup needs a check.
    #[inline(always)]
    fn flat(&self) -> (&[AtomicU32; ROOT], &[Node; NODES]) {
        let root = (&*self.root).try_into().expect("made with this length");
        let nodes = (&*self.nodes).try_into().expect("made with this length");
        (root, nodes)
    }

    /// All lanes go down together, a level at a time, so that their cache misses overlap.
    #[inline(always)]
    fn lookup_lanes(&self, addresses: &[u128], hops: &mut [NextHop]) {
        let (root, nodes) = self.flat();
        let (mut keys, mut depths) = ([0u32; LANES], [0u8; LANES]);
        let (mut active, mut count) = ([0u8; LANES], 0);
        for (lane, (hop, address)) in hops.iter_mut().zip(addresses).enumerate() {
            let word = Word(root[slot(*address)].load(Acquire));
            *hop = NextHop(word.0);
            keys[lane & (LANES - 1)] = key(*address, 0);
            active[count & (LANES - 1)] = lane as u8;
            count += usize::from(word.is_node());
        }
        while count > 0 {
            let before = std::mem::take(&mut count).min(LANES);
            for lane in &active[..before] {
                nodes[Word(hops[usize::from(*lane)].0).index()].prefetch();
            }
            for i in 0..before {
                let lane = usize::from(active[i]);
                let (hop, key_now) = (&mut hops[lane], &mut keys[lane & (LANES - 1)]);
                let word = nodes[Word(hop.0).index()].find(*key_now);
                *hop = NextHop(word.0);
                if word.enters() {
                    depths[lane & (LANES - 1)] += 1;
                    *key_now = key(addresses[lane], u32::from(depths[lane & (LANES - 1)] & 3));
                }
                active[count & (LANES - 1)] = lane as u8;
                count += usize::from(word.is_node());
            }
        }
    }
}

impl Fib for Range6Fib {
    type Address = u128;

    fn lookup(&self, address: u128) -> NextHop {
        let (root, nodes) = self.flat();
        let mut word = Word(root[slot(address)].load(Acquire));
        let mut depth = 0;
        while word.is_node() {
            word = nodes[word.index()].find(key(address, depth & 3));
            depth += u32::from(word.enters());
        }
        NextHop(word.0)
    }

    fn prefetch(&self, addresses: &[u128]) {
        let (root, _) = self.flat();
        addresses.iter().for_each(|address| prefetch(&root[slot(*address)]));
    }

    fn lookup_burst(&self, addresses: &[u128], hops: &mut [NextHop]) {
        let hops = &mut hops[..addresses.len()];
        for (addresses, hops) in addresses.chunks(LANES).zip(hops.chunks_mut(LANES)) {
            self.lookup_lanes(addresses, hops);
        }
    }

    fn pages(&self) -> crate::memory::Pages {
        self.nodes.pages()
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
    fib: Arc<Range6Fib>,
    nodes: Nodes,
    /// By root slot: changes that its tree has still to take before it is made anew, evenly filled.
    patience: HashMap<usize, u32>,
}

impl Range6 {
    fn set(&mut self, prefix: Prefix<u128>, hop: NextHop) -> Result<(), Lack> {
        if !Word::can_name(hop) {
            return Err(Lack::NextHop(hop));
        }
        let old = self.rib.insert(prefix, hop);
        if old == Some(hop) {
            return Ok(());
        }
        self.refresh(prefix).inspect_err(|_| self.put_back(prefix, old))
    }

    fn remove(&mut self, prefix: Prefix<u128>) -> Result<(), Lack> {
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

    /// Fills the empty structure from the rib: short routes paint the root in order, then each slot
    /// with longer ones gets its tree.
    fn fill(&mut self) -> Result<(), TableFull<u128>> {
        let mut slots: Vec<(usize, Prefix<u128>, usize)> = Vec::new();
        for (applied, (prefix, hop)) in self.rib.iter().enumerate() {
            let at = slot(prefix.first());
            if !Word::can_name(hop) {
                return Err(TableFull { prefix, applied, lack: Lack::NextHop(hop) });
            }
            if prefix.length() <= ROOT_LENGTH {
                let values = &self.fib.root[at..=slot(prefix.last())];
                values.iter().for_each(|value| value.store(hop.0, Release));
            } else if slots.last().is_none_or(|(last, ..)| *last != at) {
                slots.push((at, prefix, applied));
            }
        }
        for (at, prefix, applied) in slots {
            let word = self.slot_tree(at).map_err(|lack| TableFull { prefix, applied, lack })?;
            self.nodes.commit();
            self.fib.root[at].store(word.0, Release);
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
        let no_memory = TableFull { prefix: Prefix::default(), applied: 0, lack: Lack::Memory };
        let fib = Arc::new(Range6Fib::new(source).map_err(|_| no_memory)?);
        let mut table = Self {
            rib: routes.into_iter().collect(),
            nodes: Nodes::new(fib.clone(), readers),
            fib,
            patience: HashMap::new(),
        };
        table.fill()?;
        Ok(table)
    }

    fn reader(&self) -> Arc<dyn Fib<Address = u128>> {
        self.fib.clone()
    }

    fn apply(&mut self, changes: &[Change<u128>]) -> Result<(), TableFull<u128>> {
        for (applied, change) in changes.iter().enumerate() {
            let done = match *change {
                Change::Set(prefix, hop) => self.set(prefix, hop),
                Change::Remove(prefix) => self.remove(prefix),
            };
            done.map_err(|lack| TableFull { prefix: change.prefix(), applied, lack })?;
        }
        Ok(())
    }

    fn rib(&self) -> &Rib<u128> {
        &self.rib
    }

    fn memory_bytes(&self) -> usize {
        ROOT * size_of::<u32>() + self.nodes.ever_used() * size_of::<Node>()
    }

    fn reclaim(&mut self) {
        self.nodes.reclaim();
    }
}

#[cfg(test)]
mod tests;
