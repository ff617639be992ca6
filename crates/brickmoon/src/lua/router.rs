//! The router as an app of a Lua program: the same router, slow path and mirror of the kernel's tables as in the daemon.
//!
//! ```text
//! config.app(c, "rt", "router", { ports = { "eth0", "eth1" } })
//! eth0.output -> rt.eth0   rt.eth0 -> eth0.input      each link of the router has the name of its port
//! ```
//!
//! The router opens its ports, so that Linux keeps the packets that it does not forward; apps `xdp:eth0` of the same
//! program are then queues of these ports.

use std::any::Any;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use bm_control::config::{self, Config};
use bm_control::control_thread::{ControlPort, ControlThread};
use bm_daemon::{OpenDevice, OpenPort, Rings};
use bm_fib::published::Readers;
use bm_forward::{Router, RouterPort, SlowPort, SlowReturn, SlowThread};
use bm_frame::FramePool;
use bm_graph::{App, Io, Waker};
use bm_lua::{AppRequest, NativeApp};
use bm_port::Port;
use bm_stats::{Account, Registry, Scope};

use super::port_memory::PortMemory;

/// The routers of a program, by app name.
#[derive(Default)]
pub struct Routers(HashMap<String, Weak<Set>>);

/// One router: its parts for the workers, and what they share.
struct Set {
    parts: Mutex<Vec<Option<RouterApp>>>,
    queues: Mutex<HashMap<(String, usize), Box<dyn Port>>>,
    devices: Vec<String>,
    _threads: Mutex<Threads>,
}

/// What runs as long as the router. The fields are dropped in this order: the last packets of the slow path are sent,
/// then Linux gets all packets again.
struct Threads {
    _slow_path: SlowThread,
    _control: ControlThread,
    _devices: Vec<Box<dyn Any + Send>>,
}

/// The router and the return path from the slow path as one app: both send on the same links.
struct RouterApp {
    router: Router,
    back: SlowReturn,
    /// Wakes the worker when the slow path returns frames.
    waker: Waker,
    /// Keeps the slow path and control alive while a worker forwards.
    set: Option<Arc<Set>>,
}

