//! Workers and the slow path: built from open ports, and stopped so that every frame is accounted for.
//!
//! ```text
//! worker: eth0.output -> router.eth0   router.eth1 -> eth1.router   slow.eth1 -> eth1.slow
//! ```

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bm_cli::Failure;
use bm_control::config::Config;
use bm_control::config::app::ROUTER;
use bm_fib::published::{Published, Readers};
use bm_forward::tables::Tables;
use bm_forward::{
    Balancing, BalancingCounters, BalancingPlan, IPSEC_PORT, Resolver, Router, RouterPort, SlowConfig,
    SlowPath, SlowPort, SlowThread, WaitLimits,
};
use bm_frame::{FramePool, Freelist};
use bm_graph::{AllCounters, AppCounter, Engine, Network, PortApp, Schedule, Waker, Worker, WorkerCounter};
use bm_lua::apps::{AppSet, CoreApps};
use bm_lua::hook::HookSet;
use bm_port::{HostPort, Port};
use bm_serve::app_report::PART;
use bm_stats::{Account, CounterKind, Counters, Registry, Scope};

use crate::ipsec::{Ipsec, IpsecApps, RawSockets, TunDevices, TunPort};
use crate::workers::queues::{Move, Queues};
use crate::workers::{apps, hooks};

/// Size of the freelist of each worker, in frames.
const FREELIST: usize = 1024;
/// Longest wait for a worker's first breath. On a machine so busy that it takes longer, packets are lost anyway.
const FIRST_BREATH: Duration = Duration::from_secs(2);

/// The parts of a port that the data path uses.
pub struct Part {
    /// Name of its interface in Linux.
    pub name: String,
    /// The queues, by number.
    pub queues: Vec<Box<dyn Port>>,
    /// Delivers frames to Linux.
    pub host: Box<dyn HostPort>,
}

/// What a data path is made of.
pub struct Parts {
    /// Its ports, then the fabric links.
    pub ports: Vec<Part>,
    /// How packets are distributed over the fabric links; none without a cluster.
    pub balancing: Option<BalancingPlan>,
}

/// What the data path shares with control.
pub struct Shared {
    /// The tables that workers read.
    pub published: Arc<Published<Tables>>,
    /// The threads that a change of the tables waits for.
    pub readers: Readers,
    /// All counters.
    pub registry: Arc<Registry>,
    /// Lua hooks; set with the first workers.
    pub hooks: OnceLock<Arc<HookSet>>,
    /// Lua apps; set with the first workers.
    pub apps: OnceLock<Arc<AppSet>>,
    /// What of IPsec outlives workers.
    pub ipsec: Arc<Mutex<Ipsec>>,
    /// TUN devices that are IPsec interfaces.
    pub tun_devices: Arc<TunDevices>,
}

/// A running worker with its counters.
struct Running {
    worker: Worker,
    core: Option<usize>,
    counters: Counters<WorkerCounter>,
    /// Its apps, with the time spent in each.
    times: Vec<(String, Counters<AppCounter>)>,
    /// Breaths that its predecessor had counted when this one started.
    breaths_before: u64,
}

