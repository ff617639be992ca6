//! The SA database (RFC 4301 4.4.2): SAs by SPI and destination.
//!
//! Open addressing with linear probing, at most half full, in one array of small entries; so a packet whose SPI nobody
//! has costs one or two loads. Only the owner of the table adds SAs, so nobody else decides how full it gets where.

use std::net::IpAddr;

use crate::sa::SaId;

/// SAs, or anything that belongs to one, by SPI and destination.
#[derive(Debug)]
pub struct SaTable<T> {
    /// Index of an entry plus 1, or 0.
    slots: Vec<Slot>,
    entries: Vec<(SaId, T)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    spi: u32,
    entry: u32,
}

/// There is already an SA with this SPI and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DuplicateSa(pub SaId);

impl<T> Default for SaTable<T> {
    fn default() -> Self {
        Self { slots: vec![Slot::default(); 4], entries: Vec::new() }
    }
}

impl<T> SaTable<T> {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an SA.
    ///
    /// # Errors
    /// [`DuplicateSa`] if there is one with the same SPI and destination.
    pub fn insert(&mut self, id: SaId, sa: T) -> Result<(), DuplicateSa> {
        if self.position(id).is_some() {
            return Err(DuplicateSa(id));
        }
        self.entries.push((id, sa));
        if self.entries.len() * 2 > self.slots.len() {
            self.rebuild();
        } else {
            self.place(self.entries.len() - 1);
        }
        Ok(())
    }

    /// Removes an SA.
    pub fn remove(&mut self, id: SaId) -> Option<T> {
        let index = self.position(id)?;
        let (_, sa) = self.entries.swap_remove(index);
        self.rebuild();
        Some(sa)
    }

    /// The SA with this SPI and destination.
    #[inline]
    pub fn find(&mut self, id: SaId) -> Option<&mut T> {
        let index = self.position(id)?;
        self.entries.get_mut(index).map(|(_, sa)| sa)
    }

    /// The SA with this SPI and destination, not to be changed.
    pub fn get(&self, id: SaId) -> Option<&T> {
        self.entries.get(self.position(id)?).map(|(_, sa)| sa)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (SaId, &T)> {
        self.entries.iter().map(|(id, sa)| (*id, sa))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[inline]
    fn position(&self, id: SaId) -> Option<usize> {
        let mut at = self.home(id.spi);
        loop {
            let Slot { spi, entry } = self.slots[at];
            let index = entry.checked_sub(1)? as usize;
            if spi == id.spi && same(self.entries[index].0.destination, id.destination) {
                return Some(index);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    #[inline]
    fn home(&self, spi: u32) -> usize {
        // Fibonacci hashing: IKE daemons draw SPIs at random, people count up.
        let bits = self.slots.len().ilog2();
        (spi.wrapping_mul(0x9e37_79b9) >> (u32::BITS - bits)) as usize
    }

    fn place(&mut self, index: usize) {
        let spi = self.entries[index].0.spi;
        let mut at = self.home(spi);
        while self.slots[at].entry != 0 {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = Slot { spi, entry: index as u32 + 1 };
    }

    fn rebuild(&mut self) {
        let slots = (self.entries.len() * 4).next_power_of_two().max(4);
        self.slots = vec![Slot::default(); slots];
        (0..self.entries.len()).for_each(|index| self.place(index));
    }
}

#[inline]
fn same(one: IpAddr, other: IpAddr) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => one.to_bits() == other.to_bits(),
        (IpAddr::V6(one), IpAddr::V6(other)) => one.to_bits() == other.to_bits(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn id(spi: u32, host: u8) -> SaId {
        SaId { spi, destination: [192, 0, 2, host].into() }
    }

    proptest! {
        #[test]
        fn table_equals_a_map(steps in prop::collection::vec((0u8..4, 250u32..300, 0u8..3), 1..300)) {
            let (mut table, mut map) = (SaTable::new(), HashMap::new());
            for (step, (what, spi, host)) in steps.into_iter().enumerate() {
                let id = id(spi, host);
                if what == 0 {
                    prop_assert_eq!(table.remove(id), map.remove(&id));
                } else {
                    let taken = map.contains_key(&id);
                    prop_assert_eq!(table.insert(id, step), if taken { Err(DuplicateSa(id)) } else { Ok(()) });
                    map.entry(id).or_insert(step);
                }
                prop_assert_eq!(table.len(), map.len());
            }
            for spi in 250..300 {
                for host in 0..4 {
                    prop_assert_eq!(table.find(id(spi, host)).copied(), map.get(&id(spi, host)).copied());
                }
            }
        }
    }

    #[test]
    fn families_are_distinct() {
        let mut table = SaTable::new();
        table.insert(id(256, 1), "four").unwrap();
        let six = SaId { spi: 256, destination: "::ffff:192.0.2.1".parse().unwrap() };
        assert_eq!(table.find(six), None);
        assert_eq!(table.find(id(256, 1)).copied(), Some("four"));
        assert!(!table.is_empty() && table.iter().count() == 1);
    }
}
