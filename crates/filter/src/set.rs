//! All that filters do, beside the rules: what is dropped otherwise, sources, rates.

use crate::tree::{ROOM_RULES, Tree};

/// What filters do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// The rules.
    pub tree: Tree,
    /// Packets that no rule matches are dropped.
    pub drop_unmatched: bool,
    /// Fragments too small for the header that rules ask for are dropped.
    pub drop_tiny_fragments: bool,
    /// What each source may send.
    pub rate: Option<Rate>,
}

/// What each source may send: a bucket of `burst` packets that fills again with `packets` a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Packets a second, at least 1.
    pub packets: u32,
    /// Packets at once, at least 1.
    pub burst: u32,
    /// How many bits of an IPv4 and of an IPv6 address make a source.
    pub lengths: [u8; 2],
}

/// Times of a rate are in sixteenths of nanoseconds, so that short ones are exact enough.
pub const TICKS_A_NANOSECOND: u64 = 16;

impl Rate {
    /// What a packet costs its source, and how far ahead a source may be: a burst less one packet; in ticks.
    pub fn ticks(&self) -> (u64, u64) {
        let interval = (1_000_000_000 * TICKS_A_NANOSECOND / u64::from(self.packets.max(1))).max(1);
        (interval, interval * u64::from(self.burst.max(1) - 1))
    }
}

/// How the configuration has sources checked, in place of what Linux has (RFC 3704).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum SourceCheck {
    /// Not by filters.
    #[default]
    None,
    /// A route to the source leads out of the interface it came in on.
    Strict,
    /// There is a route to the source.
    Loose,
    /// Some route to the source's prefix, best or worse, leads out of the interface it came in on; which do, tables
    /// of sources say.
    Feasible,
}

/// The counter of packets that no rule matches.
pub const UNMATCHED: u16 = ROOM_RULES as u16;
/// How many counters there are.
pub const COUNTERS: usize = ROOM_RULES + 1;

/// Sources whose rate is known at a time.
pub const SOURCES: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_costs_its_share_of_a_second() {
        let rate = |packets, burst| Rate { packets, burst, lengths: [32, 64] }.ticks();
        assert_eq!(rate(1000, 3), (16_000_000, 32_000_000), "a millisecond, and two of them ahead");
        assert_eq!(rate(1, 1), (16_000_000_000, 0));
        assert_eq!(rate(0, 0), rate(1, 1), "never by zero");
    }

    #[test]
    fn what_no_rule_matches_has_a_counter_of_its_own() {
        assert_eq!(usize::from(UNMATCHED) + 1, COUNTERS);
    }
}
