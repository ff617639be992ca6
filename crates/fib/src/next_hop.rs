//! The action for a packet whose route was found: one 64-bit word per next hop.
//!
//! ```text
//!  63        48 47                                      0
//! [ interface  |  destination MAC, first byte lowest     ]   forward (interface below 0xff00)
//! [ 0xff00 ... |  0                                      ]   host, blackhole, ...
//! [ 0xff01     |  0                                  | 1 ]   host: addresses of this machine, broadcasts
//! [ 0xff02     |  0                     | interface (16) ]   resolve: the interface of the neighbor
//! [ 0xff06     |  log2 of count (8)  |  first bucket (32) ]   group: bucket[first + hash % count]
//! [ 0xff07     |  0                     | interface (16) ]   Linux only: Linux sends through the interface
//! ```
//!
//! All routes and all tables share this one, so a changed MAC address is a single aligned store, never seen
//! partially, and changes no route. Next to the word are, per index: the route's MTU, the gateway (for the slow path,
//! which resolves it) and a mark that workers set when they use the next hop, so that control keeps its neighbor
//! fresh in Linux. The writer is [`NextHopWriter`]; workers have an `Arc<NextHops>` and only load, except for the
//! mark.
//!
//! An index keeps its meaning until the reader that found it is quiescent ([`crate::published`]). A packet that waits
//! longer, for example in a queue to the slow path, is looked up again by its address.

mod buddy;
mod group;
mod writer;

pub use writer::{NextHopError, NextHopWriter};

use crate::memory::{Array, Filled, OutOfMemory, Source};
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// The index of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct NextHop(pub u32);

impl NextHop {
    /// No route matches.
    pub const NONE: Self = Self(0);

    /// As an index of a slice.
    #[inline(always)]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// First of the 16-bit values that are not an interface.
const SPECIAL: u16 = 0xff00;
const NONE: u16 = SPECIAL;
const HOST: u16 = SPECIAL + 1;
const RESOLVE: u16 = SPECIAL + 2;
const BLACKHOLE: u16 = SPECIAL + 3;
const UNREACHABLE: u16 = SPECIAL + 4;
const PROHIBIT: u16 = SPECIAL + 5;
const GROUP: u16 = SPECIAL + 6;
const LINUX_ONLY: u16 = SPECIAL + 7;

/// Greatest interface that a next hop can name.
pub const INTERFACE_MAX: u16 = SPECIAL - 1;

/// What to do with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send it out of `interface` to `mac`.
    Forward {
        /// Destination MAC.
        mac: [u8; 6],
        /// Egress interface, at most [`INTERFACE_MAX`].
        interface: u16,
    },
    /// Hand it to Linux unchanged.
    Host,
    /// Hand it to Linux unchanged: something on the egress interface exists only in Linux, such as a qdisc.
    LinuxOnly,
    /// The neighbor is not resolved yet: slow path.
    Resolve,
    /// Drop it silently.
    Blackhole,
    /// Drop it and send a "host unreachable" error.
    Unreachable,
    /// Drop it and send an "administratively prohibited" error.
    Prohibit,
    /// Choose among `count` buckets, a power of two, by the flow's hash.
    Group {
        /// Index of the first bucket.
        first: u32,
        /// How many buckets.
        count: u32,
    },
    /// No route: drop it and send a "network unreachable" error.
    None,
}

/// An [`Action`] as stored in the table; the fast path uses it without decoding.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Entry(u64);

impl Entry {
    /// No route.
    pub const NONE: Self = Self((NONE as u64) << 48);

    /// To Linux, which does not forward the packet: it is for this machine, or for all machines on a link.
    const LOCAL: Self = Self((HOST as u64) << 48 | 1);

    /// Whether it is for packets to this machine: Linux does not forward them.
    #[inline(always)]
    pub fn is_local(self) -> bool {
        self == Self::LOCAL
    }

    /// The word itself.
    #[inline(always)]
    pub fn raw(self) -> u64 {
        self.0
    }

    /// Whether it is plain forwarding: only then are `interface` and `write_mac` meaningful.
    #[inline(always)]
    pub fn is_forward(self) -> bool {
        self.interface() < SPECIAL
    }

    /// Whether a bucket of a group must be selected.
    #[inline(always)]
    pub fn is_group(self) -> bool {
        self.interface() == GROUP
    }

