//! The only writer of the next-hop table: allocates and frees indices and ranges of buckets.
//!
//! An index that was removed keeps its old meaning until every reader has moved past it: a worker may have looked up
//! a packet just before. The lowest free index is used first, because tables with narrow entries can only hold low
//! indices.

use super::buddy::Buddy;
use super::group::{self, Member};
use super::*;
use crate::published::{Readers, Retired};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// Why a next hop was refused. The table is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NextHopError {
    #[error("all {capacity} next hops are in use; use fewer distinct next hops")]
    Full {
        /// How many there are.
        capacity: usize,
    },
    #[error(
        "a next-hop group needs {count} free buckets, but there are fewer; use fewer groups, smaller \
         weights, or increase group_buckets in [fib]"
    )]
    BucketsFull {
        /// The number it needs.
        count: u32,
    },
    /// The interface is above [`INTERFACE_MAX`].
    #[error("interface number {0} is above {INTERFACE_MAX}, the highest that a next hop can have")]
    Interface(u16),
    #[error("a next-hop group needs a member with a weight above 0")]
    NoMembers,
    #[error("a next-hop group is made from its members, not from buckets")]
    GroupByHand,
    /// No such next hop: it was never added, or it was removed. [`NextHop::NONE`] cannot be changed.
    #[error("next hop {0} is not in use")]
    Unknown(NextHop),
}

/// What readers may still use.
#[derive(Clone, Copy, Debug)]
enum Freed {
    Hop(NextHop),
    Buckets { first: u32, order: u32 },
}

/// The writing side of [`NextHops`]: one per table.
#[derive(Debug)]
pub struct NextHopWriter {
    table: Arc<NextHops>,
    in_use: Vec<bool>,
    free: BinaryHeap<Reverse<u32>>,
    /// Indices from here on were never used.
    fresh: u32,
    buckets: Buddy,
    retired: Retired<Freed>,
}

impl NextHopWriter {
    /// Next hops of a table created with [`Self::new`].
    pub const HOPS: u32 = 1 << 16;
    /// log2 of its buckets: 16,384 groups of the smallest kind.
    pub const BUCKETS_LOG2: u32 = 22;

    /// A table of the usual size, holding [`NextHop::NONE`] only.
    pub fn new(readers: &Readers) -> Result<Self, OutOfMemory> {
        Self::with_room(Self::HOPS, Self::BUCKETS_LOG2, readers)
    }

    /// A table of `hops` next hops and `1 << buckets_log2` buckets.
    pub fn with_room(hops: u32, buckets_log2: u32, readers: &Readers) -> Result<Self, OutOfMemory> {
        Self::with_room_in(hops, buckets_log2, readers, &Source::anonymous())
    }

    /// A table of that size in memory from `source`: entries, buckets, MTUs and marks of use, in this order. Gateways,
    /// which only the slow path needs, stay in this process.
    pub fn with_room_in(
        hops: u32,
        buckets_log2: u32,
        readers: &Readers,
        source: &Source,
    ) -> Result<Self, OutOfMemory> {
        Ok(Self {
            table: Arc::new(NextHops::with_room(hops as usize, 1 << buckets_log2, source)?),
            in_use: vec![false; hops as usize],
            free: BinaryHeap::new(),
            fresh: 1,
            buckets: Buddy::new(buckets_log2),
            retired: Retired::new(readers),
        })
    }

    /// The table that workers read.
    pub fn table(&self) -> &Arc<NextHops> {
        &self.table
    }

    /// How many next hops are in use.
    pub fn len(&self) -> usize {
        self.in_use.iter().filter(|used| **used).count()
    }

    /// Whether none is in use.
    pub fn is_empty(&self) -> bool {
        !self.in_use.contains(&true)
    }

    /// Adds a next hop. `gateway` never changes for an index; `action` and `mtu` may.
    pub fn add(&mut self, action: Action, gateway: Gateway, mtu: u16) -> Result<NextHop, NextHopError> {
        let entry = encoded(action, gateway.interface)?;
        let hop = self.take_index()?;
        self.table.set_gateway(hop, gateway);
        self.table.mtus[hop.index()].store(mtu, Relaxed);
        self.table.used[hop.index()].store(0, Relaxed);
        self.table.set_entry(hop, entry);
        Ok(hop)
    }

    /// Adds a next hop for packets to this machine: Linux does not forward them.
    pub fn add_local(&mut self) -> Result<NextHop, NextHopError> {
        let hop = self.add(Action::Host, Gateway::default(), 0)?;
        self.table.set_entry(hop, Entry::LOCAL);
        Ok(hop)
    }

