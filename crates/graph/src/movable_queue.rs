//! A queue of a port that may move between workers while all of them run.
//!
//! ```text
//! worker 0: MovableQueue [port] ─ output -> router   QueueOwner::give_to(1):  worker 0, at its next breath: gives it up
//! worker 1: MovableQueue [    ] ─ output -> router                            worker 1: takes it, and receives from then on
//! ```
//!
//! Every worker has a [`MovableQueue`], with its own links, and the port is in one of them. It moves between two
//! breaths: what it had received has passed the old worker's router by then, and frames for which its device had no
//! room move along, so no frame is lost. The new worker sends through other queues than the old one, and does not
//! wait for the frames of those. In a breath without a change it costs one check of a number.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bm_sys::{Mutex, Waker};

use crate::app::{App, Io};
use crate::port_app::PortApp;
use crate::worker::WorkerError;

/// Wakes a worker to check its queue.
struct QueueWaker {
    waker: Waker,
    is_set: AtomicBool,
}

impl QueueWaker {
    fn wake(&self) {
        // In this order: a thread that clears the waker too early is woken once more, and one that has cleared it is
        // not woken again and again by a wake that it does not know.
        self.waker.wake();
        self.is_set.store(true, Ordering::Release);
    }

    fn clear(&self) {
        if self.is_set.load(Ordering::Relaxed) && self.is_set.swap(false, Ordering::Acquire) {
            self.waker.clear();
        }
    }
}

/// What the workers and the thread that moves the queue share.
struct Handover {
    /// The worker that is to own the queue.
    owner: AtomicUsize,
    /// The port while it moves.
    between: Mutex<Option<Box<PortApp>>>,
    /// One for each worker.
    wakers: Vec<QueueWaker>,
}

/// Decides which worker owns a queue.
#[derive(Clone)]
pub struct QueueOwner(Arc<Handover>);

impl QueueOwner {
    /// Creates a queue for each of `workers` workers, with the port in that of `owner`.
    ///
    /// # Errors
    /// [`WorkerError::Waker`] if the descriptors that wake them cannot be created.
    pub fn new(
        port: PortApp,
        owner: usize,
        workers: usize,
    ) -> Result<(Self, Vec<MovableQueue>), WorkerError> {
        let mut wakers = Vec::with_capacity(workers);
        for _ in 0..workers {
            wakers.push(QueueWaker { waker: Waker::new()?, is_set: AtomicBool::new(false) });
        }
        let between = Mutex::new(Some(Box::new(port)));
        let handover = Arc::new(Handover { owner: AtomicUsize::new(owner), between, wakers });
        let queues = (0..workers).map(|worker| MovableQueue::new(handover.clone(), worker)).collect();
        Ok((Self(handover), queues))
    }

    /// The worker that owns the queue, or is about to.
    pub fn owner(&self) -> usize {
        self.0.owner.load(Ordering::Relaxed)
    }

    /// Moves the queue to another worker; does nothing if there is no such worker.
    pub fn give_to(&self, worker: usize) {
        if worker < self.0.wakers.len() {
            let before = self.0.owner.swap(worker, Ordering::AcqRel);
            self.0.wakers[before].wake();
            self.0.wakers[worker].wake();
        }
    }
}

/// A worker's place for the queue.
pub struct MovableQueue {
    handover: Arc<Handover>,
    worker: usize,
    port: Option<Box<PortApp>>,
}

impl MovableQueue {
    fn new(handover: Arc<Handover>, worker: usize) -> Self {
        Self { handover, worker, port: None }
    }

    #[cold]
    fn take(&mut self) {
        self.port = self.handover.between.lock().take();
    }

    #[cold]
    fn give(&mut self) {
        *self.handover.between.lock() = self.port.take();
        if let Some(waker) = self.handover.wakers.get(self.handover.owner.load(Ordering::Acquire)) {
            waker.wake();
        }
    }
}

impl App for MovableQueue {
    fn is_port(&self) -> bool {
        true
    }

    fn pull(&mut self, io: &mut Io<'_>) {
        let is_ours = self.handover.owner.load(Ordering::Relaxed) == self.worker;
        match (is_ours, self.port.is_some()) {
            (true, false) => self.take(),
            (false, true) => self.give(),
            _ => {}
        }
        if let Some(port) = &mut self.port {
            port.pull(io);
        }
    }

