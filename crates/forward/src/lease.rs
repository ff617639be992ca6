//! The permission of workers to forward: for a limited time, like that of the kernel path. Control's watchdog renews it
//! while tables are up to date; a process that was stopped, and continues, finds it expired.

use std::sync::atomic::{AtomicU64, Ordering};

/// Until when workers and the slow path may forward, in nanoseconds of [`bm_graph::clock_ns`]. All packets are left to
/// Linux afterwards.
#[derive(Debug)]
pub struct Lease(AtomicU64);

impl Default for Lease {
    /// Without limit, for tables that nobody watches.
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Lease {
    /// Permits forwarding until this time.
    pub fn renew(&self, until_ns: u64) {
        self.0.store(until_ns, Ordering::SeqCst);
    }

    /// Ends it.
    pub fn expire(&self) {
        self.renew(0);
    }

    /// Whether packets may be forwarded at `now_ns`.
    #[inline(always)]
    pub fn is_valid(&self, now_ns: u64) -> bool {
        now_ns < self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_unless_it_is_renewed() {
        let lease = Lease::default();
        assert!(lease.is_valid(0) && lease.is_valid(u64::MAX - 1), "no limit");
        lease.renew(1000);
        assert_eq!([0, 999, 1000, 1001].map(|now_ns| lease.is_valid(now_ns)), [true, true, false, false]);
        lease.expire();
        assert!(!lease.is_valid(0));
        lease.renew(2000);
        assert!(lease.is_valid(1001));
    }
}