    /// Adds a group. Members are next hops already added, and no groups.
    pub fn add_group(&mut self, members: &[Member]) -> Result<NextHop, NextHopError> {
        let hop = self.add(Action::None, Gateway::default(), 0)?;
        self.set_group(hop, members).inspect_err(|_| self.give_index(hop))?;
        Ok(hop)
    }

    /// Changes the action at `hop`: a MAC address, or that the neighbor is lost. One store.
    pub fn set(&mut self, hop: NextHop, action: Action) -> Result<(), NextHopError> {
        self.check(hop)?;
        let entry = encoded(action, self.table.gateway(hop).interface)?;
        self.replace(hop, entry);
        Ok(())
    }

    /// Changes the route's own MTU; 0 for the interface's.
    pub fn set_mtu(&mut self, hop: NextHop, mtu: u16) -> Result<(), NextHopError> {
        self.check(hop)?;
        self.table.mtus[hop.index()].store(mtu, Relaxed);
        self.retired.outdate();
        Ok(())
    }

    /// Changes a group's members, moving only the buckets that must move; turns a next hop that was not a group into
    /// one.
    pub fn set_group(&mut self, hop: NextHop, members: &[Member]) -> Result<(), NextHopError> {
        self.check(hop)?;
        let members = group::merged(members);
        if members.is_empty() {
            return Err(NextHopError::NoMembers);
        }
        let old = self.table.entry(hop);
        let order = group::count_log2(&members);
        if old.is_group() && old.count().ilog2() >= order {
            self.assign(old.first(), old.count(), &members);
            return Ok(());
        }
        let count = 1 << order;
        let first = self.take_buckets(order).ok_or(NextHopError::BucketsFull { count })?;
        // A flow's bucket in a row twice as long is the same modulo the old length, so copying the old
        // row over and over moves no flow.
        for place in 0..count {
            let owner = if old.is_group() { self.table.select(old, place) } else { NextHop::NONE };
            self.table.buckets[(first + place) as usize].store(owner.0, Relaxed);
        }
        self.assign(first, count, &members);
        self.replace(hop, Entry::group(first, order));
        Ok(())
    }

    /// Removes a next hop. No route may name it any more, and no group.
    pub fn remove(&mut self, hop: NextHop) -> Result<(), NextHopError> {
        self.check(hop)?;
        self.in_use[hop.index()] = false;
        self.retired.push(Freed::Hop(hop));
        Ok(())
    }

    /// Whether workers have used `hop` since the last call. Clears the mark.
    pub fn take_used(&mut self, hop: NextHop) -> bool {
        self.table.used.get(hop.index()).is_some_and(|used| used.swap(0, Relaxed) != 0)
    }

    /// All next hops in use.
    pub fn iter(&self) -> impl Iterator<Item = NextHop> + '_ {
        (0..self.fresh).map(NextHop).filter(|hop| self.in_use[hop.index()])
    }

    /// Frees indices and buckets whose grace period has ended; returns how many still wait.
    pub fn reclaim(&mut self) -> usize {
        let passed: Vec<Freed> = self.retired.take_passed().collect();
        for freed in passed {
            match freed {
                Freed::Buckets { first, order } => self.buckets.give(first, order),
                Freed::Hop(hop) => {
                    // Readers are past the index, so a group's buckets need no wait of their own.
                    let entry = self.table.entry(hop);
                    if entry.is_group() {
                        self.buckets.give(entry.first(), entry.count().ilog2());
                    }
                    self.give_index(hop);
                }
            }
        }
        self.retired.len()
    }

    fn check(&self, hop: NextHop) -> Result<(), NextHopError> {
        let known = self.in_use.get(hop.index()).copied().unwrap_or(false);
        known.then_some(()).ok_or(NextHopError::Unknown(hop))
    }

    fn take_index(&mut self) -> Result<NextHop, NextHopError> {
        self.reclaim();
        let capacity = self.table.capacity();
        let index = match self.free.pop() {
            Some(Reverse(index)) => index,
            None if (self.fresh as usize) < capacity => {
                self.fresh += 1;
                self.fresh - 1
            }
            None => return Err(NextHopError::Full { capacity }),
        };
        self.in_use[index as usize] = true;
        Ok(NextHop(index))
    }

    fn give_index(&mut self, hop: NextHop) {
        self.in_use[hop.index()] = false;
        self.table.set_entry(hop, Entry::NONE);
        self.free.push(Reverse(hop.0));
    }

    fn take_buckets(&mut self, order: u32) -> Option<u32> {
        self.reclaim();
        self.buckets.take(order)
    }

    fn assign(&self, first: u32, count: u32, members: &[Member]) {
        let row = &self.table.buckets[first as usize..(first + count) as usize];
        let owners: Vec<NextHop> = row.iter().map(|owner| NextHop(owner.load(Relaxed))).collect();
        for (place, hop) in group::reassigned(&owners, members) {
            row[place].store(hop.0, Release);
        }
    }

    /// Stores the entry; buckets that the old one named wait for the readers.
    fn replace(&mut self, hop: NextHop, entry: Entry) {
        let old = self.table.entry(hop);
        self.table.set_entry(hop, entry);
        self.retired.outdate();
        if old.is_group() {
            self.retired.push(Freed::Buckets { first: old.first(), order: old.count().ilog2() });
        }
    }
}