    /// Egress interface.
    #[inline(always)]
    pub fn interface(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Writes the destination MAC into the first six bytes of `to`.
    ///
    /// # Panics
    /// If `to` is shorter.
    #[inline(always)]
    pub fn write_mac(self, to: &mut [u8]) {
        to[..6].copy_from_slice(&self.0.to_le_bytes()[..6]);
    }

    /// The decoded action.
    pub fn action(self) -> Action {
        match self.interface() {
            HOST => Action::Host,
            LINUX_ONLY => Action::LinuxOnly,
            RESOLVE => Action::Resolve,
            BLACKHOLE => Action::Blackhole,
            UNREACHABLE => Action::Unreachable,
            PROHIBIT => Action::Prohibit,
            GROUP => Action::Group { first: self.first(), count: self.count() },
            SPECIAL.. => Action::None,
            interface => {
                let mut mac = [0; 6];
                self.write_mac(&mut mac);
                Action::Forward { mac, interface }
            }
        }
    }

    #[inline(always)]
    fn first(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    fn count(self) -> u32 {
        1 << (self.0 >> 32 & 31)
    }

    fn forward(mac: [u8; 6], interface: u16) -> Self {
        let [a, b, c, d, e, f] = mac;
        Self(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) | u64::from(interface) << 48)
    }

    fn group(first: u32, count_log2: u32) -> Self {
        Self(u64::from(GROUP) << 48 | u64::from(count_log2) << 32 | u64::from(first))
    }

    /// An action other than plain forwarding, and its interface.
    fn special_at(kind: u16, interface: u32) -> Self {
        Self(u64::from(kind) << 48 | u64::from(interface as u16))
    }

    fn special(kind: u16) -> Self {
        Self(u64::from(kind) << 48)
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.action().fmt(f)
    }
}

/// The destination of a next hop, for the slow path: it does not change as long as the index is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Gateway {
    /// The neighbor to resolve; `None` if destinations are neighbors themselves (on link).
    pub address: Option<IpAddr>,
    /// The interface it is on, by whatever number the writer uses.
    pub interface: u32,
}

/// A [`Gateway`] as words that can be stored while others read.
const GATEWAY_WORDS: usize = 3;
const NO_ADDRESS: u64 = 0;
const IPV4: u64 = 4;
const IPV6: u64 = 6;

/// The next hops of all tables, as workers see them.
#[derive(Debug)]
pub struct NextHops {
    entries: Array<AtomicU64>,
    buckets: Array<AtomicU32>,
    mtus: Array<AtomicU16>,
    used: Array<AtomicU8>,
    gateways: Array<AtomicU64>,
}

/// Stores the items of one table's arrays in those of another, array by array.
macro_rules! copy_words {
    ($from:ident, $to:ident, $($array:ident),*) => {$(
        for (from, to) in $from.$array.iter().zip($to.$array.iter()) {
            let word = from.load(Acquire);
            // Memory that stays zero is not allocated.
            if word != 0 {
                to.store(word, Relaxed);
            }
        }
    )*};
}

impl NextHops {
    fn with_room(hops: usize, buckets: usize, source: &Source) -> Result<Self, OutOfMemory> {
        let table = Self {
            entries: source.array(hops, Filled::Whole)?,
            buckets: source.array(buckets, Filled::ByNeed)?,
            mtus: source.array(hops, Filled::ByNeed)?,
            used: source.array(hops, Filled::ByNeed)?,
            gateways: Array::zeroed(hops * GATEWAY_WORDS, Filled::ByNeed)?,
        };
        table.entries.iter().for_each(|entry| entry.store(Entry::NONE.0, Relaxed));
        Ok(table)
    }

