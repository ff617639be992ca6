//! What forwards: the kernel path, ports with their workers, and switches. It carries out plans.

mod arrange;
mod filter_tables;
mod follow;
mod nftables_filters;
mod reload;
mod restarts;
mod start;
mod supervise;
mod unfiltered;
mod worker_resources;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bm_api::Error;
use bm_control::config::Config;
use bm_control::control_thread::{Control, ControlThread};
use bm_fastpath::Claims;
use tokio::sync::Notify;

use crate::cluster::Node;
use crate::guard::watcher::Watch;
use crate::ipsec::{KernelThread, XfrmThread};
use crate::lock;
use crate::observe::linux_drops::LinuxDrops;
use crate::observe::sampling::Sampling;
use crate::observe::statistics::CounterFile;
use crate::observe::traffic::Meter;
use crate::plan::Plan;
use crate::plan::machine::Machine;
use crate::ports::probe;
use crate::switches::Bridges;
use crate::workers::data_path::DataPath;
use crate::workers::threads::WorkerContext;
use bm_cli::Failure;
use filter_tables::FilterTables;
use restarts::Restarts;
use worker_resources::WorkerResources;

pub use supervise::Scripts;
pub use worker_resources::MakeNatives;

/// The configuration in use, with what was planned for it.
#[derive(Default)]
pub struct Setup {
    pub config: Config,
    pub plan: Plan,
}

/// What forwards. One thread at a time changes it: the one that holds `restarts`.
pub struct Forwarder {
    pub(super) driver: ControlThread,
    pub(super) context: WorkerContext,
    pub(super) worker_resources: WorkerResources,
    /// `None` while the data path is being started again, and at the end.
    pub(super) running: Mutex<Option<DataPath>>,
    pub(super) switches: Bridges,
    pub(super) cluster: Node,
    setup: Mutex<Arc<Setup>>,
    /// The map that takes workers' sockets for claimed packets.
    claims: Option<Claims>,
    /// The process that watches the kernel path's tables after this one has ended.
    pub(super) watch: Mutex<Watch>,
    /// Whether the kernel path is loaded, for ports that use it now or later.
    has_kernel: bool,
    /// Notes for `status` on the kernel path.
    notes: Vec<String>,
    /// The configuration file, for messages.
    file: Option<PathBuf>,
    pub(super) restarts: Mutex<Restarts>,
    /// Number of restarts of the data path, in total and after failures.
    starts: AtomicU64,
    failures: AtomicU64,
    /// Why Linux forwards until apps are started again, which have failed too often.
    paused: Mutex<Option<String>>,
    /// Whether the kernel path keeps forwarding after the end.
    keeps: AtomicBool,
    /// Notified when interfaces have changed.
    pub(super) links: Arc<Notify>,
    /// Whether interfaces must be checked again because the control thread did not answer.
    unfollowed: AtomicBool,
    /// Counts what is done for one port at a time.
    turn: AtomicUsize,
    /// The last log messages on ports that are not filtered.
    said_unfiltered: Mutex<Vec<String>>,
    /// Interfaces on which the kernel path cannot filter.
    uncovered: Mutex<nftables_filters::Uncovered>,
    /// The tables of nftables that filter for ports.
    filter_tables: Mutex<FilterTables>,
    /// What Linux drops of their packets.
    pub(super) linux_drops: LinuxDrops,
    /// What ports receive and send.
    pub(super) meter: Meter,
    /// Tells collectors about sampled packets.
    pub(super) sampling: Sampling,
    _stats: CounterFile,
}

impl Forwarder {
    /// The configuration in use, and its plan.
    pub fn setup(&self) -> Arc<Setup> {
        lock(&self.setup).clone()
    }

    /// The machine for a configuration, with what this daemon cannot change while it runs.
    fn machine(&self, config: &Config) -> Machine {
        let no_kernel_path = "the daemon was started without the kernel path";
        Machine {
            no_kernel_path: (!self.has_kernel).then(|| no_kernel_path.into()),
            slots: self.worker_resources.frame_pool.get().map(|frame_pool| frame_pool.memory().slots()),
            ..probe::without_scripts(config)
        }
    }

    /// Serves XFRM messages, if that is configured, until the result is dropped.
    pub fn serve_xfrm(&self) -> Result<Option<XfrmThread>, Failure> {
        let setup = self.setup();
        let path = setup.config.ipsec.xfrm_socket.as_ref();
        path.map(|path| XfrmThread::start(path, self.context.ipsec.clone())).transpose()
    }

    /// Follows the kernel's SAs and policies, if that is configured, until the result is dropped.
    pub fn follow_kernel_ipsec(&self) -> Result<Option<KernelThread>, Failure> {
        if !self.setup().config.ipsec.kernel {
            return Ok(None);
        }
        KernelThread::start(self.context.ipsec.clone(), self.driver.handle().clone()).map(Some)
    }

    /// Number of restarts of the data path after failures.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// What is wrong with the tables of nftables that filter for ports, as a note for `status`.
    pub fn filter_tables_trouble(&self) -> Option<String> {
        lock(&self.filter_tables).trouble()
    }

    /// Makes the kernel path and switches keep forwarding after the end.
    ///
    /// # Errors
    /// Why they cannot.
    pub fn keep(&self) -> Result<(), Error> {
        // Workers end with the daemon; switches need not.
        let in_kernel = self.setup().plan.paths.any_kernel();
        if in_kernel || self.switches.count().0 == 0 {
            self.driver.handle().try_ask(Control::keep)?;
        }
        self.switches.keep()?;
        self.cluster.keep()?;
        self.keeps.store(in_kernel, Ordering::Relaxed);
        Ok(())
    }
}
