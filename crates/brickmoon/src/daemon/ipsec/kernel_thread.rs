//! The thread that follows the kernel's SAs and policies (`kernel = "on"` in `[ipsec]`).
//!
//! ```text
//! events ─► read all ─► KernelTables ─┬─ SAs and policies ─► workers
//!                                     └─ policies that workers apply ─► control: their packets are not left to Linux
//! ```
//!
//! Workers get a policy before its packets, so nothing is sent in clear; and Linux gets them back before workers lose it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bm_control::driver::Handle;
use bm_graph::Waker;
use bm_netlink::XfrmTables;
use bm_netlink::xfrm_tables::Kind;
use bm_xfrm::{KernelTables, Listing};
use std::os::fd::AsFd;

use super::Ipsec;
use super::xfrm_thread::is_local;
use crate::daemon::lock::lock;
use crate::failure::Failure;

/// How often to look after sequence numbers and lifetimes.
const TEND_EVERY: Duration = Duration::from_millis(100);
/// How often everything is read again without an event.
const READ_EVERY: Duration = Duration::from_secs(10);
/// Reading a large table and changing many SAs takes time.
const SILENT_MAX: Duration = Duration::from_secs(30);

/// The thread; it ends on drop.
pub struct KernelThread {
    ends: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl KernelThread {
    /// Subscribes to changes, in the network namespace of the calling thread.
    pub fn start(ipsec: Arc<Mutex<Ipsec>>, control: Handle) -> Result<Self, Failure> {
        let tables = XfrmTables::open().map_err(Failure::failed)?;
        let tables = tables.ok_or_else(|| Failure::Failed(super::NO_IPSEC.into()))?;
        let (ends, waker) = (Arc::new(AtomicBool::new(false)), Waker::new().map_err(Failure::failed)?);
        let (end, wake) = (ends.clone(), waker.clone());
        let run = move || {
            Follows { tables, used: KernelTables::default(), ipsec, control, failed: false }.run(&end, &wake)
        };
        let thread =
            std::thread::Builder::new().name("bm-ipsec".into()).spawn(run).map_err(Failure::failed)?;
        Ok(Self { ends, waker, thread: Some(thread) })
    }
}

impl Drop for KernelThread {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.waker.wake();
        drop(self.thread.take().map(JoinHandle::join));
    }
}

struct Follows {
    tables: XfrmTables,
    used: KernelTables,
    ipsec: Arc<Mutex<Ipsec>>,
    control: Handle,
    /// Whether a failure to read the tables has been logged.
    failed: bool,
}

impl Follows {
    fn run(&mut self, ends: &AtomicBool, waker: &Waker) {
        let _watched = bm_heartbeat::watch(SILENT_MAX);
        let mut read_at: Option<Instant> = None;
        while !ends.load(Ordering::Relaxed) {
            bm_heartbeat::beat();
            let changed = self.tables.has_changed().unwrap_or(true);
            let left = {
                let mut ipsec = lock(&self.ipsec);
                ipsec.settle();
                ipsec.tend_kernel(false)
            };
            let is_due = changed || !left.is_empty() || read_at.is_none_or(|at| at.elapsed() >= READ_EVERY);
            left.into_iter().for_each(|(sa, why)| self.used.take_back(sa, why));
            if is_due {
                read_at = Some(Instant::now());
                self.read();
            }
            waker.wait([self.tables.as_fd()], TEND_EVERY);
            waker.clear();
        }
    }

    fn read(&mut self) {
        let read = self.tables.read(Listing::default, |listing, kind, body| match kind {
            Kind::Sa => listing.add_sa(body),
            Kind::Policy => listing.add_policy(body),
        });
        match read {
            Ok(listing) => {
                self.failed = false;
                self.update(listing);
            }
            Err(error) if !self.failed => {
                self.failed = true;
                tracing::error!("cannot read the kernel's SAs and policies: {error}; trying again");
            }
            Err(_) => {}
        }
    }

    fn update(&mut self, listing: Listing) {
        let before = self.used.applied();
        let update = self.used.update(listing, &is_local);
        for (sa, why) in update.left {
            tracing::info!("SA {sa} of the kernel is left to Linux: {why}");
        }
        let after = self.used.applied();
        if !before.is_subset(&after) {
            self.apply(before.intersection(&after).copied().collect());
        }
        if !update.changes.is_empty() {
            lock(&self.ipsec).apply(update.changes);
        }
        if before != after || lock(&self.ipsec).lacks_policies() {
            self.apply(after);
            // Linux may have sent until now.
            for (sa, why) in lock(&self.ipsec).tend_kernel(true) {
                self.used.take_back(sa, why);
            }
        }
    }

    fn apply(&self, mut policies: BTreeSet<u32>) {
        // Packets of a policy that workers do not have would be sent in clear.
        if lock(&self.ipsec).lacks_policies() {
            policies.clear();
        }
        if !self.control.apply_policies(policies) {
            tracing::error!("cannot change which packets are left to Linux: control does not answer");
        }
    }
}
