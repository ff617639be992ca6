//! Ports, workers and slow path as one unit that is started, supervised and restarted.

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
use crate::ports::kernel_ports::OnPort;
use crate::ports::open::{self, Opener, Receives};
use crate::ports::open_port::{Hardware, OpenDevice, OpenPort, Trouble};
use crate::ports::presence::{Presence, unfit};
use crate::ports::replaceable::ReplaceableDevices;
use crate::workers::dataplane::{DataPlane, Part, Parts, Shared, WorkerState};
use crate::workers::queues::Move;

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
    pub hardware: Option<Hardware>,
    /// Asks the device what is wrong with it, if it can tell.
    pub trouble: Option<Trouble>,
    /// Whether it has its interface.
    pub presence: Presence,
    /// For replacing its interface, if it is a Linux interface.
    pub replaceable: Option<ReplaceableDevices>,
    /// Kept as long as the port has its interface; dropping it detaches the steering program.
    pub keep: Box<dyn Any + Send>,
}

/// Open ports that do not take packets yet.
pub struct Opened {
    parts: Vec<Part>,
    infos: Vec<PortInfo>,
    /// Of the parts, those that are fabric links: the last ones.
    fabric: Vec<PortInfo>,
    keep_open: Vec<OwnedFd>,
    workers: Option<Workers>,
    /// Ring size of each queue in frames.
    ring: Option<u32>,
    notes: Vec<String>,
}

/// The progress of a worker when it was last checked.
#[derive(Clone, Copy)]
struct Progress {
    breaths: u64,
    /// When this number was first seen.
    since: Instant,
}

/// The running data path.
pub struct Running {
    /// Workers and slow path; `None` if all ports use the kernel path.
    pub plane: Option<DataPlane>,
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

/// What is needed to open ports.
pub struct Openers<'a> {
    /// Opens ports for workers; `None` without workers.
    pub workers: Option<&'a Opener>,
    /// The map that takes workers' sockets for claimed packets.
    pub claims: Option<&'a Claims>,
    /// Whether it is an error if the interface of a port cannot be used; otherwise the port waits.
    pub strict: &'a dyn Fn(&Port) -> bool,
}

impl Opened {
    /// Opens the ports of the configuration. `on` lists the ports of the kernel path: workers only send through these,
    /// and receive claimed packets.
    pub fn open(
        config: &Config,
        plan: &Plan,
        on: Vec<Option<OnPort>>,
        openers: &Openers<'_>,
    ) -> Result<(Self, Vec<ControlPort>), Failure> {
        let mut opened = Self {
            parts: Vec::new(),
            infos: Vec::new(),
            fabric: Vec::new(),
            keep_open: Vec::new(),
            workers: plan.workers.clone(),
            ring: openers.workers.map(Opener::ring),
            notes: Vec::new(),
        };
        let mut control = Vec::new();
        for (index, on) in on.into_iter().enumerate() {
            let (port, path) = (&config.ports[index], &plan.paths.0[index]);
            let (presence, open) = match openers.workers {
                Some(opener) => {
                    let most = plan.workers.as_ref().map_or(0, |workers| workers.queues[index]);
                    opener.port(config, (index, port), on, most, openers)?
                }
                None => in_kernel(port, on),
            };
            if let Presence::Missing = presence {
                tracing::warn!("port {}: {}", open.name, plan::missing(&open.name));
            }
            control.push(opened.add(open, presence, path));
        }
        let count = plan.workers.as_ref().map_or(0, |workers| workers.count);
        for name in config.fabric_devices().iter().filter(|_| openers.workers.is_some()) {
            let Some(opener) = openers.workers else { break };
            let (presence, open) = opener.fabric_link(config, name, count)?;
            let path = PortPath { in_kernel: true, reason: None };
            // Control knows fabric links by itself.
            let _control = opened.add(open, presence, &path);
            opened.fabric.extend(opened.infos.pop());
        }
        Ok((opened, control))
    }

    fn add(&mut self, open: OpenPort, presence: Presence, path: &PortPath) -> ControlPort {
        let OpenPort { name, device, open, replaceable, hardware, trouble, keep_open } = open;
        let OpenDevice { ifindex, mode, reason, queues, host, steering, keep } = open;
        let count = if self.workers.is_none() { 0 } else { queues.len() };
        self.infos.push(PortInfo {
            name: name.clone(),
            device,
            mode,
            reason,
            path: path.clone(),
            queues: count,
            ring: matches!(mode, PortMode::Copy | PortMode::ZeroCopy).then_some(self.ring).flatten(),
            hardware,
            trouble,
            presence,
            replaceable,
            keep,
        });
        self.keep_open.extend(keep_open);
        let control = ControlPort { name: name.clone(), ifindex, steering, in_kernel: path.in_kernel };
        self.parts.push(Part { name, queues, host });
        control
    }

    /// Adds notes for `status`.
    pub fn note(&mut self, notes: &[String]) {
        self.notes.extend_from_slice(notes);
    }

    /// Starts workers and slow path.
    pub fn start(
        self,
        config: &Config,
        shared: &Shared,
        control: &Handle,
        opener: Opener,
        cluster: &Node,
    ) -> Result<Running, Failure> {
        let Self { parts, infos, fabric, keep_open, workers: planned, ring: _, notes } = self;
        let workers = planned.as_ref().map_or(0, |planned| planned.count);
        let neighbor_requests = Box::new(control.neighbor_requests().map_err(Failure::failed)?);
        let plane = DataPlane::start(
            config,
            workers,
            Parts { ports: parts, balancing: cluster.balancing(workers) },
            shared,
            neighbor_requests,
            opener.frame_pool().clone(),
        )?;
        let progress = vec![Progress { breaths: 0, since: Instant::now() }; plane.workers().len()];
        let mut notes = notes;
        notes.extend(plane.priority_refused().map(refused_priority));
        Ok(Running {
            plane: Some(plane),
            ports: infos,
            fabric,
            opener: Some(opener),
            planned,
            notes,
            keep_open,
            progress,
        })
    }
}

