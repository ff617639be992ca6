//! The thread that follows the kernel's SAs and policies (`kernel = "on"` in `[ipsec]`).
//!
//! ```text
//! events ─► read all ─► KernelTables ─┬─ SAs and policies ─► workers
//!                                     └─ policies that workers apply ─► control: their packets are not left to Linux
//! ```
//!
//! Workers get a policy before its packets, so nothing is sent in clear; and Linux gets them back before workers lose it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bm_cli::Failure;
use bm_control::control_thread::Handle;
use bm_forward::Wanted;
use bm_graph::Waker;
use bm_netlink::xfrm_tables::Kind;
use bm_netlink::{XfrmSas, XfrmTables};
use bm_xfrm::{KernelTables, Listing};

use super::Ipsec;
use crate::lock;

/// How often to look after sequence numbers and lifetimes.
const UPDATE_EVERY: Duration = Duration::from_millis(100);
/// How often everything is read again without an event.
const READ_EVERY: Duration = Duration::from_secs(10);
/// How often the kernel asks IKE for an SA that workers want, as for policies of programs.
const ASK_EVERY: Duration = Duration::from_secs(10);
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
        let sas = XfrmSas::open().map_err(Failure::failed)?;
        let (tables, sas) = tables.zip(sas).ok_or_else(|| Failure::Failed(super::NO_IPSEC.into()))?;
        let (ends, waker) = (Arc::new(AtomicBool::new(false)), Waker::new().map_err(Failure::failed)?);
        let (end, wake) = (ends.clone(), waker.clone());
        let thread = std::thread::Builder::new().name("bm-ipsec".into()).spawn(move || {
            let used = KernelTables::default();
            let asked = BTreeMap::new();
            Follower { tables, sas, asked, used, ipsec, control, ends: end, failed: false }.run(&wake);
        });
        let thread = thread.map_err(Failure::failed)?;
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

struct Follower {
    tables: XfrmTables,
    sas: XfrmSas,
    /// When an SA was asked for, for a template, and one worker or all.
    asked: BTreeMap<(u32, Option<u32>), Instant>,
    used: KernelTables,
    ipsec: Arc<Mutex<Ipsec>>,
    control: Handle,
    ends: Arc<AtomicBool>,
    /// Whether a failure to read the tables has been logged.
    failed: bool,
}

impl Follower {
    fn run(&mut self, waker: &Waker) {
        let _watched = bm_sys::heartbeat::watch(SILENT_MAX);
        let mut read_at: Option<Instant> = None;
        while !self.ends.load(Ordering::Relaxed) {
            bm_sys::heartbeat::beat();
            let changed = self.tables.has_changed().unwrap_or(true);
            let (left, wanted) = {
                let mut ipsec = lock(&self.ipsec);
                ipsec.settle();
                (ipsec.update_kernel_sas(false), ipsec.wanted())
            };
            wanted.into_iter().for_each(|wanted| self.ask(wanted));
            let is_due = changed || !left.is_empty() || read_at.is_none_or(|at| at.elapsed() >= READ_EVERY);
            left.into_iter().for_each(|(sa, why)| self.used.exclude(sa, why));
            if is_due {
                read_at = self.read().then(Instant::now);
            }
            waker.wait([self.tables.as_fd()], UPDATE_EVERY);
            waker.clear();
        }
    }

    /// Has the kernel ask IKE for an SA for a worker, by the CPU number that leads to it, or for all.
    fn ask(&mut self, Wanted { template, packet, worker }: Wanted) {
        self.asked.retain(|_, at| at.elapsed() < ASK_EVERY);
        if self.asked.contains_key(&(template, worker)) {
            return;
        }
        let Some(acquire) = self.used.acquire(template, &packet, worker) else { return };
        self.asked.insert((template, worker), Instant::now());
        if let Err(error) = self.sas.ask(&acquire) {
            tracing::debug!("the kernel does not ask for an SA: {error}");
        }
    }

    /// Reads everything, and has workers use it; `false` if it has to be done again soon.
    fn read(&mut self) -> bool {
        let read = self.tables.read(Listing::default, |listing, kind, body| match kind {
            Kind::Sa => listing.add_sa(body),
            Kind::Policy => listing.add_policy(body),
        });
        match read {
            Ok(listing) => {
                self.failed = false;
                self.update(listing)
            }
            Err(error) if !self.failed => {
                self.failed = true;
                tracing::error!("cannot read the kernel's SAs and policies: {error}; trying again");
                false
            }
            Err(_) => false,
        }
    }

    /// `false` if it has to be done again soon.
    fn update(&mut self, listing: Listing) -> bool {
        // Listed once for all SAs. Without an answer, an SA could get the wrong direction.
        let Ok(own) = bm_netlink::list::addresses() else { return false };
        let before = self.used.applied();
        let update = self.used.update(listing, &|address| own.iter().any(|own| own.local == address));
        for (sa, why) in update.left {
            tracing::info!("SA {sa} of the kernel is left to Linux: {why}");
        }
        let after = self.used.applied();
        if !before.is_subset(&after) {
            let remain: BTreeSet<u32> = before.intersection(&after).copied().collect();
            // Workers keep policies until their packets are Linux's.
            while !self.apply(remain.clone()) && !self.ends.load(Ordering::Relaxed) {
                bm_sys::heartbeat::beat();
            }
        }
        if !update.changes.is_empty() {
            lock(&self.ipsec).apply(update.changes);
        }
        if before != after || lock(&self.ipsec).lacks_policies() {
            self.apply(after);
        }
        // Linux may have sent until now.
        let left = lock(&self.ipsec).update_kernel_sas(before != self.used.applied());
        let is_done = left.is_empty();
        left.into_iter().for_each(|(sa, why)| self.used.exclude(sa, why));
        is_done
    }

    /// Has workers apply these policies, by their indexes, and Linux all others; `false` if that may not be in effect.
    fn apply(&self, mut policies: BTreeSet<u32>) -> bool {
        // Packets of a policy that workers do not have would be sent in clear.
        if lock(&self.ipsec).lacks_policies() {
            policies.clear();
        }
        let is_applied = self.control.apply_policies(policies);
        if !is_applied {
            tracing::error!("cannot change which packets are left to Linux: control does not answer");
        }
        is_applied
    }
}
