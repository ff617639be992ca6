//! Plans workers: how many, with how many queues of each port, which rings, and how much frame memory.

use bm_api::Error;
use bm_control::config::{Config, Device, Port};
use bm_frame::Node;

use super::machine::Machine;

/// Maximum number of frames per queue in addition to those in its receive ring: being sent, or in the hands of the
/// worker.
const FRAMES_SENT: usize = 2 * 2048;
/// Maximum number of such frames of all queues together, since many ports do not all send that much at once. Frames
/// are not free: the kernel describes all of them once for each queue, with 128 bytes each.
const FRAMES_SENT_ALL: usize = 16 * FRAMES_SENT;
/// Its minimum for each queue.
const FRAMES_SENT_MIN: usize = 512;
/// What a memory that exists already must have for each queue, if it is less than [`Needs::sent`].
const FRAMES_SENT_LEAST: usize = 2048;
/// Maximum receive ring of a queue of other devices than Linux interfaces, in frames.
const RING_BESIDE: usize = 2048;
/// Minimum ring size of AF_XDP ports, in frames, where the configuration does not set it.
const RING_LEAST: u32 = 2048;
/// Additional frames: in the hands of workers, and waiting for neighbors.
const FRAMES_BESIDE: usize = 8192;

/// Workers and what they need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers {
    /// How many there are.
    pub count: usize,
    /// The NUMA nodes of their cores; empty if the system chooses the cores.
    pub nodes: Vec<Node>,
    /// The maximum number of queues of each port, in the order of the configuration.
    pub queues: Vec<usize>,
    /// Ring size of AF_XDP ports, in frames.
    pub ring: u32,
    /// Frame memory, in slots: what there is already, or what to allocate.
    pub slots: usize,
}

impl Workers {
    /// Workers for a configuration that needs some.
    pub fn plan(config: &Config, machine: &Machine) -> Self {
        let count = count(config, machine);
        let needs = Needs::count(config, count);
        let wanted = needs.frames(config.daemon.ring(needs.xdp), needs.sent());
        let slots = machine.slots.unwrap_or((config.daemon.slots as usize * count).max(wanted));
        let cores = config.daemon.cores.iter().take(count);
        Self {
            count,
            nodes: cores.filter_map(|core| machine.nodes.get(core).copied()).collect(),
            queues: config.ports.iter().map(|port| queues_taken(config, port, count)).collect(),
            ring: needs.ring(config, slots),
            slots,
        }
    }
}

/// Number of workers: as configured, or as many as every port and fabric link has queues, at most one per core.
pub fn count(config: &Config, machine: &Machine) -> usize {
    let there = config.ports.iter().filter(|port| machine.missing(port).is_none());
    let devices = config.fabric_devices();
    let fabric = devices.iter().filter_map(|name| Some(machine.interfaces.get(name)?.queues));
    let queues = there.map(|port| queues(port, machine)).chain(fabric).min().unwrap_or(1);
    config.daemon.workers.map_or(queues.min(machine.cpus), |workers| workers as usize).max(1)
}

/// Number of queues of a device; 1 if that is unknown before it is open.
fn queues(port: &Port, machine: &Machine) -> usize {
    let interface = port.device.interface().and_then(|interface| machine.interfaces.get(interface));
    let has = interface.map_or(1, |interface| interface.queues);
    match (&port.device, port.queues) {
        (Device::Dpdk(_), wanted) => wanted.map_or(1, |wanted| wanted as usize),
        (_, wanted) => wanted.map_or(has, |wanted| has.min(wanted as usize)),
    }
}

/// Maximum number of queues to use of a port: one for each worker, or `queues` if that is greater. With links to apps,
/// which are one per port and worker, there are no more than workers.
fn queues_taken(config: &Config, port: &Port, workers: usize) -> usize {
    let may_be_more = matches!(port.device, Device::Xdp(_)) && config.links.is_empty();
    let wanted = port.queues.filter(|_| may_be_more).unwrap_or(0);
    workers.max(wanted as usize)
}

/// What rings depend on.
struct Needs {
    /// Number of queues of all AF_XDP ports.
    xdp: usize,
    /// Number of queues of all other ports.
    others: usize,
}

