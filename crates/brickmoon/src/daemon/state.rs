//! The state of the daemon, and its answers to API requests.

mod after;
mod arrange;
mod follow;
mod held;
mod reload;
mod status;
mod unfiltered;
mod worker_resources;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use bm_api::request::{RouteQuery, StopQuery};
use bm_api::{
    Apps, Drops, Error, Filters, Hooks, Interface, Links, Neighbors, NextHops, Port, Ports, Queue, Routes,
};
use bm_api::{Macs, Stopping, Switches, Verify, Worker, Workers};
use bm_control::config::{self, Config};
use bm_control::driver::{Driver, OfControl, OfPort};
use bm_fastpath::{AttachType, Claims, Kernel};
use bm_fib::published::Readers;
use bm_stats::{Registry, Scope};
use tokio::sync::Notify;

use super::dataplane::{DataPlane, Shared};
use super::health::{Health, Silent};
use super::kernel_ports;
use super::path::{self, Paths};
use super::report::{self, Counters};
use super::running::{Opened, Openers, PortInfo, Running};
use super::server::Removed;
use super::switches::Bridges;
use super::watcher::Watch;
use super::{apps, hooks};
use crate::args::Up;
use crate::{Failure, log};
use after::Restarts;
use held::Held;
use worker_resources::WorkerResources;

/// Maximum number of counters: about fifty per account, and three accounts per port and worker.
const COUNTERS: usize = 1 << 16;

/// The configuration in use, and the paths of its ports.
#[derive(Default)]
struct Setup {
    config: Config,
    paths: Paths,
}

/// The running daemon.
pub struct Daemon {
    driver: Driver,
    shared: Shared,
    worker_resources: WorkerResources,
    /// `None` while the data path is being started again, and at the end.
    running: Mutex<Option<Running>>,
    switches: Bridges,
    setup: Mutex<Arc<Setup>>,
    /// The map that takes workers' sockets for claimed packets.
    claims: Option<Claims>,
    /// The process that watches the kernel path's tables after this one has ended.
    watch: Mutex<Watch>,
    /// Whether the kernel path is loaded, for ports that use it now or later.
    has_kernel: bool,
    /// Notes for `status` on the kernel path.
    notes: Vec<String>,
    /// The note for `status` of a daemon that keeps all privileges.
    unconfined: Option<String>,
    /// The command line.
    up: Up,
    started: Instant,
    restarts: Mutex<Restarts>,
    /// Number of restarts of the data path, in total and after failures.
    starts: AtomicU64,
    failures: AtomicU64,
    /// Whether the kernel path keeps forwarding after the end.
    keeps: AtomicBool,
    /// Notified when the daemon is to end.
    pub end: Notify,
    /// Notified when interfaces have changed.
    pub links: Arc<Notify>,
    /// Whether interfaces must be checked again because the control thread did not answer.
    unfollowed: AtomicBool,
    /// The last log messages on ports that are not filtered.
    said_unfiltered: Mutex<Vec<String>>,
    /// The tables of nftables that filter for ports.
    held: Mutex<Held>,
    /// Threads that make no progress.
    silent: Silent,
    _stats: Removed,
}

/// Locks a mutex, even after a panic.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Still the best available data if a thread panicked while it held the lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An unpredictable number.
pub fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

/// Counters that other processes can read, and their file, which is removed with the daemon.
fn counters(config: &Config) -> Result<(Arc<Registry>, Removed), Failure> {
    let file = config.daemon.socket.with_extension("stats");
    let registry = Arc::new(Registry::create(&file, COUNTERS).map_err(Failure::failed)?);
    Ok((registry, Removed(file)))
}

impl Daemon {
    /// Starts the switches, then the router, which may have a port on a switch.
    pub fn start(
        config: Config,
        up: Up,
        started: Instant,
        unconfined: Option<String>,
    ) -> Result<Self, Failure> {
        let switches = Bridges::start(&config)?;
        let mut daemon = Self::start_router(config, up, started)?;
        (daemon.switches, daemon.unconfined) = (switches, unconfined);
        Ok(daemon)
    }

    /// Opens ports, loads tables, starts workers, and then lets the ports take packets.
    fn start_router(config: Config, up: Up, started: Instant) -> Result<Self, Failure> {
        let paths = path::choose(&config, path::obstacle)?;
        let with_kernel = paths.any_kernel() || path::may_come_to_kernel(&config);
        if !with_kernel {
            return Self::start_on(config, up, started, paths, false);
        }
        match Self::start_on(config.clone(), up.clone(), started, paths.clone(), true) {
            // If the configuration does not require the kernel path, workers replace it.
            Err(Failure::Failed(why)) if paths.may_do_without() => {
                tracing::warn!(%why, "the kernel path is not available; using the user path instead");
                Self::start_on(config, up, started, paths.instead(&why), false)
            }
            tried => tried,
        }
    }

