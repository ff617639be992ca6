//! A worker allocates nothing once it runs: neither in a breath nor when it sleeps.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bm_frame::{FramePool, Freelist};
use bm_graph::{App, Engine, Idle, Io, Network, Schedule, Waker, Worker, WorkerCounter};
use bm_stats::{Counters, Registry, Scope};

/// The system's allocator, with a count of what each thread requests.
struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system's allocator unchanged; counting neither allocates nor panics.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends has no counter any more.
        let _ended = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: by the contract of `alloc`, which is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above; `memory` came from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Publishes how often its worker's thread has allocated. Has as many descriptors as an app may have.
struct Observer {
    allocations: Arc<AtomicU64>,
    wakers: [Waker; 3],
    must_be_polled: bool,
}

impl App for Observer {
    fn pull(&mut self, _io: &mut Io<'_>) {
        self.allocations.store(ALLOCATIONS.get(), Ordering::Relaxed);
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wakers[0].fd())
    }

    fn wakeups<'a>(&'a self, add: &mut dyn FnMut(BorrowedFd<'a>)) {
        self.wakers[1..].iter().for_each(|waker| add(waker.fd()));
    }

    fn must_be_polled(&self) -> bool {
        self.must_be_polled
    }
}

/// Runs a worker that sleeps whenever it can; returns how often its thread allocates from the first sleep to the last.
fn allocations_while_it_runs(must_be_polled: bool) -> u64 {
    let allocations = Arc::new(AtomicU64::new(0));
    let wakers = std::array::from_fn(|_| Waker::new().unwrap());
    let mut network = Network::new();
    let observer = Observer { allocations: allocations.clone(), wakers, must_be_polled };
    network.app("observer", Box::new(observer)).unwrap();
    let engine = Engine::new(network, Freelist::new(FramePool::new(64, 2048).unwrap(), 128)).unwrap();
    let scope = Scope::Worker { worker: 0 };
    let counters: Counters<WorkerCounter> = Counters::open(&Registry::anonymous(64).unwrap(), scope).unwrap();
    let waker = Waker::new().unwrap();
    let schedule = Schedule { idle: Idle::Sleep { after: Duration::ZERO }, ..Schedule::default() };
    let worker = Worker::start("bm-test", schedule, engine, counters.into(), waker.clone()).unwrap();
    let sleeps = |count: u64| {
        let start = Instant::now();
        while counters.get(WorkerCounter::Sleeps) < count {
            assert!(start.elapsed() < Duration::from_secs(20), "it does not sleep {count} times");
            waker.wake();
            std::thread::yield_now();
        }
    };
    // The first pull is before the first sleep.
    sleeps(1);
    let before = allocations.load(Ordering::Relaxed);
    sleeps(200);
    let after = allocations.load(Ordering::Relaxed);
    assert!(before > 0, "the thread's allocations are counted");
    assert!(worker.stop().is_some());
    after - before
}

#[test]
fn a_worker_that_is_woken_allocates_nothing() {
    assert_eq!(allocations_while_it_runs(false), 0);
}

#[test]
fn a_worker_that_must_poll_allocates_nothing() {
    assert_eq!(allocations_while_it_runs(true), 0);
}
