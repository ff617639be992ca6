//! The slow path on a separate thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bm_graph::{URGENT, Waker, WorkerError, set_nice};

use super::{Now, SlowPath};

/// A running slow path.
pub struct SlowThread {
    thread: Option<JoinHandle<SlowPath>>,
    stop: Arc<AtomicBool>,
    waker: Waker,
}

/// The longest time that one iteration may take.
const SILENT_MAX: Duration = Duration::from_secs(2);
/// Milliseconds of a day, at which "since midnight" wraps.
const DAY_MS: u128 = 24 * 60 * 60 * 1000;

impl SlowThread {
    /// Starts a thread that runs `slow`.
    ///
    /// # Errors
    /// [`WorkerError::Spawn`].
    pub fn start(mut slow: SlowPath) -> Result<Self, WorkerError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, waker) = (stop.clone(), slow.doorbell.waker().clone());
        let thread = std::thread::Builder::new().name("bm-slow".into()).spawn(move || {
            let _watched = bm_sys::heartbeat::watch(SILENT_MAX);
            // Without leave it works as well, only later on a busy machine.
            let _refused = set_nice(URGENT);
            while !stopped.load(Ordering::Relaxed) {
                let now = now();
                bm_sys::heartbeat::beat();
                if slow.run(now) == 0 {
                    slow.sleep(now);
                }
            }
            slow.stop();
            slow
        });
        thread.map(|thread| Self { thread: Some(thread), stop, waker }).map_err(WorkerError::Spawn)
    }

    /// Whether the thread still runs; it does not after a panic.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends the run, frees all frames, and returns the slow path; `None` if the thread has panicked.
    pub fn stop(mut self) -> Option<SlowPath> {
        self.join()
    }

    /// Ends the run, then that of the workers with `end_workers`: what the slow path sent last still leaves, and what
    /// workers passed on after its end is freed and counted. `None` as for [`stop`](Self::stop).
    pub fn stop_with(mut self, end_workers: impl FnOnce()) -> Option<SlowPath> {
        let slow = self.join();
        end_workers();
        let mut slow = slow?;
        slow.stop();
        Some(slow)
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

fn now() -> Now {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { monotonic_ns: bm_graph::clock_ns(), midnight_ms: (since_epoch.as_millis() % DAY_MS) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Lab;
    use bm_stats::Reason;
    use std::time::Instant;

    const LINES: &str = "
        interface left 0 02:00:00:00:00:01 192.0.2.1/24
        interface right 1 02:00:00:00:00:02 198.51.100.1/24
        neighbor 192.0.2.9 left 02:00:00:00:01:09";

    /// ARP, which is Linux's; and a packet for a neighbor that nobody knows.
    const ARP: [u8; 16] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 1, 9, 8, 6, 0, 1];
    const UNRESOLVED: [u8; 34] = [
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 9, 8, 0, 0x45, 0, 0, 20, 0, 1, 0, 0, 64, 17, 0x8e, 0x9a, 192, 0, 2,
        9, 198, 51, 100, 0x09,
    ];

    fn until(mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(20), "nothing came of it");
            std::thread::yield_now();
        }
    }

    #[test]
    fn frees_what_workers_pass_on_while_they_are_stopped() {
        let mut lab = Lab::new(LINES);
        let thread = SlowThread::start(lab.take_slow_path()).unwrap();
        let slow = thread.stop_with(|| {
            lab.send(0, &ARP);
            lab.run();
        });
        assert_eq!((lab.passed_to_slow_path(), lab.drops()), (1, vec![(Reason::Stopped, 1)]));
        lab.put_slow_path_back(slow.unwrap());
    }

    #[test]
    fn a_dropped_thread_has_ended() {
        let mut lab = Lab::new(LINES);
        let thread = SlowThread::start(lab.take_slow_path()).unwrap();
        let stop = thread.stop.clone();
        drop(thread);
        // The thread held the third.
        assert_eq!((stop.load(Ordering::Relaxed), Arc::strong_count(&stop)), (true, 1));
    }

    #[test]
    fn a_day_has_86400_seconds() {
        let midnight_ms = now().midnight_ms;
        assert!(midnight_ms < 86_400_000);
        assert_eq!(DAY_MS, 86_400_000);
    }

    #[test]
    fn works_and_sleeps_and_is_woken() {
        let mut lab = Lab::new(LINES);
        let mut slow = lab.take_slow_path();
        // Whoever is not woken sleeps for longer than this test waits.
        slow.sleep_max = Duration::from_secs(3600);
        let thread = SlowThread::start(slow).unwrap();
        for round in 1..=50 {
            lab.send(0, &ARP);
            lab.run();
            let mut seen = 0;
            until(|| {
                seen += lab.take_host(0).len();
                seen == 1
            });
            // Now and then long enough for it to fall asleep.
            if round % 10 == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let mut unresolved = UNRESOLVED.to_vec();
        let sum = bm_wire::checksum::ipv4_header(&unresolved[14..34]);
        unresolved[24..26].copy_from_slice(&sum.to_be_bytes());
        lab.send(0, &unresolved);
        lab.run();
        until(|| lab.held() == 1);
        assert!(thread.is_alive());
        lab.change("neighbor 198.51.100.9 right 02:00:00:00:02:09");
        until(|| {
            lab.run();
            lab.take(1).len() == 1
        });
        lab.put_slow_path_back(thread.stop().unwrap());
    }
}