    /// Starts the router on these paths, with or without the kernel path loaded. If all ports use the kernel path, there
    /// is no frame memory and there are no workers.
    fn start_on(
        config: Config,
        up: Up,
        started: Instant,
        paths: Paths,
        with_kernel: bool,
    ) -> Result<Self, Failure> {
        let (registry, stats) = counters(&config)?;
        let readers = Readers::new();
        let strict = |_: &config::Port| true;
        let (kernel, on, claims, notes) = match with_kernel {
            true => kernel_ports::start(&config, &paths)?,
            false => kernel_ports::without(&config),
        };
        let pinned = kernel.as_ref().is_some_and(Kernel::is_pinned);
        let worker_resources = WorkerResources::default();
        let opener = match paths.needs_workers(&config) {
            true => Some(worker_resources.opener(&config)?),
            false => None,
        };
        let openers = Openers { workers: opener.as_ref(), claims: claims.as_ref(), strict: &strict };
        let (mut opened, ports) = Opened::open(&config, &paths, on, &openers)?;
        opened.note(&notes);
        let hash_seed = config.fib.hash_seed.unwrap_or_else(random);
        let driver = Driver::start(&config, hash_seed, &readers, ports, kernel).map_err(Failure::failed)?;
        let published = driver.handle().published().clone();
        let (hooks, apps) = (OnceLock::new(), OnceLock::new());
        let shared = Shared { published, readers, registry, hooks, apps };
        let running = match opener {
            Some(opener) => {
                worker_resources.scripts(&shared)?;
                opened.start(&config, &shared, driver.handle(), opener)?
            }
            None => opened.without_workers(),
        };
        // Before packets are forwarded with tables that may outlive this process.
        let mut watch = match pinned {
            true => Watch::start(driver.handle(), config.daemon.kernel_grace),
            false => Watch::NotNeeded,
        };
        driver.handle().set_active(true).inspect_err(|_| watch.end()).map_err(Failure::failed)?;
        let silent = Health::hear_from(driver.handle());
        Ok(Self {
            driver,
            shared,
            worker_resources,
            running: Mutex::new(Some(running)),
            switches: Bridges::default(),
            setup: Mutex::new(Setup { config, paths }.into()),
            claims,
            has_kernel: with_kernel,
            notes,
            watch: watch.into(),
            unconfined: None,
            up,
            started,
            restarts: Restarts::with_spare().into(),
            starts: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            keeps: AtomicBool::new(false),
            unfollowed: AtomicBool::new(false),
            said_unfiltered: Mutex::default(),
            held: Mutex::default(),
            end: Notify::new(),
            links: Arc::new(Notify::new()),
            silent,
            _stats: stats,
        })
    }

    fn setup(&self) -> Arc<Setup> {
        lock(&self.setup).clone()
    }

    /// The line that is printed when the daemon is ready.
    pub fn ready(&self) -> String {
        let status = self.status().unwrap_or_default();
        let switches = match (status.switches, status.switch_ports) {
            (0, _) => String::new(),
            (switches, ports) => format!(
                "{} with {}, ",
                bm_cli::counted_as(switches.into(), "switch", "switches"),
                bm_cli::counted(ports.into(), "port")
            ),
        };
        format!(
            "ready: {switches}{}, {}, {} IPv4 and {} IPv6 routes in {} ms",
            bm_cli::counted(status.ports.into(), "port"),
            bm_cli::counted(status.workers.into(), "worker"),
            bm_cli::count(status.routes_ipv4 as u64),
            bm_cli::count(status.routes_ipv6 as u64),
            self.started.elapsed().as_millis(),
        )
    }

    /// The note for a daemon without ports.
    pub fn no_ports(&self) -> Option<String> {
        let setup = self.setup();
        let file = self.up.config.as_deref().unwrap_or(Path::new(config::FILE));
        let nothing = setup.config.ports.is_empty() && setup.config.switches.is_empty();
        nothing.then(|| {
            format!("no ports: add [[port]] tables to {}, then run `brickmoon reload`", file.display())
        })
    }

    /// All counters, including those of the kernel path.
    fn counters(&self) -> Counters {
        self.counters_with(&self.driver.handle().kernel_counters().unwrap_or_default())
    }

