//! Sets of interfaces by number, with a bit for each: the results of lookups in a table of sources.
//!
//! ```text
//! source -> Fib -> number of a set -> one bit: may packets from there come in here?
//! ```
//!
//! Few routes differ in their interfaces, so sets are shared and counted, and a number is reused only after all
//! readers have moved past it. Two numbers are fixed: [`EMPTY`] contains no interface and [`ALL`] every one;
//! [`NextHop::NONE`], the result of a lookup without a route, contains none either.

use crate::memory::{Array, Filled, OutOfMemory, Source};
use crate::next_hop::NextHop;
use crate::published::{Readers, Retired};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The set of no interface.
pub const EMPTY: NextHop = NextHop(1);
/// The set of all interfaces.
pub const ALL: NextHop = NextHop(2);
/// Sets that there is room for, these counted.
pub const SETS: usize = 1 << 12;
/// The numbers that are free for any set: all but no route, [`EMPTY`] and [`ALL`].
pub const ROOM: usize = SETS - 3;

/// Sets of interfaces, as packets are checked against them.
#[derive(Debug)]
pub struct InterfaceSets {
    bits: Array<AtomicU64>,
    words: usize,
}

impl InterfaceSets {
    /// Whether a set contains an interface. An interface beyond the width of the sets is only in [`ALL`].
    pub fn holds(&self, set: NextHop, interface: u16) -> bool {
        let word = usize::from(interface) / 64;
        if word >= self.words {
            return set == ALL;
        }
        let word = self.bits.get(set.index() * self.words + word);
        word.is_some_and(|word| word.load(Relaxed) >> (interface % 64) & 1 == 1)
    }
}

/// The writing side of [`InterfaceSets`].
#[derive(Debug)]
pub struct SetWriter {
    table: Arc<InterfaceSets>,
    /// By its interfaces: the number of a set, and how many routes use it.
    known: HashMap<Box<[u16]>, (NextHop, usize)>,
    /// By number; none where the number is free.
    members: Vec<Option<Box<[u16]>>>,
    free: BinaryHeap<Reverse<u32>>,
    retired: Retired<u32>,
    /// Users that got [`ALL`] for lack of room.
    refused: usize,
}