impl App for RouterApp {
    fn push(&mut self, io: &mut Io<'_>) {
        // Part of push, not of pull, so that the engine orders the links that it fills behind those that fill it.
        self.back.pull(io);
        self.router.push(io);
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.waker.fd())
    }

    fn connect(&mut self, inputs: &[String], outputs: &[String]) {
        self.router.connect(inputs, outputs);
        self.back.connect(inputs, outputs);
    }

    fn before_sleep(&mut self) -> bool {
        let router = self.router.before_sleep();
        self.back.before_sleep() && router
    }

    fn after_sleep(&mut self) {
        self.router.after_sleep();
        self.back.after_sleep();
        self.waker.clear();
    }

    fn stop(&mut self, io: &mut Io<'_>) {
        self.router.stop(io);
        self.back.stop(io);
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

/// The devices that the argument names: `{ ports = { "eth0", "tap:t0" } }`.
fn devices(wanted: &AppRequest<'_>) -> Result<Vec<config::Port>, String> {
    let hint =
        "the router needs the argument { ports = { \"eth0\", ... } }: the ports that it forwards between";
    let names = wanted.argument.get("ports").and_then(serde_json::Value::as_array).ok_or(hint)?;
    let mut ports = Vec::new();
    for name in names {
        ports.push(config::Port::new(name.as_str().ok_or(hint)?.parse().map_err(text)?));
    }
    Ok(ports)
}

impl Routers {
    /// This worker's part of the router `wanted`; the first worker starts it for all.
    pub fn open(
        &mut self,
        wanted: &AppRequest<'_>,
        memory: &PortMemory,
        registry: &Arc<Registry>,
    ) -> Result<NativeApp, String> {
        // Its parts keep it alive: once all have been dropped, the next call starts a new one.
        let set = match self.0.get(wanted.name).and_then(Weak::upgrade) {
            Some(set) => set,
            None => Arc::new(Set::start(wanted, memory, registry)?),
        };
        self.0.insert(wanted.name.into(), Arc::downgrade(&set));
        let mut parts = set.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let part = parts.get_mut(wanted.worker).and_then(Option::take);
        let mut part = part.ok_or("this worker already has this router")?;
        drop(parts);
        part.set = Some(set);
        Ok(NativeApp { app: Box::new(part), pulls: false })
    }

    /// This worker's queue of a port that a router has opened; `None` if no router has the port.
    pub fn port(&self, wanted: &AppRequest<'_>) -> Result<Option<Box<dyn Port>>, String> {
        let class = wanted.class.strip_prefix("xdp:").unwrap_or(wanted.class);
        let mut sets = self.0.values().filter_map(Weak::upgrade);
        let Some(set) = sets.find(|set| set.devices.iter().any(|device| device == class)) else {
            return Ok(None);
        };
        let mut queues = set.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.remove(&(class.to_string(), wanted.worker));
        queue.map(Some).ok_or_else(|| format!("{class} has no queue left for worker {}", wanted.worker))
    }
}

impl Set {
    fn start(wanted: &AppRequest<'_>, memory: &PortMemory, registry: &Arc<Registry>) -> Result<Self, String> {
        let config = Config { ports: devices(wanted)?, ..Config::default() };
        // Other apps of the program use the memory, too.
        let rings = Rings { memory: &memory.frame_pool, ring: bm_port_xdp::RING };
        let opened = bm_daemon::open_ports(&config.ports, &rings, &|_| wanted.workers);
        let opened = opened.map_err(text)?;
        let readers = Readers::new();
        let (mut control, mut parts, mut keep) = (Vec::new(), Vec::new(), Vec::new());
        let (mut queues, mut devices) = (HashMap::new(), Vec::new());
        for port in opened {
            let OpenPort { name, device, open, .. } = port;
            let OpenDevice { ifindex, queues: each, host, steering, keep: kept, .. } = open;
            let device = device.strip_prefix("xdp:").unwrap_or(&device).to_string();
            for (worker, queue) in each.into_iter().enumerate() {
                queues.insert((device.clone(), worker), memory.port(queue));
            }
            devices.push(device);
            control.push(ControlPort { name: name.clone(), ifindex, steering, in_kernel: false });
            keep.push(kept);
            parts.push((name, host));
        }
        let driver =
            ControlThread::start(&config, bm_daemon::random(), &readers, control, None).map_err(text)?;
        let context = bm_daemon::WorkerContext {
            published: driver.handle().published().clone(),
            readers,
            registry: registry.clone(),
            hooks: OnceLock::new(),
            apps: OnceLock::new(),
            ipsec: Arc::default(),
            tun_devices: Arc::new(bm_daemon::TunDevices::new().map_err(text)?),
        };
        let neighbor_requests = Box::new(driver.handle().neighbor_requests().map_err(text)?);
        let frame_pool: &Arc<FramePool> = wanted.frame_pool;
        let mut slow =
            bm_daemon::slow_path(&config, &context, neighbor_requests, frame_pool).map_err(text)?;
        let names: Vec<_> = parts.iter().map(|(name, _)| name.clone()).collect();
        for (name, host) in parts {
            let account = Account::open(registry, Scope::SlowPort { port: &name }).map_err(text)?;
            slow.add_port(SlowPort { account, host: Some(host), worker: 0 });
        }
        let mut apps = Vec::new();
        for worker in 0..wanted.workers {
            let waker = Waker::new().map_err(text)?;
            let account = Account::open(registry, Scope::Return { worker }).map_err(text)?;
            let (entrance, back) =
                slow.add_worker(config.slow_path.ring as usize, names.clone(), account, Some(waker.clone()));
            let mut ports = Vec::new();
            for name in &names {
                let account = Account::open(registry, Scope::Router { worker, port: name }).map_err(text)?;
                ports.push(RouterPort { name: name.clone(), account });
            }
            let router = Router::new(ports, context.published.clone(), context.readers.register(), entrance);
            apps.push(Some(RouterApp { router, back, waker, set: None }));
        }
        let slow = SlowThread::start(slow).map_err(text)?;
        driver.handle().ask(|control| control.set_active(true)).map_err(text)?;
        Ok(Self {
            parts: Mutex::new(apps),
            queues: Mutex::new(queues),
            devices,
            _threads: Mutex::new(Threads { _slow_path: slow, _control: driver, _devices: keep }),
        })
    }
}
