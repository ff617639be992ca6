//! The next hops of most packets, each with what must be stored in a frame and compared with it.
//!
//! What is cached about a next hop is valid within an [`Epoch`] of the tables: whatever changes a next hop or the tables
//! begins a new one, so a worker sees the change with its next burst, as it does a new table.

use bm_fib::NextHop;
use bm_fib::published::Epoch;
use bm_wire::Family;

use crate::stages::rewrite::mtu;
use crate::tables::Tables;

/// Cached data of a next hop: everything that the fast case has to store and compare.
///
/// Not shared: laid out for vectors.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(super) struct CachedHop {
    /// The frame's first eight bytes: the destination, and the source's first two.
    pub start: u64,
    /// The source's other four.
    pub rest: [u8; 4],
    pub hop: NextHop,
    /// The longest packet that fits; 0, so that none does, if it does not forward, or has a tag.
    pub mtu: u16,
    pub port: u16,
}

/// The caches of a worker, one for each port on which frames come in.
pub(super) struct HopCaches {
    ports: Vec<HopCache>,
    now: usize,
}

impl HopCaches {
    pub fn new(ports: usize) -> Self {
        Self { ports: (0..ports.max(1)).map(|_| HopCache::new()).collect(), now: 0 }
    }

    /// Before the bursts of a port, which has the interface `came_in` for untagged frames: see
    /// [`HopCache::keep_if_same`].
    #[inline]
    pub fn arrive_on(&mut self, port: usize, came_in: Option<u16>, epoch: Epoch, now_ns: u64) {
        self.now = port.min(self.ports.len() - 1);
        self.ports[self.now].keep_if_same(came_in, epoch, now_ns);
    }

    /// The cache for frames of the port.
    #[inline(always)]
    pub fn of_port(&mut self) -> &mut HopCache {
        &mut self.ports[self.now]
    }
}

/// A cache of next hops, which contains those of most packets of a port.
pub(super) struct HopCache {
    hops: [CachedHop; CACHED],
    /// The least MTU that is cached: no packet up to that length is too long.
    least_mtu: u16,
    /// The interface on which untagged frames come in.
    came_in: Option<u16>,
    /// The epoch of the tables, and the period of time.
    since: (Epoch, u64),
}

/// The number of entries, one for each low part of the index: a power of two.
const CACHED: usize = 64;
/// Marks of use are set again after this time, a power of two of nanoseconds: about 17 ms.
const PERIOD_LOG2: u32 = 24;

impl HopCache {
    pub fn new() -> Self {
        // No next hop is where the index of another belongs.
        let none = CachedHop { start: 0, rest: [0; 4], hop: NextHop(u32::MAX), mtu: 0, port: 0 };
        let mut hops = [none; CACHED];
        hops[CACHED - 1].hop = NextHop(0);
        Self { hops, least_mtu: u16::MAX, came_in: None, since: (Epoch::default(), 0) }
    }

    /// Before a burst: clears the cache if something has changed, and from time to time, so that next hops in use are
    /// marked.
    #[inline]
    pub fn keep_if_same(&mut self, came_in: Option<u16>, epoch: Epoch, now_ns: u64) {
        let since = (epoch, now_ns >> PERIOD_LOG2);
        if self.since != since || self.came_in != came_in {
            *self = Self { since, came_in, ..Self::new() };
        }
    }

    /// What is cached where `hop` belongs: about it, or about another one.
    #[inline(always)]
    pub fn place_of(&self, hop: NextHop) -> &CachedHop {
        &self.hops[hop.index() % CACHED]
    }

    /// Whether packets of this length fit through all next hops that are cached, which then all forward without a tag.
    #[inline(always)]
    pub fn all_take(&self, length: u16) -> bool {
        length <= self.least_mtu
    }

    /// The cached data of `hop`, read now if needed.
    #[inline(always)]
    pub fn of(&mut self, tables: &Tables, hop: NextHop) -> &CachedHop {
        let cached = &mut self.hops[hop.index() % CACHED];
        if cached.hop != hop {
            look(tables, hop, self.came_in, cached);
            self.least_mtu = self.least_mtu.min(cached.mtu);
        }
        cached
    }
}

