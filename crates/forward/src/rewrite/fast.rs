//! The fast path of stage four: frames without a tag, next hops that forward, packets that fit.
//!
//! ```text
//! hop -> known? -- no --> look at all tables once, keep what must be stored and compared
//!           '---- yes --> a hop left, short enough? -> three stores
//! ```
//!
//! What is cached about a next hop is valid within an [`Epoch`] of the tables: whatever changes a next hop or the tables
//! begins a new one, so a worker sees the change with its next burst, as it does a new table. Frames
//! that are not plain are left unchanged for [`super::rewrite`], which handles all cases.

use bm_fib::NextHop;
use bm_fib::published::Epoch;
use bm_frame::Frame;
use bm_wire::Family;
use bm_wire::ethernet::HEADER_LEN;

use super::mtu;
use crate::tables::Tables;
use crate::validate::Facts;

/// No port has this index.
pub(crate) const NOT_FAST: u16 = u16::MAX;
/// Offset of the word with the TTL in an untagged frame.
pub(crate) const IPV4_SPENT: usize = HEADER_LEN + 8;
pub(crate) const IPV6_SPENT: usize = HEADER_LEN + 4;

/// Cached data of a next hop: everything that the fast case has to store and compare.
///
/// Not shared: laid out for vectors.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct Known {
    /// The frame's first eight bytes: the destination, and the source's first two.
    pub start: u64,
    /// The source's other four.
    pub rest: [u8; 4],
    pub hop: NextHop,
    /// The longest packet that fits; 0, so that none does, if the next hop is not plain.
    pub mtu: u16,
    pub port: u16,
}

/// The caches of a worker, one for each port on which frames come in.
pub(crate) struct KnownByPort {
    ports: Vec<KnownHops>,
    now: usize,
}

impl KnownByPort {
    pub fn new(ports: usize) -> Self {
        Self { ports: (0..ports.max(1)).map(|_| KnownHops::new()).collect(), now: 0 }
    }

    /// Before the bursts of a port, which has the interface `came_in` for untagged frames: see
    /// [`KnownHops::keep_if_same`].
    #[inline]
    pub fn arrive_on(&mut self, port: usize, came_in: Option<u16>, epoch: Epoch, now_ns: u64) {
        self.now = port.min(self.ports.len() - 1);
        self.ports[self.now].keep_if_same(came_in, epoch, now_ns);
    }

    /// The cache for frames of the port.
    #[inline(always)]
    pub fn of_port(&mut self) -> &mut KnownHops {
        &mut self.ports[self.now]
    }
}

/// A cache of next hops, which contains those of most packets of a port.
pub(crate) struct KnownHops {
    known: [Known; KNOWN],
    /// The least MTU that is cached: no packet up to that length is too long.
    least_mtu: u16,
    /// The interface on which untagged frames come in.
    came_in: Option<u16>,
    /// The epoch of the tables, and the time in units of [`MARK_AGAIN_LOG2`].
    since: (Epoch, u64),
}

/// The number of entries, one for each low part of the index: a power of two.
const KNOWN: usize = 64;
/// Marks of use are set again after this time, a power of two of nanoseconds: about 17 ms.
const MARK_AGAIN_LOG2: u32 = 24;

impl KnownHops {
    pub fn new() -> Self {
        // No next hop is where the index of another belongs.
        let unknown = Known { start: 0, rest: [0; 4], hop: NextHop(u32::MAX), mtu: 0, port: 0 };
        let mut known = [unknown; KNOWN];
        known[KNOWN - 1].hop = NextHop(0);
        Self { known, least_mtu: u16::MAX, came_in: None, since: (Epoch::default(), 0) }
    }

    /// Before a burst: clears the cache if something has changed, and from time to time, so that next hops in use are
    /// marked.
    #[inline]
    pub fn keep_if_same(&mut self, came_in: Option<u16>, epoch: Epoch, now_ns: u64) {
        let since = (epoch, now_ns >> MARK_AGAIN_LOG2);
        if self.since != since || self.came_in != came_in {
            *self = Self { since, came_in, ..Self::new() };
        }
    }

    /// What is cached where `hop` belongs: about it, or about another one.
    #[inline(always)]
    pub fn place_of(&self, hop: NextHop) -> &Known {
        &self.known[hop.index() % KNOWN]
    }

