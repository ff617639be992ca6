//! Leaves all packets to Linux while control is too busy for a change of Linux's firewall, because it compiles a full
//! table, for example, or while it hangs, until it has caught up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bm_fastpath::Lease;
use bm_forward::Lease as WorkerLease;

use super::LEASE;

/// Reasons for leaving all packets to Linux; one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A change of Linux's firewall has not been applied yet.
    Firewall = 1,
    /// The control thread makes no progress.
    Control = 2,
    /// The thread that follows Linux's firewall makes no progress.
    Follower = 4,
}

/// Makes both paths leave all packets to Linux. Takes no locks.
#[derive(Clone)]
pub(super) struct Aside {
    /// Read by workers for each burst.
    workers: Arc<WorkerLease>,
    /// The lease of the kernel path, which forwards only while it is valid.
    lease: Option<Arc<Lease>>,
    why: Arc<AtomicU8>,
}

impl Aside {
    pub fn new(workers: &Arc<WorkerLease>, lease: Option<Lease>) -> Self {
        Self { workers: Arc::clone(workers), lease: lease.map(Arc::new), why: Arc::default() }
    }

    /// Leaves all packets to Linux for this reason; returns whether the reason is new.
    pub fn add_reason(&self, why: Why) -> bool {
        let before = self.why.fetch_or(why as u8, Ordering::SeqCst);
        self.enforce();
        before & why as u8 == 0
    }

    /// Whether packets are left to Linux for any reason.
    pub fn is_for_any(&self) -> bool {
        self.why.load(Ordering::SeqCst) != 0
    }

    /// Whether packets are left to Linux for this reason.
    pub fn is_for(&self, why: Why) -> bool {
        self.why.load(Ordering::SeqCst) & why as u8 != 0
    }

    /// Withdraws this reason; returns whether it was set.
    pub fn remove_reason(&self, why: Why) -> bool {
        let before = self.why.fetch_and(!(why as u8), Ordering::SeqCst);
        if before == why as u8 {
            self.renew();
        }
        before & why as u8 != 0
    }

    /// Renews the leases of both paths, unless packets are left to Linux.
    pub fn renew(&self) {
        if !self.is_for_any() {
            self.workers.renew(bm_graph::clock_ns() + LEASE.as_nanos() as u64);
            if let Some(Err(error)) = self.lease.as_ref().map(|lease| lease.renew()) {
                tracing::error!(%error, "cannot renew the lease of the kernel path: it leaves all packets to Linux");
            }
        }
        // Another thread may have set a reason in between.
        if self.is_for_any() {
            self.enforce();
        }
    }

    fn enforce(&self) {
        self.workers.expire();
        self.lease.iter().for_each(|lease| lease.expire());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn packets_are_left_to_linux_while_there_is_a_reason() {
        let workers = Arc::<WorkerLease>::default();
        let aside = Aside::new(&workers, None);
        let is_linuxs = || !workers.is_valid(bm_graph::clock_ns());
        assert!(aside.add_reason(Why::Firewall) && is_linuxs());
        assert!(aside.add_reason(Why::Control) && is_linuxs());
        assert!(!aside.add_reason(Why::Control), "it is one already");
        assert!(aside.remove_reason(Why::Firewall) && is_linuxs(), "the other reason is left");
        aside.renew();
        assert!(is_linuxs());
        assert!(aside.remove_reason(Why::Control) && !is_linuxs());
        assert!(!aside.remove_reason(Why::Control) && !is_linuxs(), "it is none any more");
        let later = |after: Duration| bm_graph::clock_ns() + after.as_nanos() as u64;
        assert!(!workers.is_valid(later(LEASE)), "nobody renews it");
        aside.renew();
        assert!(workers.is_valid(later(LEASE / 2)));
    }
}
