//! What is done while control has no time for a change of Linux's firewall, since it compiles a full table, say: all
//! packets are Linux's until it has carried the change out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::kernel::{Shared, lock};

/// Has both paths stand aside for Linux.
#[derive(Clone)]
pub(super) struct Aside {
    /// Read by workers with each burst.
    pub workers: Arc<AtomicBool>,
    pub kernel: Option<Shared>,
}

impl Aside {
    /// All packets are Linux's from now on.
    pub fn step(&self) {
        if self.workers.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::info!("all packets are left to Linux until a change of its firewall is carried out");
        if let Some(kernel) = &self.kernel {
            lock(kernel).stand_aside();
        }
    }

    /// The change is carried out.
    pub fn back(&self) {
        if !self.workers.load(Ordering::Acquire) {
            return;
        }
        if let Some(kernel) = &self.kernel
            && let Err(error) = lock(kernel).beat()
        {
            // The next beat of control's does it.
            tracing::warn!(%error, "the kernel path still leaves everything to Linux");
        }
        self.workers.store(false, Ordering::Release);
    }
}