    /// Whether packets of this length fit through all next hops that are cached, which are then all plain.
    #[inline(always)]
    pub fn all_take(&self, length: u16) -> bool {
        length <= self.least_mtu
    }

    /// The cached data of `hop`, read now if needed.
    #[inline(always)]
    pub fn of(&mut self, tables: &Tables, hop: NextHop) -> &Known {
        let known = &mut self.known[hop.index() % KNOWN];
        if known.hop != hop {
            look(tables, hop, self.came_in, known);
            self.least_mtu = self.least_mtu.min(known.mtu);
        }
        known
    }
}

#[inline(never)]
fn look(tables: &Tables, hop: NextHop, came_in: Option<u16>, known: &mut Known) {
    (known.hop, known.mtu) = (hop, 0);
    let entry = tables.next_hops.entry(hop);
    let Some(egress) = tables.compiled.egress.get(usize::from(entry.interface())) else { return };
    if !entry.is_forward() || egress.tag.is_some() {
        return;
    }
    // The careful path knows the packet's family.
    if came_in.is_some_and(|came_in| may_redirect(tables, hop, came_in, entry.interface())) {
        return;
    }
    tables.next_hops.mark_used(hop);
    let [a, b, rest @ ..] = egress.mac;
    known.start = entry.raw() << 16 >> 16 | u64::from(u16::from_le_bytes([a, b])) << 48;
    (known.rest, known.port) = (rest, egress.port);
    known.mtu = mtu(egress, tables.next_hops.mtu(hop));
}

/// Whether Linux may send a redirect about packets to this next hop, of either family that they may have: those of IPv6
/// have no gateway of IPv4.
fn may_redirect(tables: &Tables, hop: NextHop, came_in: u16, out: u16) -> bool {
    let has_ipv4_gateway = tables.next_hops.gateway(hop).address.is_some_and(|address| address.is_ipv4());
    tables.compiled.may_redirect(Family::V4, came_in, out)
        || !has_ipv4_gateway && tables.compiled.may_redirect(Family::V6, came_in, out)
}

/// The fast case: makes `frame` leave through `hop` if nothing about it is special, and returns the port.
/// [`NOT_FAST`] leaves the frame unchanged: [`super::rewrite`] then decides.
///
/// The frame has no tag. `HEAD` is [`super::IPV4_HEAD`] or [`super::IPV6_HEAD`], `SPENT` the offset of the word with
/// the TTL.
#[inline(always)]
pub(crate) fn rewrite<const HEAD: usize, const SPENT: usize>(
    tables: &Tables,
    known: &mut KnownHops,
    hop: NextHop,
    facts: Facts,
    frame: &mut Frame,
) -> u16 {
    let known = known.of(tables, hop);
    if facts.ttl <= 1 || facts.length > known.mtu {
        return NOT_FAST;
    }
    let Some(head) = frame.data_mut().first_chunk_mut::<HEAD>() else { return NOT_FAST };
    head[..8].copy_from_slice(&known.start.to_le_bytes());
    head[8..12].copy_from_slice(&known.rest);
    head[SPENT..SPENT + 4].copy_from_slice(&facts.spent);
    // What follows the packet is padding of a short frame, not data.
    frame.truncate(facts.length.wrapping_add(HEADER_LEN as u16));
    known.port
}

/// Number of packets that are checked together.
pub(crate) const LANES: usize = 8;

/// Cached data for eight packets.
pub(crate) struct Eight<'a> {
    pub hops: &'a [NextHop; LANES],
    pub lengths: &'a [u16; LANES],
    /// Hops left.
    pub left: &'a [u16; LANES],
    pub spent: &'a [[u8; 4]; LANES],
}

