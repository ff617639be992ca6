//! The read side, for workers: finds a flow, and counts its packets.

use crate::end::EndReason;
use crate::hash::Place;
use crate::key::{Action, Key, PackedKey};
use crate::layout::{Area, Bucket, FAMILIES, FlowIndex, NUMBER_MASK, SPILLS, TRANSLATES};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Finds flows. Cheap to clone; all clones read one table.
///
/// A lookup is always memory-safe. It is *correct* only while the writer's grace periods include the reader: what was
/// found may be used until the reader's next quiescent state.
#[derive(Clone)]
pub struct Lookup {
    area: Arc<Area>,
    secret: [u64; 2],
}

/// What a packet of a flow is to be sent as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    pub index: FlowIndex,
    pub action: Action,
    /// Whether addresses or ports change.
    pub translates: bool,
    /// By which the ones' complement sum of the addresses grows: 16 bits, words as in memory.
    pub sum_addresses: u16,
    /// By which that of the two ports grows.
    pub sum_ports: u16,
}

/// A slot with the number of an entry in it.
pub(crate) struct Slot<'a> {
    pub slot: &'a AtomicU32,
    pub number: u32,
}

/// Where the number of the flow of a key is.
pub(crate) fn locate<'a>(area: &'a Area, place: &Place, key: &PackedKey) -> Option<Slot<'a>> {
    let [first, second] = place.buckets.map(|bucket| &area.buckets()[bucket]);
    let found = locate_in(first, area, place, key);
    if found.is_some() || first.slots[0].load(Acquire) & SPILLS == 0 {
        return found;
    }
    locate_in(second, area, place, key)
}

fn locate_in<'a>(bucket: &'a Bucket, area: &Area, place: &Place, key: &PackedKey) -> Option<Slot<'a>> {
    for slot in &bucket.slots {
        let word = slot.load(Acquire);
        let number = word & NUMBER_MASK;
        let has_tag = word & !(NUMBER_MASK | SPILLS) == place.tag;
        if has_tag && number != 0 && PackedKey::load(area.flow(number)) == *key {
            return Some(Slot { slot, number });
        }
    }
    None
}

impl Lookup {
    pub(crate) fn new(area: Arc<Area>, secret: [u64; 2]) -> Self {
        Self { area, secret }
    }

    /// What becomes of packets of a flow; none if Linux decides: it is not in the table, has ended, or packets of its
    /// family may not use flows now.
    ///
    /// # Panics
    /// If the addresses of the key are of different families.
    pub fn find(&self, key: &Key) -> Option<Hit> {
        let (key, head) = (PackedKey::new(key), self.area.head());
        let family = FAMILIES[usize::from(key.family == 6)];
        if head.families.load(Acquire) & family == 0 {
            return None;
        }
        let place = Place::new(&key, self.secret, self.area.buckets().len());
        let number = locate(&self.area, &place, &key)?.number;
        let flow = self.area.flow(number);
        if flow.epoch.load(Acquire) != head.epoch.load(Acquire) || flow.ended.load(Relaxed) != 0 {
            return None;
        }
        Some(Hit {
            index: FlowIndex(number),
            action: Action::load(flow, key.family),
            translates: flow.flags.load(Relaxed) & TRANSLATES != 0,
            sum_addresses: flow.sum_addresses.load(Relaxed),
            sum_ports: flow.sum_ports.load(Relaxed),
        })
    }

    /// Counts a packet of a flow that was found: bytes of its frame as it arrived, and the time, the low 32 bits of jiffies.
    pub fn count(&self, flow: FlowIndex, frame_bytes: u64, now_jiffies: u32) {
        let flow = self.area.flow(flow.0);
        flow.packets.fetch_add(1, Relaxed);
        flow.bytes.fetch_add(frame_bytes, Relaxed);
        flow.used_at.store(now_jiffies, Relaxed);
    }

    /// Marks a flow as ended, at FIN or RST: from then on it is not found.
    pub fn end(&self, flow: FlowIndex) {
        self.area.flow(flow.0).ended.store(EndReason::Closed as u8, Relaxed);
    }
}

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lookup") // without the secret
    }
}
