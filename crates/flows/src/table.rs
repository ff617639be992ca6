//! The writer: puts flows into the table and takes them out, while others read it.
//!
//! ```text
//! free ──insert──► in a slot ──remove, evict, void──► retired ──mark, a grace period, reuse──► free
//! ```
//!
//! The rules that make readers right: an entry is complete before its number is stored in a slot (release). A number is
//! taken out of its slot before its entry waits for reuse, and its epoch becomes 0, so that a reader that has just found
//! it does not use it. Whoever still does has read all of it before the grace period ends.
//!
//! If both buckets of a flow are full, a number in them moves to its other bucket, if that has room: first it is stored
//! there, then taken out here. Without that some ten of 262,144 flows would find no place although there are entries.
//!
//! Only flows are evicted that have ended or that no packet has used for a second. If there are none, the new flow finds
//! no room, and Linux goes on forwarding its packets: better than if flows in use took each other's place.

use crate::Error;
use crate::end::EndReason;
use crate::entry::NewEntry;
use crate::hash::Place;
use crate::key::{Action, Key, PackedKey};
use crate::layout::{
    Area, Bucket, FAMILIES, FOLLOWS_ACKNOWLEDGED, FlowIndex, NUMBER_BITS, NUMBER_MASK, SPILLS, bytes,
};
use crate::lookup::{Lookup, Slot, locate};
use bm_sys::Map;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_getres};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// The maximum number of flows of a table: their numbers fit in the bits that a slot has for them.
pub const MAX: usize = 4_000_000;
const _: () = assert!(MAX < 1 << NUMBER_BITS);
/// Entries that may be looked at for one that can be evicted.
const LOOKED_AT_MAX: u32 = 64;
/// Entries that are kept free if others can be evicted: for new flows until the grace period of the evicted is over.
const SPARE_MAX: usize = 256;
/// Flows in their first bucket before others go to their second one, which readers then have to look at as well.
const FIRST_MAX: usize = 6;
/// By how many jiffies the clock of programs may be ahead of the time that the caller gives.
const AHEAD_MAX: u32 = 1 << 16;

/// The table, for its one writer.
pub struct Table {
    area: Arc<Area>,
    secret: [u64; 2],
    max: usize,
    len: usize,
    epoch: u32,
    /// The last entry that has ever been used.
    touched: u32,
    free: Vec<u32>,
    /// Taken out, oldest first.
    retired: Vec<u32>,
    /// How many of them wait for the grace period that the caller waits for, if it does.
    marked: Option<usize>,
    evicted: Vec<FlowIndex>,
    /// The entry that was looked at last for eviction.
    hand: u32,
    jiffies_per_second: u32,
}

/// What became of a flow that was to be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Insert {
    /// It is in the table now.
    Inserted(FlowIndex),
    /// It was there already, with this action.
    Exists(FlowIndex),
    /// It was there, but had ended or had another action: a new entry replaces the old one, which is removed.
    Renewed {
        /// The new entry.
        index: FlowIndex,
        /// The old one.
        replaced: FlowIndex,
    },
    /// There is no room, nor anything to evict yet. A flow that was there with another action, or ended, is not any
    /// more: it is among the evicted.
    Full,
}

/// A flow with what its readers have counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    pub key: Key,
    pub action: Action,
    pub packets: u64,
    /// Of frames as they arrive.
    pub bytes: u64,
    /// Low 32 bits of jiffies of the last packet, or of the insertion if there was none.
    pub used_at: u32,
    /// Why Linux forwards its packets again, if it does.
    pub ended: Option<EndReason>,
}

impl Table {
    /// An empty table of at most `max` flows, with a new random key. Packets may not use it yet.
    ///
    /// If a table was in this memory, a grace period must have passed since its families became none.
    ///
    /// # Errors
    /// If `max` is not possible, the memory is smaller than [`bytes`], or the system has no random numbers.
    pub fn new(memory: Map, max: usize) -> Result<Self, Error> {
        let secret = random_secret().map_err(Error::Key)?;
        // The kernel's coarse clocks advance once per jiffy, so their resolution gives CONFIG_HZ.
        let tick_ns = clock_getres(ClockId::MonotonicCoarse).tv_nsec.max(1);
        let jiffies_per_second = (1_000_000_000 / tick_ns) as u32;
        Self::with_secret(memory, max, secret, jiffies_per_second)
    }

