//! Indices of neighbors: which number stands for which neighbor of this node.
//!
//! A number means a neighbor with its MAC on a port, for ever: another MAC is another number. Numbers are given out one
//! after the other. That of a neighbor that is gone keeps its meaning for a while, for frames on their way, and then means
//! nothing until the epoch ends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::layout::NEIGHBORS;

/// How long a number keeps its meaning after its neighbor has gone: until other nodes know, and their frames are here.
pub const RETIRE_NS: u64 = 10_000_000_000;

/// What a number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Meaning {
    /// Index of the external port's interface in Linux.
    pub ifindex: u32,
    /// Number of the external port.
    pub port: u8,
    /// The neighbor.
    pub address: IpAddr,
    /// Its MAC.
    pub to: [u8; 6],
    /// The MAC of the port.
    pub from: [u8; 6],
}

/// A change for the program.
pub type Change = (u16, Option<Meaning>);

/// All numbers in use.
#[derive(Debug)]
pub struct Indices {
    of: BTreeMap<Meaning, u16>,
    /// Numbers whose neighbor is gone, with the time at which they lose their meaning.
    retired: BTreeMap<Meaning, u64>,
    next: u16,
    /// How many can be given out in this epoch.
    left: u32,
    /// Neighbors without a number, because there is none left.
    pub without: usize,
}

impl Indices {
    /// With the numbers that an earlier daemon has given out. `past` is one more than the highest of them.
    pub fn new(given: impl IntoIterator<Item = (u16, Meaning)>, past: u32) -> Self {
        let of: BTreeMap<_, _> = given.into_iter().map(|(index, meaning)| (meaning, index)).collect();
        // The earlier daemon may have begun anew since.
        let left = NEIGHBORS.saturating_sub(past);
        Self { of, retired: BTreeMap::new(), next: past as u16, left, without: 0 }
    }

    /// Numbers that mean nothing can be given out again.
    pub fn new_epoch(&mut self) {
        self.left = NEIGHBORS;
    }

    /// The number of a neighbor.
    pub fn get(&self, meaning: &Meaning) -> Option<u16> {
        self.of.get(meaning).copied()
    }

    /// All neighbors that have one.
    pub fn iter(&self) -> impl Iterator<Item = (&Meaning, u16)> {
        self.of.iter().map(|(meaning, index)| (meaning, *index))
    }

    /// Gives numbers to these neighbors and retires the others; returns what changes.
    pub fn set(&mut self, neighbors: &[Meaning], now_ns: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        self.without = 0;
        let used: BTreeSet<u16> = self.of.values().copied().collect();
        for meaning in neighbors {
            self.retired.remove(meaning);
            if self.of.contains_key(meaning) {
                continue;
            }
            match self.take(&used) {
                Some(index) => {
                    self.of.insert(*meaning, index);
                    changes.push((index, Some(*meaning)));
                }
                None => self.without += 1,
            }
        }
        let wanted: BTreeSet<_> = neighbors.iter().collect();
        for meaning in self.of.keys().filter(|meaning| !wanted.contains(meaning)) {
            self.retired.entry(*meaning).or_insert(now_ns + RETIRE_NS);
        }
        let over: Vec<_> =
            self.retired.iter().filter(|(_, until)| **until <= now_ns).map(|(meaning, _)| *meaning).collect();
        for meaning in over {
            self.retired.remove(&meaning);
            changes.extend(self.of.remove(&meaning).map(|index| (index, None)));
        }
        changes
    }

    /// The next number that is not `used`; those given out since are behind it.
    fn take(&mut self, used: &BTreeSet<u16>) -> Option<u16> {
        while self.left > 0 {
            let index = self.next;
            (self.next, self.left) = (self.next.wrapping_add(1), self.left - 1);
            if !used.contains(&index) {
                return Some(index);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(last: u8, mac: u8) -> Meaning {
        let address = IpAddr::from([192, 0, 2, last]);
        Meaning { ifindex: 3, port: 0, address, to: [2, 0, 0, 0, 0, mac], from: [2, 0, 0, 0, 0, 0xff] }
    }

    #[test]
    fn a_changed_mac_gets_a_new_index() {
        let mut indices = Indices::new([], 0);
        assert_eq!(indices.set(&[meaning(1, 1)], 0), [(0, Some(meaning(1, 1)))]);
        assert_eq!(indices.set(&[meaning(1, 2)], 1), [(1, Some(meaning(1, 2)))]);
        assert_eq!(indices.set(&[meaning(1, 2)], RETIRE_NS), []);
        assert_eq!(indices.set(&[meaning(1, 2)], RETIRE_NS + 1), [(0, None)]);
        assert_eq!(indices.set(&[meaning(1, 2), meaning(1, 1)], RETIRE_NS + 2), [(2, Some(meaning(1, 1)))]);
        assert_eq!(indices.get(&meaning(1, 1)), Some(2));
    }

    #[test]
    fn a_returning_neighbor_keeps_its_index() {
        let mut indices = Indices::new([(5, meaning(1, 1))], 9);
        assert_eq!(indices.set(&[], 0), []);
        assert_eq!(indices.set(&[meaning(1, 1)], RETIRE_NS - 1), []);
        assert_eq!(indices.set(&[meaning(1, 1)], 2 * RETIRE_NS), []);
        assert_eq!(indices.set(&[meaning(1, 1), meaning(2, 2)], 3 * RETIRE_NS), [(9, Some(meaning(2, 2)))]);
    }

    #[test]
    fn indices_run_out_until_the_next_epoch() {
        let mut indices = Indices::new([(0, meaning(0, 0))], NEIGHBORS - 1);
        assert_eq!(
            indices.set(&[meaning(0, 0), meaning(1, 1), meaning(2, 2)], 0),
            [(u16::MAX, Some(meaning(1, 1)))]
        );
        assert_eq!(indices.without, 1);
        indices.new_epoch();
        let all = [meaning(0, 0), meaning(1, 1), meaning(2, 2)];
        assert_eq!(indices.set(&all, 0), [(1, Some(meaning(2, 2)))], "0 is in use");
        assert_eq!(indices.without, 0);
    }
}