/// The same for eight packets: one branch for all instead of three for each. Returns how many of the first of them
/// now leave; the next one has to be handled separately, if only because its next hop is not cached yet.
#[inline(always)]
pub(crate) fn rewrite_eight<const HEAD: usize, const SPENT: usize>(
    known: &KnownHops,
    of: &Eight<'_>,
    frames: &mut [Option<Frame>; LANES],
    ports: &mut [u16; LANES],
) -> usize {
    let known: [&Known; LANES] = std::array::from_fn(|lane| known.place_of(of.hops[lane]));
    let (mut others, mut unfit) = (0, 0);
    for lane in 0..LANES {
        others |= known[lane].hop.0 ^ of.hops[lane].0;
        ports[lane] = known[lane].port;
    }
    let mtus: [u16; LANES] = std::array::from_fn(|lane| known[lane].mtu);
    for (lane, &mtu) in mtus.iter().enumerate() {
        // A remainder shows that either is too large or too small.
        unfit |= of.lengths[lane].saturating_sub(mtu) | 2u16.saturating_sub(of.left[lane]);
    }
    if others | u32::from(unfit) != 0 {
        return 0;
    }
    for lane in 0..LANES {
        let Some(frame) = &mut frames[lane] else { return lane };
        let Some(head) = frame.data_mut().first_chunk_mut::<HEAD>() else { return lane };
        head[..8].copy_from_slice(&known[lane].start.to_le_bytes());
        head[8..12].copy_from_slice(&known[lane].rest);
        head[SPENT..SPENT + 4].copy_from_slice(&of.spent[lane]);
        frame.truncate(of.lengths[lane].wrapping_add(HEADER_LEN as u16));
    }
    LANES
}

#[cfg(test)]
mod tests {
    use super::super::{IPV4_HEAD, IPV6_HEAD, rewrite as rewrite_carefully};
    use super::*;
    use crate::testing::Lab;
    use bm_fib::next_hop::Action;
    use bm_frame::{FramePool, Freelist};
    use proptest::prelude::*;
    use std::sync::{Arc, OnceLock};

    /// Every kind of interface and of next hop.
    const LINES: &str = "
        interface lan 0 02:00:00:00:00:01 192.0.2.1/24 2001:db8:1::1/64
        interface short 1 02:00:00:00:00:02 mtu 600 198.51.100.1/24 2001:db8:2::1/64
        interface down 2 02:00:00:00:00:03 down 203.0.113.1/24
        interface lan.7 0 02:00:00:00:00:01 vlan 7 10.7.0.1/16
        neighbor 192.0.2.7 lan 02:00:00:00:01:07
        neighbor 198.51.100.7 short 02:00:00:00:01:08
        neighbor 203.0.113.7 down 02:00:00:00:01:09
        neighbor 10.7.0.7 lan.7 02:00:00:00:01:0a
        route 8.0.0.0/16 via 192.0.2.7 lan
        route 8.1.0.0/16 via 192.0.2.7 lan mtu 300
        route 8.2.0.0/16 via 198.51.100.7 short
        route 8.3.0.0/16 via 203.0.113.7 down
        route 8.4.0.0/16 via 10.7.0.7 lan.7
        route 8.5.0.0/16 group 192.0.2.7 lan 1 198.51.100.7 short 1
        route 8.6.0.0/16 blackhole
        route 8.7.0.0/16 via 192.0.2.99 lan
    ";

    /// What a rewriting made of a frame: its bytes, and its port if it leaves.
    type Outcome = (Vec<u8>, Option<u16>);

    /// A frame of these bytes, rewritten on the fast path; its outcome if that did it.
    fn fast<const HEAD: usize, const SPENT: usize>(
        tables: &Tables,
        known: &mut KnownHops,
        (hop, facts): (NextHop, Facts),
        frame: &mut Frame,
    ) -> Option<Outcome> {
        let before = frame.data().to_vec();
        let port = rewrite::<HEAD, SPENT>(tables, known, hop, facts, frame);
        if port == NOT_FAST {
            assert_eq!(frame.data(), before, "it must be left as it was");
            return None;
        }
        Some((frame.data().to_vec(), Some(port)))
    }