fn encoded(action: Action, interface: u32) -> Result<Entry, NextHopError> {
    Ok(match action {
        Action::Forward { interface: interface @ SPECIAL.., .. } => {
            return Err(NextHopError::Interface(interface));
        }
        Action::Forward { mac, interface } => Entry::forward(mac, interface),
        Action::Host => Entry::special(HOST),
        Action::LinuxOnly => Entry::special_at(LINUX_ONLY, interface),
        Action::Resolve => Entry::special_at(RESOLVE, interface),
        Action::Blackhole => Entry::special(BLACKHOLE),
        Action::Unreachable => Entry::special(UNREACHABLE),
        Action::Prohibit => Entry::special(PROHIBIT),
        Action::Group { .. } => return Err(NextHopError::GroupByHand),
        Action::None => Entry::NONE,
    })
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn writer(hops: u32) -> (NextHopWriter, Readers) {
        let readers = Readers::new();
        (NextHopWriter::with_room(hops, 12, &readers).unwrap(), readers)
    }

    fn forward(last: u8) -> Action {
        Action::Forward { mac: [2, 0, 0, 0, 0, last], interface: u16::from(last) }
    }

    fn add(writer: &mut NextHopWriter, last: u8) -> NextHop {
        writer.add(forward(last), Gateway::default(), 0).unwrap()
    }

    #[test]
    fn every_change_begins_an_epoch_that_readers_see() {
        let (mut writer, readers) = writer(8);
        let (hop, reader) = (add(&mut writer, 1), readers.register());
        let mut before = reader.epoch();
        let mut is_new = || std::mem::replace(&mut before, reader.epoch()) != reader.epoch();
        writer.set(hop, forward(2)).unwrap();
        assert!(is_new());
        writer.set_mtu(hop, 1400).unwrap();
        assert!(is_new());
        writer.set_group(hop, &[(NextHop(1), 1)]).unwrap();
        assert!(is_new());
        writer.remove(hop).unwrap();
        assert!(is_new() && !is_new());
    }

    #[test]
    fn what_is_added_is_read_and_may_change() {
        let (mut writer, _) = writer(8);
        let gateway = Gateway { address: Some("192.0.2.1".parse().unwrap()), interface: 3 };
        let hop = writer.add(Action::Resolve, gateway, 1400).unwrap();
        let table = writer.table().clone();
        assert_eq!(hop, NextHop(1));
        assert_eq!((table.action(hop), table.gateway(hop), table.mtu(hop)), (Action::Resolve, gateway, 1400));
        writer.set(hop, Action::Forward { mac: MAC, interface: 9 }).unwrap();
        writer.set_mtu(hop, 0).unwrap();
        assert_eq!(table.action(hop), Action::Forward { mac: MAC, interface: 9 });
        assert_eq!((table.gateway(hop), table.mtu(hop)), (gateway, 0));
        for action in [
            Action::Host,
            Action::LinuxOnly,
            Action::Blackhole,
            Action::Unreachable,
            Action::Prohibit,
            Action::None,
        ] {
            writer.set(hop, action).unwrap();
            assert_eq!(table.action(hop), action);
        }
    }

    #[test]
    fn refuses_what_it_cannot_hold() {
        let (mut writer, _) = writer(3);
        let far = Action::Forward { mac: MAC, interface: INTERFACE_MAX + 1 };
        assert_eq!(writer.add(far, Gateway::default(), 0), Err(NextHopError::Interface(INTERFACE_MAX + 1)));
        let by_hand = Action::Group { first: 0, count: 256 };
        assert_eq!(writer.add(by_hand, Gateway::default(), 0), Err(NextHopError::GroupByHand));
        assert_eq!(writer.set(NextHop(1), Action::Host), Err(NextHopError::Unknown(NextHop(1))));
        assert_eq!(writer.remove(NextHop::NONE), Err(NextHopError::Unknown(NextHop::NONE)));
        add(&mut writer, 1);
        assert_eq!(writer.add_group(&[(NextHop(1), 0)]), Err(NextHopError::NoMembers));
        add(&mut writer, 2);
        assert_eq!(writer.add(Action::Host, Gateway::default(), 0), Err(NextHopError::Full { capacity: 3 }));
        assert_eq!(writer.iter().collect::<Vec<_>>(), [NextHop(1), NextHop(2)]);
    }

    #[test]
    fn an_index_is_used_again_only_after_all_readers_moved_on() {
        let (mut writer, readers) = writer(3);
        let mut reader = readers.register();
        let (one, two) = (add(&mut writer, 1), add(&mut writer, 2));
        writer.remove(one).unwrap();
        assert_eq!(writer.remove(one), Err(NextHopError::Unknown(one)));
        let refused = writer.add(forward(3), Gateway::default(), 0);
        assert_eq!(refused, Err(NextHopError::Full { capacity: 3 }));
        assert_eq!(writer.table().action(one), forward(1), "a packet in flight still goes out");
        reader.quiescent();
        assert_eq!(add(&mut writer, 3), one);
        assert_eq!(writer.table().action(two), forward(2));
    }

    #[test]
    fn the_usual_table_holds_65_000() {
        let mut writer = NextHopWriter::new(&Readers::new()).unwrap();
        for _ in 0..65_000 {
            writer.add(Action::Host, Gateway::default(), 0).unwrap();
        }
        assert_eq!(writer.len(), 65_000);
    }

    #[test]
    fn a_group_shares_flows_by_weight() {
        let (mut writer, _) = writer(8);
        let members = [(add(&mut writer, 1), 1), (add(&mut writer, 2), 3)];
        let group = writer.add_group(&members).unwrap();
        let mut flows = [0; 3];
        for flow in 0..10_000u32 {
            // Any good hash will do: this one is the finaliser of MurmurHash3.
            let hash = (flow ^ flow >> 16).wrapping_mul(0x85eb_ca6b);
            let hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
            let (hop, entry) = writer.table().resolve(group, hash ^ hash >> 16);
            assert_eq!(entry.action(), forward(hop.0 as u8));
            flows[hop.index()] += 1;
        }
        assert!((2400..=2600).contains(&flows[1]), "{flows:?}");
        assert_eq!(flows[1] + flows[2], 10_000);
    }

    #[test]
    fn a_group_that_grows_moves_only_what_it_must() {
        let (mut writer, _) = writer(16);
        let hops: Vec<NextHop> = (1..=7).map(|last| add(&mut writer, last)).collect();
        let group = writer.add_group(&[(hops[0], 1), (hops[1], 1)]).unwrap();
        let owners = |writer: &NextHopWriter| -> Vec<NextHop> {
            (0..4096).map(|hash| writer.table().resolve(group, hash).0).collect()
        };
        let before = owners(&writer);
        let members: Vec<Member> = hops.iter().map(|hop| (*hop, 1)).collect();
        writer.set_group(group, &members).unwrap();
        let after = owners(&writer);
        let moved = before.iter().zip(&after).filter(|(was, is)| was != is).count();
        assert!(before.iter().zip(&after).all(|(was, is)| was == is || is.0 > 2), "only to the new");
        assert!((moved as f64 / 4096.0 - 5.0 / 7.0).abs() < 0.01, "{moved}");
        // Its row is longer now, and the short one comes back once nobody reads it.
        assert_eq!(writer.reclaim(), 0);
        writer.set(group, Action::Unreachable).unwrap();
        writer.remove(group).unwrap();
        assert_eq!(writer.reclaim(), 0);
        assert_eq!(writer.take_buckets(12), Some(0), "all buckets are joined again");
    }

    #[test]
    fn refuses_a_group_without_room_and_keeps_the_rest() {
        let (mut writer, _) = writer(32);
        let hop = add(&mut writer, 1);
        let groups: Vec<NextHop> = (0..16).map(|_| writer.add_group(&[(hop, 1)]).unwrap()).collect();
        assert_eq!(writer.add_group(&[(hop, 1)]), Err(NextHopError::BucketsFull { count: 256 }));
        writer.remove(groups[0]).unwrap();
        writer.add_group(&[(hop, 1)]).unwrap();
        assert_eq!(writer.len(), 17);
    }

    #[test]
    fn marks_are_taken_once() {
        let (mut writer, _) = writer(4);
        let hop = add(&mut writer, 1);
        assert!(!writer.take_used(hop));
        writer.table().mark_used(hop);
        writer.table().mark_used(hop);
        assert!(writer.take_used(hop));
        assert!(!writer.take_used(hop));
    }
}
