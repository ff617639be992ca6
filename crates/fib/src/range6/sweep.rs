//! From routes to ranges: one pass over the rib with a stack of the routes that contain the current address.
//!
//! ```text
//! routes    |------------ a ------------|
//!              |--- b ---|    |- c -|
//! ranges    a  b         a    c     a   |  what lies outside: the next open one, or no route
//! ```
//!
//! Within one window of 32 bits, over any run of keys. A key with routes longer than the window is a range of its
//! own, which leads to the next window.

use super::line::{Range, Word};
use super::{LOW, ROOT_LENGTH, key};
use crate::rib::Rib;
use crate::{NextHop, Shortage};
use bm_wire::prefix::Prefix;
use std::ops::RangeInclusive;

/// A window of the address: all addresses that share the bits before it with `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    base: u128,
    pub depth: u32,
}

impl Window {
    /// The window behind a root slot.
    pub(crate) fn of_slot(slot: usize) -> Self {
        Self { base: (slot as u128) << (128 - ROOT_LENGTH), depth: 0 }
    }

    /// The window behind one key of this one.
    pub fn behind(self, key: u32) -> Self {
        Self { base: self.address(key), depth: self.depth + 1 }
    }

    /// Levels of forks that its tree has at least; see [`LOW`].
    pub(crate) fn height_min(self) -> u32 {
        if self.depth == 0 { LOW } else { 0 }
    }

    /// Bits before it.
    fn start(self) -> u32 {
        u32::from(ROOT_LENGTH) + 32 * self.depth
    }

    /// Bits up to its end; past the address's width in the last one.
    fn end(self) -> u32 {
        self.start() + 32
    }

    fn address(self, key: u32) -> u128 {
        self.base | u128::from(key) << 96 >> self.start()
    }

    /// Whether `prefix` is too long for it.
    pub(crate) fn is_past(self, prefix: Prefix<u128>) -> bool {
        u32::from(prefix.length()) > self.end()
    }

    /// The addresses of one key.
    pub fn prefix(self, key: u32) -> Prefix<u128> {
        let length = self.end().min(128) as u8;
        Prefix::containing(self.address(key), length).expect("at most 128")
    }

    /// The keys that `prefix` touches, if it starts within or covers the whole.
    pub fn keys(self, prefix: Prefix<u128>) -> RangeInclusive<u32> {
        let length = u32::from(prefix.length());
        if length <= self.start() {
            return 0..=u32::MAX;
        }
        let first = key(prefix.first(), self.depth);
        let more = if length >= self.end() { 0 } else { u32::MAX >> (length - self.start()) };
        first..=first | more
    }
}

/// The ranges under construction.
struct Sweep {
    ranges: Vec<Range>,
    /// Open routes: their last key, and the next hop; `None` for a key that leads deeper.
    open: Vec<(u32, Option<NextHop>)>,
    last: u32,
}

impl Sweep {
    /// From `start` on the value is `word`.
    fn emit(&mut self, start: u32, word: Word) {
        self.ranges.pop_if(|(before, _)| *before == start);
        if self.ranges.last().is_none_or(|(_, before)| *before != word) {
            self.ranges.push((start, word));
        }
    }

    /// Ends the open routes that end before `start`.
    fn close_before(&mut self, start: u64) {
        while let Some((end, _)) = self.open.pop_if(|(end, _)| u64::from(*end) < start) {
            // What is below covers what was above it, so it is a route or the bottom.
            let below = self.open.last().and_then(|(_, hop)| *hop).unwrap_or(NextHop::NONE);
            if end < self.last {
                self.emit(end + 1, Word::hop(below));
            }
        }
    }

    fn open(&mut self, first: u32, last: u32, hop: NextHop) {
        self.open.push((last, Some(hop)));
        self.emit(first, Word::hop(hop));
    }
}

