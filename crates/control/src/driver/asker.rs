//! The slow path's way to ask the kernel for neighbours: bounded queues to and from the control thread.

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

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
}

/// The slow path's end, and the control thread's two.
pub(super) fn asker(capacity: usize, waker: Waker) -> (Asker, Receiver<Neighbor>, SyncSender<Neighbor>) {
    let (ask, asked) = sync_channel(capacity.max(1));
    let (fail, failed) = sync_channel(FAILED);
    (Asker { ask, failed, waker }, asked, fail)
}

impl Resolver for Asker {
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
