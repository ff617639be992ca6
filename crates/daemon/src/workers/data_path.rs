//! The data path: ports, workers and slow path as one unit that is started, supervised and restarted.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bm_api::PortMode;
use bm_cli::Failure;
use bm_control::config::{Config, Device, Port, Switch};
use bm_control::control_thread::{ControlPort, Handle};
use bm_fastpath::Claims;
use bm_frame::{FramePool, Pages};

use crate::cluster::Node;
use crate::plan::path::PortPath;
use crate::plan::workers::{Workers, too_few_queues};
use crate::plan::{self, Plan};
use crate::ports::kernel_ports::KernelPort;
use crate::ports::open::{self, Opener, Receives};
use crate::ports::open_port::{Diagnosis, HardwareCounters, OpenDevice, OpenPort};
use crate::ports::presence::{Presence, unfit};
use crate::ports::replaceable::ReplaceableDevices;
use crate::workers::queues::Move;
use crate::workers::threads::{WorkerContext, WorkerPort, WorkerState, WorkerThreads};

/// A worker without a breath for this long hangs; even an idle worker breathes twenty times in it.
const HANGS_AFTER: Duration = Duration::from_secs(2);
/// After this time without a breath a worker loses real-time priority, so that it cannot starve the threads that could help.
const SEEMS_TO_HANG_AFTER: Duration = Duration::from_millis(500);

/// State of an open port.
pub struct PortInfo {
    /// Name: that of the interface in Linux.
    pub name: String,
    /// As the configuration names it.
    pub device: String,
    /// How its frames get to a worker.
    pub mode: PortMode,
    /// Why the mode is not the best one; `None` if it is.
    pub reason: Option<String>,
    /// The path of its packets.
    pub path: PortPath,
    /// Number of queues in use.
    pub queues: usize,
    /// Ring size of each queue in frames (AF_XDP only).
    pub ring: Option<u32>,
    /// The hardware's own counters, where there are any.
    pub hardware: Option<HardwareCounters>,
    /// Asks the device what is wrong with it, if it can tell.
    pub trouble: Option<Diagnosis>,
    /// Whether it has its interface.
    pub presence: Presence,
    /// For replacing its interface, if it is a Linux interface.
    pub replaceable: Option<ReplaceableDevices>,
    /// Kept as long as the port has its interface; dropping it detaches the steering program.
    pub keep: Box<dyn Any + Send>,
}

/// Open ports that do not take packets yet.
pub struct OpenPorts {
    ports: Vec<PortInfo>,
    /// Fabric links through which workers send.
    fabric: Vec<PortInfo>,
    /// What workers and the slow path use of ports, then of fabric links.
    for_workers: Vec<WorkerPort>,
    keep_open: Vec<OwnedFd>,
    workers: Option<Workers>,
    /// Ring size of each queue in frames.
    ring: Option<u32>,
}

/// The progress of a worker when it was last checked.
#[derive(Clone, Copy)]
struct Progress {
    breaths: u64,
    /// When this number was first seen.
    since: Instant,
}

/// The running data path.
pub struct DataPath {
    /// Workers and slow path; `None` if all ports use the kernel path.
    pub threads: Option<WorkerThreads>,
    /// Ports, by index.
    pub ports: Vec<PortInfo>,
    /// Fabric links through which workers send, in the order of the configuration; none without workers.
    pub fabric: Vec<PortInfo>,
    /// Notes for `status`.
    pub notes: Vec<String>,
    /// Opens interfaces that appear again; `None` without workers.
    pub opener: Option<Opener>,
    /// The planned workers.
    pub planned: Option<Workers>,
    keep_open: Vec<OwnedFd>,
    progress: Vec<Progress>,
}

