//! Heartbeats: whether each thread of the process makes progress.
//!
//! ```text
//! thread    watch(longest silence) ──► beat, beat, rest, beat, ..      one store each, to its own word
//! watchdog  Observer::look         ──► which threads are silent for longer, and which have panicked
//! ```
//!
//! The list of threads belongs to the process, like the threads: code deep inside a loop calls [`beat`] without a handle,
//! which does nothing in threads that are not watched. Why there are heartbeats, and who checks them:
//! `docs/decisions/0021-heartbeats.md`.
//!
//! Absent on purpose: what to do about a thread that hangs. That is up to the user of [`Observer`].

#![forbid(unsafe_code)]

mod starved;

use crate::Mutex;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use starved::CoreWait;

/// Bit of the state: the thread waits for something that may never happen.
const RESTS: u64 = 1;
/// Bit of the state: the thread has panicked.
const PANICKED: u64 = 2;
/// What a beat adds.
const BEAT: u64 = 4;

/// Number of threads watched so far.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// All threads that are watched.
static THREADS: Mutex<Vec<Arc<ThreadState>>> = Mutex::new(Vec::new());

thread_local! {
    /// The entry of this thread.
    static OWN: RefCell<Option<Arc<ThreadState>>> = const { RefCell::new(None) };
}

struct ThreadState {
    /// Unique number of the entry.
    number: u64,
    name: String,
    /// Directory of the thread in /proc; empty if unknown.
    task: std::path::PathBuf,
    silent_max: Duration,
    /// Number of beats, and bits for what the thread does. Only the thread writes it.
    word: AtomicU64,
}

impl ThreadState {
    fn set(&self, flags: u64) {
        let beats = self.word.load(Ordering::Relaxed) & !(BEAT - 1);
        self.word.store(beats.wrapping_add(BEAT) | flags, Ordering::Relaxed);
    }
}

/// The calling thread is watched until this is dropped.
#[must_use = "the thread is watched as long as this lives"]
pub struct Watch {
    state: Arc<ThreadState>,
    /// Not `Send`: it belongs to its thread.
    _here: std::marker::PhantomData<*const ()>,
}

/// Watches the calling thread, which must call [`beat`] at least every `silent_max`, or [`rest`].
pub fn watch(silent_max: Duration) -> Watch {
    let name = std::thread::current().name().unwrap_or("(unnamed)").into();
    let task = std::fs::read_link("/proc/thread-self").map(|task| std::path::Path::new("/proc").join(task));
    let (number, task) = (COUNT.fetch_add(1, Ordering::Relaxed), task.unwrap_or_default());
    let state = Arc::new(ThreadState { number, name, task, silent_max, word: AtomicU64::new(BEAT) });
    THREADS.lock().push(state.clone());
    OWN.set(Some(state.clone()));
    Watch { state, _here: std::marker::PhantomData }
}

/// Reports progress of the calling thread. Cheap enough for every iteration of a loop.
#[inline]
pub fn beat() {
    OWN.with_borrow(|own| own.iter().for_each(|state| state.set(0)));
}

/// Excuses the calling thread until its next [`beat`], while it waits for an event.
pub fn rest() {
    OWN.with_borrow(|own| own.iter().for_each(|state| state.set(RESTS)));
}

impl Drop for Watch {
    fn drop(&mut self) {
        OWN.set(None);
        if std::thread::panicking() {
            // The next call of `look` removes it from the list.
            self.state.set(PANICKED);
            return;
        }
        THREADS.lock().retain(|state| !Arc::ptr_eq(state, &self.state));
    }
}

/// A thread that makes no progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Name of the thread.
    pub thread: String,
    /// What is wrong with it.
    pub kind: FailureKind,
}

/// What is wrong with a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// It has panicked. Reported once.
    Panicked,
    /// It has made no progress for this long, which exceeds its limit.
    Silent(Duration),
}

/// Checks all threads; more frequent calls find problems sooner.
#[derive(Default)]
pub struct Observer {
    /// By the number of the thread.
    checks: HashMap<u64, LastCheck>,
}

/// What the last check of a thread found.
struct LastCheck {
    word: u64,
    /// When the thread had this word first.
    since: Instant,
    core_wait: CoreWait,
}

impl LastCheck {
    fn new(word: u64, now: Instant) -> Self {
        Self { word, since: now, core_wait: CoreWait::default() }
    }
}

impl Observer {
    /// An observer that has not checked any thread yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Threads that make no progress at `now`, or have panicked since the last call.
    pub fn look(&mut self, now: Instant) -> Vec<Failure> {
        let mut all = THREADS.lock();
        let mut found = Vec::new();
        all.retain(|state| {
            let kind = self.check(state, now);
            found.extend(kind.map(|kind| Failure { thread: state.name.clone(), kind }));
            kind != Some(FailureKind::Panicked)
        });
        self.checks.retain(|number, _| all.iter().any(|state| state.number == *number));
        found
    }

    fn check(&mut self, state: &Arc<ThreadState>, now: Instant) -> Option<FailureKind> {
        let word = state.word.load(Ordering::Relaxed);
        let last = self.checks.entry(state.number).or_insert_with(|| LastCheck::new(word, now));
        if word & PANICKED != 0 {
            return Some(FailureKind::Panicked);
        }
        if word != last.word || word & RESTS != 0 {
            *last = LastCheck::new(word, now);
            return None;
        }
        let silent = now.saturating_duration_since(last.since);
        if silent < state.silent_max / 2 {
            return None;
        }
        // A thread that got no core could not make progress.
        let waited = last.core_wait.until(now, &state.task);
        (silent.saturating_sub(waited) > state.silent_max).then_some(FailureKind::Silent(silent))
    }
}

#[cfg(test)]
mod tests;
