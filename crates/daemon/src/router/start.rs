//! Starts what forwards.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock};

use bm_cli::Failure;
use bm_control::config::Config;
use bm_control::control_thread::ControlThread;
use bm_fastpath::{Claims, Kernel};
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
use crate::observe::statistics::{self, CounterFile};
use crate::observe::traffic::Meter;
use crate::plan::machine::Machine;
use crate::plan::{self, Request};
use crate::ports::kernel_ports::{self, KernelPath};
use crate::ports::probe;
use crate::random;
use crate::switches::Bridges;
use crate::workers::data_path::{DataPath, OpenOptions, OpenPorts};
use crate::workers::threads::WorkerContext;

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
        let router = Router::start(config, machine, file.as_deref(), natives, &cluster)?;
        let sampling = Sampling::default();
        sampling.apply(&router.setup.config.export);
        Ok(Self {
            driver: router.driver,
            context: router.context,
            worker_resources: router.worker_resources,
            running: Mutex::new(Some(router.data_path)),
            switches,
            cluster,
            setup: Mutex::new(router.setup.into()),
            claims: router.claims,
            has_kernel: router.has_kernel,
            notes: router.notes,
            watch: router.watch.into(),
            file,
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
            linux_drops,
            meter: Meter::default(),
            sampling,
            links: Arc::new(Notify::new()),
            _stats: router.stats,
        })
    }
}

/// The kernel path, workers and the control thread, as they were started.
struct Router {
    setup: Setup,
    driver: ControlThread,
    context: WorkerContext,
    worker_resources: WorkerResources,
    data_path: DataPath,
    claims: Option<Claims>,
    has_kernel: bool,
    /// Notes for `status` on the kernel path.
    notes: Vec<String>,
    watch: Watch,
    stats: CounterFile,
}

impl Router {
    /// Opens ports, loads tables, starts workers, and then lets the ports take packets.
    fn start(
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
        match Self::start_as_planned(Setup { config: config.clone(), plan }, natives, cluster) {
            Err(Failure::Failed(why)) if may_use_workers_instead => {
                tracing::warn!(%why, "the kernel path is not available; using the user path instead");
                machine.no_kernel_path = Some(why);
                let plan = plan::plan(&config, &machine, &request)?;
                Self::start_as_planned(Setup { config, plan }, natives, cluster)
            }
            tried => tried,
        }
    }

    /// Starts the router. If all ports use the kernel path, there is no frame memory and there are no workers.
    fn start_as_planned(setup: Setup, natives: MakeNatives, cluster: &Node) -> Result<Self, Failure> {
        let Setup { config, plan } = &setup;
        let ipsec = Arc::new(Mutex::new(Ipsec::open(config)?));
        let (registry, stats) = statistics::counters(config)?;
        let readers = Readers::new();
        let KernelPath { kernel, ports: kernel_ports, claims, notes } = match plan.with_kernel {
            true => kernel_ports::start(config, &plan.paths)?,
            false => kernel_ports::without(config),
        };
        let has_kernel = kernel.is_some();
        let pinned = kernel.as_ref().is_some_and(Kernel::is_pinned);
        let worker_resources = WorkerResources::new(natives);
        let opener = plan.workers.as_ref().map(|workers| worker_resources.opener(config, workers));
        let opener = opener.transpose()?;
        let options = OpenOptions { opener: opener.as_ref(), claims: claims.as_ref(), is_strict: &|_| true };
        let (opened, ports) = OpenPorts::open(config, plan, kernel_ports, &options)?;
        let hash_seed = config.fib.hash_seed.unwrap_or_else(random);
        let driver =
            ControlThread::start(config, hash_seed, &readers, ports, kernel).map_err(Failure::failed)?;
        let context = WorkerContext {
            published: driver.handle().published().clone(),
            readers,
            registry,
            hooks: OnceLock::new(),
            apps: OnceLock::new(),
            ipsec,
            tun_devices: Arc::new(TunDevices::new()?),
        };
        context.tun_devices.follow(config, driver.handle());
        let data_path = match opener {
            Some(opener) => {
                worker_resources.scripts(&context)?;
                opened.start(config, &context, driver.handle(), opener, cluster)?
            }
            None => opened.without_workers(),
        };
        let data_path = data_path.with_notes(&notes);
        // Before packets are forwarded with tables that may outlive this process.
        let mut watch = match pinned {
            true => Watch::start(driver.handle(), config.daemon.kernel_grace),
            false => Watch::NotNeeded,
        };
        let active = driver.handle().ask(|control| control.set_active(true));
        active.inspect_err(|_| watch.end()).map_err(Failure::failed)?;
        Ok(Self {
            setup,
            driver,
            context,
            worker_resources,
            data_path,
            claims,
            has_kernel,
            notes,
            watch,
            stats,
        })
    }
}
