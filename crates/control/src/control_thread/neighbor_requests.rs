//! Neighbor requests: of the slow path by bounded queues to and from the control thread, of the kernel path by a ring.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bm_fastpath::{Unresolved, UnresolvedReader};
use bm_forward::{Resolution, Resolver};
use bm_graph::Waker;

/// Capacity of the queue of what the kernel says about neighbors.
const RESOLUTIONS: usize = 1024;
/// How long the thread does not wake for reports of the kernel path after some were read, so that a flood wakes it a
/// hundred times a second, not for each report.
const PAUSE: Duration = Duration::from_millis(10);

/// Index of a link, and the address of a neighbor on it.
pub type Neighbor = (u32, IpAddr);

/// Sends requests to the control thread, which asks the kernel.
pub struct NeighborRequests {
    ask: SyncSender<Neighbor>,
    resolutions: Receiver<(u32, IpAddr, Resolution)>,
    waker: Waker,
    slow_path: Arc<OnceLock<Waker>>,
}

/// The end of the control thread.
pub(super) struct QueuedRequests {
    /// Requests of the slow path.
    pub wanted: Receiver<Neighbor>,
    /// Neighbors that the kernel could not resolve, or does not tell.
    pub resolutions: SyncSender<(u32, IpAddr, Resolution)>,
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
    let (tell, resolutions) = sync_channel(RESOLUTIONS);
    let slow_path = Arc::default();
    let asked = QueuedRequests { wanted, resolutions: tell, slow_path: Arc::clone(&slow_path) };
    (NeighborRequests { ask, resolutions, waker, slow_path }, asked)
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

    fn next_resolution(&mut self) -> Option<(u32, IpAddr, Resolution)> {
        self.resolutions.try_recv().ok()
    }
}

/// Reports of the kernel path about next hops without a MAC address.
pub(super) struct KernelRequests {
    reader: UnresolvedReader,
    paused_until: Instant,
}

impl KernelRequests {
    pub fn new(reader: UnresolvedReader) -> Self {
        Self { reader, paused_until: Instant::now() }
    }

    /// The reports since the last call.
    pub fn take(&mut self, now: Instant) -> Vec<Unresolved> {
        let reports = self.reader.take().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read which neighbors the kernel path needs");
            Vec::new()
        });
        if !reports.is_empty() {
            self.paused_until = now + PAUSE;
        }
        reports
    }

    /// What the thread waits for: the descriptor with reports, or the end of a pause.
    pub fn wakes(&self, now: Instant) -> (Option<BorrowedFd<'_>>, Option<Duration>) {
        let pause = self.paused_until.checked_duration_since(now).filter(|pause| !pause.is_zero());
        (pause.is_none().then(|| self.reader.as_fd()), pause)
    }
}
