//! Wakes a worker for what was put into one of its rings.

use std::sync::Arc;

use bm_graph::Waker;
use bm_link::Asleep;

/// Wakes a worker that sleeps.
#[derive(Clone)]
pub(super) struct Bell {
    pub asleep: Arc<Asleep>,
    pub waker: Waker,
}

impl Bell {
    /// Wakes it if it sleeps.
    pub fn ring(&self) {
        if self.asleep.must_wake() {
            self.waker.wake();
        }
    }
}
