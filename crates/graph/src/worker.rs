//! A worker: a thread pinned to a core that runs the engine, and sleeps when no frames arrive.

use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bm_stats::Counters;
use bm_sys::{NoWaker, Waker};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::counters::{AppCounter, CountedLink, LinkCounter, WorkerCounter};
use crate::engine::Engine;
use crate::idle_poll::IdlePoll;
use crate::moderation::{self, Moderation};
use crate::priority::{self, Demote};
use crate::timing::Timing;

/// What a worker does when no frames arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Polls without pause: the lowest latency, but it uses a whole core.
    Busy,
    /// Polls for this long, then sleeps until a port or another thread wakes it; or for short times, if a port must
    /// be polled.
    Sleep {
        /// How long it keeps polling after the last frame.
        after: Duration,
    },
}

impl Default for Idle {
    fn default() -> Self {
        Self::Sleep { after: Duration::from_micros(50) }
    }
}

/// Real-time priority for a worker; a worker that never sleeps alternates with normal priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealTime {
    /// Priority as for SCHED_FIFO, 1 to 99.
    pub priority: u8,
    /// How long it keeps polling after the last frame while it has that priority.
    pub after: Duration,
}

/// Where and how a worker runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The core to pin it to; `None` leaves the choice to the system.
    pub core: Option<usize>,
    /// What it does when no frames arrive.
    pub idle: Idle,
    /// Real-time priority, for a worker that sleeps and whose ports all wake it: one that must poll would keep all
    /// other threads from its core, and does not get it.
    pub real_time: Option<RealTime>,
}

/// The longest sleep: this often a worker shows that it is alive.
#[cfg(not(test))]
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// In tests, longer than any of them waits: a missing wakeup must become visible.
#[cfg(test)]
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// Why a worker did not start.
#[derive(Debug)]
pub enum WorkerError {
    /// The thread could not be created.
    Spawn(io::Error),
    /// The thread could not be pinned.
    Pin {
        core: usize,
        /// What the system said.
        error: io::Error,
    },
    /// The descriptor that wakes it could not be created.
    Waker(NoWaker),
}

impl fmt::Display for WorkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spawn(error) => write!(f, "cannot start a worker thread: {error}"),
            Self::Pin { core, error } => write!(f, "cannot pin a worker to core {core}: {error}"),
            Self::Waker(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for WorkerError {}

impl From<NoWaker> for WorkerError {
    fn from(error: NoWaker) -> Self {
        Self::Waker(error)
    }
}

/// The counters that a worker updates.
pub struct AllCounters {
    /// Its own.
    pub worker: Counters<WorkerCounter>,
    /// For each link of its engine, in the order of [`Engine::links`]; counting continues from the values there.
    pub links: Vec<Counters<LinkCounter>>,
    /// For each app of its engine, in the order of [`Engine::apps`]; without any, apps are not timed.
    pub apps: Vec<Counters<AppCounter>>,
}

impl From<Counters<WorkerCounter>> for AllCounters {
    /// Only its own.
    fn from(worker: Counters<WorkerCounter>) -> Self {
        Self { worker, links: Vec::new(), apps: Vec::new() }
    }
}

/// A running worker.
pub struct Worker {
    thread: Option<JoinHandle<Engine>>,
    stop: Arc<AtomicBool>,
    waker: Waker,
    real_time: Result<Option<Demote>, io::Error>,
}

/// What a worker's thread reports at its start.
struct StartReport {
    pinned: io::Result<()>,
    /// `None` without real-time priority, which an error says was refused.
    real_time: io::Result<Option<Demote>>,
}

impl Worker {
    /// Starts a worker that runs `engine`. A refusal of real-time priority is not an error: see
    /// [`real_time`](Self::real_time).
    ///
    /// # Errors
    /// See [`WorkerError`].
    pub fn start(
        name: &str,
        schedule: Schedule,
        engine: Engine,
        counters: AllCounters,
        waker: Waker,
    ) -> Result<Self, WorkerError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name(name.into());
        let thread = thread.spawn({
            let (stop, waker) = (stop.clone(), waker.clone());
            move || {
                let (report, worker) = Loop::start(schedule, engine, counters, waker);
                // Nobody waits for it if the caller has panicked.
                let _unread = sender.send(report);
                worker.run(&stop)
            }
        });
        let thread = thread.map_err(WorkerError::Spawn)?;
        let mut worker = Self { thread: Some(thread), stop, waker, real_time: Ok(None) };
        if let Ok(StartReport { pinned, real_time }) = receiver.recv() {
            let core = schedule.core.unwrap_or_default();
            pinned.map_err(|error| WorkerError::Pin { core, error })?;
            worker.real_time = real_time;
        }
        Ok(worker)
    }

    /// Whether it has real-time priority.
    ///
    /// # Errors
    /// Why it was refused, if it was requested.
    pub fn real_time(&self) -> Result<bool, &io::Error> {
        self.real_time.as_ref().map(Option::is_some)
    }

    /// Makes a worker that seems to hang a normal thread, until it sleeps again.
    pub fn demote(&self) {
        if self.is_alive()
            && let Ok(Some(demote)) = &self.real_time
        {
            demote.demote();
        }
    }

    /// Whether the thread still runs; it does not after a panic.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends the run, frees all frames, and returns the engine; `None` if the thread has panicked.
    pub fn stop(mut self) -> Option<Engine> {
        self.join()
    }

    fn join(&mut self) -> Option<Engine> {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        self.thread.take()?.join().ok()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.join();
    }
}

