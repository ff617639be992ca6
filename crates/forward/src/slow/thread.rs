//! The slow path on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bm_graph::{Waker, WorkerError};

use super::{Now, SlowPath};

/// A running slow path.
pub struct SlowThread {
    thread: Option<JoinHandle<SlowPath>>,
    stop: Arc<AtomicBool>,
    waker: Waker,
}

/// Milliseconds of a day: what "since midnight" wraps at.
const DAY_MS: u128 = 24 * 60 * 60 * 1000;

impl SlowThread {
    /// Starts a thread that runs `slow`.
    ///
    /// # Errors
    /// [`WorkerError::Spawn`].
    pub fn start(mut slow: SlowPath) -> Result<Self, WorkerError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, waker) = (stop.clone(), slow.bell.waker().clone());
        let run = move || {
            let started = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                if slow.run(now(started)) == 0 {
                    slow.sleep();
                }
            }
            slow.stop();
            slow
        };
        let thread = std::thread::Builder::new().name("bm-slow".into()).spawn(run);
        thread.map(|thread| Self { thread: Some(thread), stop, waker }).map_err(WorkerError::Spawn)
    }

    /// Whether the thread still runs: one that panicked does not.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends the run, frees all frames, and gives the slow path back; `None` if the thread had panicked.
    pub fn stop(mut self) -> Option<SlowPath> {
        self.join()
    }

    fn join(&mut self) -> Option<SlowPath> {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        self.thread.take()?.join().ok()
    }
}

impl Drop for SlowThread {
    fn drop(&mut self) {
        self.join();
    }
}

fn now(started: Instant) -> Now {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now {
        monotonic_ns: started.elapsed().as_nanos() as u64,
        midnight_ms: (since_epoch.as_millis() % DAY_MS) as u32,
    }
}