/// Allocates frame memory as planned.
pub fn frame_memory(config: &Config, workers: &Workers) -> Result<Arc<FramePool>, Failure> {
    let slots = workers.slots;
    let best = if config.daemon.huge_pages == Switch::Off { Pages::Plain } else { Pages::Huge };
    let slot_size = config.daemon.slot_size as usize;
    let frame_pool = FramePool::on_nodes(slots, slot_size, best, &workers.nodes).map_err(Failure::failed)?;
    for (node, slots) in frame_pool.nodes() {
        tracing::info!("{slots} frames on NUMA node {node}, for the workers there");
    }
    if frame_pool.memory().pages() == Pages::Plain && config.daemon.huge_pages == Switch::On {
        let pages = (slots * slot_size).div_ceil(2 << 20);
        return Err(Failure::Failed(format!(
            "huge_pages = \"on\" needs {pages} free huge pages of 2 MiB: reserve them with `sysctl -w vm.nr_hugepages={pages}`"
        )));
    }
    Ok(frame_pool)
}

/// Logs, and returns as a note for `status`, that workers run at normal priority.
fn refused_priority(why: &std::io::Error) -> String {
    let note = format!(
        "workers run at normal priority, and may lose packets while other programs are busy: {why}; give brickmoon CAP_SYS_NICE (and its control group a real-time budget), or set priority = 0 in [daemon] if normal priority is intended"
    );
    tracing::warn!("{note}");
    note
}

/// How ports are opened.
pub struct OpenOptions<'a> {
    /// Opens ports for workers; `None` without workers.
    pub opener: Option<&'a Opener>,
    /// The map that takes workers' sockets for claimed packets.
    pub claims: Option<&'a Claims>,
    /// Whether it is an error if the interface of a port cannot be used; otherwise the port waits.
    pub is_strict: &'a dyn Fn(&Port) -> bool,
}

impl OpenPorts {
    /// Opens the ports of the configuration, and returns them with what the control thread uses of each. `kernel_ports`
    /// lists the ports of the kernel path: workers only send through these, and receive claimed packets.
    pub fn open(
        config: &Config,
        plan: &Plan,
        kernel_ports: Vec<Option<KernelPort>>,
        options: &OpenOptions<'_>,
    ) -> Result<(Self, Vec<ControlPort>), Failure> {
        let mut opened = Self {
            ports: Vec::new(),
            fabric: Vec::new(),
            for_workers: Vec::new(),
            keep_open: Vec::new(),
            workers: plan.workers.clone(),
            ring: options.opener.map(Opener::ring),
        };
        let mut for_control = Vec::new();
        for (index, kernel_port) in kernel_ports.into_iter().enumerate() {
            let (port, path) = (&config.ports[index], &plan.paths.0[index]);
            let (presence, open) = match options.opener {
                Some(opener) => {
                    let most = plan.workers.as_ref().map_or(0, |workers| workers.queues[index]);
                    opener.port(config, index, port, kernel_port, most, options)?
                }
                None => in_kernel(port, kernel_port),
            };
            if let Presence::Missing = presence {
                tracing::warn!("port {}: {}", open.name, plan::missing(&open.name));
            }
            let (info, control) = opened.add(open, presence, path.clone());
            opened.ports.push(info);
            for_control.push(control);
        }
        let count = plan.workers.as_ref().map_or(0, |workers| workers.count);
        for name in config.fabric_devices() {
            let Some(opener) = options.opener else { break };
            let (presence, open) = opener.fabric_link(config, &name, count)?;
            // The control thread knows fabric links by itself.
            let (info, _) = opened.add(open, presence, PortPath { in_kernel: true, reason: None });
            opened.fabric.push(info);
        }
        Ok((opened, for_control))
    }

    /// Splits an open port into its state, its part for the control thread and, in `self`, that for workers.
    fn add(&mut self, port: OpenPort, presence: Presence, path: PortPath) -> (PortInfo, ControlPort) {
        let OpenPort { name, device, open, replaceable, hardware, trouble, keep_open } = port;
        let OpenDevice { ifindex, mode, reason, queues, host, steering, keep } = open;
        let control = ControlPort { name: name.clone(), ifindex, steering, in_kernel: path.in_kernel };
        let info = PortInfo {
            name: name.clone(),
            device,
            mode,
            reason,
            path,
            queues: if self.workers.is_none() { 0 } else { queues.len() },
            ring: matches!(mode, PortMode::Copy | PortMode::ZeroCopy).then_some(self.ring).flatten(),
            hardware,
            trouble,
            presence,
            replaceable,
            keep,
        };
        self.keep_open.extend(keep_open);
        self.for_workers.push(WorkerPort { name, queues, host });
        (info, control)
    }

