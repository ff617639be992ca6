//! Ports, workers and slow path as one thing that is started, looked after, and started again.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bm_api::{Error, PortMode};
use bm_control::config::{Config, Device, Port, Switch};
use bm_control::driver::{ControlPort, Handle};
use bm_fastpath::{Attachment, Claims, Kernel, NoPins, Pins};
use bm_frame::{Depot, Node, Pages};
use bm_port::NoSteering;

use super::dataplane::{DataPlane, Part, Shared, WorkerState};
use super::path::{Paths, PortPath};
use super::ports::{self, GENERIC, Hardware, OpenPort};
use super::queues::{self, Move};
use crate::Failure;

/// Frames of a queue beside those that it receives into: on their way out, and in the worker's hands.
const FRAMES_SENT: usize = 2 * 2048;
/// The same at the least, before the rest of the memory is in use.
const FRAMES_SENT_LEAST: usize = 2048;
/// Frames that a queue of another device than an interface receives into at most.
const RING_BESIDE: usize = 2048;
/// What can wait in a queue of an AF_XDP port at the least, where the configuration leaves that to us.
const RING_LEAST: u32 = 2048;
/// Frames beside those: in workers' hands, waiting for neighbours.
const FRAMES_BESIDE: usize = 8192;
/// A worker that has not drawn breath for so long hangs: it wakes ten times as often by itself.
const HANGS_AFTER: Duration = Duration::from_secs(2);
/// After so long it loses real-time priority, so that it cannot keep others from what would help.
const SEEMS_TO_HANG_AFTER: Duration = Duration::from_millis(500);

/// A port as it was opened.
pub struct PortInfo {
    /// Name: that of the interface in Linux.
    pub name: String,
    /// As the configuration names it.
    pub device: String,
    /// How its frames get to a worker.
    pub mode: PortMode,
    /// Why the mode is not the best one.
    pub reason: Option<String>,
    /// Which path its packets take.
    pub path: PortPath,
    /// How many queues were taken.
    pub queues: usize,
    /// Frames that can wait in each of them for its worker, where that is for us to say.
    pub ring: Option<u32>,
    /// The hardware's own counters, where there are any.
    pub hardware: Option<Hardware>,
}

/// Ports that are open and take nothing yet.
pub struct Opened {
    parts: Vec<Part>,
    infos: Vec<PortInfo>,
    keep: Vec<Box<dyn Any + Send>>,
    held: Vec<OwnedFd>,
    workers: usize,
    notes: Vec<String>,
}

/// The data path at work.
pub struct Running {
    /// Workers and slow path; none where packets are forwarded in the kernel.
    pub plane: Option<DataPlane>,
    /// Ports, by index.
    pub ports: Vec<PortInfo>,
    /// What `status` tells of it besides.
    pub notes: Vec<String>,
    /// Dropped last: with them, steering programs leave their interfaces.
    _keep: Vec<Box<dyn Any + Send>>,
    held: Vec<OwnedFd>,
    seen: Vec<(u64, Instant)>,
}

/// How many workers there shall be: as many as every port has queues for, one a core at most.
fn workers(config: &Config) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let queues = config.ports.iter().map(ports::queues).min().unwrap_or(1);
    config.daemon.workers.map_or(queues.min(cores), |workers| workers as usize).max(1)
}

/// The memory nodes of the workers' cores, one for each worker; none where the system chooses cores.
fn nodes(config: &Config) -> Vec<Node> {
    let cores = config.daemon.cores.iter().take(workers(config));
    cores.filter_map(|&core| bm_frame::node_of_core(core as usize)).collect()
}

/// Whether each queue can have the worker that `queue_workers` gives it.
///
/// # Errors
/// What is wrong, and what to mend.
pub fn check_queues(config: &Config) -> Result<(), String> {
    queues::check(config, workers(config))
}

/// How many queues of a port are taken at most: one for each worker, and where `queues` asks for more, so many. Links
/// to apps are one for each port and worker, so with links there are no more than workers.
fn queues_taken(config: &Config, port: &Port, workers: usize) -> usize {
    let may_be_more = matches!(port.device, Device::Xdp(_)) && config.links.is_empty();
    let wanted = port.queues.filter(|_| may_be_more).unwrap_or(0);
    workers.max(wanted as usize)
}

/// Queues of all AF_XDP ports together, and of all others.
fn queues_of_all(config: &Config) -> [usize; 2] {
    let workers = workers(config);
    let of = |is_xdp: bool| {
        let ports = config.ports.iter().filter(|port| matches!(port.device, Device::Xdp(_)) == is_xdp);
        ports.map(|port| queues_taken(config, port, workers)).sum()
    };
    [of(true), of(false)]
}

