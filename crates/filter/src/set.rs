//! The complete filter settings: the rules, the default action, reverse path checks and rate limits.

use crate::rule::ROOM_RULES;
use crate::tree::Tree;

/// The filter settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// The rules.
    pub tree: Tree,
    /// Whether packets that match no rule are dropped.
    pub drop_unmatched: bool,
    /// Whether fragments too small for the headers that rules match are dropped.
    pub drop_tiny_fragments: bool,
    /// The rate limit for each source.
    pub rate: Option<Rate>,
}

impl Filters {
    /// Whether some packet may be dropped, apart from reverse path checks.
    pub fn may_drop(&self) -> bool {
        self.tree.drops || self.drop_unmatched || self.drop_tiny_fragments || self.rate.is_some()
    }
}

/// The rate limit for each source: a token bucket of `burst` packets that refills with `packets` per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Packets per second, at least 1.
    pub packets: u32,
    /// Largest burst in packets, at least 1.
    pub burst: u32,
    /// The prefix lengths that define a source, for IPv4 and IPv6.
    pub lengths: [u8; 2],
}

/// Times of a rate are in sixteenths of a nanosecond, so that short ones are accurate enough.
pub const TICKS_A_NANOSECOND: u64 = 16;

impl Rate {
    /// What a packet costs its source, and how far ahead a source may be (a burst less one packet), in ticks.
    pub fn ticks(&self) -> (u64, u64) {
        let interval = (1_000_000_000 * TICKS_A_NANOSECOND / u64::from(self.packets.max(1))).max(1);
        (interval, interval * u64::from(self.burst.max(1) - 1))
    }
}

/// The number of counters.
pub const COUNTERS: usize = ROOM_RULES + 1;

/// Sources whose rate is tracked at the same time.
pub const SOURCES: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::UNMATCHED;

    #[test]
    fn a_packet_costs_a_second_divided_by_the_rate() {
        let rate = |packets, burst| Rate { packets, burst, lengths: [32, 64] }.ticks();
        assert_eq!(rate(1000, 3), (16_000_000, 32_000_000), "a millisecond, and two of them ahead");
        assert_eq!(rate(1, 1), (16_000_000_000, 0));
        assert_eq!(rate(0, 0), rate(1, 1), "never by zero");
    }

    #[test]
    fn unmatched_packets_have_a_counter() {
        assert_eq!(usize::from(UNMATCHED) + 1, COUNTERS);
    }
}