    /// A copy of all next hops as they are now, in memory of its own: marks made there are not seen here.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn copied(&self) -> Result<Self, OutOfMemory> {
        let copy = Self::with_room(self.entries.len(), self.buckets.len(), &Source::anonymous())?;
        copy_words!(self, copy, gateways, mtus, buckets, entries);
        Ok(copy)
    }

    /// Maximum number of next hops, including [`NextHop::NONE`].
    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// The action at `hop`; [`Entry::NONE`] beyond the table.
    #[inline(always)]
    pub fn entry(&self, hop: NextHop) -> Entry {
        // Acquire: a group's buckets are written before the entry that names them.
        self.entries.get(hop.index()).map_or(Entry::NONE, |entry| Entry(entry.load(Acquire)))
    }

    /// The decoded action at `hop`; [`Action::None`] beyond the table.
    pub fn action(&self, hop: NextHop) -> Action {
        self.entry(hop).action()
    }

    /// The member of a group for a flow's hash. `is_group` must be true for `group`.
    #[inline]
    pub fn select(&self, group: Entry, hash: u32) -> NextHop {
        let bucket = group.first() as usize + (hash & (group.count() - 1)) as usize;
        self.buckets.get(bucket).map_or(NextHop::NONE, |hop| NextHop(hop.load(Acquire)))
    }

    /// `hop` and its action, with a group replaced by its member for `hash`.
    #[inline(always)]
    pub fn resolve(&self, hop: NextHop, hash: u32) -> (NextHop, Entry) {
        let entry = self.entry(hop);
        if !entry.is_group() {
            return (hop, entry);
        }
        let member = self.select(entry, hash);
        (member, self.entry(member))
    }

    /// The route's own MTU; 0 if the interface's applies.
    #[inline(always)]
    pub fn mtu(&self, hop: NextHop) -> u16 {
        self.mtus.get(hop.index()).map_or(0, |mtu| mtu.load(Relaxed))
    }

    /// Marks `hop` as used. Stores only if it is not marked, so that the cache line stays shared.
    #[inline(always)]
    pub fn mark_used(&self, hop: NextHop) {
        if let Some(used) = self.used.get(hop.index())
            && used.load(Relaxed) == 0
        {
            used.store(1, Relaxed);
        }
    }

    /// The destination of `hop`.
    pub fn gateway(&self, hop: NextHop) -> Gateway {
        let at = hop.index() * GATEWAY_WORDS;
        let Some([high, low, kind]) = self.gateways.get(at..at + GATEWAY_WORDS) else {
            return Gateway::default();
        };
        let (high, low, kind) = (high.load(Relaxed), low.load(Relaxed), kind.load(Relaxed));
        let address = match kind >> 32 {
            IPV4 => Some(IpAddr::from((low as u32).to_be_bytes())),
            IPV6 => Some(IpAddr::from((u128::from(high) << 64 | u128::from(low)).to_be_bytes())),
            _ => None,
        };
        Gateway { address, interface: kind as u32 }
    }

    /// Relaxed is enough: the index is not used before the entry is stored, and that is a release.
    fn set_gateway(&self, hop: NextHop, gateway: Gateway) {
        let (kind, number) = match gateway.address {
            None => (NO_ADDRESS, 0),
            Some(IpAddr::V4(address)) => (IPV4, u128::from(u32::from(address))),
            Some(IpAddr::V6(address)) => (IPV6, u128::from(address)),
        };
        let at = hop.index() * GATEWAY_WORDS;
        self.gateways[at].store((number >> 64) as u64, Relaxed);
        self.gateways[at + 1].store(number as u64, Relaxed);
        self.gateways[at + 2].store(kind << 32 | u64::from(gateway.interface), Relaxed);
    }

    fn set_entry(&self, hop: NextHop, entry: Entry) {
        self.entries[hop.index()].store(entry.0, Release);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn forwarding_is_one_word_with_the_mac_in_order() {
        let entry = Entry::forward([2, 0, 0x5e, 0x10, 0xff, 7], 0x1234);
        assert_eq!(entry.raw(), 0x1234_07ff_105e_0002);
        assert!(entry.is_forward() && !entry.is_group());
        let mut frame = [0xaa; 8];
        entry.write_mac(&mut frame);
        assert_eq!(frame, [2, 0, 0x5e, 0x10, 0xff, 7, 0xaa, 0xaa]);
        assert_eq!(entry.action(), Action::Forward { mac: [2, 0, 0x5e, 0x10, 0xff, 7], interface: 0x1234 });
    }

    #[test]
    fn the_last_interface_still_forwards_and_no_special_does() {
        assert!(Entry::forward([0xff; 6], INTERFACE_MAX).is_forward());
        for kind in SPECIAL..=u16::MAX {
            assert!(!Entry::special(kind).is_forward());
            assert!(!matches!(Entry::special(kind).action(), Action::Forward { .. }));
        }
    }

    #[test]
    fn a_group_keeps_its_range() {
        let entry = Entry::group(0xffff_ff00, 16);
        assert!(entry.is_group() && !entry.is_forward());
        assert_eq!(entry.action(), Action::Group { first: 0xffff_ff00, count: 65_536 });
    }

    #[test]
    fn past_the_table_there_is_no_route() {
        let table = NextHops::with_room(16, 16, &Source::anonymous()).unwrap();
        for hop in [NextHop::NONE, NextHop(15), NextHop(16), NextHop(u32::MAX)] {
            assert_eq!(table.action(hop), Action::None);
            assert_eq!((table.mtu(hop), table.gateway(hop)), (0, Gateway::default()));
            table.mark_used(hop);
        }
        assert_eq!(table.resolve(NextHop(99), 5), (NextHop(99), Entry::NONE));
    }

    #[test]
    fn a_copy_has_the_same_next_hops_and_its_own_marks() {
        let table = NextHops::with_room(4, 2, &Source::anonymous()).unwrap();
        let gateway = Gateway { address: Some("192.0.2.1".parse().unwrap()), interface: 7 };
        table.set_gateway(NextHop(3), gateway);
        table.mtus[3].store(1400, Relaxed);
        table.buckets[1].store(3, Relaxed);
        table.set_entry(NextHop(3), Entry::forward([2, 0, 0, 0, 0, 7], 5));
        table.set_entry(NextHop(2), Entry::group(0, 1));
        let copy = table.copied().unwrap();
        for hop in [NextHop::NONE, NextHop(2), NextHop(3)] {
            assert_eq!((copy.action(hop), copy.gateway(hop)), (table.action(hop), table.gateway(hop)));
        }
        assert_eq!((copy.mtu(NextHop(3)), copy.resolve(NextHop(2), 1).0), (1400, NextHop(3)));
        copy.mark_used(NextHop(3));
        assert_eq!(table.used[3].load(Relaxed), 0);
    }

    #[test]
    fn gateways_come_back_as_they_went_in() {
        let table = NextHops::with_room(4, 1, &Source::anonymous()).unwrap();
        for address in [None, Some("192.0.2.1".parse().unwrap()), Some("fe80::1:2".parse().unwrap())] {
            let gateway = Gateway { address, interface: u32::MAX };
            table.set_gateway(NextHop(3), gateway);
            assert_eq!(table.gateway(NextHop(3)), gateway);
        }
    }
}
