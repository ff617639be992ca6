//! Filters on the plain path: the packets of eight frames at a time, which are known to be plain.
//!
//! Whatever is rare is left to [`PortFilter::takes`], which looks at the frame again. So a packet counts as passed only
//! after it has been rewritten.

use bm_filter::{Header, Key, Matches, TOGETHER, VectorsOn};
use bm_wire::ReversePath;

use super::{NO_INTERFACE, PortFilter, key, outcome};

/// The filters of one port for plain frames, whose interface is that of untagged ones.
pub(crate) struct PlainFilter<'a> {
    filter: &'a PortFilter<'a>,
    interface: u16,
    check: ReversePath,
    vectors: Option<VectorsOn<'a>>,
}

/// What filters do with eight packets, with a bit for each in all masks. What is in none of them is left.
#[derive(Default)]
pub(crate) struct Outcome {
    pub passed: u8,
    pub dropped: u8,
    /// Counters of those that passed.
    pub counters: [u16; TOGETHER],
}

impl<'a> PlainFilter<'a> {
    /// None if each packet must be looked at one by one.
    pub fn of(filter: &'a PortFilter<'a>) -> Option<Self> {
        // A packet that is looked at twice would use up the rate of its source twice.
        if filter.set.filters.rate.is_some() {
            return None;
        }
        let interface = filter.view.untagged.unwrap_or(NO_INTERFACE);
        let check = filter.set.checks.get(usize::from(interface)).copied().unwrap_or_default();
        // Where sources are checked, each packet needs its key.
        let vectors = filter.set.filters.tree.vectors.as_deref().filter(|_| check == ReversePath::Off);
        Some(Self { filter, interface, check, vectors: vectors.map(|vectors| vectors.on(interface)) })
    }

    /// The rules as bit vectors for IPv4 packets, where they are enough.
    #[inline(always)]
    pub fn vectors(&self) -> Option<VectorsOn<'a>> {
        self.vectors
    }

    /// Writes the key of a plain IPv4 packet over that of another one; `false` if it needs a closer look.
    #[inline(always)]
    pub fn ipv4(&self, frame: &[u8], length: u16, to: &mut Key) -> bool {
        let is_known = key::plain_ipv4(frame, length, to);
        to.set_interface(self.interface);
        is_known
    }

    /// The bytes that vectors are compared with, of such a packet; `None` if it needs a closer look.
    #[inline(always)]
    pub fn header(frame: &[u8], length: u16) -> Option<&Header> {
        key::plain_header(frame, length)
    }

    /// The key of a plain IPv4 packet with these bytes.
    pub fn key_of(&self, header: &Header) -> Key {
        let mut key = key::of_header(header);
        key.set_interface(self.interface);
        key
    }

    /// Writes the key of a plain IPv6 packet over that of another one; `false` if it needs a closer look.
    #[inline(always)]
    pub fn ipv6(&self, frame: &[u8], to: &mut Key) -> bool {
        let is_known = key::plain_ipv6(frame, to);
        to.set_interface(self.interface);
        is_known
    }

    /// What is done with those packets whose bit is set in `wanted`. Drops are counted.
    pub fn take_each(&self, keys: &[Key; TOGETHER], wanted: u8) -> Outcome {
        let filters = &*self.filter.set.filters;
        let mut outcome_of = Outcome::default();
        let mut drops = 0;
        for (lane, found) in filters.tree.find_each(keys).into_iter().enumerate() {
            let (is_dropped, counter) = outcome(found, filters.drop_unmatched);
            drops |= u8::from(is_dropped) << lane;
            outcome_of.counters[lane] = counter;
        }
        outcome_of.passed = wanted & !drops & !filters.tree.are_linux_only(keys);
        if self.check != ReversePath::Off {
            self.check_sources(keys, &mut outcome_of.passed);
        }
        self.drop_each(wanted & drops, &mut outcome_of, |lane| keys[lane]);
        outcome_of
    }

    /// What is done with IPv4 packets for which vectors have found something. `key` makes the key of a packet.
    #[inline(always)]
    pub fn take_found(&self, found: &Matches, wanted: u8, key: impl Fn(usize) -> Key) -> Outcome {
        let unmatched = if self.filter.set.filters.drop_unmatched { found.unmatched } else { 0 };
        let drops = found.drops | unmatched;
        let passed = wanted & !drops & !found.linux_only;
        let mut outcome_of = Outcome { passed, dropped: 0, counters: found.counters };
        if wanted & drops != 0 {
            self.drop_each(wanted & drops, &mut outcome_of, key);
        }
        outcome_of
    }

    /// Drops packets that a rule drops, and counts them, if nothing else has to be considered.
    fn drop_each(&self, mut drops: u8, outcome: &mut Outcome, key: impl Fn(usize) -> Key) {
        let PortFilter { set, worker, .. } = *self.filter;
        while drops != 0 {
            let lane = drops.trailing_zeros() as usize;
            // Rules come after the reverse path check.
            if self.check == ReversePath::Off && !self.filter.is_for_linux(&key(lane), self.interface) {
                set.counts.add(worker, outcome.counters[lane], 1);
                outcome.dropped |= 1 << lane;
            }
            drops &= drops - 1;
        }
    }

    /// Clears the bits of packets whose source fails the reverse path check.
    #[inline(never)]
    fn check_sources(&self, keys: &[Key; TOGETHER], passed: &mut u8) {
        for (lane, key) in keys.iter().enumerate() {
            if *passed >> lane & 1 == 1 && !self.filter.comes_back(key, self.check, self.interface) {
                *passed &= !(1 << lane);
            }
        }
    }

    /// Counts the packets whose bit is set.
    #[inline(always)]
    pub fn count(&self, counters: &[u16], mut passed: u32) {
        let PortFilter { set, worker, .. } = *self.filter;
        // Most packets of a burst match the same rule, mostly none.
        while passed != 0 {
            let counter = counters[passed.trailing_zeros() as usize];
            let same = counters
                .iter()
                .enumerate()
                .fold(0, |same, (lane, other)| same | u32::from(*other == counter) << lane);
            set.counts.add(worker, counter, (passed & same).count_ones());
            passed &= !same;
        }
    }
}
