//! How far apart the delays of the paths between nodes are, which says how long the gap between two flowlets must be.
//!
//! A packet can overtake another of its flow on another path only if it follows within the difference of their delays. So
//! delta is the range of delays seen lately, and a half more for what changes until the next measurement.

/// Range of delays in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    least_ns: u64,
    most_ns: u64,
}

impl Range {
    const EMPTY: Self = Self { least_ns: u64::MAX, most_ns: 0 };

    fn with(self, other: Self) -> Self {
        Self { least_ns: self.least_ns.min(other.least_ns), most_ns: self.most_ns.max(other.most_ns) }
    }
}

/// Keeps the range of delays over the last one to two windows.
#[derive(Clone, Copy, Debug)]
pub struct DelaySpread {
    window_ns: u64,
    began_ns: u64,
    now: Range,
    before: Range,
}

impl DelaySpread {
    /// Keeps delays for at least this time.
    pub fn new(window_ns: u64) -> Self {
        Self { window_ns, began_ns: 0, now: Range::EMPTY, before: Range::EMPTY }
    }

    /// Adds the delay of a path: half of the time in which a heartbeat came back, for instance.
    pub fn add(&mut self, delay_ns: u64, now_ns: u64) {
        if now_ns.saturating_sub(self.began_ns) >= self.window_ns {
            (self.before, self.now, self.began_ns) = (self.now, Range::EMPTY, now_ns);
        }
        self.now = self.now.with(Range { least_ns: delay_ns, most_ns: delay_ns });
    }

    /// The longest delay of the last one to two windows; 0 if there was none.
    pub fn longest_ns(&self) -> u64 {
        self.now.with(self.before).most_ns
    }

    /// The gap between flowlets, not below `least_ns`.
    pub fn delta_ns(&self, least_ns: u64) -> u64 {
        let Range { least_ns: least, most_ns: most } = self.now.with(self.before);
        let spread = most.saturating_sub(least);
        (spread + spread / 2).max(least_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delta_follows_the_range_of_delays() {
        let mut spread = DelaySpread::new(1000);
        assert_eq!(spread.delta_ns(5), 5);
        spread.add(100, 0);
        spread.add(300, 10);
        assert_eq!(spread.delta_ns(5), 300);
        spread.add(200, 1000);
        assert_eq!((spread.delta_ns(5), spread.longest_ns()), (300, 300), "the window before counts");
        spread.add(200, 2000);
        assert_eq!((spread.delta_ns(5), spread.longest_ns()), (5, 200), "older ones do not");
    }
}