    /// Starts workers and slow path.
    pub fn start(
        self,
        config: &Config,
        context: &WorkerContext,
        control: &Handle,
        opener: Opener,
        cluster: &Node,
    ) -> Result<DataPath, Failure> {
        let count = self.workers.as_ref().map_or(0, |planned| planned.count);
        let neighbor_requests = Box::new(control.neighbor_requests().map_err(Failure::failed)?);
        let threads = WorkerThreads::start(
            config,
            count,
            self.for_workers,
            cluster.balancing(count),
            context,
            neighbor_requests,
            opener.frame_pool().clone(),
        )?;
        Ok(DataPath {
            progress: vec![Progress { breaths: 0, since: Instant::now() }; threads.workers().len()],
            notes: threads.priority_refused().map(refused_priority).into_iter().collect(),
            threads: Some(threads),
            ports: self.ports,
            fabric: self.fabric,
            opener: Some(opener),
            planned: self.workers,
            keep_open: self.keep_open,
        })
    }

    /// The data path without workers.
    pub fn without_workers(self) -> DataPath {
        DataPath {
            threads: None,
            ports: self.ports,
            fabric: Vec::new(),
            opener: None,
            planned: None,
            notes: Vec::new(),
            keep_open: self.keep_open,
            progress: Vec::new(),
        }
    }
}

/// A port of the kernel path, without workers.
fn in_kernel(port: &Port, kernel_port: Option<KernelPort>) -> (Presence, OpenPort) {
    let KernelPort { presence, reason } =
        kernel_port.unwrap_or(KernelPort { presence: Presence::Missing, reason: None });
    let open = OpenPort::in_kernel(port, presence.ifindex(), reason);
    (presence, open)
}

impl Opener {
    /// Opens a port of the configuration; a missing interface is not an error.
    fn port(
        &self,
        config: &Config,
        index: usize,
        port: &Port,
        kernel_port: Option<KernelPort>,
        most: usize,
        options: &OpenOptions<'_>,
    ) -> Result<(Presence, OpenPort), Failure> {
        let Device::Xdp(name) = &port.device else {
            let open = self.open(index, port, most)?;
            let ifindex = open.open.ifindex.unwrap_or_default();
            return Ok((Presence::Here { ifindex, generation: None }, open));
        };
        let is_on_kernel_path = kernel_port.is_some();
        let presence = kernel_port.map_or_else(|| presence_for_workers(name), |port| port.presence);
        if presence.ifindex().is_none() {
            return self.without_interface(name, port, presence, is_on_kernel_path, most);
        }
        let receives = match is_on_kernel_path {
            true => Receives::Claimed(options.claims),
            false => Receives::AllFrames { held: false, local: open::local(&config.ipsec) },
        };
        let opened = self.interface(name, port, receives, most);
        match opened.and_then(|open| enough_queues(config, port, open)) {
            Ok(open) => {
                let presence = Presence::Here { ifindex: open.ifindex.unwrap_or_default(), generation: None };
                Ok((presence, self.on(name, port, Some(open), most)?))
            }
            Err(_) if !bm_fastpath::is_there(name) => {
                self.without_interface(name, port, Presence::Missing, is_on_kernel_path, most)
            }
            Err(failure) if (options.is_strict)(port) => Err(failure),
            Err(failure) => {
                let why = failure.to_string();
                tracing::warn!(%why, "port {name} is waiting");
                self.without_interface(name, port, Presence::refused(why), is_on_kernel_path, most)
            }
        }
    }

    /// A port that waits for its interface.
    fn without_interface(
        &self,
        name: &str,
        port: &Port,
        presence: Presence,
        is_on_kernel_path: bool,
        most: usize,
    ) -> Result<(Presence, OpenPort), Failure> {
        let mut open = self.on(name, port, None, most)?;
        if is_on_kernel_path {
            open.open.mode = PortMode::Kernel;
        }
        Ok((presence, open))
    }