/// The ranges of `keys`: the first starts at the first key, no two adjacent ones lead to the same.
/// `deeper` makes the table for a key that has routes longer than the window.
pub fn ranges(
    rib: &Rib<u128>,
    window: Window,
    keys: &RangeInclusive<u32>,
    mut deeper: impl FnMut(Window) -> Result<Word, Shortage>,
) -> Result<Vec<Range>, Shortage> {
    let (first, last) = (*keys.start(), *keys.end());
    let mut sweep = Sweep { ranges: Vec::new(), open: vec![(u32::MAX, None)], last };
    sweep.emit(first, Word::hop(NextHop::NONE));
    let (holding, behind) = rib.around(window.address(first));
    let end = window.prefix(last).last();
    for (prefix, hop) in holding.into_iter().chain(behind.take_while(|(prefix, _)| prefix.first() <= end)) {
        let touched = window.keys(prefix);
        let start = first.max(*touched.start());
        sweep.close_before(u64::from(start));
        if !window.is_past(prefix) {
            sweep.open(start, *touched.end(), hop);
        } else if sweep.open.len() == 1 || sweep.open.last() != Some(&(start, None)) {
            let word = deeper(window.behind(start))?;
            sweep.open.push((start, None));
            sweep.emit(start, word);
        }
    }
    sweep.close_before(u64::from(last) + 1);
    Ok(sweep.ranges)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn swept(routes: &[(&str, u32)], keys: RangeInclusive<u32>) -> Vec<(u32, u32)> {
        let rib: Rib<u128> = routes.iter().map(|(p, hop)| (p.parse().unwrap(), NextHop(*hop))).collect();
        let window = Window::of_slot(0x2001);
        let ranges = ranges(&rib, window, &keys, |deeper| Ok(Word(1000 + deeper.depth))).unwrap();
        ranges.into_iter().map(|(start, word)| (start, word.0)).collect()
    }

    #[test]
    fn cuts_nested_routes() {
        // The window holds bits 16 to 47: 2001:[dddd:dddd]:.
        let routes = [("::/0", 1), ("2001:db8::/32", 2), ("2001:db8:1::/48", 3), ("2001:db9::/32", 2)];
        let all = 0..=u32::MAX;
        assert_eq!(
            swept(&routes, all.clone()),
            [(0, 1), (0x0db8_0000, 2), (0x0db8_0001, 3), (0x0db8_0002, 2), (0x0dba_0000, 1)]
        );
        assert_eq!(swept(&routes[1..2], all.clone()), [(0, 0), (0x0db8_0000, 2), (0x0db9_0000, 0)]);
        assert_eq!(swept(&routes[..1], all.clone()), [(0, 1)]);
        assert_eq!(swept(&[], all), [(0, 0)]);
    }

    #[test]
    fn is_limited_to_the_given_range() {
        let routes = [("2001:db8::/32", 2), ("2001:db8:10::/44", 3)];
        assert_eq!(swept(&routes, 0x0db8_0012..=0x0db8_0015), [(0x0db8_0012, 3)]);
        assert_eq!(swept(&routes, 0x0db8_001f..=0x0db8_0020), [(0x0db8_001f, 3), (0x0db8_0020, 2)]);
        assert_eq!(swept(&routes, 0x0db8_ffff..=0x0db9_0000), [(0x0db8_ffff, 2), (0x0db9_0000, 0)]);
    }

    #[test]
    fn leads_deeper_once_a_key() {
        let routes = [("2001:db8::/48", 5), ("2001:db8::/64", 1), ("2001:db8:0:1::/64", 1)];
        assert_eq!(swept(&routes, 0..=u32::MAX), [(0, 0), (0x0db8_0000, 1001), (0x0db8_0001, 0)]);
        assert_eq!(swept(&routes[1..], 0x0db8_0000..=0x0db8_0000), [(0x0db8_0000, 1001)]);
        assert_eq!(swept(&[("2001:ffff:ffff:ffff::1/128", 1)], 5..=u32::MAX), [(5, 0), (u32::MAX, 1001)]);
    }

    #[test]
    fn the_last_window_reaches_the_last_bit() {
        let window = Window::of_slot(0x2001).behind(0).behind(0).behind(0);
        let host: Prefix<u128> = "2001::fff/128".parse().unwrap();
        assert_eq!(window.keys(host), 0x0fff_0000..=0x0fff_ffff);
        assert!(!window.is_past(host));
        assert_eq!(window.keys("2001::/120".parse().unwrap()), 0..=0x00ff_ffff);
    }
}
