//! The leases without which workers and the kernel path leave all packets to Linux. They are not renewed while control
//! hangs, or is too busy to apply a change of Linux's firewall, for example because it compiles a full table.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bm_fastpath::Lease;
use bm_forward::Lease as WorkerLease;

use super::LEASE;

/// Reasons for leaving all packets to Linux; one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// A change of Linux's firewall has not been applied yet.
    Firewall = 1,
    /// The control thread makes no progress.
    Control = 2,
    /// The thread that follows Linux's firewall makes no progress.
    Follower = 4,
    /// The thread that learns flows makes no progress, so flows of connections that have ended may be in use.
    Flows = 8,
}

/// The leases of both paths, and the reasons for which they are withheld. Takes no locks.
#[derive(Clone)]
pub(super) struct Leases {
    /// Comparison by workers for each burst.
    workers: Arc<WorkerLease>,
    /// Comparison by the kernel path for each packet.
    kernel: Option<Arc<Lease>>,
    reasons: Arc<AtomicU8>,
}

impl Leases {
    pub fn new(workers: &Arc<WorkerLease>, kernel: Option<Lease>) -> Self {
        Self { workers: Arc::clone(workers), kernel: kernel.map(Arc::new), reasons: Arc::default() }
    }

    /// Leaves all packets to Linux for this reason; returns whether the reason is new.
    pub fn add_reason(&self, reason: Reason) -> bool {
        let before = self.reasons.fetch_or(reason as u8, Ordering::SeqCst);
        self.expire();
        before & reason as u8 == 0
    }

    /// Whether packets are left to Linux for any reason.
    pub fn has_reasons(&self) -> bool {
        self.reasons.load(Ordering::SeqCst) != 0
    }

    /// Whether packets are left to Linux for this reason.
    pub fn has_reason(&self, reason: Reason) -> bool {
        self.reasons.load(Ordering::SeqCst) & reason as u8 != 0
    }

    /// Withdraws this reason; returns whether it was set.
    pub fn remove_reason(&self, reason: Reason) -> bool {
        let before = self.reasons.fetch_and(!(reason as u8), Ordering::SeqCst);
        if before == reason as u8 {
            self.renew();
        }
        before & reason as u8 != 0
    }

    /// Renews the leases of both paths, unless packets are left to Linux.
    pub fn renew(&self) {
        if !self.has_reasons() {
            self.workers.renew(bm_graph::clock_ns() + LEASE.as_nanos() as u64);
            if let Some(Err(error)) = self.kernel.as_ref().map(|lease| lease.renew()) {
                tracing::error!(%error, "cannot renew the lease of the kernel path: it leaves all packets to Linux");
            }
        }
        // Another thread may have set a reason in between.
        if self.has_reasons() {
            self.expire();
        }
    }

    fn expire(&self) {
        self.workers.expire();
        self.kernel.iter().for_each(|lease| lease.expire());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn packets_are_left_to_linux_while_there_is_a_reason() {
        let workers = Arc::<WorkerLease>::default();
        let leases = Leases::new(&workers, None);
        let is_withheld = || !workers.is_valid(bm_graph::clock_ns());
        assert!(leases.add_reason(Reason::Firewall) && is_withheld());
        assert!(leases.add_reason(Reason::Control) && is_withheld());
        assert!(!leases.add_reason(Reason::Control), "it is set already");
        assert!(leases.remove_reason(Reason::Firewall) && is_withheld(), "the other reason is still set");
        leases.renew();
        assert!(is_withheld());
        assert!(leases.remove_reason(Reason::Control) && !is_withheld());
        assert!(!leases.remove_reason(Reason::Control) && !is_withheld(), "it is not set any more");
        let later = |after: Duration| bm_graph::clock_ns() + after.as_nanos() as u64;
        assert!(!workers.is_valid(later(LEASE)), "nobody renews it");
        leases.renew();
        assert!(workers.is_valid(later(LEASE / 2)));
    }
}
