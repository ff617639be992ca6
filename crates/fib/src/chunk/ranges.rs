//! The addresses of one root slot, split where the next hop changes.
//!
//! A range is one word, `start << 16 | hop`: sorted by start, the first at 0, no two adjacent ones with the same next
//! hop. So equal routes give equal lists, on which the sharing of blocks depends.

use std::ops::RangeInclusive;

/// A range: its first address within the slot, and its next hop.
pub type Range = u32;

/// The range that starts at `start`.
pub fn range(start: u16, hop: u16) -> Range {
    Range::from(start) << 16 | Range::from(hop)
}

/// Where a range starts.
pub fn start(range: Range) -> u16 {
    (range >> 16) as u16
}

/// The next hop of a range.
pub fn hop(range: Range) -> u16 {
    range as u16
}

/// All ranges of one slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    list: Vec<Range>,
}

impl Ranges {
    /// A single range for all addresses.
    pub fn reset(&mut self, hop: u16) {
        self.list.clear();
        self.list.push(range(0, hop));
    }

    /// Without ranges, to be filled with [`Self::push`].
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// Appends a range, unless the previous one has the same next hop.
    #[inline]
    pub fn push(&mut self, start: u16, value: u16) {
        if self.list.last().is_none_or(|last| hop(*last) != value) {
            self.list.push(range(start, value));
        }
    }

    /// In order of address.
    pub fn list(&self) -> &[Range] {
        &self.list
    }

    /// The next hop of all addresses, if there is only one.
    pub fn single(&self) -> Option<u16> {
        let [only] = self.list[..] else { return None };
        Some(hop(only))
    }

    /// Sets the next hop of the addresses `first..=last` to `value`; `end` is the last address of the slot.
    pub fn paint(&mut self, painted: RangeInclusive<u16>, end: u16, value: u16) {
        let (first, last) = (*painted.start(), *painted.end());
        let from = self.list.partition_point(|r| *r < range(first, 0));
        let mut to = from + self.list[from..].partition_point(|r| start(*r) <= last);
        let mut fresh = [0; 2];
        let mut count = 0;
        let goes_on = if to == 0 { value } else { hop(self.list[to - 1]) };
        if from == 0 || hop(self.list[from - 1]) != value {
            fresh[count] = range(first, value);
            count += 1;
        }
        if last < end {
            match self.list.get(to) {
                Some(next) if start(*next) == last + 1 => to += usize::from(hop(*next) == value),
                _ if goes_on != value => {
                    fresh[count] = range(last + 1, goes_on);
                    count += 1;
                }
                _ => (),
            }
        }
        self.replace(from, to, &fresh[..count]);
    }

    /// As `Vec::splice`, in place where the lengths allow.
    fn replace(&mut self, from: usize, to: usize, fresh: &[Range]) {
        let old = to - from;
        if fresh.len() > old {
            let len = self.list.len();
            self.list.resize(len + fresh.len() - old, 0);
            self.list.copy_within(to..len, from + fresh.len());
        } else if fresh.len() < old {
            self.list.copy_within(to.., from + fresh.len());
            self.list.truncate(self.list.len() - (old - fresh.len()));
        }
        self.list[from..from + fresh.len()].copy_from_slice(fresh);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn paints_as_a_plain_array_does(
            strokes in prop::collection::vec((0u16..64, 0u16..64, 0u16..4), 0..30), whole: bool,
        ) {
            // At the end of the 16-bit range, and well before it.
            let (base, end) = if whole { (u16::MAX - 63, u16::MAX) } else { (0, 63) };
            let (mut ranges, mut plain) = (Ranges::default(), vec![0; usize::from(end) + 1]);
            ranges.reset(0);
            for (a, b, value) in strokes {
                let (first, last) = (base + a.min(b), base + a.max(b));
                ranges.paint(first..=last, end, value);
                plain[usize::from(first)..=usize::from(last)].fill(value);
                let mut expected = Ranges::default();
                plain.iter().enumerate().for_each(|(at, hop)| expected.push(at as u16, *hop));
                prop_assert_eq!(&ranges, &expected);
            }
        }
    }
}
