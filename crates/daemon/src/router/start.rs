//! Starts what forwards.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};

use bm_cli::Failure;
use bm_control::config::{self, Config};
use bm_control::control_thread::ControlThread;
use bm_fastpath::Kernel;
use bm_fib::published::Readers;
use tokio::sync::Notify;

use super::restarts::Restarts;
use super::worker_resources::{MakeNatives, WorkerResources};
use super::{Forwarder, Setup};
use crate::cluster::Node;
use crate::guard::watcher::Watch;
use crate::ipsec::{Ipsec, TunDevices};
use crate::observe::linux_drops::LinuxDrops;
use crate::observe::sampling::Sampling;
use crate::observe::statistics;
use crate::observe::traffic::Meter;
use crate::plan::machine::Machine;
use crate::plan::{self, Plan, Request};
use crate::ports::kernel_ports::{self, Started};
use crate::ports::probe;
use crate::random::random;
use crate::switches::Bridges;
use crate::workers::dataplane::Shared;
use crate::workers::running::{Opened, Openers};

impl Forwarder {
    /// Starts the switches, this node of a cluster, then the router, which may have a port on a switch.
    pub fn start(
        config: Config,
        machine: Machine,
        file: Option<PathBuf>,
        natives: MakeNatives,
        linux_drops: LinuxDrops,
    ) -> Result<Self, Failure> {
        let switches = Bridges::start(&config)?;
        let cluster = Node::start(&config)?;
        // Switches may have created interfaces.
        let machine = Machine { scripts: machine.scripts, ..probe::without_scripts(&config) };
        let mut forwarder = Self::start_router(config, machine, file.as_deref(), natives, &cluster)?;
        forwarder.linux_drops = linux_drops;
        (forwarder.switches, forwarder.cluster, forwarder.file) = (switches, cluster, file);
        forwarder.sampling.apply(&forwarder.setup().config.export);
        Ok(forwarder)
    }

    /// Opens ports, loads tables, starts workers, and then lets the ports take packets.
    fn start_router(
        config: Config,
        mut machine: Machine,
        file: Option<&Path>,
        natives: MakeNatives,
        cluster: &Node,
    ) -> Result<Self, Failure> {
        let request = Request { file, named: &[], may_grow: true };
        let plan = plan::plan(&config, &machine, &request)?;
        // If the configuration does not require the kernel path, workers replace it.
        let may_use_workers_instead = plan.with_kernel && plan.paths.may_use_workers_instead();
        match Self::start_with(config.clone(), plan, natives, cluster) {
            Err(Failure::Failed(why)) if may_use_workers_instead => {
                tracing::warn!(%why, "the kernel path is not available; using the user path instead");
                machine.no_kernel_path = Some(why);
                let plan = plan::plan(&config, &machine, &request)?;
                Self::start_with(config, plan, natives, cluster)
            }
            tried => tried,
        }
    }

    /// Starts the router as planned. If all ports use the kernel path, there is no frame memory and there are no workers.
    fn start_with(config: Config, plan: Plan, natives: MakeNatives, cluster: &Node) -> Result<Self, Failure> {
        let ipsec = Arc::new(Mutex::new(Ipsec::open(&config)?));
        let (registry, stats) = statistics::counters(&config)?;
        let readers = Readers::new();
        let strict = |_: &config::Port| true;
        let Started { kernel, ports: on, claims, notes } = match plan.with_kernel {
            true => kernel_ports::start(&config, &plan.paths)?,
            false => kernel_ports::without(&config),
        };
        let has_kernel = kernel.is_some();
        let pinned = kernel.as_ref().is_some_and(Kernel::is_pinned);
        let worker_resources = WorkerResources::new(natives);
        let opener = plan.workers.as_ref().map(|workers| worker_resources.opener(&config, workers));
        let opener = opener.transpose()?;
        let openers = Openers { workers: opener.as_ref(), claims: claims.as_ref(), strict: &strict };
        let (mut opened, ports) = Opened::open(&config, &plan, on, &openers)?;
        opened.note(&notes);
        let hash_seed = config.fib.hash_seed.unwrap_or_else(random);
        let driver =
            ControlThread::start(&config, hash_seed, &readers, ports, kernel).map_err(Failure::failed)?;
        let published = driver.handle().published().clone();
        let (hooks, apps) = (OnceLock::new(), OnceLock::new());
        let tun_devices = Arc::new(TunDevices::new()?);
        let shared = Shared { published, readers, registry, hooks, apps, ipsec, tun_devices };
        shared.tun_devices.follow(&config, driver.handle());
        let running = match opener {
            Some(opener) => {
                worker_resources.scripts(&shared)?;
                opened.start(&config, &shared, driver.handle(), opener, cluster)?
            }
            None => opened.without_workers(),
        };
        // Before packets are forwarded with tables that may outlive this process.
        let mut watch = match pinned {
            true => Watch::start(driver.handle(), config.daemon.kernel_grace),
            false => Watch::NotNeeded,
        };
        let active = driver.handle().ask(|control| control.set_active(true));
        active.inspect_err(|_| watch.end()).map_err(Failure::failed)?;
        Ok(Self {
            driver,
            shared,
            worker_resources,
            running: Mutex::new(Some(running)),
            switches: Bridges::default(),
            cluster: Node::default(),
            setup: Mutex::new(Setup { config, plan }.into()),
            claims,
            has_kernel,
            notes,
            watch: watch.into(),
            file: None,
            restarts: Restarts::with_spare().into(),
            starts: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            paused: Mutex::default(),
            keeps: AtomicBool::new(false),
            unfollowed: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
            said_unfiltered: Mutex::default(),
            uncovered: Mutex::default(),
            filter_tables: Mutex::default(),
            linux_drops: LinuxDrops::none(),
            meter: Meter::default(),
            sampling: Sampling::default(),
            links: Arc::new(Notify::new()),
            _stats: stats,
        })
    }
}
