//! Lifetimes of an SA in bytes, packets and time (RFC 4301 4.4.2.1): soft ones ask for a new SA, hard ones end it.
//!
//! Bytes are those of the inner packet, as Linux counts them. An SA ends *at* its hard limit: the packet that reaches
//! it is the last one.

/// A soft and a hard limit; `None` for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// From here on the SA should be replaced.
    pub soft: Option<u64>,
    /// From here on it handles no packet.
    pub hard: Option<u64>,
}

/// The limits of an SA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of inner packets.
    pub bytes: Limit,
    pub packets: Limit,
    /// Nanoseconds since the SA was added.
    pub time_ns: Limit,
    /// Nanoseconds since its first packet.
    pub use_ns: Limit,
}

/// A limit that has been reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expiry {
    /// The SA should be replaced.
    Soft,
    /// The SA must not be used.
    Hard,
}

/// What an SA has been used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaUsage {
    /// Bytes of inner packets.
    pub bytes: u64,
    pub packets: u64,
    /// When the SA was added, in nanoseconds. A time before the clock began, such as that of another process, wraps around.
    pub added_ns: u64,
    /// When its first packet was handled; 0 if none was.
    pub first_ns: u64,
}

impl Limit {
    fn expiry(&self, used: u64) -> Option<Expiry> {
        if self.hard.is_some_and(|hard| used >= hard) {
            return Some(Expiry::Hard);
        }
        self.soft.is_some_and(|soft| used >= soft).then_some(Expiry::Soft)
    }
}

impl Limits {
    /// Whether there are any.
    pub fn are_set(&self) -> bool {
        *self != Self::default()
    }

    /// The worst of the limits that have been reached.
    #[inline]
    pub fn expiry(&self, used: &SaUsage, now_ns: u64) -> Option<Expiry> {
        let age = used.age_ns(now_ns);
        let in_use = if used.first_ns == 0 { 0 } else { since(used.first_ns, now_ns) };
        let each = [
            self.bytes.expiry(used.bytes),
            self.packets.expiry(used.packets),
            self.time_ns.expiry(age),
            self.use_ns.expiry(in_use),
        ];
        each.into_iter().max().flatten()
    }
}

impl SaUsage {
    /// How long ago the SA was added.
    pub fn age_ns(&self, now_ns: u64) -> u64 {
        since(self.added_ns, now_ns)
    }

    /// Counts a packet.
    #[inline]
    pub(crate) fn count(&mut self, bytes: usize, now_ns: u64) {
        self.bytes += bytes as u64;
        self.packets += 1;
        if self.first_ns == 0 {
            // A clock that begins at 0 is only in tests.
            self.first_ns = now_ns.max(1);
        }
    }
}

/// Threads read the clock one after the other, so `then` may be slightly later than `now`.
fn since(then: u64, now: u64) -> u64 {
    now.wrapping_sub(then).cast_signed().max(0).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_limit_counts() {
        let limit = |soft, hard| Limit { soft: Some(soft), hard: Some(hard) };
        let limits = Limits {
            bytes: limit(100, 200),
            packets: limit(10, 20),
            time_ns: limit(1000, 2000),
            use_ns: Limit::default(),
        };
        let used = |bytes, packets| SaUsage { bytes, packets, added_ns: 500, first_ns: 0 };
        assert_eq!(limits.expiry(&used(99, 9), 1499), None);
        for (used, now) in [(used(100, 9), 0), (used(0, 10), 0), (used(0, 0), 1500), (used(199, 19), 2499)] {
            assert_eq!(limits.expiry(&used, now), Some(Expiry::Soft), "{used:?}");
        }
        for (used, now) in [(used(200, 9), 0), (used(0, 20), 0), (used(0, 0), 2500)] {
            assert_eq!(limits.expiry(&used, now), Some(Expiry::Hard), "{used:?}");
        }
        assert_eq!(Limits::default().expiry(&used(u64::MAX, u64::MAX), u64::MAX), None);
    }

    #[test]
    fn times_before_the_clock_began_count() {
        let limits = Limits { time_ns: Limit { soft: None, hard: Some(1000) }, ..Limits::default() };
        let used = SaUsage { added_ns: 0u64.wrapping_sub(900), ..SaUsage::default() };
        assert_eq!([99, 100].map(|now| limits.expiry(&used, now)), [None, Some(Expiry::Hard)]);
    }

    #[test]
    fn time_in_use_begins_with_the_first_packet() {
        let use_ns = Limit { soft: Some(100), hard: Some(200) };
        let limits = Limits { use_ns, ..Limits::default() };
        let mut used = SaUsage { added_ns: 500, ..SaUsage::default() };
        assert_eq!(limits.expiry(&used, 10_000), None);
        used.count(84, 10_000);
        used.count(84, 10_050);
        assert_eq!(used, SaUsage { bytes: 168, packets: 2, added_ns: 500, first_ns: 10_000 });
        for (now, expiry) in [(10_099, None), (10_100, Some(Expiry::Soft)), (10_200, Some(Expiry::Hard))] {
            assert_eq!(limits.expiry(&used, now), expiry, "{now}");
        }
    }
}
