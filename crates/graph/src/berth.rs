//! A queue of a port that may change workers while all of them run.
//!
//! ```text
//! worker 0: Berth [port] ─ output -> router      Seat::give_to(1):  worker 0, at its next breath: gives the port up
//! worker 1: Berth [    ] ─ output -> router                         worker 1: takes it, and receives from then on
//! ```
//!
//! Every worker has a berth for the queue, with links of its own, and the port lies in one of them. It goes over between
//! two breaths: what it had received is through the old worker's router by then, and what its device had no room for
//! goes along, so no frame is lost. The new worker sends by other queues than the old one, whose frames it does not wait
//! for. In a breath that changes nothing a berth costs one look at a number.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::epoll;

use crate::app::{App, Io};
use crate::port_app::PortApp;
use crate::worker::{Waker, WorkerError};

/// What wakes a worker to look at its berth.
struct Bell {
    waker: Waker,
    rung: AtomicBool,
}

impl Bell {
    fn ring(&self) {
        // In this order: who clears the waker too early is woken once more, and who has cleared it is not woken for
        // ever by a wake that it knows nothing of.
        self.waker.wake();
        self.rung.store(true, Ordering::Release);
    }

    fn hear(&self) {
        if self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::Acquire) {
            self.waker.clear();
        }
    }
}

struct Shared {
    /// Whose the queue shall be.
    owner: AtomicUsize,
    /// The port on its way.
    between: Mutex<Option<Box<PortApp>>>,
    bells: Vec<Bell>,
}

impl Shared {
    fn between(&self) -> MutexGuard<'_, Option<Box<PortApp>>> {
        // What a panicking worker left there is a port as it was.
        self.between.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Decides which worker a queue belongs to.
#[derive(Clone)]
pub struct Seat(Arc<Shared>);

impl Seat {
    /// A berth for each of `workers` workers, the port in that of `owner`.
    ///
    /// # Errors
    /// [`WorkerError::Waker`] or [`WorkerError::Watch`] if what wakes them cannot be made.
    pub fn new(port: PortApp, owner: usize, workers: usize) -> Result<(Self, Vec<Berth>), WorkerError> {
        let bell = |_| Ok(Bell { waker: Waker::new()?, rung: AtomicBool::new(false) });
        let bells = (0..workers).map(bell).collect::<Result<_, WorkerError>>()?;
        let between = Mutex::new(Some(Box::new(port)));
        let shared = Arc::new(Shared { owner: AtomicUsize::new(owner), between, bells });
        let berth = |worker| Berth::new(shared.clone(), worker).map_err(WorkerError::Watch);
        let berths = (0..workers).map(berth).collect::<Result<_, _>>()?;
        Ok((Self(shared), berths))
    }

    /// Whose the queue is, or shall be at once.
    pub fn owner(&self) -> usize {
        self.0.owner.load(Ordering::Relaxed)
    }

    /// Gives the queue to another worker; does nothing where there is no such worker.
    pub fn give_to(&self, worker: usize) {
        if worker < self.0.bells.len() {
            let before = self.0.owner.swap(worker, Ordering::AcqRel);
            self.0.bells[before].ring();
            self.0.bells[worker].ring();
        }
    }
}

/// A worker's place for the queue.
pub struct Berth {
    shared: Arc<Shared>,
    worker: usize,
    port: Option<Box<PortApp>>,
    /// Readable when the bell rings, or the port that lies here has frames.
    watch: OwnedFd,
    /// Whether the port's descriptor is watched.
    is_watched: bool,
}

impl Berth {
    fn new(shared: Arc<Shared>, worker: usize) -> io::Result<Self> {
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = shared.bells[worker].waker.fd();
        epoll::add(&watch, bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self { shared, worker, port: None, watch, is_watched: false })
    }

    #[cold]
    fn take(&mut self) {
        self.port = self.shared.between().take();
        self.watch_port();
    }

    /// Has the port's frames wake the worker, if the port can say now.
    fn watch_port(&mut self) {
        if let Some(fd) = self.port.as_ref().filter(|_| !self.is_watched).and_then(|port| port.wait_on()) {
            let added = epoll::add(&self.watch, fd, epoll::EventData::new_u64(1), epoll::EventFlags::IN);
            // Else it is asked again and again.
            self.is_watched = added.is_ok();
        }
    }

    #[cold]
    fn give(&mut self) {
        if self.is_watched {
            // A port that cannot say now what it waits on is given up a breath later.
            let Some(fd) = self.port.as_ref().and_then(|port| port.wait_on()) else { return };
            if epoll::delete(&self.watch, fd).is_err() {
                return;
            }
            self.is_watched = false;
        }
        *self.shared.between() = self.port.take();
        if let Some(bell) = self.shared.bells.get(self.shared.owner.load(Ordering::Acquire)) {
            bell.ring();
        }
    }
}

impl App for Berth {
    fn pull(&mut self, io: &mut Io<'_>) {
        let is_ours = self.shared.owner.load(Ordering::Relaxed) == self.worker;
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
        Some(self.watch.as_fd())
    }