    proptest! {
        /// The fast path does what the careful path does, or nothing.
        #[test]
        fn both_ways_agree(
            cases in prop::collection::vec(
                (any::<u32>(), 20..700u16, any::<u8>(), any::<[u8; 40]>(), any::<bool>(), 0..20usize),
                1..40,
            ),
        ) {
            static LAB: OnceLock<(Tables, Arc<FramePool>)> = OnceLock::new();
            let lab = || (Lab::new(LINES).tables(), FramePool::new(256, 2048).expect("memory"));
            let (tables, frame_pool) = LAB.get_or_init(lab);
            let past = (1..99).find(|&hop| tables.next_hops.action(NextHop(hop)) == Action::None);
            let hops = past.expect("few hops are in use") + 1;
            let mut list = Freelist::new(frame_pool.clone(), 64);
            let mut known = KnownHops::new();
            for (hop, length, ttl, bytes, is_ipv4, padding) in cases {
                let hop = NextHop(hop % hops);
                let mut packet = bytes.to_vec();
                packet.resize(usize::from(length).max(40), 0x5a);
                let (mut header4, mut header6) = ([0; 20], [0; 40]);
                header4.copy_from_slice(&packet[..20]);
                header6.copy_from_slice(&packet[..40]);
                header4[2..4].copy_from_slice(&(packet.len() as u16).to_be_bytes());
                header4[8] = ttl;
                header6[4..6].copy_from_slice(&(packet.len() as u16 - 40).to_be_bytes());
                header6[7] = ttl;
                let facts = if is_ipv4 { Facts::ipv4(&header4) } else { Facts::ipv6(&header6) };
                let bytes = [&[0xee; 14][..], &packet, &vec![0; padding]].concat();
                let mut frames = [0, 1].map(|_| list.allocate_with(&bytes).expect("a frame"));
                let work = (hop, facts);
                let found = if is_ipv4 {
                    fast::<IPV4_HEAD, IPV4_SPENT>(tables, &mut known, work, &mut frames[0])
                } else {
                    fast::<IPV6_HEAD, IPV6_SPENT>(tables, &mut known, work, &mut frames[0])
                };
                let network = HEADER_LEN as u16;
                let careful = if is_ipv4 { rewrite_carefully::<u32> } else { rewrite_carefully::<u128> };
                let port = careful(tables, hop, facts, (u16::MAX, network), &mut frames[1]);
                // Nothing plain is left to the careful path, or the fast path would be of no use.
                let entry = tables.next_hops.entry(hop);
                let egress = tables.compiled.egress.get(usize::from(entry.interface()));
                let is_plain = port.is_ok() && entry.is_forward() && egress.is_some_and(|to| to.tag.is_none());
                prop_assert!(found.is_some() || !is_plain || !is_ipv4 && facts.length > 300);
                if let Some(found) = found {
                    prop_assert_eq!(found, (frames[1].data().to_vec(), port.ok()));
                }
                frames.into_iter().for_each(|frame| list.free(frame));
            }
        }
    }

    /// A frame of the bench's kind, or one that has something special.
    fn case() -> impl Strategy<Value = (bool, u32, u16, u16, [u8; 4], u16)> {
        let often = |usual: u16, others: std::ops::Range<u16>| prop_oneof![30 => Just(usual), 1 => others];
        let hop = prop_oneof![20 => 1..3u32, 1 => 0..20u32];
        (
            prop::bool::weighted(0.02),
            hop,
            often(46, 0..1600),
            often(64, 0..4),
            any::<[u8; 4]>(),
            often(60, 0..80),
        )
    }