    pub(crate) fn with_secret(
        memory: Map,
        max: usize,
        secret: [u64; 2],
        jiffies_per_second: u32,
    ) -> Result<Self, Error> {
        if !(1..=MAX).contains(&max) {
            return Err(Error::Max(max));
        }
        if memory.bytes() < bytes(max) {
            return Err(Error::Memory { max, given: memory.bytes() });
        }
        let area = Arc::new(Area::new(memory, max));
        let head = area.head();
        head.families.store(0, Release);
        head.generation.store(0, Relaxed);
        let epoch = after(head.epoch.load(Relaxed));
        head.epoch.store(epoch, Release);
        for slot in slots(area.buckets()) {
            // Fresh pages stay untouched.
            if slot.load(Relaxed) != 0 {
                slot.store(0, Release);
            }
        }
        for (word, value) in head.key.iter().zip(secret) {
            word.store(value, Release);
        }
        Ok(Self {
            area,
            secret,
            max,
            len: 0,
            epoch,
            touched: 0,
            free: Vec::new(),
            retired: Vec::new(),
            marked: None,
            evicted: Vec::new(),
            hand: 0,
            jiffies_per_second,
        })
    }

    /// The read side.
    pub fn lookup(&self) -> Lookup {
        Lookup::new(self.area.clone(), self.secret)
    }

    /// Puts a flow into the table; `now_jiffies` are the low 32 bits of the kernel's jiffies. This may evict flows
    /// that were not used for more than a second ([`take_evicted`](Self::take_evicted)).
    ///
    /// # Panics
    /// If the addresses of both are not of one family.
    pub fn insert(&mut self, key: &Key, action: &Action, now_jiffies: u32) -> Insert {
        let key = PackedKey::new(key);
        let words = action.words(key.family);
        let entry = NewEntry { key, out: action.out, words, connection: action.connection, now_jiffies };
        let place = self.place(&key);
        let area = self.area.clone();
        if let Some(found) = locate(&area, &place, &key) {
            return self.renew(&entry, &place, &found);
        }
        self.keep_spare(now_jiffies);
        let Some(number) = self.take() else { return Insert::Full };
        let Some(slot) = self.room(&area, &place, now_jiffies) else {
            self.free.push(number);
            return Insert::Full;
        };
        entry.write(area.flow(number), self.epoch);
        put(&area, &place, slot, number | place.tag);
        self.len += 1;
        Insert::Inserted(FlowIndex(number))
    }

    /// Takes a flow out; returns whether it was there. Its counts can still be read, until [`reuse`](Self::reuse) after
    /// the next [`mark`](Self::mark): then the index may be that of another flow.
    pub fn remove(&mut self, index: FlowIndex) -> bool {
        let flow = self.area.flow(index.0);
        if flow.epoch.load(Relaxed) != self.epoch {
            return false;
        }
        let place = self.place(&PackedKey::load(flow));
        let Some(slot) = slots_of(&self.area, &place).find(|slot| number_in(slot) == index.0) else {
            return false;
        };
        flow.epoch.store(0, Release);
        empty(slot);
        self.len -= 1;
        self.retired.push(index.0);
        true
    }

    /// Takes all flows out, and lets packets of no family use flows: entries of the epochs before are void at once.
    /// All indices are out of date.
    pub fn void(&mut self) {
        let head = self.area.head();
        head.families.store(0, Release);
        self.epoch = after(self.epoch);
        head.epoch.store(self.epoch, Release);
        for slot in slots(self.area.buckets()) {
            let number = number_in(slot);
            if slot.load(Relaxed) != 0 {
                slot.store(0, Release);
            }
            if number != 0 {
                self.retired.push(number);
            }
        }
        self.len = 0;
        self.evicted.clear();
    }

    /// Notes which entries have been taken out so far: those that [`reuse`](Self::reuse) frees, after a grace period
    /// that begins now. Further calls before that change nothing.
    pub fn mark(&mut self) {
        self.marked.get_or_insert(self.retired.len());
    }

    /// Frees the entries that were noted by [`mark`](Self::mark): to be called when a grace period has passed since.
    pub fn reuse(&mut self) {
        let marked = self.marked.take().unwrap_or(0);
        self.free.extend(self.retired.drain(..marked));
    }

    /// Number of entries that wait for a grace period.
    pub fn retired(&self) -> usize {
        self.retired.len()
    }

