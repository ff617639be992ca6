//! Token buckets: how many bytes may be sent now, at a rate and after a pause.
//!
//! A token is a billionth of a bit, so that nanoseconds times bits per second are tokens: all sums are exact, and there
//! is no division on a packet's way.

/// Tokens of a bit.
const OF_A_BIT: i64 = 1_000_000_000;
/// The deepest bucket, in bytes: its tokens fit a signed word, and so does its debt.
const DEEPEST: u64 = 500_000_000;

/// A bucket. It may go into debt by as much as it can hold, so that a choice among full paths still remembers how full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    tokens: i64,
    depth: i64,
    bps: u64,
    last_ns: u64,
}

impl Bucket {
    /// A full bucket. A rate of zero: nothing may be sent.
    pub fn new(bps: u64, depth_bytes: u64, now_ns: u64) -> Self {
        let depth = if bps == 0 { 0 } else { tokens(depth_bytes) };
        Self { tokens: depth, depth, bps, last_ns: now_ns }
    }

    /// The bucket with another rate and depth; it keeps its tokens, as far as it has room.
    pub fn changed(mut self, bps: u64, depth_bytes: u64, now_ns: u64) -> Self {
        if self.bps == 0 {
            return Self::new(bps, depth_bytes, now_ns);
        }
        self.refill(now_ns);
        let new = Self::new(bps, depth_bytes, now_ns);
        Self { tokens: self.tokens.clamp(-new.depth, new.depth), ..new }
    }

    /// Adds what has accrued since the last call. Time that goes back adds nothing.
    #[inline]
    pub fn refill(&mut self, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.last_ns);
        let added = i64::try_from(passed.saturating_mul(self.bps)).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_add(added).min(self.depth);
        self.last_ns = self.last_ns.max(now_ns);
    }

    /// Spends tokens for these bytes, if it has enough after `refill`.
    #[inline]
    pub fn take(&mut self, bytes: u32) -> bool {
        let cost = tokens(bytes.into());
        let enough = self.tokens >= cost;
        if enough {
            self.tokens -= cost;
        }
        enough
    }

    /// Spends tokens for these bytes, on credit.
    #[inline]
    pub(crate) fn take_on_credit(&mut self, bytes: u32) {
        self.tokens = (self.tokens - tokens(bytes.into())).max(-self.depth);
    }

    /// Whether it has tokens for these bytes, and a rate.
    #[inline]
    pub fn has(&self, bytes: u64) -> bool {
        self.depth > 0 && self.tokens >= tokens(bytes)
    }

    /// Takes away what it has beyond tokens for these bytes.
    pub fn lower(&mut self, bytes: u64) {
        self.tokens = self.tokens.min(tokens(bytes));
    }

    /// What it holds, or its debt.
    #[inline]
    pub fn level(&self) -> i64 {
        self.tokens
    }

    /// Its rate in bits per second.
    pub fn bps(&self) -> u64 {
        self.bps
    }
}

#[inline]
fn tokens(bytes: u64) -> i64 {
    bytes.min(DEEPEST) as i64 * 8 * OF_A_BIT
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spends_and_refills_exactly() {
        let mut bucket = Bucket::new(8_000_000, 1500, 0);
        assert!(bucket.take(1500) && !bucket.take(1));
        bucket.refill(999);
        assert!(!bucket.take(1), "a byte takes a microsecond at 8 Mbit/s");
        bucket.refill(1000);
        assert!(bucket.take(1) && !bucket.take(1));
        bucket.refill(500);
        assert!(!bucket.take(1), "time went back");
        bucket.refill(u64::MAX);
        assert!(bucket.take(1500) && !bucket.take(1), "never more than its depth");
    }

    #[test]
    fn debt_is_limited_and_paid_back() {
        let mut bucket = Bucket::new(8_000_000, 1000, 0);
        (0..5).for_each(|_| bucket.take_on_credit(1000));
        assert_eq!(bucket.level(), -tokens(1000));
        bucket.refill(1_000_000);
        assert!(!bucket.take(1));
        bucket.refill(1_001_000);
        assert!(bucket.take(1));
        assert_eq!(Bucket::new(0, 1500, 0).level(), 0);
        assert!(!Bucket::new(0, 1500, 0).take(64));
    }

    proptest! {
        /// In any time no more is sent than its rate and its depth allow, and almost that much if all is wanted.
        #[test]
        fn keeps_its_rate(bps in 1_000_000u64..100_000_000_000, steps in proptest::collection::vec((0u64..50_000, 64u32..1519), 1..300)) {
            let mut bucket = Bucket::new(bps, 20_000, 0);
            let (mut now, mut sent) = (0, 0u64);
            for (pause, bytes) in steps {
                now += pause;
                bucket.refill(now);
                if bucket.take(bytes) {
                    sent += u64::from(bytes);
                }
            }
            prop_assert!(u128::from(sent) * 8_000_000_000 <= u128::from(bps) * u128::from(now) + 160_000 * 1_000_000_000);
        }
    }
}
