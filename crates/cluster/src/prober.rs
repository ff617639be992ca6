//! Sends probes on all fabric links every few milliseconds, and finds out which links are alive.
//!
//! ```text
//! bm-cluster ── add, remove ──► bm-probes ── probes ──► fabric programs of other nodes
//!            ◄── [`LinkQuality`] ──          ◄── answers ──
//! ```
//!
//! In a thread of its own with real-time priority: neither the updates of Linux's tables, which may take long, nor other
//! programs delay it. It only sends and receives small frames, and never waits for the other thread.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bm_sys::{Mutex, Waker, set_real_time};
use bm_vlb::address::Node;
use bm_vlb::membership::Epoch;
use bm_vlb::spread::DelaySpread;
use bm_wire::ethernet::Mac;

use crate::clock::now_ns;
use crate::error::ClusterError;
use crate::liveness::Liveness;
use crate::message::{ETHERNET, Key};
use crate::probe;
use crate::socket::FabricSocket;

/// How often probes are sent on each link; less often if there are many links, since probes would keep a core busy.
const INTERVAL_NS: u64 = 5_000_000;
const PER_LINK_NS: u64 = 250_000;
/// The longest wait while there are no links.
const IDLE_NS: u64 = 1_000_000_000;
/// How long a measured delay counts for the gap between flowlets, at least.
const DELAYS_NS: u64 = 500_000_000;
/// Real-time priority: above workers, which may run for 95 ms at a time.
const PRIORITY: u8 = 2;

/// What all probes of a node contain.
pub struct Sender {
    pub key: Key,
    pub epoch: Epoch,
    pub from: Mac,
}

/// A link to probe.
struct Target {
    socket: FabricSocket,
    peer: Node,
    nonce: u64,
    places: Arc<Places>,
}

/// A link that is probed.
pub struct Probed(Arc<Places>);

impl Probed {
    /// What probes have shown of it.
    pub(crate) fn observed(&self) -> LinkQuality {
        let places = &self.0;
        LinkQuality {
            is_alive: places.is_alive.load(Ordering::Acquire),
            round_trip_ns: places.round_trip_ns.load(Ordering::Relaxed),
            timeout_ns: places.timeout_ns.load(Ordering::Relaxed),
            failures: places.failures.load(Ordering::Relaxed),
        }
    }
}

/// A link to probe from now on, or no longer.
enum Change {
    Add(Target),
    Remove(Arc<Places>),
}

/// What probes have shown of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkQuality {
    /// Whether its other end answers.
    pub is_alive: bool,
    /// The last round-trip time; 0: none yet.
    pub round_trip_ns: u64,
    /// After how long without an answer it is found dead.
    pub timeout_ns: u64,
    /// How often it was found dead.
    pub failures: u64,
}

/// [`LinkQuality`], written by the one thread and read by the other.
#[derive(Default)]
struct Places {
    is_alive: AtomicBool,
    round_trip_ns: AtomicU64,
    timeout_ns: AtomicU64,
    failures: AtomicU64,
}

/// What the thread shares with the other one.
struct ProberState {
    /// Applied by the thread.
    changes: Mutex<Vec<Change>>,
    gap_ns: AtomicU64,
    stop: AtomicBool,
    /// Wakes the thread.
    waker: Waker,
    /// Wakes the reader of [`Probed::observed`]: a link went up or down.
    changed: Waker,
}

/// The thread. It ends when this is dropped.
pub(crate) struct Prober {
    shared: Arc<ProberState>,
    thread: Option<JoinHandle<()>>,
}

fn new_waker() -> Result<Waker, bm_bpf::Error> {
    let failed = bm_bpf::Error::system("creating an eventfd for probes");
    Waker::new().map_err(|error| failed(std::io::Error::other(error)))
}

