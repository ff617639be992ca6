//! Ctrl-C without leaving anything behind: signals set a flag, and everything that waits checks it.
//!
//! Namespaces and processes would outlive a program that is killed. So while a `Watch` exists, SIGINT, SIGTERM and
//! SIGHUP only set a flag; `sleep` and `check` turn it into an error that runs through every
//! destructor. A second signal ends the program at once.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static RAISED: AtomicBool = AtomicBool::new(false);
const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// A signal requested the end of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// While this exists, signals set the flag; afterwards they have their earlier effect again.
pub struct Watch {
    before: [libc::sigaction; SIGNALS.len()],
}

impl Watch {
    /// Clears the flag and begins. Only one at a time: a second one would see the first one's flag.
    pub fn begin() -> Self {
        RAISED.store(false, Ordering::Relaxed);
        Self { before: SIGNALS.map(|signal| set_action(signal, raise as *const () as libc::sighandler_t)) }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for (signal, before) in SIGNALS.iter().zip(&self.before) {
            // SAFETY: `before` is the action that the kernel itself returned for this signal; no old action is
            // requested.
            unsafe { libc::sigaction(*signal, before, std::ptr::null_mut()) };
        }
    }
}

/// Sets a handler and returns the previous action.
fn set_action(signal: libc::c_int, handler: libc::sighandler_t) -> libc::sigaction {
    let mut before = MaybeUninit::zeroed();
    // SAFETY: all zeroes are a valid sigaction: default handler, empty mask, no flags. SA_RESTART stays
    // off, so that system calls that wait end with EINTR.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler;
    // SAFETY: both point to whole structures that outlive the call; the kernel fills `before`, which was
    // valid as zeroes already should the call fail. The handler only touches an atomic and itself.
    unsafe {
        libc::sigaction(signal, &action, before.as_mut_ptr());
        before.assume_init()
    }
}

extern "C" fn raise(signal: libc::c_int) {
    if RAISED.swap(true, Ordering::Relaxed) {
        set_action(signal, libc::SIG_DFL);
    }
}

/// An error if a signal has arrived.
pub fn check() -> Result<(), Interrupted> {
    if RAISED.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
}

/// Sleeps; a signal ends the sleep.
pub fn sleep(time: Duration) -> Result<(), Interrupted> {
    let end = Instant::now() + time;
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(20)));
    }
}
