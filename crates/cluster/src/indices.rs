//! Indices of local neighbors: each identifies one neighbor of an external port of this node.
//!
//! An index stands for a neighbor with its MAC on a port and is never reassigned within an epoch: a neighbor whose MAC
//! changes gets another index. Indices are assigned in ascending order. The index of a neighbor that is gone stays valid
//! for a while, for frames on their way, and is unused afterwards until the epoch ends.

use std::collections::{BTreeMap, BTreeSet};

use crate::layout::NEIGHBORS;
use crate::neighbor::LocalNeighbor;

/// How long an index stays valid after its neighbor has gone: until other nodes know, and their frames have arrived.
pub const RETIRE_NS: u64 = 10_000_000_000;

/// A change of the program's map; `None` removes the neighbor.
pub type Change = (u16, Option<LocalNeighbor>);

/// All assigned indices.
#[derive(Debug)]
pub struct Indices {
    of: BTreeMap<LocalNeighbor, u16>,
    /// Neighbors that are gone, with the time at which their index is removed.
    retired: BTreeMap<LocalNeighbor, u64>,
    next: u16,
    /// How many can still be assigned in this epoch.
    left: u32,
    /// Number of neighbors without an index, because there is none left.
    pub without: usize,
}

impl Indices {
    /// With the indices that an earlier daemon has assigned. `past` is one more than the highest of them.
    pub fn new(assigned: impl IntoIterator<Item = (u16, LocalNeighbor)>, past: u32) -> Self {
        let of: BTreeMap<_, _> = assigned.into_iter().map(|(index, neighbor)| (neighbor, index)).collect();
        // If the earlier daemon had already wrapped around, this underestimates what is left.
        let left = NEIGHBORS.saturating_sub(past);
        Self { of, retired: BTreeMap::new(), next: past as u16, left, without: 0 }
    }

    /// Makes unused indices available again.
    pub fn new_epoch(&mut self) {
        self.left = NEIGHBORS;
    }

    /// The index of a neighbor.
    pub fn get(&self, neighbor: &LocalNeighbor) -> Option<u16> {
        self.of.get(neighbor).copied()
    }

    /// All neighbors that have an index.
    pub fn iter(&self) -> impl Iterator<Item = (&LocalNeighbor, u16)> {
        self.of.iter().map(|(neighbor, index)| (neighbor, *index))
    }

    /// Assigns indices to these neighbors and retires those of others; returns the changes of the map.
    pub fn set(&mut self, neighbors: &[LocalNeighbor], now_ns: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        self.without = 0;
        let used: BTreeSet<u16> = self.of.values().copied().collect();
        for neighbor in neighbors {
            self.retired.remove(neighbor);
            if self.of.contains_key(neighbor) {
                continue;
            }
            match self.allocate(&used) {
                Some(index) => {
                    self.of.insert(*neighbor, index);
                    changes.push((index, Some(*neighbor)));
                }
                None => self.without += 1,
            }
        }
        let wanted: BTreeSet<_> = neighbors.iter().collect();
        for neighbor in self.of.keys().filter(|neighbor| !wanted.contains(neighbor)) {
            self.retired.entry(*neighbor).or_insert(now_ns + RETIRE_NS);
        }
        let expired: Vec<_> = self
            .retired
            .iter()
            .filter(|(_, until)| **until <= now_ns)
            .map(|(neighbor, _)| *neighbor)
            .collect();
        for neighbor in expired {
            self.retired.remove(&neighbor);
            changes.extend(self.of.remove(&neighbor).map(|index| (index, None)));
        }
        changes
    }

    /// The next index that is not `used`.
    fn allocate(&mut self, used: &BTreeSet<u16>) -> Option<u16> {
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
    use std::net::IpAddr;

    fn neighbor(last: u8, mac: u8) -> LocalNeighbor {
        let address = IpAddr::from([192, 0, 2, last]);
        LocalNeighbor { ifindex: 3, port: 0, address, to: [2, 0, 0, 0, 0, mac], from: [2, 0, 0, 0, 0, 0xff] }
    }

    #[test]
    fn a_changed_mac_gets_a_new_index() {
        let mut indices = Indices::new([], 0);
        assert_eq!(indices.set(&[neighbor(1, 1)], 0), [(0, Some(neighbor(1, 1)))]);
        assert_eq!(indices.set(&[neighbor(1, 2)], 1), [(1, Some(neighbor(1, 2)))]);
        assert_eq!(indices.set(&[neighbor(1, 2)], RETIRE_NS), []);
        assert_eq!(indices.set(&[neighbor(1, 2)], RETIRE_NS + 1), [(0, None)]);
        assert_eq!(
            indices.set(&[neighbor(1, 2), neighbor(1, 1)], RETIRE_NS + 2),
            [(2, Some(neighbor(1, 1)))]
        );
        assert_eq!(indices.get(&neighbor(1, 1)), Some(2));
    }

    #[test]
    fn a_returning_neighbor_keeps_its_index() {
        let mut indices = Indices::new([(5, neighbor(1, 1))], 9);
        assert_eq!(indices.set(&[], 0), []);
        assert_eq!(indices.set(&[neighbor(1, 1)], RETIRE_NS - 1), []);
        assert_eq!(indices.set(&[neighbor(1, 1)], 2 * RETIRE_NS), []);
        assert_eq!(
            indices.set(&[neighbor(1, 1), neighbor(2, 2)], 3 * RETIRE_NS),
            [(9, Some(neighbor(2, 2)))]
        );
    }

    #[test]
    fn indices_run_out_until_the_next_epoch() {
        let mut indices = Indices::new([(0, neighbor(0, 0))], NEIGHBORS - 1);
        assert_eq!(
            indices.set(&[neighbor(0, 0), neighbor(1, 1), neighbor(2, 2)], 0),
            [(u16::MAX, Some(neighbor(1, 1)))]
        );
        assert_eq!(indices.without, 1);
        indices.new_epoch();
        let all = [neighbor(0, 0), neighbor(1, 1), neighbor(2, 2)];
        assert_eq!(indices.set(&all, 0), [(1, Some(neighbor(2, 2)))], "0 is in use");
        assert_eq!(indices.without, 0);
    }
}
