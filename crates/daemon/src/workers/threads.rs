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
use bm_forward::tables::{PublishedTables, Tables};
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

/// Counters in the state of a worker.
const SHOWN_COUNTERS: [WorkerCounter; 4] =
    [WorkerCounter::Breaths, WorkerCounter::Moves, WorkerCounter::Sleeps, WorkerCounter::BusyNs];

/// What workers and the slow path use of a port.
pub struct WorkerPort {
    /// Name of its interface in Linux.
    pub name: String,
    /// The queues, by number.
    pub queues: Vec<Box<dyn Port>>,
    /// Delivers frames to Linux.
    pub host: Box<dyn HostPort>,
}

/// What workers use, and what outlives them.
pub struct WorkerContext {
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
struct RunningWorker {
    worker: Worker,
    core: Option<usize>,
    counters: Counters<WorkerCounter>,
    /// Its apps, with the time spent in each.
    times: Vec<(String, Counters<AppCounter>)>,
    /// Breaths that its predecessor had counted when this one started.
    breaths_before: u64,
}

impl RunningWorker {
    /// Waits for the first breath of the worker, in which it gives frames to every port to receive into. Packets that
    /// arrive earlier are lost.
    fn await_first_breath(&self) {
        let started = Instant::now();
        while self.counters.get(WorkerCounter::Breaths) == self.breaths_before
            && self.worker.is_alive()
            && started.elapsed() < FIRST_BREATH
        {
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

/// Running workers, and the slow path.
pub struct WorkerThreads {
    workers: Vec<RunningWorker>,
    slow: Option<SlowThread>,
    frame_pool: Arc<FramePool>,
    queues: Queues,
    /// Real-time priority of the workers; 0 for none.
    priority: u8,
}

impl WorkerThreads {
    /// Starts `count` workers, each with its queue of every port and its share of the additional queues, and the slow path.
    /// With `balancing`, workers distribute packets over the fabric links, which come after the ports.
    pub fn start(
        config: &Config,
        count: usize,
        ports: Vec<WorkerPort>,
        balancing: Option<BalancingPlan>,
        context: &WorkerContext,
        resolver: Box<dyn Resolver>,
        frame_pool: Arc<FramePool>,
    ) -> Result<Self, Failure> {
        let mut slow = slow_path(config, context, resolver, &frame_pool)?;
        let has_ipsec = !config.ipsec.is_empty();
        let names = ports.iter().map(|port| port.name.clone());
        let names: Vec<_> = names.chain(has_ipsec.then(|| IPSEC_PORT.to_owned())).collect();
        if let Some(hooks) = context.hooks.get() {
            hooks.start(&hooks::specs(config), count, names.clone()).map_err(Failure::usage)?;
            hooks.slow().into_iter().for_each(|hook| slow.set_hook(hook));
        }
        if let Some(apps) = context.apps.get() {
            apps.start(&apps::spec(config), count).map_err(Failure::usage)?;
        }
        let mut networks: Vec<Network> = (0..count).map(|_| Network::new()).collect();
        let mut queues = Queues::default();
        for WorkerPort { name, queues: devices, host } in ports {
            let account = account(context, Scope::SlowPort { port: &name })?;
            // The first worker sends for the slow path: it has a queue of every port.
            slow.add_port(SlowPort { account, host: Some(host), worker: 0 });
            for (number, device) in devices.into_iter().enumerate() {
                let (app, received) = port_app(context, &name, number, device)?;
                queues.add(config, &name, number, app, received, &mut networks)?;
            }
        }
        if has_ipsec {
            let account = account(context, Scope::SlowPort { port: IPSEC_PORT })?;
            let host = Box::new(TunPort(context.tun_devices.clone()));
            slow.add_port(SlowPort { account, host: Some(host), worker: 0 });
            slow.set_own_packets(Box::new(RawSockets::open()));
        }
        let wakers: Vec<Waker> =
            (0..count).map(|_| Waker::new()).collect::<Result<_, _>>().map_err(Failure::failed)?;
        let mut ipsec = IpsecApps::new(config, &context.ipsec, &wakers)?;
        let mut workers = Vec::new();
        for (index, (mut network, waker)) in networks.into_iter().zip(wakers).enumerate() {
            if let Some(ipsec) = &mut ipsec {
                let punt_queue = slow.add_punt_queue(config.slow_path.ring as usize, &ipsec.current);
                let (published, readers) = (context.published.clone(), context.readers.clone());
                let tables = PublishedTables { published, readers };
                ipsec.add(&mut network, index, &names, &context.registry, &tables, punt_queue)?;
            }
            if let Some(plan) = &balancing {
                let app = balancer(context, plan.clone(), index)?;
                network.app(apps::BALANCER, Box::new(app)).map_err(Failure::failed)?;
            }
            add_router(config, context, &mut slow, index, &waker, &names, &mut network)?;
            let core = config.daemon.cores.get(index).map(|&core| core as usize);
            let schedule = Schedule { core, ..config.daemon.schedule() };
            let name = format!("bm-worker-{index}");
            workers.push(start_worker(context, &frame_pool, index, &name, schedule, network, waker)?);
        }
        for apps in context.apps.get().iter().flat_map(|apps| apps.on_cores()) {
            workers.push(start_app_worker(config, context, &frame_pool, apps)?);
        }
        let slow = Some(SlowThread::start(slow).map_err(Failure::failed)?);
        workers.iter().for_each(RunningWorker::await_first_breath);
        let priority = config.daemon.schedule().real_time.map_or(0, |real_time| real_time.priority);
        Ok(Self { workers, slow, frame_pool, queues, priority })
    }

    /// State of each worker.
    pub fn workers(&self) -> Vec<WorkerState> {
        let mut states = Vec::new();
        for (index, running) in self.workers.iter().enumerate() {
            let is_real_time = matches!(running.worker.real_time(), Ok(true));
            let times = running.times.iter();
            states.push(WorkerState {
                core: running.core,
                alive: running.worker.is_alive(),
                priority: if is_real_time { self.priority } else { 0 },
                counters: SHOWN_COUNTERS.map(|counter| running.counters.get(counter)),
                queues: self.queues.of_worker(index),
                times: times.map(|(app, counters)| (app.clone(), counters.get(AppCounter::Ns))).collect(),
            });
        }
        states
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
        match slow {
            Some(slow) => drop(slow.stop_with(|| stop_workers(workers))),
            None => stop_workers(workers),
        }
    }
}

fn stop_workers(workers: Vec<RunningWorker>) {
    workers.into_iter().for_each(|running| drop(running.worker.stop()));
}

fn account(context: &WorkerContext, scope: Scope<'_>) -> Result<Account, Failure> {
    Account::open(&context.registry, scope).map_err(Failure::failed)
}

fn counters<K: CounterKind>(context: &WorkerContext, scope: Scope<'_>) -> Result<Counters<K>, Failure> {
    Counters::open(&context.registry, scope).map_err(Failure::failed)
}

/// Creates the slow path of a configuration, without workers and ports.
pub fn slow_path(
    config: &Config,
    context: &WorkerContext,
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
        published: context.published.clone(),
        reader: context.readers.register(),
        frames: Freelist::new(frame_pool.clone(), FREELIST),
        resolver,
        waker: Waker::new().map_err(Failure::failed)?,
        counters: counters(context, Scope::Slow)?,
        waits,
        seed: since_epoch.as_nanos() as u64 ^ u64::from(std::process::id()),
    }))
}

/// Makes an app of a queue; also returns the account of its received frames.
fn port_app(
    context: &WorkerContext,
    name: &str,
    queue: usize,
    port: Box<dyn Port>,
) -> Result<(PortApp, Account), Failure> {
    let received = account(context, Scope::PortReceive { port: name, queue })?;
    let sent = account(context, Scope::PortTransmit { port: name, queue })?;
    let device = counters(context, Scope::PortDevice { port: name, queue })?;
    Ok((PortApp::new(port, received, sent).with_device(device), received))
}

/// The app of a worker that chooses fabric links.
fn balancer(context: &WorkerContext, plan: BalancingPlan, worker: usize) -> Result<Balancing, Failure> {
    let scope = Scope::Balancer { worker };
    let counts = BalancingCounters { account: account(context, scope)?, counters: counters(context, scope)? };
    Ok(Balancing::new(plan, worker, counts))
}

/// Adds the router, and what the slow path returns, to the network of a worker, with the links between all apps.
fn add_router(
    config: &Config,
    context: &WorkerContext,
    slow: &mut SlowPath,
    index: usize,
    waker: &Waker,
    names: &[String],
    network: &mut Network,
) -> Result<(), Failure> {
    let account_of_return = account(context, Scope::Return { worker: index })?;
    let ring = config.slow_path.ring as usize;
    let (entrance, returning) = slow.add_worker(ring, names.to_vec(), account_of_return, Some(waker.clone()));
    let mut ports = Vec::new();
    for name in names {
        let account = account(context, Scope::Router { worker: index, port: name })?;
        ports.push(RouterPort { name: name.clone(), account });
    }
    let reader = context.readers.register();
    let mut router = Router::new(ports, context.published.clone(), reader, entrance).of_worker(index);
    if let Some(hook) = context.hooks.get().and_then(|hooks| hooks.worker(index)) {
        router = router.with_hook(hook);
    }
    network.app(ROUTER, Box::new(router)).map_err(Failure::failed)?;
    network.app(apps::SLOW, Box::new(returning)).map_err(Failure::failed)?;
    let lua_apps = context.apps.get().filter(|_| !config.apps.is_empty());
    if let Some(part) = lua_apps.and_then(|apps| apps.part(index)) {
        network.app(PART, Box::new(part)).map_err(Failure::failed)?;
    }
    apps::join(network, config, names).map_err(Failure::failed)
}

/// Starts a worker without ports for the Lua apps of one core.
fn start_app_worker(
    config: &Config,
    context: &WorkerContext,
    frame_pool: &Arc<FramePool>,
    apps: CoreApps,
) -> Result<RunningWorker, Failure> {
    let CoreApps { worker, core, apps } = apps;
    let mut network = Network::new();
    network.app(PART, Box::new(apps)).map_err(Failure::failed)?;
    let waker = Waker::new().map_err(Failure::failed)?;
    // No real-time priority: Lua code may run for any time.
    let schedule = Schedule { core: Some(core), real_time: None, ..config.daemon.schedule() };
    start_worker(context, frame_pool, worker, &format!("bm-lua-{core}"), schedule, network, waker)
}

/// Starts a worker that runs `network`.
fn start_worker(
    context: &WorkerContext,
    frame_pool: &Arc<FramePool>,
    index: usize,
    name: &str,
    schedule: Schedule,
    network: Network,
    waker: Waker,
) -> Result<RunningWorker, Failure> {
    let core = schedule.core;
    let frames = Freelist::near(frame_pool.clone(), FREELIST, core.and_then(bm_frame::node_of_core));
    let engine = Engine::new(network, frames).map_err(Failure::failed)?;
    let (mut links, mut apps, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for link in engine.links() {
        links.push(counters(context, Scope::Link { worker: index, link: &link.name })?);
    }
    for app in engine.apps() {
        let time: Counters<AppCounter> = counters(context, Scope::Time { worker: index, app })?;
        apps.push(time);
        times.push((app.to_owned(), time));
    }
    let counters = counters(context, Scope::Worker { worker: index })?;
    let breaths_before = counters.get(WorkerCounter::Breaths);
    let all = AllCounters { worker: counters, links, apps };
    let worker = Worker::start(name, schedule, engine, all, waker).map_err(Failure::failed)?;
    Ok(RunningWorker { worker, core, counters, times, breaths_before })
}