fn pin(core: usize) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).map_err(io::Error::from)
}

/// An app has at most this many descriptors: a movable queue has its own, that of its port's device, and that by which
/// another thread wakes the worker for the port.
const DESCRIPTORS_PER_APP: usize = 3;

/// An empty list in the memory of `list`.
fn emptied<'fd>(mut list: Vec<PollFd<'_>>) -> Vec<PollFd<'fd>> {
    list.clear();
    // Collecting a vector's own items reuses its memory; `tests/allocations.rs` would notice if it did not.
    list.into_iter().map(|_| unreachable!("the list is empty")).collect()
}

/// An entry for a descriptor that becomes readable.
fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

struct Loop {
    engine: Engine,
    idle: Idle,
    real_time: Option<priority::RealTime>,
    counters: Counters<WorkerCounter>,
    /// The counters of links, and their values at the start.
    links: Vec<CountedLink>,
    timing: Timing,
    waker: Waker,
    idle_poll: IdlePoll,
    moderation: Moderation,
    /// Frame moves since the last sleep.
    moved: u64,
    /// Memory for the descriptors of a sleep, which borrow nothing between two sleeps.
    descriptors: Vec<PollFd<'static>>,
}

impl Loop {
    /// Called on the worker's thread: pins it, and gives it the priority that it is to have.
    fn start(schedule: Schedule, engine: Engine, counters: AllCounters, waker: Waker) -> (StartReport, Self) {
        let pinned = schedule.core.map_or(Ok(()), pin);
        let mut idle = schedule.idle;
        let mut real_time = None;
        let mut demote = Ok(None);
        if let Some(RealTime { priority, after }) = schedule.real_time
            && idle != Idle::Busy
            && !engine.must_poll()
        {
            match priority::RealTime::begin(priority) {
                Ok((granted, handle)) => {
                    (real_time, demote) = (Some(granted), Ok(Some(handle)));
                    idle = Idle::Sleep { after };
                }
                Err(error) => demote = Err(error),
            }
        }
        // By default the kernel may make sleeps 50 us longer, so that wakeups coincide: too much here. If it
        // refuses this setting, sleeps are that much longer.
        let _longer = rustix::thread::set_current_timer_slack(NonZeroU64::new(1_000));
        let worker = Self {
            idle,
            real_time,
            counters: counters.worker,
            links: counters.links.into_iter().map(CountedLink::new).collect(),
            timing: Timing::new(counters.apps),
            waker,
            idle_poll: IdlePoll::new(),
            moderation: Moderation::new(Instant::now()),
            moved: 0,
            descriptors: Vec::with_capacity(1 + DESCRIPTORS_PER_APP * engine.apps().count()),
            engine,
        };
        (StartReport { pinned, real_time: demote }, worker)
    }