    /// All counters, with the given ones of the kernel path for each port.
    fn counters_with(&self, kernel: &[bm_fastpath::Counters]) -> Counters {
        let mut counters = Counters::new();
        // After a change of links, counters of the same name may exist more than once: they are summed.
        let all = self.shared.registry.counters().into_iter();
        all.for_each(|(name, value)| *counters.entry(name).or_default() += value);
        self.switches.add_to(&mut counters);
        if let Some(running) = lock(&self.running).as_ref() {
            for (port, kernel) in running.ports.iter().zip(kernel) {
                match port.path.in_kernel {
                    true => report::add_kernel(&mut counters, &port.name, kernel),
                    false => report::add_steering(&mut counters, &port.name, kernel),
                }
            }
        }
        counters
    }

    /// Ports with their interfaces and accounts.
    pub fn ports(&self) -> Ports {
        let (interfaces, kernel) = self.driver.handle().ports().unwrap_or_default();
        let is_xdp = |of_port: &OfPort| matches!(of_port.attached, Some((AttachType::Xdp, _)));
        let by_xdp = interfaces.iter().any(is_xdp);
        let counters = self.counters_with(&kernel);
        let setup = self.setup();
        let has_apps = |port: &str| setup.config.has_apps_behind(port);
        let running = lock(&self.running);
        let Some(running) = running.as_ref() else { return Ports::default() };
        let ports = running.ports.iter().enumerate();
        let port = |(index, info): (usize, &PortInfo)| {
            let OfPort { up, interfaces: of_port, linux_only, left_to_linux: left, attached } =
                interfaces.get(index).cloned().unwrap_or_default();
            let before_workers = kernel.get(index).copied().unwrap_or_default();
            let in_kernel = info.path.in_kernel.then_some(&before_workers);
            let of_workers = || report::port_account(&counters, &info.name, has_apps(&info.name));
            let queue = |queue: usize| {
                let scope = Scope::PortReceive { port: &info.name, queue };
                Queue {
                    queue: queue as u32,
                    worker: running.worker_of(&info.name, queue) as u32,
                    account: report::account(&counters, scope),
                }
            };
            let (state, state_reason) = info.presence.shown(&info.name);
            let trouble = || info.trouble.as_ref()?();
            Port {
                index: index as u16,
                state,
                state_reason: state_reason.or_else(trouble),
                name: info.name.clone(),
                device: info.device.clone(),
                up,
                active: !of_port.is_empty(),
                mode: info.mode,
                ring: info.ring,
                mode_reason: info.reason.clone().or_else(|| {
                    in_kernel?;
                    left_to_linux(&of_port).or_else(|| no_frames(info).filter(|_| by_xdp))
                }),
                path: if in_kernel.is_some() { "kernel" } else { "user" }.into(),
                path_reason: info.path.reason.clone(),
                attach: attached.as_ref().map(|(attach_type, _)| attach_type.to_string()),
                attach_reason: attached.and_then(|(_, reason)| reason),
                linux_only,
                queues: (0..info.queues).map(queue).collect(),
                interfaces: of_port,
                account: match (in_kernel, of_workers()) {
                    (Some(kernel), workers) => report::with_claimed(report::kernel_account(kernel), &workers),
                    (None, workers) => report::with_steering(workers, &before_workers),
                },
                device_counters: report::device_counters(&counters, &info.name),
                hardware_counters: info.hardware.iter().flat_map(|hardware| hardware()).collect(),
                kernel_counters: in_kernel.map_or_else(
                    || report::steering_counters(left, &before_workers),
                    report::kernel_counters,
                ),
            }
        };
        Ports { ports: ports.map(port).collect() }
    }

    /// Routes, as the fast path uses them.
    pub fn routes(&self, query: &RouteQuery) -> Result<Routes, Error> {
        self.driver.handle().routes(query)
    }

    /// The kernel's neighbors on our ports.
    pub fn neighbors(&self) -> Result<Neighbors, Error> {
        self.driver.handle().neighbors()
    }

    /// Next hops and next-hop groups.
    pub fn next_hops(&self) -> Result<NextHops, Error> {
        self.driver.handle().next_hops()
    }

    /// Compares all tables with the kernel's.
    pub fn verify(&self) -> Result<Verify, Error> {
        let mut verify = self.driver.handle().verify()?;
        let not_ours = self.not_ours(&self.driver.handle().interfaces().unwrap_or_default());
        verify.notes.extend(not_ours.unfiltered.into_iter().chain(not_ours.held));
        Ok(verify)
    }