impl Running {
    /// Waits for the first breath of the worker, in which it gives frames to every port to receive into. Packets that
    /// arrive earlier are lost.
    fn await_first_breath(&self) {
        let started = Instant::now();
        let breaths = || self.counters.get(WorkerCounter::Breaths);
        while breaths() == self.breaths_before && self.worker.is_alive() && started.elapsed() < FIRST_BREATH {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// State of a worker, for `show workers`.
pub struct WorkerState {
    /// The core that it is pinned to.
    pub core: Option<usize>,
    /// Whether its thread runs.
    pub alive: bool,
    /// Its real-time priority; 0 for none.
    pub priority: u8,
    /// Numbers of breaths, of frames moved and of sleeps, and the time spent on frames in nanoseconds.
    pub counters: [u64; 4],
    /// Its queues, as `PORT/QUEUE`.
    pub queues: Vec<String>,
    /// Its apps, with the time spent in each in nanoseconds.
    pub times: Vec<(String, u64)>,
}

/// The running data path.
pub struct DataPlane {
    workers: Vec<Running>,
    slow: Option<SlowThread>,
    frame_pool: Arc<FramePool>,
    queues: Queues,
    /// Real-time priority of the workers; 0 for none.
    priority: u8,
}

impl DataPlane {
    /// Starts `workers` workers, each with its queue of every port and its share of the additional queues, and the slow path.
    pub fn start(
        config: &Config,
        workers: usize,
        parts: Parts,
        shared: &Shared,
        resolver: Box<dyn Resolver>,
        frame_pool: Arc<FramePool>,
    ) -> Result<Self, Failure> {
        let Parts { ports: parts, balancing } = parts;
        let mut slow = slow_path(config, shared, resolver, &frame_pool)?;
        let names = parts.iter().map(|part| part.name.clone());
        let of_ipsec = (!config.ipsec.is_empty()).then(|| IPSEC_PORT.to_owned());
        let names: Vec<_> = names.chain(of_ipsec.clone()).collect();
        if let Some(hooks) = shared.hooks.get() {
            hooks.start(&hooks::specs(config), workers, names.clone()).map_err(Failure::usage)?;
            hooks.slow().into_iter().for_each(|hook| slow.set_hook(hook));
        }
        if let Some(apps) = shared.apps.get() {
            apps.start(&apps::spec(config), workers).map_err(Failure::usage)?;
        }
        let mut networks: Vec<Network> = (0..workers).map(|_| Network::new()).collect();
        let mut queues = Queues::default();
        for part in parts {
            let account = account(shared, Scope::SlowPort { port: &part.name })?;
            // The first worker sends for the slow path: it has a queue of every port.
            slow.add_port(SlowPort { account, host: Some(part.host), worker: 0 });
            for (number, port) in part.queues.into_iter().enumerate() {
                let (app, received) = port_app(shared, &part.name, number, port)?;
                queues.add(config, (&part.name, number), app, received, &mut networks)?;
            }
        }
        if let Some(port) = &of_ipsec {
            let account = account(shared, Scope::SlowPort { port })?;
            let host = Box::new(TunPort(shared.tun_devices.clone()));
            slow.add_port(SlowPort { account, host: Some(host), worker: 0 });
            slow.set_own_packets(Box::new(RawSockets::open()));
        }
        let wakers = (0..workers).map(|_| Waker::new().map_err(Failure::failed));
        let wakers = wakers.collect::<Result<Vec<_>, Failure>>()?;
        let mut ipsec = IpsecApps::new(config, &shared.ipsec, &wakers)?;
        let mut running = Vec::new();
        for (index, (mut network, waker)) in networks.into_iter().zip(wakers).enumerate() {
            if let Some(ipsec) = &mut ipsec {
                let entrance = slow.add_entrance(config.slow_path.ring as usize, &ipsec.current);
                let tables = || (shared.published.clone(), shared.readers.register());
                ipsec.add(&mut network, (index, &names), &shared.registry, &tables, entrance)?;
            }
            if let Some(plan) = &balancing {
                let app = balancer(shared, plan.clone(), index)?;
                network.app(apps::BALANCER, Box::new(app)).map_err(Failure::failed)?;
            }
            let worker = (index, waker);
            running.push(start_worker(config, shared, &mut slow, &frame_pool, worker, &names, network)?);
        }
        for apps in shared.apps.get().iter().flat_map(|apps| apps.on_cores()) {
            running.push(start_app_worker(config, shared, &frame_pool, apps)?);
        }
        let slow = Some(SlowThread::start(slow).map_err(Failure::failed)?);
        running.iter().for_each(Running::await_first_breath);
        let priority = config.daemon.schedule().real_time.map_or(0, |real_time| real_time.priority);
        Ok(Self { workers: running, slow, frame_pool, queues, priority })
    }

    /// State of each worker.
    pub fn workers(&self) -> Vec<WorkerState> {
        let state = |(index, running): (usize, &Running)| WorkerState {
            core: running.core,
            alive: running.worker.is_alive(),
            priority: if matches!(running.worker.real_time(), Ok(true)) { self.priority } else { 0 },
            counters: [
                WorkerCounter::Breaths,
                WorkerCounter::Moves,
                WorkerCounter::Sleeps,
                WorkerCounter::BusyNs,
            ]
            .map(|counter| running.counters.get(counter)),
            queues: self.queues.of_worker(index),
            times: running
                .times
                .iter()
                .map(|(app, counters)| (app.clone(), counters.get(AppCounter::Ns)))
                .collect(),
        };
        self.workers.iter().enumerate().map(state).collect()
    }

    /// Why real-time priority was refused to workers, if it was.
    pub fn priority_refused(&self) -> Option<&std::io::Error> {
        self.workers.iter().find_map(|running| running.worker.real_time().err())
    }

    /// Gives a worker that seems to hang normal priority until it sleeps again.
    pub fn demote(&self, worker: usize) {
        self.workers.get(worker).into_iter().for_each(|running| running.worker.demote());
    }

    /// The worker that owns a queue.
    pub fn worker_of(&self, port: &str, queue: usize) -> Option<usize> {
        self.queues.worker_of(port, queue)
    }

    /// Moves queues to the workers that the configuration names.
    pub fn place(&self, config: &Config) {
        self.queues.place(config, self.workers.len());
    }

    /// Moves a queue from the busiest worker to the idlest if that pays; checks every few seconds.
    pub fn balance(&mut self, now: Instant) -> Option<Move> {
        let busy_ns =
            self.workers.iter().map(|running| running.counters.get(WorkerCounter::BusyNs)).collect();
        self.queues.balance(busy_ns, now)
    }

    /// Whether every thread runs.
    pub fn is_alive(&self) -> bool {
        self.workers.iter().all(|running| running.worker.is_alive())
            && self.slow.as_ref().is_some_and(SlowThread::is_alive)
    }

    /// Number of frames in total, and of those that no worker holds.
    pub fn frames(&self) -> (usize, usize) {
        (self.frame_pool.memory().slots(), self.frame_pool.available())
    }

    /// Stops the slow path, then the workers: they still send its last packets, and what they pass to it then is freed.
    pub fn stop(self) {
        let Self { workers, slow, frame_pool: _, queues: _, priority: _ } = self;
        let end_workers = || workers.into_iter().for_each(|running| drop(running.worker.stop()));
        match slow {
            Some(slow) => drop(slow.stop_with(end_workers)),
            None => end_workers(),
        }
    }
}

fn account(shared: &Shared, scope: Scope<'_>) -> Result<Account, Failure> {
    Account::open(&shared.registry, scope).map_err(Failure::failed)
}

fn counters<K: CounterKind>(shared: &Shared, scope: Scope<'_>) -> Result<Counters<K>, Failure> {
    Counters::open(&shared.registry, scope).map_err(Failure::failed)
}

/// Creates the slow path of a configuration, without workers and ports.
pub fn slow_path(
    config: &Config,
    shared: &Shared,
    resolver: Box<dyn Resolver>,
    frame_pool: &Arc<FramePool>,
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
        frames: Freelist::new(frame_pool.clone(), FREELIST),
        resolver,
        waker: Waker::new().map_err(Failure::failed)?,
        counters: counters(shared, Scope::Slow)?,
        waits,
        seed: since_epoch.as_nanos() as u64 ^ u64::from(std::process::id()),
    }))
}

