//! Workers and the slow path, built from open ports, and ended so that no frame is lost without a name.
//!
//! ```text
//! worker: eth0.output -> router.eth0   router.eth1 -> eth1.router   slow.eth1 -> eth1.slow
//! ```

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bm_control::config::Config;
use bm_fib::published::{Published, Readers};
use bm_forward::tables::Tables;
use bm_forward::{Resolver, Router, RouterPort, SlowConfig, SlowPath, SlowPort, SlowThread, WaitLimits};
use bm_frame::{Depot, Freelist};
use bm_graph::{Engine, Network, PortApp, Schedule, Waker, Worker, WorkerReport};
use bm_lua::apps::AppSet;
use bm_lua::hook::HookSet;
use bm_port::{HostPort, Port};
use bm_stats::{Account, Block, Registry};

use super::queues::{Move, Queues};
use crate::Failure;

/// Free frames that a worker keeps for itself.
const FREELIST: usize = 1024;
/// The counter of the time that a worker was at work, among those of [`WorkerReport`].
const BUSY_NS: usize = 3;
/// Longest wait for a worker's first breath. On a machine so busy that it takes longer, packets are lost anyway.
const FIRST_BREATH: Duration = Duration::from_secs(2);

/// What the data path gets of a port.
pub struct Part {
    /// Name of its interface in Linux.
    pub name: String,
    /// One for each queue.
    pub queues: Vec<Box<dyn Port>>,
    /// How Linux gets its frames.
    pub host: Box<dyn HostPort>,
}

/// What the data path shares with control.
pub struct Shared {
    /// What workers read.
    pub published: Arc<Published<Tables>>,
    /// Whom a change waits for.
    pub readers: Readers,
    /// All counters.
    pub registry: Arc<Registry>,
    /// Hooks in Lua.
    pub hooks: OnceLock<Arc<HookSet>>,
    /// Apps in Lua.
    pub apps: OnceLock<Arc<AppSet>>,
}

/// A worker that runs, with its counters.
struct Running {
    worker: Worker,
    core: Option<usize>,
    counters: Block,
    /// Breaths that were counted before it, by the worker in whose place it is.
    breaths_before: u64,
}