    /// The flows that insertions have evicted since the last call. To be taken before [`reuse`](Self::reuse): after that
    /// their indices may be those of other flows.
    pub fn take_evicted(&mut self) -> Vec<FlowIndex> {
        std::mem::take(&mut self.evicted)
    }

    /// Number of flows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The maximum number of flows.
    pub fn max(&self) -> usize {
        self.max
    }

    /// The generation of nftables that flows hold for.
    pub fn generation(&self) -> u32 {
        self.area.head().generation.load(Relaxed)
    }

    /// Says which generation of nftables flows hold for. Programs forward none in another.
    pub fn set_generation(&self, generation: u32) {
        self.area.head().generation.store(generation, Release);
    }

    /// Says what packets of a flow of TCP have acknowledged, unless a program has seen some since it is in the table.
    pub fn set_acknowledged(&self, index: FlowIndex, acknowledged: u32) {
        let flow = self.area.flow(index.0);
        if flow.follows.load(Relaxed) == 0 {
            flow.acknowledged.store(acknowledged, Relaxed);
            flow.follows.store(FOLLOWS_ACKNOWLEDGED, Release);
        }
    }

    /// Lets programs use flows until the jiffies have these low 32 bits, and no longer.
    pub fn set_until(&self, jiffies: u32) {
        self.area.head().until.store(jiffies, Relaxed);
    }

    /// Whether packets may use flows now: of IPv4, of IPv6.
    pub fn families(&self) -> [bool; 2] {
        let families = self.area.head().families.load(Relaxed);
        FAMILIES.map(|family| families & family != 0)
    }

    /// Says whether packets may use flows: of IPv4, of IPv6.
    pub fn set_families(&self, families: [bool; 2]) {
        let [ipv4, ipv6] = families.map(u32::from);
        self.area.head().families.store(ipv4 * FAMILIES[0] + ipv6 * FAMILIES[1], Release);
    }

    /// A flow with its counts now. One that was removed has them until its entry is reused.
    pub fn get(&self, index: FlowIndex) -> FlowRecord {
        let flow = self.area.flow(index.0);
        let key = PackedKey::load(flow);
        FlowRecord {
            key: key.unpack(),
            action: Action::load(flow, key.family),
            packets: flow.packets.load(Relaxed),
            bytes: flow.bytes.load(Relaxed),
            used_at: flow.used_at.load(Relaxed),
            ended: EndReason::of(flow),
        }
    }

