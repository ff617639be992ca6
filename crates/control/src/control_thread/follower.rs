//! Follows the list of packets that only Linux may handle, on its own thread, so that route changes cannot delay it.
//!
//! ```text
//! nftables, XFRM, tc, .. ─► LinuxOnlyWatch ─► the list ─► control, which applies it
//! verify ─► Orders ─► the list compared with a fresh one
//! ```

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bm_api::Error;
use bm_firewall::{Counters, LinuxOnlyOptions, LinuxOnlyWatch};
use bm_graph::{URGENT, Waker, set_nice};

use super::Handle;
use super::leases::Reason;
use super::watchdog::{FIREWALL, SILENT_MAX};
use crate::nftables;

/// Maximum sleep: a fraction of [`SILENT_MAX`].
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Maximum wait for a comparison.
const PATIENCE: Duration = Duration::from_secs(10);

/// Requests to the follower.
enum Order {
    /// Compare with a fresh list.
    Audit(mpsc::Sender<Vec<String>>),
    /// Leave packets that only match these IPsec policies of the kernel to workers, and answer when that is in effect.
    Apply(BTreeSet<u32>, mpsc::Sender<bool>),
    /// Set what counters of rules have to count, and answer when that is in effect.
    Count(Counters, mpsc::Sender<bool>),
    End,
}

/// The thread; ends on drop.
pub(super) struct Follower {
    orders: mpsc::Sender<Order>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// Sends requests to the thread.
#[derive(Clone)]
pub(super) struct Orders {
    orders: mpsc::Sender<Order>,
    waker: Waker,
}

impl Orders {
    /// The differences between the list and a fresh one, one message each.
    pub fn ask(&self) -> Vec<String> {
        let (answer, answered) = mpsc::channel();
        let asked = self.orders.send(Order::Audit(answer));
        self.waker.wake();
        let answer = asked.ok().and_then(|()| answered.recv_timeout(PATIENCE).ok());
        answer.unwrap_or_else(|| vec!["the thread that follows Linux's firewall does not answer".into()])
    }

    /// Sets which IPsec policies of the kernel workers apply, by their indexes; `false` if that may not be in effect.
    pub fn apply_policies(&self, indexes: BTreeSet<u32>) -> bool {
        self.is_done(|answer| Order::Apply(indexes, answer))
    }

    /// Sets what counters of rules have to count; `false` if that may not be in effect.
    pub fn set_counters(&self, counters: Counters) -> bool {
        self.is_done(|answer| Order::Count(counters, answer))
    }

    fn is_done(&self, order: impl FnOnce(mpsc::Sender<bool>) -> Order) -> bool {
        let (answer, answered) = mpsc::channel();
        let asked = self.orders.send(order(answer));
        self.waker.wake();
        asked.is_ok() && answered.recv_timeout(PATIENCE).unwrap_or(false)
    }
}

/// Subscribes to changes and reads the list, in the network namespace of the calling thread, for a daemon with this
/// socket.
pub(super) fn open(socket: &Path, counters: Counters) -> Result<LinuxOnlyWatch, Error> {
    let own_tables = nftables::name(socket).into();
    LinuxOnlyWatch::open(LinuxOnlyOptions { own_tables, counters, ..LinuxOnlyOptions::default() })
        .map_err(|error| Error::new(format_args!("cannot follow Linux's firewall: {error}")))
}

impl Follower {
    /// Starts the thread, which reports changes to control. Control already has the list of `watch`.
    pub fn start(watch: LinuxOnlyWatch, control: Handle) -> Result<Self, Error> {
        let waker = Waker::new().map_err(Error::new)?;
        let (orders, ordered) = mpsc::channel();
        let wake = waker.clone();
        let builder = std::thread::Builder::new().name(FIREWALL.into());
        let thread = builder.spawn(move || follow(watch, &control, &ordered, &wake));
        Ok(Self { orders, waker, thread: Some(thread.map_err(Error::new)?) })
    }

    pub fn orders(&self) -> Orders {
        Orders { orders: self.orders.clone(), waker: self.waker.clone() }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _gone = self.orders.send(Order::End);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been logged.
            let _panicked = thread.join();
        }
    }
}

fn follow(mut watch: LinuxOnlyWatch, control: &Handle, ordered: &mpsc::Receiver<Order>, waker: &Waker) {
    if let Err(error) = set_nice(URGENT) {
        tracing::info!(%error, "changes of Linux's firewall may take effect with a delay while the machine is busy");
    }
    let _watched = bm_sys::heartbeat::watch(SILENT_MAX);
    let mut failed = false;
    loop {
        bm_sys::heartbeat::beat();
        let was_silent = control.leases.has_reason(Reason::Follower);
        let mut changed = watch.process(Instant::now()) | failed;
        let (mut answers, mut applied) = (Vec::new(), Vec::new());
        while let Ok(order) = ordered.try_recv() {
            match order {
                Order::End => return,
                Order::Apply(indexes, answer) => {
                    changed |= watch.set_applied(indexes);
                    applied.push(answer);
                }
                Order::Count(counters, answer) => {
                    changed |= watch.set_counters(counters);
                    applied.push(answer);
                }
                Order::Audit(answer) => {
                    let before = (watch.list().to_vec(), *watch.facts());
                    let differences = watch.audit();
                    changed |= (watch.list(), watch.facts()) != (&before.0[..], &before.1);
                    let differences = differences
                        .unwrap_or_else(|error| vec![format!("cannot read Linux's firewall: {error}")]);
                    answers.push((answer, differences));
                }
            }
        }
        if changed {
            let done = control.set_linux_only(watch.list().to_vec(), *watch.facts());
            failed = done.is_err();
            if let Err(error) = done {
                tracing::error!(%error, "cannot apply the list of packets to leave to Linux: leaving all packets to Linux and trying again");
            }
        }
        if was_silent && !failed && control.leases.remove_reason(Reason::Follower) {
            tracing::warn!("following Linux's firewall again: forwarding packets");
        }
        // Only now the findings have been applied.
        for (answer, differences) in answers {
            let _gone = answer.send(differences);
        }
        for answer in applied {
            let _gone = answer.send(!failed);
        }
        let timeout = watch.timeout(Instant::now()).unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
        let descriptors: Vec<BorrowedFd<'_>> = watch.as_fds().collect();
        waker.wait(descriptors, timeout);
        waker.clear();
    }
}