    /// Apps and their accounts.
    pub fn apps(&self) -> Apps {
        let mut apps = report::apps(&self.counters());
        apps.apps.extend(self.reports().iter().flat_map(apps::apps_of));
        apps
    }

    /// Reports of the Lua apps of each worker.
    fn reports(&self) -> Vec<bm_lua::Report> {
        let apps = self.shared.apps.get().into_iter().filter(|apps| !apps.is_empty());
        apps.flat_map(|apps| apps.reports(apps::PATIENCE)).collect()
    }

    /// Links between apps.
    pub fn links(&self) -> Links {
        let mut links = report::links(&self.counters());
        apps::add_links(&self.reports(), &mut links.links);
        links
    }

    /// Dropped frames by reason.
    pub fn drops(&self) -> Drops {
        let counters = self.counters();
        let mut drops = report::drops(&counters);
        let hooks = self.shared.hooks.get().map(|hooks| hooks.report()).unwrap_or_default();
        hooks::name_drops(&mut drops, &hooks, &counters);
        self.switches.add_drops(&mut drops);
        apps::add_drops(&self.reports(), &mut drops);
        drops
    }

    /// Lua hooks with their counters.
    pub fn hooks(&self) -> Hooks {
        let reports = self.shared.hooks.get().map(|hooks| hooks.report()).unwrap_or_default();
        hooks::hooks(reports, &self.counters())
    }

    /// Filter rules with their matches.
    pub fn filters(&self) -> Result<Filters, Error> {
        self.driver.handle().filters()
    }

    /// Workers with their state and frame memory.
    pub fn workers(&self) -> Workers {
        // Counters of the kernel path do not concern workers.
        let (counters, reports) = (self.counters_with(&[]), self.reports());
        let running = lock(&self.running);
        let Some(running) = running.as_ref() else { return Workers::default() };
        let (frames, free) = running.plane.as_ref().map_or((0, 0), DataPlane::frames);
        let restarts = self.failures.load(Ordering::Relaxed);
        let worker = |(index, state): (usize, super::dataplane::WorkerState)| {
            let [breaths, moves, sleeps] = state.counters;
            Worker {
                worker: index as u32,
                core: state.core.map(|core| core as u32),
                alive: state.alive,
                priority: state.priority,
                queues: state.queues,
                breaths,
                moves,
                sleeps,
                restarts,
                frames: frames as u32,
                frames_free: free as u32,
                lua: apps::lua_of_worker(index, &counters, &reports),
            }
        };
        Workers { workers: running.workers().into_iter().enumerate().map(worker).collect() }
    }

    /// Switches with their ports.
    pub fn switches(&self) -> Switches {
        self.switches.switches()
    }

    /// The MAC addresses that switches have learned.
    pub fn macs(&self) -> Macs {
        self.switches.macs()
    }

    /// Metrics for Prometheus.
    pub fn metrics(&self) -> String {
        let OfControl { status, ports, kernel, filters } =
            self.driver.handle().everything().unwrap_or_default();
        let mut counters = self.counters_with(&kernel);
        counters.insert("log/lines_lost".into(), log::lost());
        report::add_filters(&mut counters, &filters);
        let counters: Vec<_> = counters.into_iter().collect();
        bm_telemetry::render(&self.completed(status, &ports), &counters)
    }

    /// Ends the daemon after this reply has been sent. With `keep` the kernel path keeps forwarding.
    pub fn stop(&self, query: &StopQuery) -> Result<Stopping, Error> {
        if query.keep {
            // Workers end with the daemon; switches need not.
            let in_kernel = self.setup().paths.any_kernel();
            if in_kernel || self.switches.count().0 == 0 {
                self.driver.handle().keep()?;
            }
            self.switches.keep()?;
            self.keeps.store(in_kernel, Ordering::Relaxed);
        }
        self.end.notify_one();
        Ok(Stopping { pid: std::process::id(), kept: query.keep })
    }
}

/// Why the kernel path cannot send through one of its ports; `None` if it can.
fn no_frames(info: &PortInfo) -> Option<String> {
    let why = bm_fastpath::why_no_frames(&info.name)?;
    Some(format!("{why}: Linux forwards packets that leave there"))
}

/// Which interfaces of a port the kernel path leaves to Linux because they are in a VRF.
fn left_to_linux(interfaces: &[Interface]) -> Option<String> {
    let in_vrf = interfaces.iter().filter(|interface| interface.vrf.is_some());
    let names: Vec<&str> = in_vrf.map(|interface| interface.name.as_str()).collect();
    let names = names.join(", ");
    (!names.is_empty()).then(|| format!("{names}: in a VRF, so Linux forwards packets that arrive there"))
}
