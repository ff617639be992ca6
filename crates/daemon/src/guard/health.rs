//! Reacts to threads that panic or make no progress, and reports to systemd.
//!
//! The driver hands packets to Linux meanwhile.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bm_control::control_thread::Handle;
use bm_sys::heartbeat::{Failure, FailureKind};

use crate::guard::notify;
use crate::lock;
use crate::log;

/// How long the main thread may make no progress; it restarts a data path that has failed.
pub const MAIN_SILENT_MAX: Duration = Duration::from_secs(30);

/// Threads that cannot be restarted: if one of them panics, the process ends, so that its supervisor starts another. The
/// kernel path keeps forwarding meanwhile, as after any other crash.
const NEEDED: [&str; 8] =
    ["bm-control", "bm-firewall", "bm-grace", "bm-switch", "bm-cluster", "bm-probes", "bm-dpdk", "bm-xfrm"];

/// Threads that make no progress, as of the last check.
#[derive(Clone, Default)]
pub struct Silent(Arc<Mutex<Vec<(String, Duration)>>>);

impl Silent {
    /// Number of these threads.
    pub fn count(&self) -> u32 {
        lock(&self.0).len() as u32
    }

    /// One note for `status` on each thread.
    pub fn notes(&self) -> Vec<String> {
        let silent = lock(&self.0);
        silent
            .iter()
            .map(|(thread, silent)| {
                format!("thread {thread} has made no progress for {} s", silent.as_secs())
            })
            .collect()
    }
}

/// Receives the findings of the watchdog.
pub struct Health {
    silent: Silent,
    logged: BTreeSet<String>,
    watchdog: Option<Duration>,
    told_at: Instant,
}

impl Health {
    /// A receiver, and a view of the threads that make no progress.
    fn new() -> (Self, Silent) {
        let silent = Silent::default();
        let watchdog = notify::watchdog();
        (Self { silent: silent.clone(), logged: BTreeSet::new(), watchdog, told_at: Instant::now() }, silent)
    }

    /// Subscribes to the watchdog of a driver; returns a view of the threads that make no progress.
    pub fn subscribe(control: &Handle) -> Silent {
        let (mut health, silent) = Self::new();
        control.on_health(move |found| health.take(found));
        silent
    }

    /// Handles the findings of one check; called about twenty times a second.
    fn take(&mut self, found: &[Failure]) {
        let panicked = found.iter().find(|trouble| {
            trouble.kind == FailureKind::Panicked && NEEDED.contains(&trouble.thread.as_str())
        });
        if let Some(trouble) = panicked {
            tracing::error!("thread {} panicked: the daemon ends and must be restarted", trouble.thread);
            log::flush();
            // No orderly end: control may have left its tables half updated.
            std::process::exit(1);
        }
        let silent = found.iter().filter_map(|failure| match failure.kind {
            FailureKind::Silent(silent) => Some((failure.thread.clone(), silent)),
            FailureKind::Panicked => None,
        });
        let silent: Vec<_> = silent.collect();
        self.log_changes(silent.iter().map(|(thread, _)| thread.clone()).collect());
        if silent.is_empty() {
            self.tell_systemd();
        }
        *lock(&self.silent.0) = silent;
    }

    /// Logs each thread once when it stops making progress, and once when it continues.
    fn log_changes(&mut self, silent: BTreeSet<String>) {
        for thread in silent.difference(&self.logged) {
            tracing::error!("thread {thread} makes no progress");
        }
        for thread in self.logged.difference(&silent) {
            tracing::warn!("thread {thread} makes progress again");
        }
        self.logged = silent;
    }

    fn tell_systemd(&mut self) {
        if self.watchdog.is_some_and(|every| self.told_at.elapsed() >= every) {
            self.told_at = Instant::now();
            notify::notify("WATCHDOG=1");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(thread: &str, kind: FailureKind) -> Failure {
        Failure { thread: thread.into(), kind }
    }

    #[test]
    fn silent_threads_are_counted_until_they_continue() {
        let (mut health, silent) = Health::new();
        health.take(&[failure("bm-slow", FailureKind::Silent(Duration::from_secs(3)))]);
        assert_eq!(silent.count(), 1);
        assert_eq!(silent.notes(), ["thread bm-slow has made no progress for 3 s"]);
        // The data path restarts this thread.
        health.take(&[failure("bm-slow", FailureKind::Panicked)]);
        assert_eq!(silent.count(), 0);
    }

    /// What the next test starts in a process of its own.
    #[test]
    #[ignore = "ends the process"]
    fn a_panic_of_control_ends_the_process() {
        Health::new().0.take(&[failure("bm-control", FailureKind::Panicked)]);
    }

    #[test]
    fn a_panic_of_a_thread_that_cannot_be_restarted_ends_the_process() {
        let mut child = std::process::Command::new(std::env::current_exe().expect("this test's own"));
        child.args(["--ignored", "--exact", "guard::health::tests::a_panic_of_control_ends_the_process"]);
        let output = child.output().expect("it starts");
        // A test that fails ends with 101, and one that continues with 0.
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
