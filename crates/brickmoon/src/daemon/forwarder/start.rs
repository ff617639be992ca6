//! Starts what forwards.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};

use bm_control::config::{self, Config};
use bm_control::driver::Driver;
use bm_fastpath::Kernel;
use bm_fib::published::Readers;
use tokio::sync::Notify;

use super::restarts::Restarts;
use super::worker_resources::{MakeNatives, WorkerResources};
use super::{Forwarder, Setup};
use crate::daemon::dataplane::Shared;
use crate::daemon::path::{self, Paths};
use crate::daemon::random::random;
use crate::daemon::running::{Opened, Openers};
use crate::daemon::switches::Bridges;
use crate::daemon::watcher::Watch;
use crate::daemon::{kernel_ports, statistics};
use crate::failure::Failure;

impl Forwarder {
    /// Starts the switches, then the router, which may have a port on a switch.
    pub fn start(config: Config, file: Option<PathBuf>, natives: MakeNatives) -> Result<Self, Failure> {
        let switches = Bridges::start(&config)?;
        let mut forwarder = Self::start_router(config, natives)?;
        (forwarder.switches, forwarder.file) = (switches, file);
        Ok(forwarder)
    }

    /// Opens ports, loads tables, starts workers, and then lets the ports take packets.
    fn start_router(config: Config, natives: MakeNatives) -> Result<Self, Failure> {
        let paths = path::choose(&config, path::obstacle)?;
        let with_kernel = paths.any_kernel() || path::may_come_to_kernel(&config);
        if !with_kernel {
            return Self::start_on(config, natives, paths, false);
        }
        match Self::start_on(config.clone(), natives, paths.clone(), true) {
            // If the configuration does not require the kernel path, workers replace it.
            Err(Failure::Failed(why)) if paths.may_do_without() => {
                tracing::warn!(%why, "the kernel path is not available; using the user path instead");
                Self::start_on(config, natives, paths.instead(&why), false)
            }
            tried => tried,
        }
    }

    /// Starts the router on these paths, with or without the kernel path loaded. If all ports use the kernel path, there
    /// is no frame memory and there are no workers.
    fn start_on(
        config: Config,
        natives: MakeNatives,
        paths: Paths,
        with_kernel: bool,
    ) -> Result<Self, Failure> {
        let (registry, stats) = statistics::counters(&config)?;
        let readers = Readers::new();
        let strict = |_: &config::Port| true;
        let (kernel, on, claims, notes) = match with_kernel {
            true => kernel_ports::start(&config, &paths)?,
            false => kernel_ports::without(&config),
        };
        let pinned = kernel.as_ref().is_some_and(Kernel::is_pinned);
        let worker_resources = WorkerResources::new(natives);
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
            file: None,
            restarts: Restarts::with_spare().into(),
            starts: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            keeps: AtomicBool::new(false),
            unfollowed: AtomicBool::new(false),
            said_unfiltered: Mutex::default(),
            filter_tables: Mutex::default(),
            links: Arc::new(Notify::new()),
            _stats: stats,
        })
    }
}
