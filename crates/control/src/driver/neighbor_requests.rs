//! Neighbor requests of the slow path: bounded queues to and from the control thread.

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

use bm_forward::Resolver;
use bm_graph::Waker;

/// Capacity of the queue of failed neighbors.
const FAILED: usize = 1024;

/// Index of a link, and the address of a neighbor on it.
pub type Neighbor = (u32, IpAddr);

/// Sends requests to the control thread, which asks the kernel.
pub struct NeighborRequests {
    ask: SyncSender<Neighbor>,
    failed: Receiver<Neighbor>,
    waker: Waker,
    slow_path: Arc<OnceLock<Waker>>,
}

/// The end of the control thread.
pub(super) struct QueuedRequests {
    /// Requests of the slow path.
    pub wanted: Receiver<Neighbor>,
    /// Neighbors that the kernel could not resolve.
    pub failed: SyncSender<Neighbor>,
    slow_path: Arc<OnceLock<Waker>>,
}

impl QueuedRequests {
    /// Wakes the slow path: a neighbor has answered or failed.
    pub fn wake(&self) {
        if let Some(waker) = self.slow_path.get() {
            waker.wake();
        }
    }
}

/// Creates the end for the slow path and the end for the control thread.
pub(super) fn neighbor_requests(capacity: usize, waker: Waker) -> (NeighborRequests, QueuedRequests) {
    let (ask, wanted) = sync_channel(capacity.max(1));
    let (fail, failed) = sync_channel(FAILED);
    let slow_path = Arc::default();
    let asked = QueuedRequests { wanted, failed: fail, slow_path: Arc::clone(&slow_path) };
    (NeighborRequests { ask, failed, waker, slow_path }, asked)
}

impl Resolver for NeighborRequests {
    fn set_waker(&mut self, waker: Waker) {
        // Called once, by the one slow path that has it.
        let _known = self.slow_path.set(waker);
    }

    fn resolve(&mut self, ifindex: u32, address: IpAddr) {
        // Lost if the queue is full; the slow path repeats requests while packets wait.
        if self.ask.try_send((ifindex, address)).is_ok() {
            self.waker.wake();
        }
    }

    fn next_failed(&mut self) -> Option<Neighbor> {
        self.failed.try_recv().ok()
    }
}
