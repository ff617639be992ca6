//! What is done while control has no time for a change of Linux's firewall, since it compiles a full table, say, or
//! while it hangs: all packets are Linux's until it has caught up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use bm_fastpath::Lease;

/// Why packets are Linux's; a bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A change of Linux's firewall is not carried out yet.
    Firewall = 1,
    /// The control thread is silent.
    Control = 2,
    /// The thread that follows Linux's firewall is.
    Follower = 4,
}

/// Has both paths stand aside for Linux. It takes no lock.
#[derive(Clone)]
pub(super) struct Aside {
    /// Read by workers with each burst.
    workers: Arc<AtomicBool>,
    /// The kernel path's leave to forward.
    lease: Option<Arc<Lease>>,
    why: Arc<AtomicU8>,
}

impl Aside {
    pub fn new(workers: &Arc<AtomicBool>, lease: Option<Lease>) -> Self {
        Self { workers: Arc::clone(workers), lease: lease.map(Arc::new), why: Arc::default() }
    }

    /// All packets are Linux's from now on; whether they were not before, for this reason.
    pub fn step(&self, why: Why) -> bool {
        let before = self.why.fetch_or(why as u8, Ordering::SeqCst);
        self.enforce();
        before & why as u8 == 0
    }

    /// Whether packets are Linux's for this reason.
    pub fn is_for(&self, why: Why) -> bool {
        self.why.load(Ordering::SeqCst) & why as u8 != 0
    }

    /// This reason is no more; whether it was one.
    pub fn back(&self, why: Why) -> bool {
        let before = self.why.fetch_and(!(why as u8), Ordering::SeqCst);
        if before == why as u8 {
            self.workers.store(false, Ordering::SeqCst);
            self.renew();
        }
        before & why as u8 != 0
    }

    /// The kernel path may forward for a while longer, unless packets are Linux's.
    pub fn renew(&self) {
        if self.why.load(Ordering::SeqCst) == 0
            && let Some(lease) = &self.lease
            && let Err(error) = lease.renew()
        {
            tracing::error!(%error, "the kernel path leaves everything to Linux");
        }
        // Somebody may have stepped aside in between.
        if self.why.load(Ordering::SeqCst) != 0 {
            self.enforce();
        }
    }

    fn enforce(&self) {
        self.workers.store(true, Ordering::SeqCst);
        self.lease.iter().for_each(|lease| lease.expire());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_linuxs_while_there_is_a_reason() {
        let workers = Arc::new(AtomicBool::new(false));
        let aside = Aside::new(&workers, None);
        let is_linuxs = || workers.load(Ordering::SeqCst);
        assert!(aside.step(Why::Firewall) && is_linuxs());
        assert!(aside.step(Why::Control) && is_linuxs());
        assert!(!aside.step(Why::Control), "it is one already");
        assert!(aside.back(Why::Firewall) && is_linuxs(), "the other reason is left");
        aside.renew();
        assert!(is_linuxs());
        assert!(aside.back(Why::Control) && !is_linuxs());
        assert!(!aside.back(Why::Control) && !is_linuxs(), "it is none any more");
    }
}