    fn must_be_asked(&self) -> bool {
        self.port.as_ref().is_some_and(|port| !self.is_watched || port.must_be_asked())
    }

    fn before_sleep(&mut self) -> bool {
        self.watch_port();
        self.port.as_mut().is_none_or(|port| port.before_sleep())
    }

    fn after_sleep(&mut self) {
        self.shared.bells[self.worker].hear();
        if let Some(port) = &mut self.port {
            port.after_sleep();
        }
    }

    fn stop(&mut self, io: &mut Io<'_>) {
        // A port on its way is stopped by whoever ends first and sees it; each that ends looks.
        let between = self.shared.between().take();
        for mut port in between.into_iter().chain(self.port.take()) {
            port.stop(io);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, Idle, Network, Schedule, Worker, WorkerReport};
    use bm_frame::{Depot, Freelist};
    use bm_port::{MemoryPort, Wire};
    use bm_stats::{Account, Entry, Registry};
    use std::time::Duration;

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
        depot: Arc<Depot>,
        received: Account,
        seat: Seat,
        engines: Vec<Engine>,
        counts: Vec<Arc<AtomicUsize>>,
        registry: Registry,
    }

    /// A queue, first of the worker 0 of two, before two sinks.
    fn bench() -> Bench {
        let (wire, depot) = (Wire::new(), Depot::new(1024, 2048).unwrap());
        let registry = Registry::anonymous(1024).unwrap();
        let received = Account::open(&registry, "receive").unwrap();
        let sent = Account::open(&registry, "transmit").unwrap();
        let port = PortApp::new(Box::new(MemoryPort::new(wire.clone())), received, sent);
        let (seat, berths) = Seat::new(port, 0, 2).unwrap();
        let counts = vec![Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
        let engine = |(berth, count): (Berth, &Arc<AtomicUsize>)| {
            let mut network = Network::new();
            network.app("q", Box::new(berth)).unwrap();
            network.app("sink", Box::new(Sink(count.clone()))).unwrap();
            network.link("q.output -> sink.input").unwrap();
            Engine::new(network, Freelist::new(depot.clone(), 128)).unwrap()
        };
        let engines = berths.into_iter().zip(&counts).map(engine).collect();
        Bench { wire, depot, received, seat, engines, counts, registry }
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
        assert_eq!((counted(&bench), bench.seat.owner()), ([3, 0], 0));
        bench.seat.give_to(1);
        breathe(&mut bench, 4);
        assert_eq!(counted(&bench), [3, 4], "given up and taken in one round");
        bench.seat.give_to(7);
        bench.seat.give_to(0);
        breathe(&mut bench, 5);
        assert_eq!(
            (counted(&bench), bench.seat.owner()),
            ([3, 4], 0),
            "the first breathes before the second"
        );
        breathe(&mut bench, 0);
        assert_eq!(counted(&bench), [8, 4]);
        bench.engines.iter_mut().for_each(|engine| assert_eq!(engine.stop(), 0));
        assert_eq!((bench.received.get(Entry::Received), bench.received.balance()), (12, 0));
        bench.engines.clear();
        assert_eq!(bench.depot.available(), 1024);
    }

    #[test]
    fn a_port_on_its_way_is_closed_by_who_ends() {
        let mut bench = bench();
        bench.engines.iter_mut().for_each(|engine| _ = engine.breathe());
        bench.seat.give_to(1);
        bench.engines[0].breathe();
        bench.wire.send(&[1; 60]);
        bench.engines.iter_mut().for_each(|engine| _ = engine.stop());
        bench.engines.clear();
        assert_eq!((bench.depot.available(), bench.received.balance()), (1024, 0));
    }

    #[test]
    fn threads_hand_it_over_and_lose_nothing() {
        let mut bench = bench();
        let registry = &bench.registry;
        let start = |(at, engine): (usize, Engine)| {
            let counters = registry.block(&format!("worker/{at}"), &WorkerReport::NAMES).unwrap();
            let schedule = Schedule { idle: Idle::Sleep { after: Duration::ZERO }, ..Schedule::default() };
            Worker::start("bm-test", schedule, engine, counters, None, Waker::new().unwrap()).unwrap()
        };
        let workers: Vec<_> = std::mem::take(&mut bench.engines).into_iter().enumerate().map(start).collect();
        for round in 0..50usize {
            (0..10).for_each(|_| bench.wire.send(&[1; 60]));
            let to = (round + 1) % 2;
            bench.seat.give_to(to);
            while counted(&bench).iter().sum::<usize>() < (round + 1) * 10 {
                std::thread::yield_now();
            }
        }
        workers.into_iter().for_each(|worker| assert!(worker.stop().is_some()));
        assert_eq!((bench.received.get(Entry::Received), bench.received.balance()), (500, 0));
        assert_eq!(bench.depot.available(), 1024);
    }
}