impl Running {
    /// Waits until the worker has breathed once, and so has given every port frames to receive into: what a
    /// port is sent before is lost.
    fn await_first_breath(&self) {
        let started = Instant::now();
        let breaths = || self.counters.get(0);
        while breaths() == self.breaths_before && self.worker.is_alive() && started.elapsed() < FIRST_BREATH {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What `show workers` says of one.
pub struct WorkerState {
    /// The core that it is pinned to.
    pub core: Option<usize>,
    /// Whether its thread runs.
    pub alive: bool,
    /// Its real-time priority; 0 for none.
    pub priority: u8,
    /// Breaths, moves and sleeps.
    pub counters: [u64; 3],
    /// Its queues, as `PORT/QUEUE`.
    pub queues: Vec<String>,
}

/// The data path at work.
pub struct DataPlane {
    workers: Vec<Running>,
    slow: Option<SlowThread>,
    depot: Arc<Depot>,
    queues: Queues,
    /// What workers with real-time priority have.
    priority: u8,
}

impl DataPlane {
    /// Starts `workers` workers, each with its queue of every port and its share of those beyond, and the slow path.
    pub fn start(
        config: &Config,
        workers: usize,
        parts: Vec<Part>,
        shared: &Shared,
        resolver: Box<dyn Resolver>,
        depot: Arc<Depot>,
    ) -> Result<Self, Failure> {
        let mut slow = slow_path(config, shared, resolver, &depot)?;
        let names: Vec<_> = parts.iter().map(|part| part.name.clone()).collect();
        if let Some(hooks) = shared.hooks.get() {
            hooks.start(&super::hooks::specs(config), workers, names.clone()).map_err(Failure::usage)?;
            hooks.slow().into_iter().for_each(|hook| slow.set_hook(hook));
        }
        if let Some(apps) = shared.apps.get() {
            apps.start(&super::apps::spec(config), workers).map_err(Failure::usage)?;
        }
        let mut networks: Vec<Network> = (0..workers).map(|_| Network::new()).collect();
        let mut queues = Queues::default();
        for part in parts {
            let account = account(shared, &format!("slow/{}", part.name))?;
            // A port with fewer queues than there are workers is sent on by the first alone.
            slow.add_port(SlowPort { account, host: Some(part.host), worker: 0 });
            for (number, port) in part.queues.into_iter().enumerate() {
                let (app, received) = port_app(shared, &part.name, number, port)?;
                queues.add(config, (&part.name, number), app, received, &mut networks)?;
            }
        }
        let mut running = Vec::new();
        for (index, network) in networks.into_iter().enumerate() {
            running.push(start_worker(config, shared, &mut slow, &depot, index, &names, network)?);
        }
        for (index, core, part) in shared.apps.get().iter().flat_map(|apps| apps.apart()) {
            running.push(start_apart(config, shared, &depot, index, core, part)?);
        }
        let slow = Some(SlowThread::start(slow).map_err(Failure::failed)?);
        running.iter().for_each(Running::await_first_breath);
        let priority = config.daemon.schedule().real_time.map_or(0, |real_time| real_time.priority);
        Ok(Self { workers: running, slow, depot, queues, priority })
    }

    /// How each worker is.
    pub fn workers(&self) -> Vec<WorkerState> {
        let state = |(index, running): (usize, &Running)| WorkerState {
            core: running.core,
            alive: running.worker.is_alive(),
            priority: if matches!(running.worker.real_time(), Ok(true)) { self.priority } else { 0 },
            counters: [0, 1, 2].map(|index| running.counters.get(index)),
            queues: self.queues.of_worker(index),
        };
        self.workers.iter().enumerate().map(state).collect()
    }

    /// Why real-time priority was refused to workers, if it was.
    pub fn priority_refused(&self) -> Option<&std::io::Error> {
        self.workers.iter().find_map(|running| running.worker.real_time().err())
    }

    /// Takes real-time priority from a worker that seems to hang, until it sleeps again.
    pub fn demote(&self, worker: usize) {
        self.workers.get(worker).into_iter().for_each(|running| running.worker.demote());
    }

    /// Whose a queue is.
    pub fn worker_of(&self, port: &str, queue: usize) -> Option<usize> {
        self.queues.worker_of(port, queue)
    }

    /// Has queues be where a configuration says.
    pub fn place(&self, config: &Config) {
        self.queues.place(config, self.workers.len());
    }

    /// Moves a queue from the busiest worker to the idlest, now and then and where it is worth it.
    pub fn balance(&mut self, now: Instant) -> Option<Move> {
        let busy_ns = self.workers.iter().map(|running| running.counters.get(BUSY_NS)).collect();
        self.queues.balance(busy_ns, now)
    }

    /// Whether every thread runs.
    pub fn is_alive(&self) -> bool {
        self.workers.iter().all(|running| running.worker.is_alive())
            && self.slow.as_ref().is_some_and(SlowThread::is_alive)
    }

    /// Frames in all, and those that no worker holds.
    pub fn frames(&self) -> (usize, usize) {
        (self.depot.memory().slots(), self.depot.available())
    }

    /// Ends the slow path, then the workers: what it sent last still leaves, and what they passed on since is freed.
    pub fn stop(self) {
        let Self { workers, slow, depot: _, queues: _, priority: _ } = self;
        let end_workers = || workers.into_iter().for_each(|running| drop(running.worker.stop()));
        match slow {
            Some(slow) => drop(slow.stop_with(end_workers)),
            None => end_workers(),
        }
    }
}

fn account(shared: &Shared, group: &str) -> Result<Account, Failure> {
    Account::open(&shared.registry, group).map_err(Failure::failed)
}

fn block(shared: &Shared, group: &str, names: &[&str]) -> Result<Block, Failure> {
    shared.registry.block(group, names).map_err(Failure::failed)
}

/// The slow path of a configuration, without workers and ports yet.
pub fn slow_path(
    config: &Config,
    shared: &Shared,
    resolver: Box<dyn Resolver>,
    depot: &Arc<Depot>,
) -> Result<SlowPath, Failure> {
    let settings = &config.slow_path;
    let waits = WaitLimits {
        frames_each: settings.queue_per_next_hop as usize,
        frames: settings.queue as usize,
        new_per_second: config.neighbors.resolve_per_second,
        ..WaitLimits::default()
    };
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Ok(SlowPath::new(SlowConfig {
        published: shared.published.clone(),
        reader: shared.readers.register(),
        frames: Freelist::new(depot.clone(), FREELIST),
        resolver,
        waker: Waker::new().map_err(Failure::failed)?,
        counters: block(shared, "slow", &SlowPath::COUNTERS)?,
        waits,
        seed: since_epoch.as_nanos() as u64 ^ u64::from(std::process::id()),
    }))
}

/// A queue as an app, and the account of what it receives.
fn port_app(
    shared: &Shared,
    name: &str,
    queue: usize,
    port: Box<dyn Port>,
) -> Result<(PortApp, Account), Failure> {
    let group = format!("port/{name}/{queue}");
    let received = account(shared, &format!("{group}/receive"))?;
    let sent = account(shared, &format!("{group}/transmit"))?;
    let device = block(shared, &format!("{group}/device"), &PortApp::DEVICE_COUNTERS)?;
    Ok((PortApp::new(port, received, sent).with_device(device), received))
}

fn start_worker(
    config: &Config,
    shared: &Shared,
    slow: &mut SlowPath,
    depot: &Arc<Depot>,
    index: usize,
    names: &[String],
    mut network: Network,
) -> Result<Running, Failure> {
    let waker = Waker::new().map_err(Failure::failed)?;
    let back = account(shared, &format!("return/{index}"))?;
    let ring = config.slow_path.ring as usize;
    let (entrance, returning) = slow.add_worker(ring, names.to_vec(), back, Some(waker.clone()));
    let ports = names.iter().map(|name| {
        Ok(RouterPort { name: name.clone(), account: account(shared, &format!("router/{index}/{name}"))? })
    });
    let ports = ports.collect::<Result<Vec<_>, Failure>>()?;
    let mut router =
        Router::new(ports, shared.published.clone(), shared.readers.register(), entrance).of_worker(index);
    if let Some(hook) = shared.hooks.get().and_then(|hooks| hooks.worker(index)) {
        router = router.with_hook(hook);
    }
    network.app("router", Box::new(router)).map_err(Failure::failed)?;
    network.app("slow", Box::new(returning)).map_err(Failure::failed)?;
    if let Some(part) =
        shared.apps.get().filter(|_| !config.apps.is_empty()).and_then(|apps| apps.part(index))
    {
        network.app(super::apps::PART, Box::new(part)).map_err(Failure::failed)?;
    }
    super::apps::join(&mut network, config, names).map_err(Failure::failed)?;
    let core = config.daemon.cores.get(index).map(|&core| core as usize);
    let schedule = Schedule { core, ..config.daemon.schedule() };
    run(shared, depot, (index, &format!("bm-worker-{index}")), schedule, network, waker)
}

/// A worker without ports, for the apps of a core.
fn start_apart(
    config: &Config,
    shared: &Shared,
    depot: &Arc<Depot>,
    index: usize,
    core: usize,
    part: bm_lua::apps::Part,
) -> Result<Running, Failure> {
    let mut network = Network::new();
    network.app(super::apps::PART, Box::new(part)).map_err(Failure::failed)?;
    let waker = Waker::new().map_err(Failure::failed)?;
    // Nothing but Lua runs there, which may take as long as it likes.
    let schedule = Schedule { core: Some(core), real_time: None, ..config.daemon.schedule() };
    run(shared, depot, (index, &format!("bm-lua-{core}")), schedule, network, waker)
}

/// Has a worker run a network.
fn run(
    shared: &Shared,
    depot: &Arc<Depot>,
    (index, name): (usize, &str),
    schedule: Schedule,
    network: Network,
    waker: Waker,
) -> Result<Running, Failure> {
    let core = schedule.core;
    let frames = Freelist::near(depot.clone(), FREELIST, core.and_then(bm_frame::node_of_core));
    let engine = Engine::new(network, frames).map_err(Failure::failed)?;
    let fields = ["txpackets", "txbytes", "rxpackets", "rxbytes", "txdrop"];
    let links: Vec<_> =
        engine.links().flat_map(|link| fields.map(|field| format!("{}/{field}", link.name))).collect();
    let links: Vec<_> = links.iter().map(String::as_str).collect();
    let links = block(shared, &format!("link/{index}"), &links)?;
    let counters = block(shared, &format!("worker/{index}"), &WorkerReport::NAMES)?;
    let breaths_before = counters.get(0);
    let worker = Worker::start(name, schedule, engine, counters, Some(links), waker);
    Ok(Running { worker: worker.map_err(Failure::failed)?, core, counters, breaths_before })
}
