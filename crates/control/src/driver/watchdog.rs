//! Sees to it that no packet goes by tables that nobody keeps while the process lives.
//!
//! ```text
//! heartbeats of threads ─► bm-watchdog ─► control and firewall go on: the kernel path's lease is renewed
//!                                     └─► one of them is silent: all packets are Linux's until it goes on
//! ```
//!
//! The kernel path forwards while it has a lease, which is short. This thread renews it as long as those go on that keep
//! the tables; where the whole process stands still, nobody does, and where it has ended, the process that watches over
//! its tables does ([`crate::watcher`]). Workers are told aside.
//!
//! It takes no lock that another thread may hold when it hangs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bm_api::Error;
use bm_fastpath::go_first;
use bm_heartbeat::{Observer, Trouble, What};

use super::aside::{Aside, Why};
use super::{Handle, gone};

/// How long control may be silent before all packets are Linux's.
pub(super) const CONTROL_SILENT_MAX: Duration = Duration::from_millis(350);
/// How long the thread may be that follows Linux's firewall: it reads whole rulesets.
pub(super) const FIREWALL_SILENT_MAX: Duration = Duration::from_secs(2);
/// Name of the control thread.
pub(super) const CONTROL: &str = "bm-control";
/// Name of the thread that follows Linux's firewall.
pub(super) const FIREWALL: &str = "bm-firewall";

/// How often threads are looked at, and the lease is renewed.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often whoever waits for control asks whether it goes on.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// Who has asked control something waits no longer than this while it is silent.
const ASK_MAX: Duration = Duration::from_secs(5);

/// Who is told of each look.
type Told = Box<dyn FnMut(&[Trouble]) + Send>;

/// What is known of threads, for whoever wants to know.
#[derive(Clone, Default)]
pub(super) struct Health(Arc<Known>);

#[derive(Default)]
struct Known {
    /// How long control is silent, in milliseconds; 0 if it is not.
    control_silent_ms: AtomicU64,
    told: Mutex<Option<Told>>,
}

impl Health {
    /// Why whoever waits for control had better give up.
    pub fn control_hangs(&self) -> Option<Error> {
        let silent = Duration::from_millis(self.0.control_silent_ms.load(Ordering::Relaxed));
        (silent > ASK_MAX).then(|| {
            let seconds = silent.as_secs();
            Error::new(format_args!(
                "the control thread has hung for {seconds} s, and Linux forwards all packets meanwhile"
            ))
            .hint("restart the daemon and report what it logged")
        })
    }

    /// Whether control is silent for longer than it may be.
    pub fn control_is_silent(&self) -> bool {
        self.0.control_silent_ms.load(Ordering::Relaxed) > 0
    }

    /// Has `told` be called with what is wrong, after each look.
    pub fn tell(&self, told: Told) {
        *self.0.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
    }

    fn note(&self, found: &[Trouble]) {
        let of_control = found.iter().find(|trouble| trouble.thread == CONTROL);
        let silent = match of_control.map(|trouble| trouble.what) {
            Some(What::Silent(silent)) => silent.as_millis().max(1) as u64,
            Some(What::Panicked) | None => 0,
        };
        self.0.control_silent_ms.store(silent, Ordering::Relaxed);
        if let Some(told) = &mut *self.0.told.lock().unwrap_or_else(PoisonError::into_inner) {
            told(found);
        }
    }
}

impl Handle {
    /// Waits for an answer of control's as long as control goes on.
    pub(super) fn wait<T>(&self, answered: &mpsc::Receiver<T>) -> Result<T, Error> {
        loop {
            match answered.recv_timeout(ASK_EVERY) {
                Err(mpsc::RecvTimeoutError::Timeout) => match self.health.control_hangs() {
                    Some(hangs) => return Err(hangs),
                    // The thread that asks gets somewhere as long as control does.
                    None if !self.health.control_is_silent() => bm_heartbeat::beat(),
                    None => {}
                },
                answered => return answered.map_err(|_| gone()),
            }
        }
    }

    /// Waits for the end of the control thread, which has been told; whether it ends, and does not hang.
    pub(super) fn ends(&self, thread: &JoinHandle<()>) -> bool {
        while !thread.is_finished() {
            if let Some(hangs) = self.health.control_hangs() {
                tracing::error!("{hangs}: it is left behind");
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Has `told` be called some twenty times a second, by a thread that does nothing else, with the threads of the
    /// process that do not get anywhere. It must not wait.
    pub fn on_health(&self, told: impl FnMut(&[Trouble]) + Send + 'static) {
        self.health.tell(Box::new(told));
    }

    /// Has the kernel path end with the process, where control does not answer any more: all packets are Linux's.
    pub fn let_go(&self) {
        self.aside.step(Why::Control);
        if let Some(Ok(mut kernel)) = self.kernel.as_ref().map(|kernel| kernel.try_lock()) {
            kernel.unpin();
        }
    }
}

/// The watchdog's thread. It ends when this is dropped.
pub(super) struct Watchdog {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    pub fn start(aside: Aside, health: Health) -> Result<Self, Error> {
        let (end, ended) = mpsc::channel::<()>();
        let run = move || {
            go_first();
            let mut observer = Observer::new();
            while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                look(&mut observer, &aside, &health);
            }
            // Whoever takes over begins with a whole one.
            aside.renew();
        };
        let thread = std::thread::Builder::new().name("bm-watchdog".into()).spawn(run).map_err(Error::new)?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

fn look(observer: &mut Observer, aside: &Aside, health: &Health) {
    let found = observer.look(Instant::now());
    for (thread, why) in [(CONTROL, Why::Control), (FIREWALL, Why::Follower)] {
        // It is for the thread itself to say when it has caught up.
        if found.iter().any(|trouble| trouble.thread == thread) && aside.step(why) {
            tracing::error!("all packets are left to Linux, since {thread} does not get anywhere");
        }
    }
    aside.renew();
    health.note(&found);
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by itself.
            let _panicked = thread.join();
        }
    }
}
