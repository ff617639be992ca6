//! Makes sure that no packet is forwarded with tables that are no longer updated.
//!
//! ```text
//! heartbeats of threads ─► bm-watchdog ─► control, firewall and flows make progress: the lease of the kernel path is renewed
//!                                     └─► one of them does not: all packets are left to Linux until it does
//! ```
//!
//! Both paths forward only while they have a short lease ([`Leases`]). This thread renews it while the threads that update
//! the tables make progress. If the whole process hangs or is stopped, the lease expires; when it continues, packets are
//! left to Linux until these threads have caught up. If it has ended, the watching process ([`crate::watcher`]) renews the
//! lease of the kernel path.
//!
//! This thread takes no lock that a hanging thread may hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bm_api::Error;
use bm_fastpath::prioritize;
use bm_sys::Mutex;
use bm_sys::heartbeat::{Failure, FailureKind, Observer};

use super::leases::{Leases, Reason};
use super::{Handle, LEASE, control_ended};
use crate::flows;

/// How long control, or the thread that follows Linux's firewall, may make no progress before all packets are left to
/// Linux. Reading a ruleset is one step: if that takes longer, Linux forwards until the rules are known.
pub(super) const SILENT_MAX: Duration = Duration::from_millis(350);
/// Name of the control thread.
pub(super) const CONTROL: &str = "bm-control";
/// Name of the thread that follows Linux's firewall.
pub(super) const FIREWALL: &str = "bm-firewall";

/// How often threads are checked and the lease is renewed.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often a thread that waits for control checks whether control makes progress.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// Maximum wait for an answer of control while it makes no progress.
const ASK_MAX: Duration = Duration::from_secs(5);

/// Called after each check.
type HealthListener = Box<dyn FnMut(&[Failure]) + Send>;

/// The results of the checks, for other threads.
#[derive(Clone, Default)]
pub(super) struct Health(Arc<HealthState>);

#[derive(Default)]
struct HealthState {
    /// For how long control has made no progress, in milliseconds; 0 if it does.
    control_silent_ms: AtomicU64,
    listener: Mutex<Option<HealthListener>>,
}

impl Health {
    /// The error for a thread that waits for control, if control hangs.
    pub fn control_hangs(&self) -> Option<Error> {
        let silent = Duration::from_millis(self.0.control_silent_ms.load(Ordering::Relaxed));
        (silent > ASK_MAX).then(|| {
            let seconds = silent.as_secs();
            Error::new(format_args!(
                "the control thread has made no progress for {seconds} s; Linux forwards all packets meanwhile"
            ))
            .hint("restart the daemon and report this bug with its log")
        })
    }

    /// Whether control has exceeded its limit.
    pub fn control_is_silent(&self) -> bool {
        self.0.control_silent_ms.load(Ordering::Relaxed) > 0
    }

    /// Sets the function to call after each check.
    pub fn set_listener(&self, listener: HealthListener) {
        *self.0.listener.lock() = Some(listener);
    }

    fn note(&self, found: &[Failure]) {
        let of_control = found.iter().find(|failure| failure.thread == CONTROL);
        let silent = match of_control.map(|failure| failure.kind) {
            Some(FailureKind::Silent(silent)) => silent.as_millis().max(1) as u64,
            Some(FailureKind::Panicked) | None => 0,
        };
        self.0.control_silent_ms.store(silent, Ordering::Relaxed);
        if let Some(listener) = &mut *self.0.listener.lock() {
            listener(found);
        }
    }
}

impl Handle {
    /// Waits for an answer of control as long as control makes progress.
    pub(super) fn wait<T>(&self, answered: &mpsc::Receiver<T>) -> Result<T, Error> {
        loop {
            match answered.recv_timeout(ASK_EVERY) {
                Err(mpsc::RecvTimeoutError::Timeout) => match self.health.control_hangs() {
                    Some(hangs) => return Err(hangs),
                    // The waiting thread makes progress as long as control does.
                    None if !self.health.control_is_silent() => bm_sys::heartbeat::beat(),
                    None => {}
                },
                answered => return answered.map_err(|_| control_ended()),
            }
        }
    }

    /// Waits for the control thread, which has been asked to end; false if it hangs.
    pub(super) fn ends(&self, thread: &JoinHandle<()>) -> bool {
        while !thread.is_finished() {
            if let Some(hangs) = self.health.control_hangs() {
                tracing::error!("{hangs}: ending without it");
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Calls `listener` about twenty times a second, on the watchdog thread, with the threads that make no progress. It must
    /// not block.
    pub fn on_health(&self, listener: impl FnMut(&[Failure]) + Send + 'static) {
        self.health.set_listener(Box::new(listener));
    }

    /// Leaves all packets to Linux and unpins the kernel path, so that it ends with the process; for when control hangs.
    pub fn detach_without_waiting(&self) {
        self.leases.add_reason(Reason::Control);
        if let Some(mut kernel) = self.kernel.as_ref().and_then(|kernel| kernel.try_lock()) {
            kernel.unpin();
        }
    }
}

/// The watchdog thread; ends on drop.
pub(super) struct Watchdog {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    pub fn start(leases: Leases, health: Health) -> Result<Self, Error> {
        let (end, ended) = mpsc::channel::<()>();
        let builder = std::thread::Builder::new().name("bm-watchdog".into());
        let thread = builder.spawn(move || {
            prioritize();
            let (mut observer, mut looked) = (Observer::new(), Instant::now());
            while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                let now = Instant::now();
                withhold_after_gap(now.saturating_duration_since(looked), &leases);
                look(&mut observer, now, &leases, &health);
                looked = now;
            }
            // The next holder of the lease starts with a full one.
            leases.renew();
        });
        Ok(Self { end: Some(end), thread: Some(thread.map_err(Error::new)?) })
    }
}

/// Leaves all packets to Linux if the last check was so long ago that the leases have expired: the process was stopped,
/// and threads that beat again have not necessarily read what has changed since.
fn withhold_after_gap(gap: Duration, leases: &Leases) {
    if gap < LEASE {
        return;
    }
    // Each thread withdraws its reason when it has caught up.
    let new = [Reason::Control, Reason::Follower].map(|reason| leases.add_reason(reason));
    if new.contains(&true) {
        tracing::warn!(
            ?gap,
            "the daemon did not run: all packets are left to Linux until its tables are up to date"
        );
    }
}

fn look(observer: &mut Observer, now: Instant, leases: &Leases, health: &Health) {
    let found = observer.look(now);
    for (thread, why) in
        [(CONTROL, Reason::Control), (FIREWALL, Reason::Follower), (flows::NAME, Reason::Flows)]
    {
        // The thread itself withdraws the reason when it has caught up.
        if found.iter().any(|failure| failure.thread == thread) && leases.add_reason(why) {
            tracing::error!("all packets are left to Linux: thread {thread} makes no progress");
        }
    }
    leases.renew();
    health.note(&found);
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been logged.
            let _panicked = thread.join();
        }
    }
}
