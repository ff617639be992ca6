//! Ports, workers and slow path as one thing that is started, looked after, and started again.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bm_api::{Error, PortMode};
use bm_control::config::{Config, Device, Port, Switch};
use bm_control::driver::{ControlPort, Handle};
use bm_fastpath::Claims;
use bm_frame::{Depot, Node, Pages};

use super::dataplane::{DataPlane, Part, Shared, WorkerState};
use super::kernel_ports::OnPort;
use super::path::{Paths, PortPath};
use super::places::Places;
use super::ports::{self, Hardware, OnInterface, OpenPort, Opener, Taking, Trouble};
use super::presence::{self, Presence, unfit};
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
    /// What is wrong with the device now, where it can tell.
    pub trouble: Option<Trouble>,
    /// Whether it has its interface.
    pub presence: Presence,
    /// Where workers have it, if its interface may come and go.
    pub places: Option<Places>,
    /// What lives as long as the port has its interface: with it, a steering program leaves.
    pub keep: Box<dyn Any + Send>,
}

/// Ports that are open and take nothing yet.
pub struct Opened {
    parts: Vec<Part>,
    infos: Vec<PortInfo>,
    held: Vec<OwnedFd>,
    workers: usize,
    /// Frames that can wait in each queue.
    ring: Option<u32>,
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
    /// What opens interfaces that come back; none where there are no workers.
    pub opener: Option<Opener>,
    /// How many workers there were to be.
    pub planned: usize,
    held: Vec<OwnedFd>,
    seen: Vec<(u64, Instant)>,
}

/// How many workers there shall be: as many as every port has queues for, one a core at most.
pub fn workers(config: &Config) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let there = config.ports.iter().filter(|port| match &port.device {
        Device::Xdp(name) => bm_fastpath::is_there(name),
        _ => true,
    });
    let queues = there.map(ports::queues).min().unwrap_or(1);
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
pub fn queues_taken(config: &Config, port: &Port, workers: usize) -> usize {
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
pub fn ring(config: &Config, slots: usize) -> u32 {
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
            "huge_pages = \"on\" needs {pages} free huge pages of 2 MiB: reserve them with `sysctl -w vm.nr_hugepages={pages}`"
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

/// Says, now and in `status`, that workers run with normal priority.
fn refused_priority(why: &std::io::Error) -> String {
    let note = format!(
        "workers run at normal priority, and may lose packets while other programs are busy: {why}; give brickmoon CAP_SYS_NICE (and its control group a real-time budget), or set priority = 0 in [daemon] if this is as wanted"
    );
    tracing::warn!("{note}");
    note
}

/// What ports are opened by.
pub struct Openers<'a> {
    /// For those of workers; none where there are no workers.
    pub workers: Option<&'a Opener>,
    /// Where workers' sockets go for packets that are claimed.
    pub claims: Option<&'a Claims>,
    /// Ports whose interfaces must do as they are; others wait for better ones.
    pub strict: &'a dyn Fn(&Port) -> bool,
}

impl Opened {
    /// Opens the ports of the configuration; `on` says which of them the kernel path is on: those are for workers only
    /// to send and to receive what is claimed.
    pub fn open(
        config: &Config,
        paths: &Paths,
        on: Vec<Option<OnPort>>,
        openers: &Openers<'_>,
    ) -> Result<(Self, Vec<ControlPort>), Failure> {
        let workers = openers.workers.map_or(0, |_| workers(config));
        let mut opened = Self {
            parts: Vec::new(),
            infos: Vec::new(),
            held: Vec::new(),
            workers,
            ring: openers.workers.map(Opener::ring),
            notes: Vec::new(),
        };
        let mut control = Vec::new();
        for (index, ((port, path), on)) in config.ports.iter().zip(&paths.0).zip(on).enumerate() {
            let (presence, open) = match openers.workers {
                Some(opener) => opener.port(config, (index, port), on, workers, openers)?,
                None => in_kernel(port, on),
            };
            if let Presence::Missing = presence {
                tracing::warn!("port {}: {}", open.name, presence::missing(&open.name));
            }
            control.push(opened.add(open, presence, path));
        }
        Ok((opened, control))
    }

    fn add(&mut self, open: OpenPort, presence: Presence, path: &PortPath) -> ControlPort {
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
            places,
            hardware,
            trouble,
            held,
        } = open;
        let count = if self.workers == 0 { 0 } else { queues.len() };
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
            places,
            keep,
        });
        self.held.extend(held);
        let control = ControlPort { name: name.clone(), ifindex, steering, in_kernel: path.in_kernel };
        self.parts.push(Part { name, queues, host });
        control
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
        opener: Opener,
    ) -> Result<Running, Failure> {
        let Self { parts, infos, held, workers, ring: _, notes } = self;
        let asker = Box::new(control.asker().map_err(Failure::failed)?);
        let plane = DataPlane::start(config, workers, parts, shared, asker, opener.depot().clone())?;
        let seen = vec![(0, Instant::now()); plane.workers().len()];
        let mut notes = notes;
        notes.extend(plane.priority_refused().map(refused_priority));
        Ok(Running {
            plane: Some(plane),
            ports: infos,
            opener: Some(opener),
            planned: workers,
            notes,
            held,
            seen,
        })
    }
}