    fn run(mut self, stop: &AtomicBool) -> Engine {
        let mut last_frame = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let moved = self.timing.breathe(&mut self.engine);
            self.counters.add(WorkerCounter::Breaths, 1);
            if moved > 0 {
                self.counters.add(WorkerCounter::Moves, moved);
                self.moved += moved;
                self.publish_links();
                last_frame = Instant::now();
                let busy = last_frame.saturating_duration_since(self.engine.began());
                self.counters.add(WorkerCounter::BusyNs, busy.as_nanos() as u64);
                if let Some(real_time) = &mut self.real_time {
                    real_time.worked(last_frame);
                }
            } else if let Idle::Sleep { after } = self.idle
                && last_frame.elapsed() >= after
            {
                self.sleep(last_frame.elapsed());
            }
        }
        self.engine.stop();
        self.publish_links();
        self.engine
    }

    fn publish_links(&self) {
        for (stats, link) in self.engine.link_stats().zip(&self.links) {
            link.publish(&stats);
        }
    }

    /// Sleeps for a moment, even if frames arrive.
    fn pause(&mut self) {
        self.counters.add(WorkerCounter::Sleeps, 1);
        self.real_time.iter_mut().for_each(priority::RealTime::sleeps);
        std::thread::sleep(moderation::PAUSE);
        self.real_time.iter_mut().for_each(|real_time| real_time.wakes(Instant::now()));
    }

    fn sleep(&mut self, idle: Duration) {
        let moved = std::mem::take(&mut self.moved);
        if self.moderation.should_pause(Instant::now(), moved) {
            return self.pause();
        }
        let may_sleep = self.engine.before_sleep();
        // What a real-time worker waits for, such as room in a device, may need its core.
        if may_sleep || self.real_time.is_some() {
            self.counters.add(WorkerCounter::Sleeps, 1);
            self.real_time.iter_mut().for_each(priority::RealTime::sleeps);
            // Checked each time: a port may hold frames for a moment without a descriptor that shows it.
            let must_poll = !may_sleep || self.engine.must_poll();
            let most = if must_poll { self.idle_poll.next(idle) } else { SLEEP_MAX };
            let timeout = Timespec { tv_sec: most.as_secs() as _, tv_nsec: most.subsec_nanos() as _ };
            // With `poll`, which is in the descriptors' wait queues only while the worker sleeps. An epoll instance would be
            // in them all the time, and the kernel would call it for each packet that a socket has sent: 83 ns a packet.
            // Interrupted or timed out: the loop checks everything in any case, and a wakeup that comes now ends the
            // next sleep immediately.
            let mut descriptors = emptied(std::mem::take(&mut self.descriptors));
            descriptors.push(readable(self.waker.fd()));
            self.engine.wait_on(&mut |fd| descriptors.push(readable(fd)));
            if poll(&mut descriptors, Some(&timeout)) != Ok(0) {
                self.waker.clear();
            }
            self.descriptors = emptied(descriptors);
            self.real_time.iter_mut().for_each(|real_time| real_time.wakes(Instant::now()));
        }
        self.engine.after_sleep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{App, Io, Network};
    use bm_frame::{FramePool, Freelist};
    use bm_stats::{CounterKind, Registry, Scope};

    /// Counts pulls until it may sleep.
    struct Pulls(Arc<std::sync::atomic::AtomicU64>);
    impl App for Pulls {
        fn pull(&mut self, _io: &mut Io<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn until(done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(20), "nothing came of it");
            std::thread::yield_now();
        }
    }

    fn asleep_at_once() -> Schedule {
        Schedule { idle: Idle::Sleep { after: Duration::ZERO }, ..Schedule::default() }
    }

    /// A worker with one app, that sleeps as soon as nothing comes.
    fn worker(app: impl App + 'static) -> (Worker, Counters<WorkerCounter>, Waker) {
        let mut network = Network::new();
        network.app("app", Box::new(app)).unwrap();
        let engine = Engine::new(network, Freelist::new(FramePool::new(64, 2048).unwrap(), 128)).unwrap();
        let scope = Scope::Worker { worker: 0 };
        let counters = Counters::open(&Registry::anonymous(64).unwrap(), scope).unwrap();
        let waker = Waker::new().unwrap();
        let schedule = Schedule { core: Some(0), ..asleep_at_once() };
        let worker = Worker::start("bm-test", schedule, engine, counters.into(), waker.clone()).unwrap();
        (worker, counters, waker)
    }

    #[test]
    fn counts_on_where_an_earlier_worker_ended() {
        let mut network = Network::new();
        for name in ["a", "b"] {
            network.app(name, Box::new(Pulls(Arc::default()))).unwrap();
        }
        network.link("a.out -> b.in").unwrap();
        let engine = Engine::new(network, Freelist::new(FramePool::new(64, 2048).unwrap(), 128)).unwrap();
        let registry = Registry::anonymous(64).unwrap();
        let links = Counters::open(&registry, Scope::Link { worker: 0, link: "a.out -> b.in" }).unwrap();
        let before = |at: usize| 40 + at as u64;
        LinkCounter::ALL.iter().enumerate().for_each(|(at, &counter)| links.set(counter, before(at)));
        let worker = Counters::open(&registry, Scope::Worker { worker: 0 }).unwrap();
        let counters = AllCounters { links: vec![links], ..worker.into() };
        let worker =
            Worker::start("bm-test", asleep_at_once(), engine, counters, Waker::new().unwrap()).unwrap();
        assert!(worker.stop().is_some());
        let after: Vec<_> = LinkCounter::ALL.iter().map(|&counter| links.get(counter)).collect();
        assert_eq!(after, [40, 41, 42, 43, 44]);
    }

    /// Must be polled, and records whether it was.
    struct Polled(Arc<std::sync::atomic::AtomicU64>);
    impl App for Polled {
        fn pull(&mut self, _io: &mut Io<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn must_be_polled(&self) -> bool {
            true
        }
    }

    /// A worker that was to have real-time priority, and whether it has; `None` where the system refuses it.
    fn real_time(app: impl App + 'static, idle: Idle) -> Option<(Worker, Counters<WorkerCounter>, bool)> {
        let mut network = Network::new();
        network.app("app", Box::new(app)).unwrap();
        let engine = Engine::new(network, Freelist::new(FramePool::new(64, 2048).unwrap(), 128)).unwrap();
        let scope = Scope::Worker { worker: 0 };
        let counters = Counters::open(&Registry::anonymous(64).unwrap(), scope).unwrap();
        let wanted = RealTime { priority: 1, after: Duration::ZERO };
        let schedule = Schedule { core: None, idle, real_time: Some(wanted) };
        let waker = Waker::new().unwrap();
        let worker = Worker::start("bm-test", schedule, engine, counters.into(), waker).unwrap();
        match worker.real_time() {
            Ok(granted) => Some((worker, counters, granted)),
            Err(error) => {
                eprintln!("skipped: real-time priority is refused: {error}");
                None
            }
        }
    }

    #[test]
    fn real_time_is_for_workers_that_sleep_until_they_are_woken() {
        let idle = Idle::Sleep { after: Duration::from_secs(3600) };
        let Some((worker, counters, granted)) = real_time(Pulls(Arc::default()), idle) else { return };
        assert!(granted);
        // At once: a normal worker would poll for an hour.
        until(|| counters.get(WorkerCounter::Sleeps) >= 1);
        worker.demote();
        assert!(worker.is_alive() && worker.stop().is_some());
        let granted = |app: Polled, idle| real_time(app, idle).map(|(_, _, granted)| granted);
        assert_eq!(granted(Polled(Arc::default()), idle), Some(false), "nobody would wake it");
        let busy = real_time(Pulls(Arc::default()), Idle::Busy).map(|(_, _, granted)| granted);
        assert_eq!(busy, Some(false), "it never sleeps");
    }

    #[test]
    fn sleeps_briefly_if_an_app_must_be_polled() {
        let pulls = Arc::default();
        let (worker, counters, _waker) = worker(Polled(Arc::clone(&pulls)));
        // Nobody wakes it: a sleep of the longest kind would not end in time.
        until(|| counters.get(WorkerCounter::Sleeps) >= 100);
        assert!(pulls.load(Ordering::Relaxed) >= 100);
        assert!(worker.stop().is_some());
    }

    #[test]
    fn sleeps_when_idle_and_wakes_when_woken() {
        let pulls = Arc::default();
        let (worker, counters, waker) = worker(Pulls(Arc::clone(&pulls)));
        until(|| counters.get(WorkerCounter::Sleeps) >= 1);
        let before = pulls.load(Ordering::Relaxed);
        waker.wake();
        until(|| counters.get(WorkerCounter::Sleeps) >= 2);
        assert!(pulls.load(Ordering::Relaxed) > before);
        assert!(worker.is_alive());
        assert!(worker.stop().unwrap().breaths() > 0);
    }
}
