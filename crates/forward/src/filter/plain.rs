//! Filters on the plain path: the packets of eight frames at a time, which are known to be plain.
//!
//! Whatever is rare is left to [`PortFilter::takes`], which looks at the frame again. So a packet counts as passed only
//! after it has been rewritten.

use bm_filter::{Key, SourceCheck, TOGETHER};

use super::{NO_INTERFACE, PortFilter, key, outcome};

/// The filters of one port for plain frames, whose interface is that of untagged ones.
pub(crate) struct PlainFilter<'a> {
    filter: &'a PortFilter<'a>,
    interface: u16,
    check: SourceCheck,
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
        Some(Self { filter, interface, check })
    }

    /// Writes the key of a plain IPv4 packet over that of another one; `false` if it needs a closer look.
    #[inline(always)]
    pub fn ipv4(&self, frame: &[u8], length: u16, to: &mut Key) -> bool {
        let is_known = key::plain_ipv4(frame, length, to);
        to.set_interface(self.interface);
        is_known
    }

    /// The same for IPv6.
    #[inline(always)]
    pub fn ipv6(&self, frame: &[u8], to: &mut Key) -> bool {
        let is_known = key::plain_ipv6(frame, to);
        to.set_interface(self.interface);
        is_known
    }

    /// What is done with those packets whose bit is set in `wanted`. Drops are counted.
    pub fn take_each(&self, keys: &[Key; TOGETHER], wanted: u8) -> Outcome {
        let PortFilter { set, worker, .. } = *self.filter;
        let filters = &*set.filters;
        let mut outcome_of = Outcome::default();
        let mut drops = 0;
        for (lane, found) in filters.tree.find_each(keys).into_iter().enumerate() {
            let (is_dropped, counter) = outcome(found, filters.drop_unmatched);
            drops |= u8::from(is_dropped) << lane;
            outcome_of.counters[lane] = counter;
        }
        outcome_of.passed = wanted & !drops & !filters.tree.are_linux_only(keys);
        if self.check != SourceCheck::None {
            self.check_sources(keys, &mut outcome_of.passed);
        }
        let mut left = wanted & drops;
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            // Rules come after the reverse path check.
            if self.check == SourceCheck::None && !self.filter.is_for_linux(&keys[lane], self.interface) {
                set.counts.add(worker, outcome_of.counters[lane], 1);
                outcome_of.dropped |= 1 << lane;
            }
            left &= left - 1;
        }
        outcome_of
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