impl SetWriter {
    /// Sets of interfaces below `width`, a multiple of 64, in memory from `source`.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn with_width_in(width: usize, readers: &Readers, source: &Source) -> Result<Self, OutOfMemory> {
        let words = width / 64;
        let bits: Array<AtomicU64> = source.array(SETS * words, Filled::ByNeed)?;
        let table = Arc::new(InterfaceSets { bits, words });
        let all = ALL.index() * words;
        table.bits[all..all + words].iter().for_each(|word| word.store(u64::MAX, Relaxed));
        let members = vec![None; ALL.index() + 1];
        Ok(Self {
            table,
            known: HashMap::new(),
            members,
            free: BinaryHeap::new(),
            retired: Retired::new(readers),
            refused: 0,
        })
    }

    /// The sets that packets are checked against.
    pub fn table(&self) -> &Arc<InterfaceSets> {
        &self.table
    }

    /// The number of the set of these interfaces, in order and without duplicates, with one more user. [`ALL`] if
    /// there is no room for another set, or for such an interface: then more sources may pass, but nothing is lost,
    /// and [`Self::refused`] counts it.
    pub fn take(&mut self, interfaces: &[u16]) -> NextHop {
        if interfaces.is_empty() {
            return EMPTY;
        }
        if let Some((set, users)) = self.known.get_mut(interfaces) {
            *users += 1;
            return *set;
        }
        let fits = interfaces.iter().all(|interface| usize::from(*interface) < 64 * self.table.words);
        let Some(number) = fits.then(|| self.number()).flatten() else {
            self.refused += 1;
            return ALL;
        };
        let words = self.table.words;
        let row = &self.table.bits[number as usize * words..(number as usize + 1) * words];
        row.iter().for_each(|word| word.store(0, Relaxed));
        for interface in interfaces {
            let word = &row[usize::from(*interface) / 64];
            word.store(word.load(Relaxed) | 1 << (interface % 64), Relaxed);
        }
        self.members[number as usize] = Some(interfaces.into());
        self.known.insert(interfaces.into(), (NextHop(number), 1));
        NextHop(number)
    }

    /// Removes a user of a set. Before the last one is removed, the set must be unreachable.
    pub fn release(&mut self, set: NextHop) {
        if set == ALL {
            self.refused = self.refused.saturating_sub(1);
        }
        let Some(Some(members)) = self.members.get(set.index()) else { return };
        let Some((_, users)) = self.known.get_mut(members) else { return };
        *users -= 1;
        if *users == 0 {
            self.known.remove(members);
            self.members[set.index()] = None;
            self.retired.push(set.0);
        }
    }

    /// The number of users of [`ALL`] because there was no room for their set.
    pub fn refused(&self) -> usize {
        self.refused
    }

    /// The interfaces of a set; none of [`EMPTY`] and [`ALL`].
    pub fn members(&self, set: NextHop) -> &[u16] {
        self.members.get(set.index()).and_then(Option::as_deref).unwrap_or_default()
    }

    fn number(&mut self) -> Option<u32> {
        self.free.extend(self.retired.take_passed().map(Reverse));
        if let Some(Reverse(number)) = self.free.pop() {
            return Some(number);
        }
        let fresh = self.members.len();
        (fresh < SETS).then(|| self.members.push(None)).map(|()| fresh as u32)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn writer() -> (SetWriter, Readers) {
        let readers = Readers::new();
        (SetWriter::with_width_in(1024, &readers, &Source::anonymous()).unwrap(), readers)
    }

    #[test]
    fn equal_sets_are_one() {
        let (mut sets, _readers) = writer();
        let [one, two, again] = [&[1, 700][..], &[1], &[1, 700]].map(|interfaces| sets.take(interfaces));
        assert_eq!((one, two), (again, NextHop(one.0 + 1)));
        let table = sets.table();
        assert_eq!([0, 1, 699, 700, 1023].map(|at| table.holds(one, at)), [false, true, false, true, false]);
        assert_eq!([1, 700].map(|at| table.holds(two, at)), [true, false]);
        assert_eq!(sets.members(one), [1, 700]);
    }

    #[test]
    fn fixed_ones_are_what_they_say() {
        let (mut sets, _readers) = writer();
        assert_eq!(sets.take(&[]), EMPTY);
        let holds = |set| [0, 1023, 1024].map(|at| sets.table().holds(set, at));
        assert_eq!((holds(EMPTY), holds(NextHop::NONE), holds(ALL)), ([false; 3], [false; 3], [true; 3]));
        assert_eq!(sets.take(&[5, 1024]), ALL, "an interface that no set can name");
    }

    #[test]
    fn numbers_are_given_again_when_readers_have_moved_on() {
        let (mut sets, readers) = writer();
        let mut reader = readers.register();
        let first = sets.take(&[1]);
        sets.take(&[1]);
        sets.release(first);
        assert!(sets.table().holds(first, 1), "somebody has it still");
        sets.release(first);
        assert_ne!(sets.take(&[2]), first, "a reader may hold it");
        reader.quiescent();
        assert_eq!(sets.take(&[3]), first);
        assert_eq!([1, 3].map(|at| sets.table().holds(first, at)), [false, true]);
    }

    #[test]
    fn without_room_everything_passes() {
        let (mut sets, _readers) = writer();
        let taken: Vec<_> = (0..1000).flat_map(|a| (1..6).map(move |b| [a, a + b])).collect();
        let taken: Vec<_> = taken.iter().map(|set| sets.take(set)).collect();
        assert_eq!((taken.iter().filter(|set| **set != ALL).count(), sets.refused()), (ROOM, 5000 - ROOM));
        assert_eq!(taken.last(), Some(&ALL));
        sets.release(ALL);
        sets.release(EMPTY);
        assert_eq!(sets.refused(), 5000 - ROOM - 1);
    }
}
