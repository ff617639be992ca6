//! Wakes a worker for what was put into one of its rings.

use std::sync::Arc;

use bm_graph::Waker;
use bm_link::Asleep;

/// A worker that may sleep.
#[derive(Clone)]
pub(super) struct Sleeper {
    pub asleep: Arc<Asleep>,
    pub waker: Waker,
}

impl Sleeper {
    /// Wakes it if it sleeps.
    pub fn wake(&self) {
        if self.asleep.must_wake() {
            self.waker.wake();
        }
    }
}