#[inline(never)]
fn look(tables: &Tables, hop: NextHop, came_in: Option<u16>, cached: &mut CachedHop) {
    (cached.hop, cached.mtu) = (hop, 0);
    let entry = tables.next_hops.entry(hop);
    let Some(egress) = tables.compiled.egress.get(usize::from(entry.interface())) else { return };
    if !entry.is_forward() || egress.tag.is_some() {
        return;
    }
    // The stages know the packet's family.
    if came_in.is_some_and(|came_in| may_redirect(tables, hop, came_in, entry.interface())) {
        return;
    }
    tables.next_hops.mark_used(hop);
    let [a, b, rest @ ..] = egress.mac;
    cached.start = entry.raw() << 16 >> 16 | u64::from(u16::from_le_bytes([a, b])) << 48;
    (cached.rest, cached.port) = (rest, egress.port);
    cached.mtu = mtu(egress, tables.next_hops.mtu(hop));
}

/// Whether Linux may send a redirect about packets to this next hop, of either family that they may have: those of IPv6
/// have no gateway of IPv4.
fn may_redirect(tables: &Tables, hop: NextHop, came_in: u16, out: u16) -> bool {
    let has_ipv4_gateway = tables.next_hops.gateway(hop).address.is_some_and(|address| address.is_ipv4());
    tables.compiled.may_redirect(Family::V4, came_in, out)
        || !has_ipv4_gateway && tables.compiled.may_redirect(Family::V6, came_in, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Lab;

    const LINES: &str = "
        interface lan 0 02:00:00:00:00:01 192.0.2.1/24
        interface short 1 02:00:00:00:00:02 mtu 600 198.51.100.1/24
        neighbor 192.0.2.7 lan 02:00:00:00:01:07
        neighbor 198.51.100.7 short 02:00:00:00:01:08
        route 8.0.0.0/16 via 192.0.2.7 lan
    ";

    #[test]
    fn what_changes_is_looked_at_anew() {
        let mut lab = Lab::new(LINES);
        let frame = |lab: &mut Lab| {
            let mut packet = vec![0x45, 0, 0, 20, 0, 1, 0, 0, 9, 17, 0, 0, 192, 0, 2, 9, 8, 0, 0, 1];
            let sum = bm_wire::checksum::ipv4_header(&packet);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            let frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 9, 9, 8, 0][..], &packet].concat();
            let answer = lab.exchange(0, &frame);
            answer.only().map(|(port, bytes)| (port, bytes[..6].to_vec()))
        };
        let to = |last| vec![2, 0, 0, 0, 1, last];
        assert_eq!(frame(&mut lab), Some((0, to(7))));
        lab.change("neighbor 192.0.2.7 lan 02:00:00:00:01:77");
        assert_eq!(frame(&mut lab), Some((0, to(0x77))));
        lab.change("route 8.0.0.0/16 via 198.51.100.7 short");
        assert_eq!(frame(&mut lab), Some((1, to(8))));
    }

    #[test]
    fn retirements_and_time_clear_the_cache() {
        let lab = Lab::new(LINES);
        let tables = lab.tables();
        let hop =
            (1..20).map(NextHop).find(|&hop| tables.next_hops.entry(hop).is_forward()).expect("one forwards");
        let mut cache = HopCache::new();
        let looked = |cache: &mut HopCache, epoch, now_ns| {
            cache.keep_if_same(None, epoch, now_ns);
            let was_cached = cache.hops[hop.index() % CACHED].hop == hop;
            cache.of(&tables, hop);
            !was_cached
        };
        let readers = bm_fib::published::Readers::new();
        let reader = readers.register();
        assert!(looked(&mut cache, reader.epoch(), 0));
        assert!(!looked(&mut cache, reader.epoch(), (1 << PERIOD_LOG2) - 1));
        assert!(looked(&mut cache, reader.epoch(), 1 << PERIOD_LOG2));
        readers.begin_epoch();
        assert!(looked(&mut cache, reader.epoch(), 1 << PERIOD_LOG2));
        assert!(!looked(&mut cache, reader.epoch(), 1 << PERIOD_LOG2));
        assert!(
            HopCache::new().hops.iter().enumerate().all(|(at, cached)| cached.hop.index() % CACHED != at)
        );
    }
}