/// Makes an app of a queue; also returns the account of its received frames.
fn port_app(
    shared: &Shared,
    name: &str,
    queue: usize,
    port: Box<dyn Port>,
) -> Result<(PortApp, Account), Failure> {
    let received = account(shared, Scope::PortReceive { port: name, queue })?;
    let sent = account(shared, Scope::PortTransmit { port: name, queue })?;
    let device = counters(shared, Scope::PortDevice { port: name, queue })?;
    Ok((PortApp::new(port, received, sent).with_device(device), received))
}

/// The app of a worker that chooses fabric links.
fn balancer(shared: &Shared, plan: BalancingPlan, worker: usize) -> Result<Balancing, Failure> {
    let scope = Scope::Balancer { worker };
    let counts = BalancingCounters { account: account(shared, scope)?, counters: counters(shared, scope)? };
    Ok(Balancing::new(plan, worker, counts))
}

fn start_worker(
    config: &Config,
    shared: &Shared,
    slow: &mut SlowPath,
    frame_pool: &Arc<FramePool>,
    (index, waker): (usize, Waker),
    names: &[String],
    mut network: Network,
) -> Result<Running, Failure> {
    let back = account(shared, Scope::Return { worker: index })?;
    let ring = config.slow_path.ring as usize;
    let (entrance, returning) = slow.add_worker(ring, names.to_vec(), back, Some(waker.clone()));
    let ports = names.iter().map(|name| {
        let scope = Scope::Router { worker: index, port: name };
        Ok(RouterPort { name: name.clone(), account: account(shared, scope)? })
    });
    let ports = ports.collect::<Result<Vec<_>, Failure>>()?;
    let mut router =
        Router::new(ports, shared.published.clone(), shared.readers.register(), entrance).of_worker(index);
    if let Some(hook) = shared.hooks.get().and_then(|hooks| hooks.worker(index)) {
        router = router.with_hook(hook);
    }
    network.app(ROUTER, Box::new(router)).map_err(Failure::failed)?;
    network.app(apps::SLOW, Box::new(returning)).map_err(Failure::failed)?;
    if let Some(part) =
        shared.apps.get().filter(|_| !config.apps.is_empty()).and_then(|apps| apps.part(index))
    {
        network.app(PART, Box::new(part)).map_err(Failure::failed)?;
    }
    apps::join(&mut network, config, names).map_err(Failure::failed)?;
    let core = config.daemon.cores.get(index).map(|&core| core as usize);
    let schedule = Schedule { core, ..config.daemon.schedule() };
    run(shared, frame_pool, (index, &format!("bm-worker-{index}")), schedule, network, waker)
}