/// Frames for all rings of all ports, with so many on their way out of each queue, and those beside.
fn frames(config: &Config, ring: u32, sent: usize) -> usize {
    let [xdp, others] = queues_of_all(config);
    xdp * (ring as usize + sent) + others * (RING_BESIDE + sent) + FRAMES_BESIDE
}

/// Frames that can wait in each queue of an AF_XDP port, in a memory of so many slots: less than usual where ports
/// came in by a reload, unless the configuration says how many it must be.
fn ring(config: &Config, slots: usize) -> u32 {
    let mut ring = config.daemon.ring(queues_of_all(config)[0]);
    while config.daemon.ring.is_none() && ring > RING_LEAST && frames(config, ring, FRAMES_SENT_LEAST) > slots
    {
        ring /= 2;
    }
    ring
}

/// The frame memory, large enough for all rings of all ports.
pub fn frame_memory(config: &Config) -> Result<Arc<Depot>, Failure> {
    let workers = workers(config);
    let ring = config.daemon.ring(queues_of_all(config)[0]);
    let least = frames(config, ring, FRAMES_SENT);
    let slots = (config.daemon.slots as usize * workers).max(least);
    let best = if config.daemon.huge_pages == Switch::Off { Pages::Plain } else { Pages::Huge };
    let slot_size = config.daemon.slot_size as usize;
    let depot = Depot::on_nodes(slots, slot_size, best, &nodes(config)).map_err(Failure::failed)?;
    for (node, slots) in depot.nodes() {
        tracing::info!("{slots} frames are on memory node {node}, for the workers there");
    }
    if depot.memory().pages() == Pages::Plain && config.daemon.huge_pages == Switch::On {
        let pages = (slots * slot_size).div_ceil(2 << 20);
        return Err(Failure::Failed(format!(
            "huge_pages = \"on\", and {pages} pages of 2 MiB are not to be had: `sysctl -w vm.nr_hugepages={pages}` reserves them"
        )));
    }
    Ok(depot)
}

/// Whether memory of so many slots, which a daemon has from its start on, is enough for the ports of a configuration.
///
/// # Errors
/// What it would take.
pub fn check_memory(config: &Config, slots: usize) -> Result<(), Error> {
    let (ports, workers) = (config.ports.len(), workers(config));
    let least = frames(config, ring(config, slots), FRAMES_SENT_LEAST);
    if slots >= least {
        return Ok(());
    }
    let mend = "stop it and start it with this configuration: it takes as many then";
    let why = format!(
        "{ports} ports and {workers} workers need {least} frames, and the daemon took {slots} when it started"
    );
    Err(Error::new(why).mend(mend))
}

/// Says, now and in `status`, that the program ends with the daemon.
fn unpinned(why: &NoPins) -> String {
    let note = format!("the kernel path ends with the daemon, since its program cannot be pinned: {why}");
    tracing::warn!("{note}");
    note
}

/// Says, now and in `status`, that workers run with normal priority.
fn refused_priority(why: &std::io::Error) -> String {
    let note = format!(
        "workers run at normal priority, and may lose packets while other programs are busy: {why}; give brickmoon CAP_SYS_NICE (and its control group a real-time budget), or set priority = 0 in [daemon] if this is as wanted"
    );
    tracing::warn!("{note}");
    note
}

/// A port that the kernel path is on.
pub struct OnPort {
    /// Its interface.
    pub name: String,
    /// Index of that in Linux.
    pub ifindex: u32,
    /// Why it is not as fast there as it could be.
    pub reason: Option<String>,
}

/// The kernel path, on its ports.
pub struct InKernel {
    pub kernel: Kernel,
    /// Its ports.
    pub on: Vec<OnPort>,
    /// Where workers' sockets go, if packets are claimed.
    pub claims: Option<Claims>,
    /// What `status` is to tell.
    pub notes: Vec<String>,
}

