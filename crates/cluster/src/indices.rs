//! Indices of local neighbors: each identifies one address at an external port of this node.
//!
//! An index stands for an address, not for a MAC: if the host has another MAC, frames that are on their way reach it there,
//! and so do those of nodes that have not heard of it. Which index an address gets follows from the key of the cluster, with
//! five bits more to check it: a daemon that starts with no memory of the one before gives each address the same again, so
//! frames of nodes that still go by an old announcement reach the right host, or none.
//!
//! The index of a neighbor that is gone is free once all other nodes act on an announcement without it, and frames that were
//! on their way then have arrived.
//!
//! Pure: no map and no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use bm_vlb::address::Port;

use crate::layout::NEIGHBORS;
use crate::message::Key;
use crate::neighbor::{Index, LocalNeighbor};

/// How long frames may be on their way.
pub(crate) const ON_THE_WAY_NS: u64 = 10_000_000_000;
/// How many places the key gives an address. After that any free one will do.
const PLACES: u8 = 16;

/// A change of the program's map; `None` removes the neighbor.
pub type Change = (Index, Option<LocalNeighbor>);

/// A neighbor with its index.
#[derive(Clone, Copy, Debug)]
struct IndexEntry {
    index: Index,
    neighbor: LocalNeighbor,
    gone: Option<Removal>,
}

/// A neighbor that is no longer announced.
#[derive(Clone, Copy, Debug, Default)]
struct Removal {
    /// The first announcement without it.
    version: Option<u64>,
    /// When all other nodes acted on that.
    confirmed_ns: Option<u64>,
}

/// The numbers that are in use, one bit each.
struct IndexBitmap(Vec<u64>);

impl IndexBitmap {
    fn has(&self, number: u16) -> bool {
        self.0[usize::from(number / 64)] >> (number % 64) & 1 == 1
    }

    fn set(&mut self, number: u16, is_used: bool) {
        let (word, bit) = (&mut self.0[usize::from(number / 64)], 1 << (number % 64));
        *word = if is_used { *word | bit } else { *word & !bit };
    }

    /// Any number that is free.
    fn free(&self) -> Option<u16> {
        let at = self.0.iter().position(|word| *word != u64::MAX)?;
        u16::try_from(64 * at + self.0[at].trailing_ones() as usize).ok()
    }
}

/// All assigned indices.
pub struct Indices {
    key: Key,
    of: BTreeMap<(u8, IpAddr), IndexEntry>,
    used: IndexBitmap,
    /// Number of neighbors without an index, because there is none left.
    pub without: usize,
}

impl Indices {
    /// With the indices that an earlier daemon has assigned.
    pub fn new(key: Key, assigned: impl IntoIterator<Item = (Index, LocalNeighbor)>) -> Self {
        let used = IndexBitmap(vec![0; NEIGHBORS as usize / 64]);
        let mut indices = Self { key, of: BTreeMap::new(), used, without: 0 };
        for (index, neighbor) in assigned {
            indices.used.set(index.number, true);
            indices.of.insert((neighbor.port, neighbor.address), IndexEntry { index, neighbor, gone: None });
        }
        indices
    }

    /// The index of a neighbor.
    pub fn get(&self, neighbor: &LocalNeighbor) -> Option<Index> {
        self.of.get(&(neighbor.port, neighbor.address)).map(|assigned| assigned.index)
    }

    /// All neighbors that have an index.
    pub fn iter(&self) -> impl Iterator<Item = (&LocalNeighbor, Index)> {
        self.of.values().map(|assigned| (&assigned.neighbor, assigned.index))
    }

    /// Assigns indices to these neighbors; returns the changes of the map.
    pub fn set(&mut self, neighbors: &[LocalNeighbor]) -> Vec<Change> {
        let mut changes = Vec::new();
        self.without = 0;
        let mut missing: BTreeSet<_> = self.of.keys().copied().collect();
        for neighbor in neighbors {
            let key = (neighbor.port, neighbor.address);
            missing.remove(&key);
            if let Some(assigned) = self.of.get_mut(&key) {
                assigned.gone = None;
                if assigned.neighbor != *neighbor {
                    assigned.neighbor = *neighbor;
                    changes.push((assigned.index, Some(*neighbor)));
                }
            } else if let Some(index) = self.place(neighbor) {
                self.used.set(index.number, true);
                self.of.insert(key, IndexEntry { index, neighbor: *neighbor, gone: None });
                changes.push((index, Some(*neighbor)));
            } else {
                self.without += 1;
            }
        }
        for key in missing {
            self.of.entry(key).and_modify(|assigned| _ = assigned.gone.get_or_insert_default());
        }
        changes
    }

    /// Notes that neighbors that are gone are not in the announcement of this version any more.
    pub fn announced(&mut self, version: u64) {
        for gone in self.of.values_mut().filter_map(|assigned| assigned.gone.as_mut()) {
            gone.version.get_or_insert(version);
        }
    }

    /// Frees indices; `version` is that of the announcement that all other nodes act on. Returns the changes of the map.
    pub(crate) fn confirmed(&mut self, version: u64, now_ns: u64) -> Vec<Change> {
        let mut free = Vec::new();
        for (key, assigned) in &mut self.of {
            let Some(gone) = &mut assigned.gone else { continue };
            if gone.version.is_some_and(|first| first <= version) {
                let since = *gone.confirmed_ns.get_or_insert(now_ns);
                free.extend((now_ns >= since + ON_THE_WAY_NS).then_some((*key, assigned.index)));
            }
        }
        for (key, index) in &free {
            self.of.remove(key);
            self.used.set(index.number, false);
        }
        free.into_iter().map(|(_, index)| (index, None)).collect()
    }