/// Starts a worker without ports for the Lua apps of one core.
fn start_app_worker(
    config: &Config,
    shared: &Shared,
    frame_pool: &Arc<FramePool>,
    apps: CoreApps,
) -> Result<Running, Failure> {
    let CoreApps { worker, core, apps } = apps;
    let mut network = Network::new();
    network.app(PART, Box::new(apps)).map_err(Failure::failed)?;
    let waker = Waker::new().map_err(Failure::failed)?;
    // No real-time priority: Lua code may run for any time.
    let schedule = Schedule { core: Some(core), real_time: None, ..config.daemon.schedule() };
    run(shared, frame_pool, (worker, &format!("bm-lua-{core}")), schedule, network, waker)
}

/// Starts a worker that runs `network`.
fn run(
    shared: &Shared,
    frame_pool: &Arc<FramePool>,
    (index, name): (usize, &str),
    schedule: Schedule,
    network: Network,
    waker: Waker,
) -> Result<Running, Failure> {
    let core = schedule.core;
    let frames = Freelist::near(frame_pool.clone(), FREELIST, core.and_then(bm_frame::node_of_core));
    let engine = Engine::new(network, frames).map_err(Failure::failed)?;
    let links = engine.links().map(|link| counters(shared, Scope::Link { worker: index, link: &link.name }));
    let links = links.collect::<Result<Vec<_>, Failure>>()?;
    let time = |app| Ok((app, counters(shared, Scope::Time { worker: index, app })?));
    let apps = engine.apps().map(time).collect::<Result<Vec<_>, Failure>>()?;
    let times = apps.iter().map(|(app, counters)| ((*app).to_owned(), *counters)).collect();
    let apps = apps.into_iter().map(|(_, counters)| counters).collect();
    let counters = counters(shared, Scope::Worker { worker: index })?;
    let breaths_before = counters.get(WorkerCounter::Breaths);
    let all = AllCounters { worker: counters, links, apps };
    let worker = Worker::start(name, schedule, engine, all, waker);
    Ok(Running { worker: worker.map_err(Failure::failed)?, core, counters, times, breaths_before })
}