/// Has the kernel path on those ports of the configuration whose packets take it.
pub fn attach_kernel(config: &Config, paths: &Paths) -> Result<InKernel, Failure> {
    let mut kernel = Kernel::load(config.daemon.kernel_grace).map_err(Failure::failed)?;
    let claims = paths.claims(config).then(|| kernel.take_claims()).transpose().map_err(Failure::failed)?;
    let (mut on, mut notes) = (Vec::new(), Vec::new());
    match Pins::claim() {
        Ok(pins) => {
            tracing::info!("{}", pins.bpffs());
            kernel = kernel.pinned(pins);
        }
        Err(why) => notes.push(unpinned(&why)),
    }
    let ports = config.ports.iter().zip(&paths.0).filter(|(_, path)| path.in_kernel);
    for name in ports.filter_map(|(port, _)| port.device.interface()) {
        let Attachment { ifindex, generic, adopted } = kernel.attach(name).map_err(Failure::failed)?;
        if let Some(layout) = adopted {
            tracing::info!(%name, layout, "an earlier daemon's program forwards here until our tables are whole");
        }
        if generic && claims.is_some() {
            return Err(Failure::Failed(format!(
                "{name}: {GENERIC}, where what workers give back to Linux would be claimed again: take [[claim]] out of the configuration, or give the port path = \"user\""
            )));
        }
        if let Some(why) = bm_fastpath::why_no_frames(name) {
            tracing::warn!("{why}. Linux forwards what leaves there.");
        }
        on.push(OnPort { name: name.into(), ifindex, reason: generic.then(|| GENERIC.into()) });
    }
    Ok(InKernel { kernel, on, claims, notes })
}

/// Takes off what an earlier daemon left in the kernel, where workers are to forward now.
pub fn remove_kept() {
    match bm_fastpath::remove_kept() {
        Ok(interfaces) if interfaces.is_empty() => {}
        Ok(interfaces) => {
            let interfaces = interfaces.join(", ");
            tracing::info!(interfaces, "took off the kernel path that an earlier daemon left");
        }
        // What a daemon at work has is its own.
        Err(why) => tracing::debug!(%why, "nothing to take off"),
    }
}

impl Opened {
    fn nothing(workers: usize) -> Self {
        Self {
            parts: Vec::new(),
            infos: Vec::new(),
            keep: Vec::new(),
            held: Vec::new(),
            workers,
            notes: Vec::new(),
        }
    }

    /// Opens the ports of the configuration for workers; those of the kernel path, which must be on them, only to
    /// send and to receive what is claimed.
    pub fn open(
        config: &Config,
        depot: &Arc<Depot>,
        paths: &Paths,
        claims: Option<&Claims>,
    ) -> Result<(Self, Vec<ControlPort>), Failure> {
        let workers = workers(config);
        let mut opened = Self::nothing(workers);
        let mut control = Vec::new();
        let in_kernel: Vec<bool> = paths.0.iter().map(|port| port.in_kernel).collect();
        let most = |port: &Port| queues_taken(config, port, workers);
        let rings = ports::Rings { memory: depot, ring: ring(config, depot.memory().slots()) };
        let ports = ports::open(&config.ports, &in_kernel, claims, &rings, &most)?;
        for (port, path) in ports.into_iter().zip(&paths.0) {
            let OpenPort {
                name,
                device,
                ifindex,
                mode,
                reason,
                queues,
                host,
                steering,
                keep,
                hardware,
                held,
            } = port;
            if queues.len() < workers && config.daemon.workers.is_some() {
                return Err(Failure::Usage(format!(
                    "{workers} workers, and {name} has {} queue(s): each worker needs a queue of every port; use fewer workers, or `ethtool -L {name} combined {workers}`",
                    queues.len()
                )));
            }
            let count = queues.len();
            let (name_here, path) = (name.clone(), path.clone());
            control.push(ControlPort { ifindex, steering, in_kernel: path.in_kernel });
            opened.infos.push(PortInfo {
                name: name_here,
                device,
                mode,
                reason,
                path,
                queues: count,
                ring: matches!(mode, PortMode::Copy | PortMode::ZeroCopy).then_some(rings.ring),
                hardware,
            });
            opened.parts.push(Part { name, queues, host });
            opened.keep.push(keep);
            opened.held.extend(held);
        }
        Ok((opened, control))
    }

    /// The ports of the configuration where the kernel forwards for all of them, and is on them.
    pub fn in_kernel(config: &Config, paths: &Paths, on: &[OnPort]) -> (Self, Vec<ControlPort>) {
        let mut opened = Self::nothing(0);
        let mut control = Vec::new();
        for ((port, on), path) in config.ports.iter().zip(on).zip(&paths.0) {
            let (name, device) = (on.name.clone(), port.device.to_string());
            let (mode, reason, path) = (PortMode::Kernel, on.reason.clone(), path.clone());
            let (queues, ring, hardware) = (0, None, None);
            opened.infos.push(PortInfo { name, device, mode, reason, path, queues, ring, hardware });
            control.push(ControlPort {
                ifindex: on.ifindex,
                steering: Box::new(NoSteering),
                in_kernel: true,
            });
        }
        (opened, control)
    }