/// A port of the kernel path, without workers.
fn in_kernel(port: &Port, on: Option<OnPort>) -> (Presence, OpenPort) {
    let OnPort { presence, reason } = on.unwrap_or(OnPort { presence: Presence::Missing, reason: None });
    let open = OpenPort::in_kernel(port, presence.ifindex(), reason);
    (presence, open)
}

impl Opener {
    /// Opens a port of the configuration; a missing interface is not an error.
    fn port(
        &self,
        config: &Config,
        (index, port): (usize, &Port),
        on: Option<OnPort>,
        most: usize,
        openers: &Openers<'_>,
    ) -> Result<(Presence, OpenPort), Failure> {
        let Device::Xdp(name) = &port.device else {
            let open = self.open(index, port, most)?;
            let ifindex = open.open.ifindex.unwrap_or_default();
            return Ok((Presence::Here { ifindex, generation: None }, open));
        };
        let beside = on.is_some();
        let presence = on.map_or_else(|| here(name), |on| on.presence);
        let missing = || {
            let mut missing = self.on(name, port, None, most)?;
            if beside {
                missing.open.mode = PortMode::Kernel;
            }
            Ok::<_, Failure>(missing)
        };
        if presence.ifindex().is_none() {
            return Ok((presence, missing()?));
        }
        let receives = match beside {
            true => Receives::Claimed(openers.claims),
            false => Receives::AllFrames { held: false, local: open::local(&config.ipsec) },
        };
        let opened = self.interface(name, port, receives, most);
        match opened.and_then(|open| enough_queues(config, port, open)) {
            Ok(open) => {
                let presence = Presence::Here { ifindex: open.ifindex.unwrap_or_default(), generation: None };
                Ok((presence, self.on(name, port, Some(open), most)?))
            }
            Err(_) if !bm_fastpath::is_there(name) => Ok((Presence::Missing, missing()?)),
            Err(failure) if (openers.strict)(port) => Err(failure),
            Err(failure) => {
                let why = failure.to_string();
                tracing::warn!(%why, "port {name} is waiting");
                Ok((Presence::refused(why), missing()?))
            }
        }
    }
}

impl Opener {
    /// Opens a fabric link for workers to send through; one that is missing, or cannot be used, waits.
    fn fabric_link(
        &self,
        config: &Config,
        name: &str,
        workers: usize,
    ) -> Result<(Presence, OpenPort), Failure> {
        let port = fabric_port(name);
        let on = OnPort { presence: here(name), reason: None };
        let openers = Openers { workers: Some(self), claims: None, strict: &|_| false };
        self.port(config, (0, &port), Some(on), workers, &openers)
    }
}

/// A fabric link as a port with default settings.
pub fn fabric_port(name: &str) -> Port {
    Port::new(Device::Xdp(name.into()))
}

/// Whether an interface for workers exists and can be used.
fn here(name: &str) -> Presence {
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

impl Opened {
    /// The running state without workers.
    pub fn without_workers(self) -> Running {
        let Self { infos, keep_open, notes, .. } = self;
        Running {
            plane: None,
            ports: infos,
            fabric: Vec::new(),
            opener: None,
            planned: None,
            notes,
            keep_open,
            progress: Vec::new(),
        }
    }
}

impl Running {
    /// State of each worker.
    pub fn workers(&self) -> Vec<WorkerState> {
        self.plane.as_ref().map(DataPlane::workers).unwrap_or_default()
    }

    /// The worker that owns a queue of a port.
    pub fn worker_of(&self, port: &str, queue: usize) -> usize {
        self.plane.as_ref().and_then(|plane| plane.worker_of(port, queue)).unwrap_or(queue)
    }

    /// Moves queues to the workers that the configuration names.
    pub fn place(&self, config: &Config) {
        self.plane.iter().for_each(|plane| plane.place(config));
    }

    /// Moves a queue to another worker if that evens out the load, and logs it.
    pub fn balance(&mut self) {
        if let Some(Move { queue, from, to }) =
            self.plane.as_mut().and_then(|plane| plane.balance(Instant::now()))
        {
            tracing::info!("queue {queue} moves from worker {from}, the busiest, to worker {to}");
        }
    }

    /// What is wrong with the data path; `None` if nothing is.
    pub fn trouble(&mut self) -> Option<&'static str> {
        let Some(plane) = &self.plane else { return None };
        if !plane.is_alive() {
            return Some("a thread of the data path panicked");
        }
        let mut hangs = false;
        for (index, worker) in plane.workers().into_iter().enumerate() {
            let Some(progress) = self.progress.get_mut(index) else { break };
            let [breaths, ..] = worker.counters;
            if breaths != progress.breaths {
                *progress = Progress { breaths, since: Instant::now() };
            }
            let silent = progress.since.elapsed();
            if silent > SEEMS_TO_HANG_AFTER {
                plane.demote(index);
            }
            hangs |= silent > HANGS_AFTER;
        }
        hangs.then_some("a worker hangs")
    }

    /// Stops the threads, then detaches the steering programs. Returns the descriptors that keep our interfaces in Linux.
    pub fn stop(self) -> Vec<OwnedFd> {
        let Self { plane, ports, fabric, opener: _, planned: _, notes: _, keep_open, progress: _ } = self;
        plane.into_iter().for_each(DataPlane::stop);
        drop((ports, fabric));
        keep_open
    }
}
