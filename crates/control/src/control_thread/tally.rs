//! Counters of the kernel path for each port, summed over all interfaces that the port has had.
//!
//! The program counts by index of an interface in its tables. An index is reused for another interface, without clearing
//! its counters, once its interface is gone; a port whose interface comes back gets another index. So the counts of all
//! indexes of a port, while they belonged to it, are summed here.

use std::collections::BTreeMap;

use bm_fastpath::Counters;

/// An index that a port has now.
struct PortIndex {
    port: String,
    /// Its counters when the port got it.
    before: Counters,
}

/// The sums of all ports.
#[derive(Default)]
pub(super) struct Tally {
    indexes: BTreeMap<u16, PortIndex>,
    /// Counts of indexes that ports no longer have, by port name.
    earlier: BTreeMap<String, Counters>,
}

impl Tally {
    /// Adds these indexes of ports, which count for them from now on. Others stay until [`Self::settle`], since the
    /// program counts for them until it is updated.
    pub fn begin<'a>(&mut self, now: impl Iterator<Item = (u16, &'a str)>, read: impl Fn(u16) -> Counters) {
        for (at, port) in now {
            let counted = read(at);
            let entry = PortIndex { port: port.into(), before: counted };
            let Some(had) = self.indexes.insert(at, entry) else { continue };
            if had.port == port {
                self.indexes.insert(at, had);
            } else {
                add(&mut self.earlier, &had.port, counted.since(had.before));
            }
        }
    }

    /// Sets the indexes of ports; `read` returns the counters of an index.
    pub fn settle<'a>(&mut self, now: impl Iterator<Item = (u16, &'a str)>, read: impl Fn(u16) -> Counters) {
        let now: BTreeMap<u16, &str> = now.collect();
        let Self { indexes, earlier } = self;
        indexes.retain(|at, entry| {
            let stays = now.get(at).is_some_and(|port| *port == entry.port);
            if !stays {
                add(earlier, &entry.port, read(*at).since(entry.before));
            }
            stays
        });
        for (at, port) in now {
            indexes.entry(at).or_insert_with(|| PortIndex { port: port.into(), before: read(at) });
        }
    }

    /// Adds counts of a port from elsewhere.
    pub fn add(&mut self, port: &str, more: Counters) {
        add(&mut self.earlier, port, more);
    }

    /// The counters of a port.
    pub fn sum(&self, port: &str, read: impl Fn(u16) -> Counters) -> Counters {
        let indexes = self.indexes.iter().filter(|(_, entry)| entry.port == port);
        let now = indexes.map(|(at, entry)| read(*at).since(entry.before));
        now.chain(self.earlier.get(port).copied()).sum()
    }
}

fn add(sums: &mut BTreeMap<String, Counters>, port: &str, more: Counters) {
    let sum = sums.entry(port.into()).or_default();
    *sum = [*sum, more].into_iter().sum();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_continue_when_interfaces_come_and_go() {
        let mut tally = Tally::default();
        let mut counted = BTreeMap::from([(0, 5), (1, 7)]);
        let read = |counted: &BTreeMap<u16, u64>, index: u16| {
            Counters::only("forwarded", counted.get(&index).copied().unwrap_or_default())
        };
        let of = |tally: &Tally, counted: &BTreeMap<u16, u64>, port: &str| {
            tally.sum(port, |index| read(counted, index)).forwarded()
        };
        // What was counted before belongs to other ports.
        tally.settle([(0, "r0"), (1, "r1")].into_iter(), |index| read(&counted, index));
        counted.extend([(0, 15), (1, 8)]);
        assert_eq!((of(&tally, &counted, "r0"), of(&tally, &counted, "r1")), (10, 1));
        // The interface of r0 goes, and its index is reused by r2.
        tally.settle([(1, "r1")].into_iter(), |index| read(&counted, index));
        tally.settle([(0, "r2"), (1, "r1")].into_iter(), |index| read(&counted, index));
        counted.insert(0, 18);
        assert_eq!((of(&tally, &counted, "r0"), of(&tally, &counted, "r2")), (10, 3));
        // Packets counted while the program is updated for a new index are included.
        tally.begin([(3, "r3")].into_iter(), |index| read(&counted, index));
        counted.extend([(2, 0), (3, 2)]);
        tally.settle([(0, "r2"), (1, "r1"), (3, "r3")].into_iter(), |index| read(&counted, index));
        assert_eq!((of(&tally, &counted, "r3"), of(&tally, &counted, "r1")), (2, 1));
        // It comes back with another index, and its counters continue.
        tally.settle([(0, "r2"), (1, "r1"), (2, "r0")].into_iter(), |index| read(&counted, index));
        counted.insert(2, 4);
        assert_eq!((of(&tally, &counted, "r0"), of(&tally, &counted, "r1")), (14, 1));
    }
}
