//! A rate limit: a number of requests per second, with a burst of one second.

use std::time::Instant;

/// A token bucket.
#[derive(Debug)]
pub(super) struct Budget {
    per_second: u32,
    left: f64,
    at: Instant,
}

impl Budget {
    /// A full bucket.
    pub fn new(per_second: u32, now: Instant) -> Self {
        Self { per_second, left: f64::from(per_second), at: now }
    }

    /// Changes the rate, in requests per second.
    pub fn set(&mut self, per_second: u32) {
        self.per_second = per_second;
    }

    /// Takes a token; false if there is none.
    pub fn take(&mut self, now: Instant) -> bool {
        let most = f64::from(self.per_second);
        let fresh = now.saturating_duration_since(self.at).as_secs_f64() * most;
        self.left = (self.left + fresh).min(most);
        self.at = now;
        let some = self.left >= 1.0;
        self.left -= f64::from(u8::from(some));
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn allows_no_more_than_its_rate() {
        let start = Instant::now();
        let mut budget = Budget::new(10, start);
        assert_eq!((0..100).filter(|_| budget.take(start)).count(), 10);
        assert_eq!((0..100).filter(|_| budget.take(start + Duration::from_millis(250))).count(), 2);
        assert_eq!((0..100).filter(|_| budget.take(start + Duration::from_secs(9))).count(), 10);
        budget.set(1);
        assert_eq!((0..100).filter(|_| budget.take(start + Duration::from_secs(90))).count(), 1);
    }
}