/// A port where the kernel forwards for all of them.
fn in_kernel(port: &Port, on: Option<OnPort>) -> (Presence, OpenPort) {
    let OnPort { presence, reason } = on.unwrap_or(OnPort { presence: Presence::Missing, reason: None });
    let open = OpenPort::in_kernel(port, presence.ifindex(), reason);
    (presence, open)
}

impl Opener {
    /// Opens a port of the configuration, as far as it is there.
    fn port(
        &self,
        config: &Config,
        (index, port): (usize, &Port),
        on: Option<OnPort>,
        workers: usize,
        openers: &Openers<'_>,
    ) -> Result<(Presence, OpenPort), Failure> {
        let most = queues_taken(config, port, workers);
        let Device::Xdp(name) = &port.device else {
            let open = self.open(index, port, most)?;
            let ifindex = open.ifindex.unwrap_or_default();
            return Ok((Presence::Here { ifindex, birth: None }, open));
        };
        let beside = on.is_some();
        let presence = on.map_or_else(|| here(name), |on| on.presence);
        let missing = || {
            let open = OpenPort::on(name, port, None, most)?;
            let mode = if beside { PortMode::Kernel } else { open.mode };
            Ok::<_, Failure>(OpenPort { mode, ..open })
        };
        if presence.ifindex().is_none() {
            return Ok((presence, missing()?));
        }
        let taking = match beside {
            true => Taking::Claimed(openers.claims),
            false => Taking::Frames { held: false },
        };
        let opened = self.interface(name, port, taking, most);
        match opened.and_then(|open| enough_queues(config, port, open, workers)) {
            Ok(open) => {
                let presence = Presence::Here { ifindex: open.ifindex, birth: None };
                Ok((presence, OpenPort::on(name, port, Some(open), most)?))
            }
            Err(_) if !bm_fastpath::is_there(name) => Ok((Presence::Missing, missing()?)),
            Err(failure) if (openers.strict)(port) => Err(failure),
            Err(failure) => {
                let why = super::why(failure);
                tracing::warn!(%why, "port {name} waits");
                Ok((Presence::refused(why), missing()?))
            }
        }
    }
}

/// Whether an interface for workers is there.
fn here(name: &str) -> Presence {
    match bm_fastpath::is_there(name) {
        false => Presence::Missing,
        // Which one it is, is known when it is open.
        true => unfit(name).map_or(Presence::Here { ifindex: 0, birth: None }, Presence::refused),
    }
}

/// Whether there is a queue for each worker, where somebody says how many there are to be.
fn enough_queues(
    config: &Config,
    port: &Port,
    open: OnInterface,
    workers: usize,
) -> Result<OnInterface, Failure> {
    if open.queues.len() >= workers || config.daemon.workers.is_none() {
        return Ok(open);
    }
    let name = port.name(0);
    Err(Failure::Usage(format!(
        "{workers} workers, and {name} has {} queue(s): each worker needs a queue of every port; use fewer workers, or `ethtool -L {name} combined {workers}`",
        open.queues.len()
    )))
}

impl Opened {
    /// As it is where the kernel forwards.
    pub fn without_workers(self) -> Running {
        let Self { infos, held, notes, .. } = self;
        Running { plane: None, ports: infos, opener: None, planned: 0, notes, held, seen: Vec::new() }
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
        let Self { plane, ports, opener: _, planned: _, notes: _, held, seen: _ } = self;
        plane.into_iter().for_each(DataPlane::stop);
        drop(ports);
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