    fn push(&mut self, io: &mut Io<'_>) {
        if let Some(port) = &mut self.port {
            port.push(io);
        }
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        self.port.as_ref()?.wait_on()
    }

    fn wakeups<'a>(&'a self, add: &mut dyn FnMut(BorrowedFd<'a>)) {
        add(self.handover.wakers[self.worker].waker.fd());
        if let Some(port) = &self.port {
            port.wakeups(add);
        }
    }

    fn must_be_polled(&self) -> bool {
        self.port.as_ref().is_some_and(|port| port.must_be_polled())
    }

    fn before_sleep(&mut self) -> bool {
        self.port.as_mut().is_none_or(|port| port.before_sleep())
    }

    fn after_sleep(&mut self) {
        self.handover.wakers[self.worker].clear();
        if let Some(port) = &mut self.port {
            port.after_sleep();
        }
    }

    fn stop(&mut self, io: &mut Io<'_>) {
        // A port that is being moved is stopped by the first worker that ends and sees it; each worker that ends
        // checks.
        let between = self.handover.between.lock().take();
        for mut port in between.into_iter().chain(self.port.take()) {
            port.stop(io);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, Idle, Network, ReplaceablePort, Schedule, Worker};
    use bm_frame::{Burst, FramePool, Freelist};
    use bm_port::{MemoryPort, Port, Wire};
    use bm_stats::{Account, Counters, Entry, Registry, Scope};
    use std::time::{Duration, Instant};

    /// Frees what comes in, and counts it.
    struct Sink(Arc<AtomicUsize>);
    impl App for Sink {
        fn push(&mut self, io: &mut Io<'_>) {
            while let Some(frame) = io.receive(0) {
                io.frames.free(frame);
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    struct Bench {
        wire: Wire,
        frame_pool: Arc<FramePool>,
        received: Account,
        handle: QueueOwner,
        engines: Vec<Engine>,
        counts: Vec<Arc<AtomicUsize>>,
        registry: Registry,
    }

    /// A queue, first of the worker 0 of two, before two sinks.
    fn bench() -> Bench {
        bench_with(|wire| Box::new(MemoryPort::new(wire)))
    }

    fn bench_with(port: impl FnOnce(Wire) -> Box<dyn Port>) -> Bench {
        let (wire, frame_pool) = (Wire::new(), FramePool::new(1024, 2048).unwrap());
        let registry = Registry::anonymous(2048).unwrap();
        let received = Account::open(&registry, Scope::Other("receive")).unwrap();
        let sent = Account::open(&registry, Scope::Other("transmit")).unwrap();
        let port = PortApp::new(port(wire.clone()), received, sent);
        let (handle, queues) = QueueOwner::new(port, 0, 2).unwrap();
        let counts = vec![Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
        let engine = |(queue, count): (MovableQueue, &Arc<AtomicUsize>)| {
            let mut network = Network::new();
            network.app("q", Box::new(queue)).unwrap();
            network.app("sink", Box::new(Sink(count.clone()))).unwrap();
            network.link("q.output -> sink.input").unwrap();
            Engine::new(network, Freelist::new(frame_pool.clone(), 128)).unwrap()
        };
        let engines = queues.into_iter().zip(&counts).map(engine).collect();
        Bench { wire, frame_pool, received, handle, engines, counts, registry }
    }

    fn counted(bench: &Bench) -> [usize; 2] {
        [0, 1].map(|at| bench.counts[at].load(Ordering::Relaxed))
    }

    #[test]
    fn a_queue_goes_from_worker_to_worker_between_breaths() {
        let mut bench = bench();
        let breathe = |bench: &mut Bench, frames: usize| {
            (0..frames).for_each(|_| bench.wire.send(&[1; 60]));
            bench.engines.iter_mut().for_each(|engine| _ = engine.breathe());
        };
        breathe(&mut bench, 3);
        assert_eq!((counted(&bench), bench.handle.owner()), ([3, 0], 0));
        bench.handle.give_to(1);
        breathe(&mut bench, 4);
        assert_eq!(counted(&bench), [3, 4], "given up and taken in one round");
        bench.handle.give_to(7);
        bench.handle.give_to(0);
        breathe(&mut bench, 5);
        assert_eq!(
            (counted(&bench), bench.handle.owner()),
            ([3, 4], 0),
            "the first breathes before the second"
        );
        breathe(&mut bench, 0);
        assert_eq!(counted(&bench), [8, 4]);
        bench.engines.iter_mut().for_each(|engine| assert_eq!(engine.stop(), 0));
        assert_eq!((bench.received.get(Entry::Received), bench.received.balance()), (12, 0));
        bench.engines.clear();
        assert_eq!(bench.frame_pool.available(), 1024);
    }

    #[test]
    fn a_port_on_its_way_is_closed_by_who_ends() {
        let mut bench = bench();
        bench.engines.iter_mut().for_each(|engine| _ = engine.breathe());
        bench.handle.give_to(1);
        bench.engines[0].breathe();
        bench.wire.send(&[1; 60]);
        bench.engines.iter_mut().for_each(|engine| _ = engine.stop());
        bench.engines.clear();
        assert_eq!((bench.frame_pool.available(), bench.received.balance()), (1024, 0));
    }

    /// Starts a worker for each engine, which sleeps as soon as it has nothing to do.
    fn workers(bench: &mut Bench) -> Vec<Worker> {
        let registry = &bench.registry;
        let start = |(at, engine): (usize, Engine)| {
            let schedule = Schedule { idle: Idle::Sleep { after: Duration::ZERO }, ..Schedule::default() };
            let counters =
                Counters::<crate::WorkerCounter>::open(registry, Scope::Worker { worker: at }).unwrap();
            Worker::start("bm-test", schedule, engine, counters.into(), Waker::new().unwrap()).unwrap()
        };
        std::mem::take(&mut bench.engines).into_iter().enumerate().map(start).collect()
    }

    /// A device with a descriptor that shows that frames have arrived.
    struct Shown(MemoryPort, Waker);
    impl Port for Shown {
        fn receive(&mut self, burst: &mut Burst, frames: &mut Freelist) {
            self.1.clear();
            self.0.receive(burst, frames);
        }
        fn transmit(&mut self, burst: &mut Burst, frames: &mut Freelist) -> usize {
            self.0.transmit(burst, frames)
        }
        fn wait_on(&self) -> Option<BorrowedFd<'_>> {
            Some(self.1.fd())
        }
    }

    /// Workers in tests sleep for an hour if nothing wakes them.
    #[test]
    fn frames_wake_the_worker_that_has_the_queue_whatever_its_device() {
        let (one, other) = (Waker::new().unwrap(), Waker::new().unwrap());
        let mut replacer = None;
        let mut bench = bench_with(|wire| {
            let device = Box::new(Shown(MemoryPort::new(wire), one.clone()));
            let (port, of_port) = ReplaceablePort::new(Some(device)).unwrap();
            replacer = Some(of_port);
            Box::new(port)
        });
        let workers = workers(&mut bench);
        let arrives = |wire: &Wire, shows: &Waker, counts: [usize; 2]| {
            // Long enough for the workers to fall asleep.
            std::thread::sleep(Duration::from_millis(20));
            wire.send(&[1; 60]);
            shows.wake();
            let begin = Instant::now();
            while counted(&bench) != counts {
                assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", counted(&bench));
                std::thread::yield_now();
            }
        };
        arrives(&bench.wire, &one, [1, 0]);
        bench.handle.give_to(1);
        arrives(&bench.wire, &one, [1, 1]);
        let wire = Wire::new();
        let device = Box::new(Shown(MemoryPort::new(wire.clone()), other.clone()));
        let before = replacer.unwrap().replace(Some(device), Duration::from_secs(20));
        assert!(before.is_ok_and(|device| device.is_some()), "the worker was woken to take it");
        arrives(&wire, &other, [1, 2]);
        bench.handle.give_to(0);
        arrives(&wire, &other, [2, 2]);
        workers.into_iter().for_each(|worker| assert!(worker.stop().is_some()));
        assert_eq!((bench.received.get(Entry::Received), bench.received.balance()), (4, 0));
    }

    #[test]
    fn threads_hand_it_over_and_lose_nothing() {
        let mut bench = bench();
        let workers = workers(&mut bench);
        for round in 0..50usize {
            (0..10).for_each(|_| bench.wire.send(&[1; 60]));
            let to = (round + 1) % 2;
            bench.handle.give_to(to);
            while counted(&bench).iter().sum::<usize>() < (round + 1) * 10 {
                std::thread::yield_now();
            }
        }
        workers.into_iter().for_each(|worker| assert!(worker.stop().is_some()));
        assert_eq!((bench.received.get(Entry::Received), bench.received.balance()), (500, 0));
        assert_eq!(bench.frame_pool.available(), 1024);
    }
}
