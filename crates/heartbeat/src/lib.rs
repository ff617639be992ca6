//! Heartbeats: whether each thread of the process gets anywhere.
//!
//! ```text
//! thread    watch(longest silence) ──► beat, beat, rest, beat, ..      one store each, to a word of its own
//! watchdog  Observer::look         ──► who is silent for longer, and who has panicked
//! ```
//!
//! The list of threads is the process's own, as its threads are: whoever works on behalf of another thread, deep down in
//! a loop, calls [`beat`] without being handed anything, and nothing happens where nobody watches.
//!
//! Absent on purpose: what to do about a thread that hangs. Who looks knows that.

#![forbid(unsafe_code)]

mod starved;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use starved::Waited;

/// The thread waits for something that may never come.
const RESTS: u64 = 1;
/// The thread has panicked.
const PANICKED: u64 = 2;
/// What a beat adds.
const BEAT: u64 = 4;

/// How many threads were watched so far.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// All threads that are watched.
static THREADS: Mutex<Vec<Arc<Pulse>>> = Mutex::new(Vec::new());

thread_local! {
    /// That of this thread.
    static OWN: RefCell<Option<Arc<Pulse>>> = const { RefCell::new(None) };
}

fn threads() -> MutexGuard<'static, Vec<Arc<Pulse>>> {
    // A panic while the lock was held cannot leave the list half-changed.
    THREADS.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Pulse {
    /// No two threads have the same.
    number: u64,
    name: String,
    /// Its folder in /proc; empty if that is not known.
    task: std::path::PathBuf,
    silent_max: Duration,
    /// Beats and what the thread does now. The thread alone writes it.
    word: AtomicU64,
}

impl Pulse {
    fn set(&self, flags: u64) {
        let beats = self.word.load(Ordering::Relaxed) & !(BEAT - 1);
        self.word.store(beats.wrapping_add(BEAT) | flags, Ordering::Relaxed);
    }
}

/// The calling thread is watched until this is dropped.
#[must_use = "the thread is watched as long as this lives"]
pub struct Watched {
    pulse: Arc<Pulse>,
    /// It belongs to its thread.
    _here: std::marker::PhantomData<*const ()>,
}

/// Has the calling thread be watched, under its name: it says [`beat`] at least every `silent_max`, or [`rest`].
pub fn watch(silent_max: Duration) -> Watched {
    let name = std::thread::current().name().unwrap_or("a thread without a name").into();
    let task = std::fs::read_link("/proc/thread-self").map(|task| std::path::Path::new("/proc").join(task));
    let (number, task) = (COUNT.fetch_add(1, Ordering::Relaxed), task.unwrap_or_default());
    let pulse = Arc::new(Pulse { number, name, task, silent_max, word: AtomicU64::new(BEAT) });
    threads().push(pulse.clone());
    OWN.set(Some(pulse.clone()));
    Watched { pulse, _here: std::marker::PhantomData }
}

/// The calling thread has got somewhere. Cheap enough for each turn of a loop.
#[inline]
pub fn beat() {
    OWN.with_borrow(|own| own.iter().for_each(|pulse| pulse.set(0)));
}

/// The calling thread waits from here to its next [`beat`], for as long as that takes.
pub fn rest() {
    OWN.with_borrow(|own| own.iter().for_each(|pulse| pulse.set(RESTS)));
}

impl Drop for Watched {
    fn drop(&mut self) {
        OWN.set(None);
        if std::thread::panicking() {
            // Whoever looks next takes it off the list.
            self.pulse.set(PANICKED);
            return;
        }
        threads().retain(|pulse| !Arc::ptr_eq(pulse, &self.pulse));
    }
}

/// A thread that does not get anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Its name.
    pub thread: String,
    /// What is wrong with it.
    pub what: What,
}

/// What is wrong with a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It has panicked. This is told once.
    Panicked,
    /// It has not got anywhere for so long, which is longer than it said.
    Silent(Duration),
}

/// Looks at all threads now and then. Who looks more often sees sooner.
#[derive(Default)]
pub struct Observer {
    seen: HashMap<u64, Seen>,
}

/// What was seen of a thread the last times.
struct Seen {
    word: u64,
    since: Instant,
    waited: Waited,
}

impl Observer {
    /// An observer that has seen nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Who does not get anywhere at `now`.
    pub fn look(&mut self, now: Instant) -> Vec<Trouble> {
        let mut all = threads();
        let mut found = Vec::new();
        all.retain(|pulse| {
            let what = self.look_at(pulse, now);
            found.extend(what.map(|what| Trouble { thread: pulse.name.clone(), what }));
            what != Some(What::Panicked)
        });
        self.seen.retain(|seen, _| all.iter().any(|pulse| pulse.number == *seen));
        found
    }

    fn look_at(&mut self, pulse: &Arc<Pulse>, now: Instant) -> Option<What> {
        let word = pulse.word.load(Ordering::Relaxed);
        let fresh = || Seen { word, since: now, waited: Waited::default() };
        let seen = self.seen.entry(pulse.number).or_insert_with(fresh);
        if word & PANICKED != 0 {
            return Some(What::Panicked);
        }
        if word != seen.word || word & RESTS != 0 {
            *seen = fresh();
            return None;
        }
        let silent = now.saturating_duration_since(seen.since);
        if silent < pulse.silent_max / 2 {
            return None;
        }
        // Who could not run cannot have got anywhere.
        let waited = seen.waited.until(now, &pulse.task);
        (silent.saturating_sub(waited) > pulse.silent_max).then_some(What::Silent(silent))
    }
}

#[cfg(test)]
mod tests;
