//! The slow path's way to ask the kernel for neighbours: bounded queues to and from the control thread.

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};

use bm_forward::Resolver;
use bm_graph::Waker;

/// Neighbours that may wait to be told as failed.
const FAILED: usize = 1024;

/// A link and a neighbour on it.
pub type Neighbor = (u32, IpAddr);

/// Asks the control thread, which asks the kernel.
pub struct Asker {
    ask: SyncSender<Neighbor>,
    failed: Receiver<Neighbor>,
    waker: Waker,
    slow_path: Arc<OnceLock<Waker>>,
}

/// The control thread's end.
pub(super) struct Asked {
    /// What the slow path wants to be asked for.
    pub wanted: Receiver<Neighbor>,
    /// What the kernel has given up on.
    pub failed: SyncSender<Neighbor>,
    slow_path: Arc<OnceLock<Waker>>,
}

impl Asked {
    /// Wakes the slow path: a neighbour has answered, or never will.
    pub fn wake(&self) {
        if let Some(waker) = self.slow_path.get() {
            waker.wake();
        }
    }
}

/// The slow path's end, and the control thread's.
pub(super) fn asker(capacity: usize, waker: Waker) -> (Asker, Asked) {
    let (ask, wanted) = sync_channel(capacity.max(1));
    let (fail, failed) = sync_channel(FAILED);
    let slow_path = Arc::default();
    let asked = Asked { wanted, failed: fail, slow_path: Arc::clone(&slow_path) };
    (Asker { ask, failed, waker, slow_path }, asked)
}

impl Resolver for Asker {
    fn set_waker(&mut self, waker: Waker) {
        // It belongs to one slow path, which says this once.
        let _known = self.slow_path.set(waker);
    }

    fn resolve(&mut self, ifindex: u32, address: IpAddr) {
        // A full queue forgets the question; the slow path asks again as long as packets wait.
        if self.ask.try_send((ifindex, address)).is_ok() {
            self.waker.wake();
        }
    }

    fn next_failed(&mut self) -> Option<Neighbor> {
        self.failed.try_recv().ok()
    }
}