impl Prober {
    /// Starts it; no link is probed yet.
    ///
    /// # Errors
    /// What the system said.
    pub fn start(sender: Sender) -> Result<Self, ClusterError> {
        let shared = Arc::new(ProberState {
            changes: Mutex::default(),
            gap_ns: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            waker: new_waker()?,
            changed: new_waker()?,
        });
        let probing = Probing::new(Arc::clone(&shared), sender);
        let failed = bm_bpf::Error::system("starting the thread that sends probes");
        let thread = std::thread::Builder::new().name("bm-probes".into());
        let thread = thread.spawn(move || probing.run()).map_err(failed)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Probes a link from now on.
    pub fn add(&self, socket: FabricSocket, peer: Node, nonce: u64) -> Probed {
        let places = Arc::new(Places::default());
        self.change(Change::Add(Target { socket, peer, nonce, places: Arc::clone(&places) }));
        Probed(places)
    }

    /// Probes it no longer.
    pub fn remove(&self, link: Probed) {
        self.change(Change::Remove(link.0));
    }

    fn change(&self, change: Change) {
        self.shared.changes.lock().push(change);
        // Woken after the lock is free again.
        self.shared.waker.wake();
    }

    /// By how much delays differ, and a half more.
    pub fn gap_ns(&self) -> u64 {
        self.shared.gap_ns.load(Ordering::Relaxed)
    }

    /// Becomes readable when a link is alive or dead that was not before, until it is cleared.
    pub fn changed(&self) -> &Waker {
        &self.shared.changed
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by itself.
            let _panicked = thread.join();
        }
    }
}

/// What the thread has.
struct Probing {
    shared: Arc<ProberState>,
    sender: Sender,
    links: Vec<(Target, Liveness)>,
    spread: DelaySpread,
}

impl Probing {
    fn new(shared: Arc<ProberState>, sender: Sender) -> Self {
        Self { shared, sender, links: Vec::new(), spread: DelaySpread::new(DELAYS_NS) }
    }

    fn run(mut self) {
        if let Err(error) = set_real_time(0, PRIORITY) {
            tracing::warn!(%error, "the thread that probes fabric links has no real-time priority: failures of links may be found late on a busy machine");
        }
        let (mut last, mut due) = (now_ns(), now_ns());
        while !self.shared.stop.load(Ordering::Relaxed) {
            let sockets = self.links.iter().map(|(target, _)| target.socket.as_fd());
            self.shared.waker.wait(sockets, Duration::from_nanos(due.saturating_sub(now_ns())));
            self.shared.waker.clear();
            let now = now_ns();
            if self.take_changes() {
                due = now;
            }
            // First all answers, then what is missing: some may have waited for this thread.
            self.receive(now);
            self.update(now - last);
            last = now;
            if now >= due {
                due = now + self.interval_ns();
                self.send();
            }
        }
    }

    fn interval_ns(&self) -> u64 {
        match self.links.len() as u64 {
            0 => IDLE_NS,
            links => INTERVAL_NS.max(links * PER_LINK_NS),
        }
    }

    /// Adds and removes links; returns whether there were any to add or to remove.
    fn take_changes(&mut self) -> bool {
        // If the other thread has the lock, this is tried again with the next probe.
        let Some(mut changes) = self.shared.changes.try_lock() else { return false };
        let changes = std::mem::take(&mut *changes);
        if changes.is_empty() {
            return false;
        }
        for change in changes {
            match change {
                Change::Add(target) => self.links.push((target, Liveness::new(INTERVAL_NS))),
                Change::Remove(places) => {
                    self.links.retain(|(target, _)| !Arc::ptr_eq(&target.places, &places));
                }
            }
        }
        let interval_ns = self.interval_ns();
        self.links.iter_mut().for_each(|(_, link)| link.set_interval(interval_ns));
        true
    }

    fn receive(&mut self, now: u64) {
        let mut buffer = [0; 256];
        for (target, liveness) in &mut self.links {
            while let Some(frame) = target.socket.receive(&mut buffer) {
                let body = frame.get(ETHERNET..).unwrap_or_default();
                let Some(away) = probe::read(body, &self.sender.key, target.nonce, now) else { continue };
                liveness.answered(now - away, now);
                self.spread.add(away / 2, now);
                target.places.round_trip_ns.store(away, Ordering::Relaxed);
            }
        }
        self.shared.gap_ns.store(self.spread.delta_ns(0), Ordering::Relaxed);
    }

    fn update(&mut self, waited_ns: u64) {
        let mut changed = false;
        for (Target { places, .. }, link) in &mut self.links {
            link.waited(waited_ns);
            let is_alive = link.is_alive();
            places.timeout_ns.store(link.timeout_ns(), Ordering::Relaxed);
            places.failures.store(link.failures(), Ordering::Relaxed);
            changed |= places.is_alive.swap(is_alive, Ordering::AcqRel) != is_alive;
        }
        if changed {
            self.shared.changed.wake();
        }
    }

    fn send(&self) {
        let Sender { key, epoch, from } = &self.sender;
        for (target, _) in &self.links {
            // One that is not taken is one that is not answered.
            target.socket.send(&probe::frame(*epoch, *from, target.peer, key, target.nonce, now_ns()));
        }
    }
}