    /// All flows, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (FlowIndex, FlowRecord)> {
        let numbers = slots(self.area.buckets()).map(number_in).filter(|&number| number != 0);
        numbers.map(|number| (FlowIndex(number), self.get(FlowIndex(number))))
    }

    fn place(&self, key: &PackedKey) -> Place {
        Place::new(key, self.secret, self.area.buckets().len())
    }

    /// Replaces the entry of a flow that has ended or now leaves otherwise.
    fn renew(&mut self, entry: &NewEntry, place: &Place, found: &Slot<'_>) -> Insert {
        let replaced = FlowIndex(found.number);
        let flow = self.area.flow(found.number);
        if flow.ended.load(Relaxed) == 0 && entry.is_action_of(flow) {
            return Insert::Exists(replaced);
        }
        let Some(number) = self.take() else {
            self.evict(replaced);
            return Insert::Full;
        };
        entry.write(self.area.flow(number), self.epoch);
        put(&self.area, place, found.slot, number | place.tag);
        self.area.flow(replaced.0).epoch.store(0, Release);
        self.retired.push(replaced.0);
        Insert::Renewed { index: FlowIndex(number), replaced }
    }

    /// A free entry.
    fn take(&mut self) -> Option<u32> {
        if let Some(number) = self.free.pop() {
            return Some(number);
        }
        if self.touched as usize == self.max {
            return None;
        }
        self.touched += 1;
        Some(self.touched)
    }

    /// A slot for a new flow: a free one of its first bucket while that has some left, else of the emptier one, or made free in
    /// either.
    fn room<'a>(&mut self, area: &'a Area, place: &Place, now_jiffies: u32) -> Option<&'a AtomicU32> {
        let [a, b] = place.buckets.map(|bucket| &area.buckets()[bucket]);
        let (in_a, in_b) = (used(a), used(b));
        let preferred = if in_a >= FIRST_MAX && in_b < in_a { b } else { a };
        if let Some(slot) = free_slot(preferred) {
            return Some(slot);
        }
        if let Some(slot) = slots_of(area, place).find(|slot| self.move_away(area, slot)) {
            return Some(slot);
        }
        let oldest = slots_of(area, place).max_by_key(|slot| self.idle(number_in(slot), now_jiffies))?;
        let number = number_in(oldest);
        self.idle(number, now_jiffies)?;
        self.evict(FlowIndex(number));
        Some(oldest)
    }

    /// Moves the number in a slot to the other bucket of its flow, if there is room.
    fn move_away(&self, area: &Area, slot: &AtomicU32) -> bool {
        let word = slot.load(Relaxed);
        let place = self.place(&PackedKey::load(area.flow(word & NUMBER_MASK)));
        // Its own bucket is full, so a free slot is in the other one.
        let Some(other) = slots_of(area, &place).find(|other| number_in(other) == 0) else { return false };
        put(area, &place, other, word & !SPILLS);
        empty(slot);
        true
    }

    /// For how many jiffies no packet has used an entry; none if it is a second at most. Ended ones are the first to go.
    fn idle(&self, number: u32, now_jiffies: u32) -> Option<u32> {
        let flow = self.area.flow(number);
        if flow.ended.load(Relaxed) != 0 {
            return Some(u32::MAX);
        }
        let age = now_jiffies.wrapping_sub(flow.used_at.load(Relaxed));
        (age > self.jiffies_per_second && age < u32::MAX - AHEAD_MAX).then_some(age)
    }

    /// Evicts a flow if few entries are left: the least recently used of those that come next.
    fn keep_spare(&mut self, now_jiffies: u32) {
        let left = self.max - self.len;
        if left > (self.max / 16).min(SPARE_MAX) {
            return;
        }
        let mut oldest = None;
        for _ in 0..LOOKED_AT_MAX.min(self.touched) {
            self.hand = self.hand % self.touched + 1;
            if self.area.flow(self.hand).epoch.load(Relaxed) == self.epoch {
                oldest = oldest.max(self.idle(self.hand, now_jiffies).map(|age| (age, self.hand)));
            }
        }
        if let Some((_, number)) = oldest {
            self.evict(FlowIndex(number));
        }
    }

    fn evict(&mut self, index: FlowIndex) {
        if self.remove(index) {
            self.evicted.push(index);
        }
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table of {} of {} flows", self.len, self.max) // without the secret
    }
}

/// The epoch after another; 0 is that of no entry.
fn after(epoch: u32) -> u32 {
    epoch.wrapping_add(1).max(1)
}

/// Puts the number of an entry and its tag into a slot of one of its buckets.
fn put(area: &Area, place: &Place, slot: &AtomicU32, word: u32) {
    let first = &area.buckets()[place.buckets[0]];
    if !first.slots.iter().any(|of_first| std::ptr::eq(of_first, slot)) {
        first.slots[0].fetch_or(SPILLS, Release);
    }
    slot.store(slot.load(Relaxed) & SPILLS | word, Release);
}

/// Takes the number out of a slot.
fn empty(slot: &AtomicU32) {
    slot.store(slot.load(Relaxed) & SPILLS, Release);
}

fn number_in(slot: &AtomicU32) -> u32 {
    slot.load(Relaxed) & NUMBER_MASK
}

fn slots(buckets: &[Bucket]) -> impl Iterator<Item = &AtomicU32> {
    buckets.iter().flat_map(|bucket| &bucket.slots)
}

/// The slots in which a flow may be.
fn slots_of<'a>(area: &'a Area, place: &Place) -> impl Iterator<Item = &'a AtomicU32> {
    place.buckets.into_iter().flat_map(|bucket| &area.buckets()[bucket].slots)
}

fn used(bucket: &Bucket) -> usize {
    bucket.slots.iter().filter(|slot| number_in(slot) != 0).count()
}

fn free_slot(bucket: &Bucket) -> Option<&AtomicU32> {
    bucket.slots.iter().find(|slot| number_in(slot) == 0)
}

/// Two random odd numbers from the system.
fn random_secret() -> io::Result<[u64; 2]> {
    let mut bytes = [[0; 8]; 2];
    if getrandom(bytes.as_flattened_mut(), GetRandomFlags::empty())? != 16 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes.map(|bytes| u64::from_ne_bytes(bytes) | 1))
}

#[cfg(test)]
mod tests;