impl Needs {
    fn count(config: &Config, workers: usize) -> Self {
        // Each worker sends through a queue of every fabric link.
        let mut counts = Self { xdp: config.fabric_devices().len() * workers, others: 0 };
        for port in &config.ports {
            let queues = queues_taken(config, port, workers);
            match port.device {
                Device::Xdp(_) => counts.xdp += queues,
                _ => counts.others += queues,
            }
        }
        counts
    }

    /// Frames for each queue that are being sent.
    fn sent(&self) -> usize {
        (FRAMES_SENT_ALL / (self.xdp + self.others).max(1)).clamp(FRAMES_SENT_MIN, FRAMES_SENT)
    }

    /// Minimum of [`Self::sent`]; a smaller memory is rejected.
    fn sent_least(&self) -> usize {
        self.sent().min(FRAMES_SENT_LEAST)
    }

    /// Frames needed for all rings of all ports, with `sent` more for each queue, and for everything else.
    fn frames(&self, ring: u32, sent: usize) -> usize {
        self.xdp * (ring as usize + sent) + self.others * (RING_BESIDE + sent) + FRAMES_BESIDE
    }

    /// Ring size of AF_XDP ports, in frames, for a memory of `slots` slots: smaller than the default if a reload has
    /// added ports, unless the configuration sets it.
    fn ring(&self, config: &Config, slots: usize) -> u32 {
        let mut ring = config.daemon.ring(self.xdp);
        let is_free = config.daemon.ring.is_none();
        while is_free && ring > RING_LEAST && self.frames(ring, self.sent_least()) > slots {
            ring /= 2;
        }
        ring
    }
}

/// Checks that the memory that the daemon has had since its start, of `slots` slots, is enough for a configuration.
///
/// # Errors
/// How many frames the configuration needs.
pub fn check_memory(config: &Config, machine: &Machine, slots: usize) -> Result<(), Error> {
    let (ports, workers) = (config.ports.len(), count(config, machine));
    let needs = Needs::count(config, workers);
    let least = needs.frames(needs.ring(config, slots), needs.sent_least());
    if slots >= least {
        return Ok(());
    }
    let hint = "restart the daemon with this configuration to allocate more";
    let why = format!(
        "{} and {} need {least} frames, but the daemon allocated {slots} when it started",
        bm_cli::counted(ports as u64, "port"),
        bm_cli::counted(workers as u64, "worker"),
    );
    Err(Error::new(why).hint(hint))
}

/// The error for an interface with fewer queues than workers are configured.
pub fn too_few_queues(name: &str, queues: usize, workers: usize) -> String {
    format!(
        "{workers} workers, but {name} has only {queues} queue(s), and each worker needs a queue of every port: use fewer workers, or `ethtool -L {name} combined {workers}`"
    )
}

/// Checks that each queue can have the worker that `queue_workers` gives it.
///
/// # Errors
/// Which queue cannot have its worker, and how to fix it.
pub fn check_queues(config: &Config, machine: &Machine) -> Result<(), String> {
    check_queues_of(config, count(config, machine))
}

/// Checks `queue_workers` for this number of workers.
///
/// # Errors
/// Which queue cannot have its worker, and how to fix it.
fn check_queues_of(config: &Config, workers: usize) -> Result<(), String> {
    for (index, port) in config.ports.iter().enumerate() {
        for (number, &worker) in port.queue_workers.iter().enumerate() {
            let name = port.name(index);
            if worker as usize >= workers {
                return Err(format!(
                    "queue_workers gives queue {number} of {name} to worker {worker}, but the last worker is {}",
                    workers - 1
                ));
            }
            if number < workers && worker as usize != number {
                return Err(format!(
                    "queue_workers gives queue {number} of {name} to worker {worker}, but worker {number} sends through it: use {number} instead"
                ));
            }
        }
    }
    Ok(())
}

/// Checks that AF_XDP accepts slots of this size.
pub fn check_slots(interface: &str, slot_size: usize) -> Result<(), Error> {
    match slot_size {
        2048 | 4096 => Ok(()),
        _ => Err(Error::new(format!(
            "slot_size = {slot_size}, but AF_XDP on {interface} needs slots of 2048 or 4096 bytes"
        ))),
    }
}