    /// Adds to what `status` tells.
    pub fn note(&mut self, notes: &[String]) {
        self.notes.extend_from_slice(notes);
    }

    /// Starts workers and slow path.
    pub fn start(
        self,
        config: &Config,
        shared: &Shared,
        control: &Handle,
        depot: Arc<Depot>,
    ) -> Result<Running, Failure> {
        let Self { parts, infos, keep, held, workers, notes } = self;
        let asker = Box::new(control.asker().map_err(Failure::failed)?);
        let plane = DataPlane::start(config, workers, parts, shared, asker, depot)?;
        let seen = vec![(0, Instant::now()); plane.workers().len()];
        let mut notes = notes;
        notes.extend(plane.priority_refused().map(refused_priority));
        Ok(Running { plane: Some(plane), ports: infos, notes, _keep: keep, held, seen })
    }
}

impl Opened {
    /// As it is where the kernel forwards.
    pub fn without_workers(self) -> Running {
        let Self { infos, keep, held, notes, .. } = self;
        Running { plane: None, ports: infos, notes, _keep: keep, held, seen: Vec::new() }
    }
}

impl Running {
    /// How each worker is.
    pub fn workers(&self) -> Vec<WorkerState> {
        self.plane.as_ref().map(DataPlane::workers).unwrap_or_default()
    }

    /// Whose a queue of a port is.
    pub fn worker_of(&self, port: &str, queue: usize) -> usize {
        self.plane.as_ref().and_then(|plane| plane.worker_of(port, queue)).unwrap_or(queue)
    }

    /// Has queues be where a configuration says.
    pub fn place(&self, config: &Config) {
        self.plane.iter().for_each(|plane| plane.place(config));
    }

    /// Moves a queue to another worker where that is worth it, and says so.
    pub fn balance(&mut self) {
        if let Some(Move { queue, from, to }) =
            self.plane.as_mut().and_then(|plane| plane.balance(Instant::now()))
        {
            tracing::info!("queue {queue} goes from worker {from}, the busiest, to worker {to}");
        }
    }

    /// What is wrong with it, if anything is.
    pub fn trouble(&mut self) -> Option<&'static str> {
        let Some(plane) = &self.plane else { return None };
        if !plane.is_alive() {
            return Some("a thread of the data path has panicked");
        }
        let mut hangs = false;
        for ((index, worker), seen) in plane.workers().into_iter().enumerate().zip(&mut self.seen) {
            let [breaths, ..] = worker.counters;
            if breaths != seen.0 {
                *seen = (breaths, Instant::now());
            }
            let silent = seen.1.elapsed();
            if silent > SEEMS_TO_HANG_AFTER {
                plane.demote(index);
            }
            hangs |= silent > HANGS_AFTER;
        }
        hangs.then_some("a worker hangs")
    }

    /// Ends threads, then takes the steering programs off. Gives what keeps interfaces of ours in Linux.
    pub fn stop(self) -> Vec<OwnedFd> {
        let Self { plane, ports: _, notes: _, _keep: keep, held, seen: _ } = self;
        plane.into_iter().for_each(DataPlane::stop);
        drop(keep);
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_lasts_for_three_times_the_ports_with_smaller_rings() {
        let with_ports = |count: usize| {
            let ports = (0..count).map(|at| format!("[[port]]\ndevice = 'bm-none{at}'\n"));
            let text = format!("[daemon]\nworkers = 2\n{}", ports.collect::<String>());
            Config::parse(std::path::Path::new("test.toml"), &text).expect("a right configuration")
        };
        let three = with_ports(3);
        let slots = frames(&three, three.daemon.ring(6), FRAMES_SENT);
        assert_eq!(
            [ring(&three, slots), ring(&with_ports(6), slots), ring(&with_ports(9), slots)],
            [8192, 4096, 2048]
        );
        assert_eq!(check_memory(&with_ports(9), slots), Ok(()));
        let refused = check_memory(&with_ports(10), slots).map_err(|error| error.to_string());
        assert_eq!(
            refused,
            Err("10 ports and 2 workers need 90112 frames, and the daemon took 81920 when it started: stop it and start it with this configuration: it takes as many then".into())
        );
        let mut fixed = with_ports(6);
        fixed.daemon.ring = Some(8192);
        assert!(check_memory(&fixed, slots).is_err(), "a ring that somebody asked for stays as it is");
    }
}