    /// The first place of a neighbor that is free.
    fn place(&self, neighbor: &LocalNeighbor) -> Option<Index> {
        let free = self.used.free()?;
        let mut places = (0..PLACES).map(|nth| self.nth(neighbor, nth));
        let own = places.find(|index| !self.used.has(index.number));
        Some(own.unwrap_or_else(|| Index { number: free, ..self.nth(neighbor, 0) }))
    }

    fn nth(&self, neighbor: &LocalNeighbor, nth: u8) -> Index {
        let address = match neighbor.address {
            IpAddr::V4(four) => four.to_ipv6_mapped().octets(),
            IpAddr::V6(six) => six.octets(),
        };
        let text = [&b"bmcl index"[..], &[neighbor.port, nth], &address].concat();
        let [high, low, check, ..] = self.key.tag(&text);
        Index { number: u16::from_be_bytes([high, low]), check: check % Port::COUNT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::new(b"0123456789abcdef")
    }

    fn neighbor(host: u32, mac: u8) -> LocalNeighbor {
        let address = IpAddr::V4((0x0a00_0000 + host).into());
        LocalNeighbor { ifindex: 3, port: 0, address, to: [2, 0, 0, 0, 0, mac], from: [2, 0, 0, 0, 0, 0xff] }
    }

    #[test]
    fn a_changed_mac_keeps_its_index() {
        let mut indices = Indices::new(key(), []);
        let first = indices.set(&[neighbor(1, 1)]);
        let index = indices.get(&neighbor(1, 1)).expect("it has one");
        assert_eq!(first, [(index, Some(neighbor(1, 1)))]);
        for mac in 2..200 {
            assert_eq!(indices.set(&[neighbor(1, mac)]), [(index, Some(neighbor(1, mac)))]);
        }
        assert_eq!((indices.set(&[neighbor(1, 199)]), indices.of.len()), (vec![], 1));
    }

    #[test]
    fn an_index_is_free_once_all_nodes_act_without_it() {
        let mut indices = Indices::new(key(), []);
        indices.set(&[neighbor(1, 1), neighbor(2, 2)]);
        let index = indices.get(&neighbor(1, 1)).expect("it has one");
        assert_eq!(indices.set(&[neighbor(2, 2)]), []);
        indices.announced(7);
        assert_eq!(indices.confirmed(6, 0), []);
        assert_eq!(indices.confirmed(6, 100 * ON_THE_WAY_NS), [], "for however long");
        let now = 101 * ON_THE_WAY_NS;
        assert_eq!(indices.confirmed(7, now), []);
        assert_eq!(indices.confirmed(9, now + ON_THE_WAY_NS - 1), []);
        assert_eq!(indices.confirmed(9, now + ON_THE_WAY_NS), [(index, None)]);
        assert_eq!(indices.get(&neighbor(1, 1)), None);
        // One that returns in time is not removed.
        indices.set(&[]);
        indices.announced(10);
        assert_eq!(indices.confirmed(10, now), []);
        indices.set(&[neighbor(2, 2)]);
        assert_eq!(indices.confirmed(10, now + 2 * ON_THE_WAY_NS), []);
    }

    /// Whatever hosts there were before, and in whatever order they came: a daemon without any memory of it has them again at
    /// the same places, and no other host at any of these.
    #[test]
    fn a_daemon_without_state_gives_the_same_indices() {
        let mut before = Indices::new(key(), []);
        (0..1000).for_each(|host| drop(before.set(&[neighbor(host, 1)])));
        let mut after = Indices::new(key(), []);
        let all: Vec<_> = (500..1500).rev().map(|host| neighbor(host, 2)).collect();
        after.set(&all);
        let mut moved = 0;
        for (old, index) in before.iter() {
            for (new, _) in after.iter().filter(|(_, other)| *other == index) {
                assert_eq!(new.address, old.address, "frames for {old:?}");
            }
            let again = after.get(old).is_some_and(|again| again != index);
            moved += usize::from(again);
        }
        assert!(moved < 25, "{moved} of 500 have another place: those of whom two had the same");
        let other = Indices::new(Key::new(b"another key"), []);
        assert_ne!(other.nth(&neighbor(1, 1), 0), before.nth(&neighbor(1, 1), 0));
    }

    #[test]
    fn indices_run_out_and_come_back() {
        let mut indices = Indices::new(key(), []);
        let all: Vec<_> = (0..NEIGHBORS + 1).map(|host| neighbor(host, 1)).collect();
        assert_eq!(indices.set(&all).len(), NEIGHBORS as usize);
        assert_eq!((indices.without, indices.used.free()), (1, None));
        indices.set(&all[..1]);
        indices.announced(2);
        indices.confirmed(2, 0);
        assert_eq!(indices.confirmed(2, ON_THE_WAY_NS).len(), NEIGHBORS as usize - 1);
        assert_eq!(indices.set(&all[1..]).len(), NEIGHBORS as usize - 1);
        assert_eq!(indices.without, 1);
    }
}
