//! The time that a worker spends in each of its apps, estimated from some of its breaths.
//!
//! Reading the clock for each app in each breath would cost more than processing a small burst, so only one breath in
//! [`TIMED_EACH`] is timed.

use bm_stats::Counters;

use crate::counters::AppCounter;
use crate::engine::Engine;

/// One breath in this many is timed. The number is prime, so that breaths that repeat in a pattern are all sampled.
const TIMED_EACH: u64 = 61;

/// The counters of each app of an engine, and the breaths until the next one that is timed.
pub(crate) struct Timing {
    apps: Vec<Counters<AppCounter>>,
    /// Nanoseconds in each app in the breath that is timed.
    app_ns: Vec<u64>,
    until_next: u64,
}

impl Timing {
    /// Without counters no breath is timed.
    pub fn new(apps: Vec<Counters<AppCounter>>) -> Self {
        Self { app_ns: vec![0; apps.len()], apps, until_next: TIMED_EACH }
    }

    /// A breath of the engine; returns how many frames moved.
    pub fn breathe(&mut self, engine: &mut Engine) -> u64 {
        self.until_next -= 1;
        if self.until_next > 0 { engine.breathe() } else { self.breathe_timed(engine) }
    }

    #[cold]
    fn breathe_timed(&mut self, engine: &mut Engine) -> u64 {
        self.until_next = TIMED_EACH;
        if self.apps.is_empty() {
            return engine.breathe();
        }
        self.app_ns.fill(0);
        let moved = engine.breathe_timed(&mut self.app_ns);
        // Polling without frames is not work, as in `WorkerCounter::BusyNs`.
        if moved > 0 {
            for (counters, ns) in self.apps.iter().zip(&self.app_ns) {
                counters.add(AppCounter::Ns, ns * TIMED_EACH);
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{App, Io, Network};
    use bm_frame::{FramePool, Freelist};
    use bm_stats::{Registry, Scope};
    use std::time::{Duration, Instant};

    /// Sends one frame in each breath until it has sent as many as it holds, and takes this long for it.
    struct Slow(usize, Duration);
    impl App for Slow {
        fn pull(&mut self, io: &mut Io<'_>) {
            if self.0 == 0 {
                return;
            }
            self.0 -= 1;
            let start = Instant::now();
            while start.elapsed() < self.1 {}
            let frame = io.frames.allocate().unwrap();
            io.transmit(0, frame).unwrap_or_else(|_| panic!("a full link"));
        }
    }

    struct Sink;
    impl App for Sink {
        fn push(&mut self, io: &mut Io<'_>) {
            while let Some(frame) = io.receive(0) {
                io.frames.free(frame);
            }
        }
    }

    #[test]
    fn the_slow_app_has_most_of_the_time_and_breaths_without_frames_have_none() {
        const BREATHS: usize = 610;
        const EACH: Duration = Duration::from_micros(20);
        let mut network = Network::new();
        network.app("slow", Box::new(Slow(BREATHS, EACH))).unwrap();
        network.app("sink", Box::new(Sink)).unwrap();
        network.link("slow.output -> sink.input").unwrap();
        let pool = FramePool::new(1024, 2048).unwrap();
        let mut engine = Engine::new(network, Freelist::new(pool, 128)).unwrap();
        let registry = Registry::anonymous(64).unwrap();
        let apps: Vec<_> = ["slow", "sink"]
            .map(|app| Counters::open(&registry, Scope::Time { worker: 0, app }).unwrap())
            .into();
        let mut timing = Timing::new(apps.clone());
        let moved: u64 = (0..BREATHS).map(|_| timing.breathe(&mut engine)).sum();
        assert_eq!(moved, 2 * BREATHS as u64);
        let [slow, sink] = [0, 1].map(|at: usize| Duration::from_nanos(apps[at].get(AppCounter::Ns)));
        // Ten breaths were timed, each with at least this.
        assert!(slow >= EACH * BREATHS as u32, "{slow:?}");
        assert!(sink < slow, "{sink:?}, and {slow:?}");
        (0..BREATHS).for_each(|_| assert_eq!(timing.breathe(&mut engine), 0));
        assert_eq!(apps[0].get(AppCounter::Ns), slow.as_nanos() as u64);
    }
}