    proptest! {
        /// Eight at a time fare as each of them alone: those that are done, and the first that is not.
        #[test]
        fn eight_fare_as_each_alone(cases in prop::collection::vec(case(), LANES), known_before in any::<bool>()) {
            static LAB: OnceLock<(Tables, Arc<FramePool>)> = OnceLock::new();
            let lab = || (Lab::new(LINES).tables(), FramePool::new(256, 2048).expect("memory"));
            let (tables, frame_pool) = LAB.get_or_init(lab);
            let mut list = Freelist::new(frame_pool.clone(), 64);
            let mut known = KnownHops::new();
            let (mut hops, mut lengths, mut left) = ([NextHop::NONE; LANES], [0; LANES], [0; LANES]);
            let mut spent = [[0; 4]; LANES];
            let mut frames = [const { [const { None }; LANES] }; 2];
            for (lane, &(gap, hop, length, hops_left, word, bytes)) in cases.iter().enumerate() {
                (hops[lane], lengths[lane], left[lane], spent[lane]) = (NextHop(hop), length, hops_left, word);
                if known_before {
                    known.of(tables, NextHop(hop));
                }
                let bytes = vec![lane as u8; usize::from(bytes)];
                frames.iter_mut().filter(|_| !gap).for_each(|frames| frames[lane] = list.allocate_with(&bytes));
            }
            let [together, alone] = &mut frames;
            let mut ports = [0; LANES];
            let eight = Eight { hops: &hops, lengths: &lengths, left: &left, spent: &spent };
            let done = rewrite_eight::<IPV4_HEAD, IPV4_SPENT>(&known, &eight, together, &mut ports);
            let mut all_plain = true;
            for lane in 0..LANES {
                let facts = Facts { length: lengths[lane], ttl: left[lane], spent: spent[lane] };
                let mut expected = None;
                if let Some(frame) = &mut alone[lane] {
                    let found = fast::<IPV4_HEAD, IPV4_SPENT>(tables, &mut known, (hops[lane], facts), frame);
                    expected = found.and_then(|(bytes, port)| Some((bytes, port?)));
                }
                all_plain &= expected.is_some();
                let bytes = together[lane].as_ref().map(|frame| frame.data().to_vec());
                if lane < done {
                    prop_assert_eq!(bytes.map(|bytes| (bytes, ports[lane])), expected);
                } else if let Some(bytes) = bytes {
                    prop_assert!(bytes.iter().all(|&byte| byte == lane as u8), "it is left as it was");
                }
            }
            if known_before && all_plain {
                prop_assert_eq!(done, LANES, "all were plain");
            }
            frames.into_iter().flatten().flatten().for_each(|frame| list.free(frame));
        }
    }

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

    /// One byte too long and one hop too few: neither makes up for the other.
    #[test]
    fn too_long_without_a_hop_is_not_rewritten() {
        let tables = Lab::new(LINES).tables();
        let frame_pool = FramePool::new(256, 2048).expect("memory");
        let mut list = Freelist::new(frame_pool, 64);
        let mut known = KnownHops::new();
        let hop =
            (1..20).map(NextHop).find(|&hop| tables.next_hops.entry(hop).is_forward()).expect("one forwards");
        let mtu = known.of(&tables, hop).mtu;
        for (excess, left, done) in [(0, 2, LANES), (1, 2, 0), (0, 1, 0), (1, 1, 0), (2, 0, 0)] {
            let (mut lengths, mut lefts) = ([60; LANES], [64; LANES]);
            (lengths[3], lefts[3]) = (mtu + excess, left);
            let eight =
                Eight { hops: &[hop; LANES], lengths: &lengths, left: &lefts, spent: &[[0; 4]; LANES] };
            let mut frames = std::array::from_fn(|_| list.allocate_with(&[7; 60]));
            let found = rewrite_eight::<IPV4_HEAD, IPV4_SPENT>(&known, &eight, &mut frames, &mut [0; LANES]);
            assert_eq!(found, done, "{excess} bytes above the MTU, TTL {left}");
            frames.into_iter().flatten().for_each(|frame| list.free(frame));
        }
    }

    #[test]
    fn epochs_and_time_forget_what_is_known() {
        let lab = Lab::new(LINES);
        let tables = lab.tables();
        let hop =
            (1..20).map(NextHop).find(|&hop| tables.next_hops.entry(hop).is_forward()).expect("one forwards");
        let mut known = KnownHops::new();
        let looked = |known: &mut KnownHops, epoch, now_ns| {
            known.keep_if_same(None, epoch, now_ns);
            let was_known = known.known[hop.index() % KNOWN].hop == hop;
            known.of(&tables, hop);
            !was_known
        };
        let readers = bm_fib::published::Readers::new();
        let reader = readers.register();
        assert!(looked(&mut known, reader.epoch(), 0));
        assert!(!looked(&mut known, reader.epoch(), (1 << MARK_AGAIN_LOG2) - 1));
        assert!(looked(&mut known, reader.epoch(), 1 << MARK_AGAIN_LOG2));
        readers.begin_epoch();
        assert!(looked(&mut known, reader.epoch(), 1 << MARK_AGAIN_LOG2));
        assert!(!looked(&mut known, reader.epoch(), 1 << MARK_AGAIN_LOG2));
        assert!(KnownHops::new().known.iter().enumerate().all(|(at, known)| known.hop.index() % KNOWN != at));
    }
}