    /// Opens a fabric link for workers to send through; one that is missing, or cannot be used, waits.
    fn fabric_link(
        &self,
        config: &Config,
        name: &str,
        workers: usize,
    ) -> Result<(Presence, OpenPort), Failure> {
        let kernel_port = KernelPort { presence: presence_for_workers(name), reason: None };
        let options = OpenOptions { opener: Some(self), claims: None, is_strict: &|_| false };
        self.port(config, 0, &fabric_port(name), Some(kernel_port), workers, &options)
    }
}

/// A fabric link as a port with default settings.
pub fn fabric_port(name: &str) -> Port {
    Port::new(Device::Xdp(name.into()))
}

/// Whether an interface for workers exists and can be used.
fn presence_for_workers(name: &str) -> Presence {
    match bm_fastpath::is_there(name) {
        false => Presence::Missing,
        // Its index is known once it is open.
        true => unfit(name).map_or(Presence::Here { ifindex: 0, generation: None }, Presence::refused),
    }
}

/// Checks that there is a queue for each worker, if the number of workers is configured: the interface may have changed
/// since it was planned.
fn enough_queues(config: &Config, port: &Port, open: OpenDevice) -> Result<OpenDevice, Failure> {
    let (queues, workers) = (open.queues.len(), config.daemon.workers.unwrap_or(0) as usize);
    if queues >= workers {
        return Ok(open);
    }
    Err(Failure::Usage(too_few_queues(&port.name(0), queues, workers)))
}

impl DataPath {
    /// Adds notes for `status`, before its own.
    pub fn with_notes(mut self, notes: &[String]) -> Self {
        self.notes.splice(..0, notes.iter().cloned());
        self
    }

    /// State of each worker.
    pub fn workers(&self) -> Vec<WorkerState> {
        self.threads.as_ref().map(WorkerThreads::workers).unwrap_or_default()
    }

    /// The worker that owns a queue of a port.
    pub fn worker_of(&self, port: &str, queue: usize) -> usize {
        self.threads.as_ref().and_then(|threads| threads.worker_of(port, queue)).unwrap_or(queue)
    }

    /// Moves queues to the workers that the configuration names.
    pub fn place(&self, config: &Config) {
        self.threads.iter().for_each(|threads| threads.place(config));
    }

    /// Moves a queue to another worker if that evens out the load, and logs it.
    pub fn balance(&mut self) {
        let Some(threads) = &mut self.threads else { return };
        if let Some(Move { queue, from, to }) = threads.balance(Instant::now()) {
            tracing::info!("queue {queue} moves from worker {from}, the busiest, to worker {to}");
        }
    }

    /// What is wrong with the data path; `None` if nothing is.
    pub fn trouble(&mut self) -> Option<&'static str> {
        let Some(threads) = &self.threads else { return None };
        if !threads.is_alive() {
            return Some("a thread of the data path panicked");
        }
        let mut hangs = false;
        for (index, worker) in threads.workers().into_iter().enumerate() {
            let Some(progress) = self.progress.get_mut(index) else { break };
            let [breaths, ..] = worker.counters;
            if breaths != progress.breaths {
                *progress = Progress { breaths, since: Instant::now() };
            }
            let silent = progress.since.elapsed();
            if silent > SEEMS_TO_HANG_AFTER {
                threads.demote(index);
            }
            hangs |= silent > HANGS_AFTER;
        }
        hangs.then_some("a worker hangs")
    }

    /// Stops the threads, then detaches the steering programs. Returns the descriptors that keep our interfaces in Linux.
    pub fn stop(self) -> Vec<OwnedFd> {
        let Self { threads, ports, fabric, opener: _, planned: _, notes: _, keep_open, progress: _ } = self;
        threads.into_iter().for_each(WorkerThreads::stop);
        drop((ports, fabric));
        keep_open
    }
}
