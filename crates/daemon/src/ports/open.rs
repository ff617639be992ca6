//! Opens devices: the only module that knows all kinds of ports.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use bm_api::PortMode;
use bm_cli::Failure;
use bm_control::config::{self, Device, Switch};
use bm_fastpath::Claims;
use bm_frame::{FramePool, Memory};
use bm_port::{NoSteering, Port};
use bm_port_pcap::PcapPort;
use bm_port_tap::{HostTap, TapDevice};
use bm_port_xdp::{Bind, Checksums, Local, Options, Shared, XdpDevice};

use crate::plan::{self, workers::check_slots};
use crate::ports::dpdk;
use crate::ports::open_port::{Diagnosis, OpenDevice, OpenPort};

/// Why XDP on an interface is slower than it could be.
pub const GENERIC: &str =
    "the driver does not support XDP, so the kernel runs it after the driver (generic mode)";
/// What copy mode costs, where the driver has no other (docs/performance.md has figures).
const COPIED: &str = "the driver has no zero copy for AF_XDP, so the kernel copies each frame to a worker and back; \
     this can be slower than Linux, and path = \"kernel\" avoids it where it has all features in use";
/// What copy mode costs, where the configuration asks for it.
const COPIED_BY_CHOICE: &str =
    "zero_copy = \"off\": the kernel copies each frame to a worker and back, which can be slower than Linux";
/// MTU of the host TAPs of devices that have none of their own.
const HOST_TAP_MTU: usize = 1500;

/// Frame memory and ring size of the ports.
pub struct Rings<'a> {
    /// The free frames.
    pub memory: &'a Arc<FramePool>,
    /// Frames that can wait in each queue of an AF_XDP port.
    pub ring: u32,
}

/// Opens all ports, each with at most the number of queues that `most` returns.
pub fn open(
    ports: &[config::Port],
    rings: &Rings<'_>,
    most: &dyn Fn(&config::Port) -> usize,
) -> Result<Vec<OpenPort>, Failure> {
    let opener = Opener::new(rings)?;
    let mut open = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        open.push(match &port.device {
            Device::Xdp(interface) => {
                let receives = Receives::AllFrames { held: false, local: Local::Nothing };
                let device = opener.interface(interface, port, receives, most(port))?;
                opener.on(interface, port, Some(device), most(port))?
            }
            _ => opener.open(index, port, most(port))?,
        });
    }
    Ok(open)
}

/// What IPsec needs of packets to this machine.
pub fn local(config: &config::Ipsec) -> Local {
    match () {
        () if config.checks_arrivals() => Local::All,
        () if config.is_empty() => Local::Nothing,
        () => Local::Esp,
    }
}

/// What workers receive from a Linux interface.
#[derive(Clone, Copy)]
pub enum Receives<'c> {
    /// All frames, and `local` of those to this machine. With `held`, frames that filters may drop are dropped until control
    /// knows the interface.
    AllFrames { held: bool, local: Local },
    /// Claimed packets, if there are claims: the kernel path forwards the others, and workers send here.
    Claimed(Option<&'c Claims>),
}

/// Opens devices that share one frame memory.
#[derive(Clone)]
pub struct Opener {
    frame_pool: Arc<FramePool>,
    shared: Arc<Shared>,
    ring: u32,
}

impl Opener {
    /// Opens ports that receive into this memory.
    pub fn new(rings: &Rings<'_>) -> Result<Self, Failure> {
        let shared = Shared::new(rings.memory).map_err(Failure::failed)?;
        Ok(Self { frame_pool: rings.memory.clone(), shared, ring: rings.ring })
    }

    /// Frames that can wait in each queue of an AF_XDP port.
    pub fn ring(&self) -> u32 {
        self.ring
    }

    /// The free frames.
    pub fn frame_pool(&self) -> &Arc<FramePool> {
        &self.frame_pool
    }

    /// Opens a device; a Linux interface only as missing (see [`Self::interface`]).
    pub fn open(&self, index: usize, port: &config::Port, most: usize) -> Result<OpenPort, Failure> {
        match &port.device {
            Device::Xdp(interface) => self.on(interface, port, None, most),
            Device::Tap(name) => tap(name, port, self.frame_pool.memory(), most),
            Device::Pcap { input, output } => pcap(index, input.as_deref(), output.as_deref(), port),
            Device::Dpdk(device) => dpdk::open(device, port, &self.frame_pool, most),
        }
    }

    /// A port on a Linux interface, which says so if packets are too large for workers: the MTU may be raised later.
    pub fn on(
        &self,
        interface: &str,
        port: &config::Port,
        open: Option<OpenDevice>,
        most: usize,
    ) -> Result<OpenPort, Failure> {
        let (name, slot_size) = (interface.to_owned(), self.frame_pool.memory().slot_size());
        let trouble: Diagnosis =
            Arc::new(move || plan::too_large(&name, bm_port_xdp::mtu(&name)?, slot_size as u32));
        Ok(OpenPort { trouble: Some(trouble), ..OpenPort::on(interface, port, open, most)? })
    }

    /// Opens a Linux interface for workers.
    pub fn interface(
        &self,
        interface: &str,
        port: &config::Port,
        receives: Receives<'_>,
        most: usize,
    ) -> Result<OpenDevice, Failure> {
        xdp(interface, port, receives, &self.shared, self.ring, most)
    }
}

fn xdp(
    interface: &str,
    port: &config::Port,
    receives: Receives<'_>,
    shared: &Arc<Shared>,
    ring: u32,
    most: usize,
) -> Result<OpenDevice, Failure> {
    check_slots(interface, shared.memory().slot_size()).map_err(Failure::usage)?;
    let options = Options {
        bind: match port.zero_copy {
            Switch::Auto => Bind::Auto,
            Switch::On => Bind::ZeroCopy,
            Switch::Off => Bind::Copy,
        },
        complete_checksums: match port.checksum_completion {
            Switch::Auto => Checksums::Auto,
            Switch::On => Checksums::On,
            Switch::Off => Checksums::Off,
        },
        ring,
        tagged: true,
        held: matches!(receives, Receives::AllFrames { held: true, .. }),
        local: match receives {
            Receives::AllFrames { local, .. } => local,
            Receives::Claimed(_) => Local::Nothing,
        },
        ..Options::default()
    };
    let device = match receives {
        Receives::Claimed(_) => XdpDevice::beside(interface, shared, options),
        Receives::AllFrames { .. } => XdpDevice::attach(interface, shared, options),
    };
    let device = device.map_err(Failure::failed)?;
    let count =
        (device.queues() as usize).min(most).min(port.queues.map_or(usize::MAX, |queues| queues as usize));
    let mut zero_copy = true;
    let mut queues: Vec<Box<dyn Port>> = Vec::new();
    for queue in 0..count as u32 {
        let queue = device.queue(queue).map_err(Failure::failed)?;
        zero_copy &= queue.is_zero_copy();
        if let (Receives::Claimed(Some(claims)), Some(socket)) = (receives, queue.socket()) {
            claims.bind(device.index(), queue.queue(), socket).map_err(Failure::failed)?;
        }
        queues.push(Box::new(queue));
    }
    tracing::info!("{device}");
    Ok(OpenDevice {
        ifindex: Some(device.index()),
        mode: match receives {
            Receives::Claimed(_) => PortMode::Kernel,
            Receives::AllFrames { .. } if zero_copy => PortMode::ZeroCopy,
            Receives::AllFrames { .. } => PortMode::Copy,
        },
        reason: match receives {
            _ if device.is_generic() => Some(GENERIC.into()),
            Receives::AllFrames { .. } if !zero_copy => Some(copied(port).into()),
            _ => None,
        },
        queues,
        host: Box::new(device.host().map_err(Failure::failed)?),
        steering: match receives {
            Receives::Claimed(_) => Box::new(NoSteering),
            Receives::AllFrames { .. } => Box::new(device.steering().map_err(Failure::failed)?),
        },
        keep: Box::new(device),
    })
}

/// Why the frames of a port are copied.
fn copied(port: &config::Port) -> &'static str {
    if matches!(port.zero_copy, Switch::Off) { COPIED_BY_CHOICE } else { COPIED }
}

/// Opens a TAP whose other end is outside (a virtual machine, another namespace). In Linux a host TAP stands for the
/// router's end, so that addresses, ARP and routing daemons have an interface to work on.
fn tap(name: &str, port: &config::Port, memory: &Memory, most: usize) -> Result<OpenPort, Failure> {
    let mut device = TapDevice::open(name).map_err(Failure::failed)?;
    let mtu = device.mtu().map_err(Failure::failed)?;
    let (mut keep_open, mut presence) = (Vec::new(), None);
    let mut queues: Vec<Box<dyn Port>> = Vec::new();
    for _ in 0..port.queues.unwrap_or(1).min(most as u32) {
        let queue = device.queue(memory.room()).map_err(Failure::failed)?;
        keep_open.extend(queue.keep_open().map_err(Failure::failed)?);
        presence = queue.presence().map_err(Failure::failed)?;
        queues.push(Box::new(queue));
    }
    let mut mac = device.mac().map_err(Failure::failed)?;
    // The two ends need different MACs; they differ in the last byte.
    mac[5] ^= 1;
    let host_tap = host_tap(name, mac, mtu)?;
    let port = behind_host_tap(port, host_tap, queues, PortMode::Tap, Box::new(device))?;
    keep_open.extend(port.keep_open);
    let trouble: Diagnosis = Arc::new(move || presence.as_ref()?.trouble());
    Ok(OpenPort { keep_open, trouble: Some(trouble), ..port })
}

fn pcap(
    index: usize,
    input: Option<&Path>,
    output: Option<&Path>,
    port: &config::Port,
) -> Result<OpenPort, Failure> {
    let queue: Box<dyn Port> = Box::new(PcapPort::new(input, output, false).map_err(Failure::failed)?);
    let host_tap = host_tap(&format!("pcap{index}"), [2, 0, 0, 0, 0xbc, index as u8], HOST_TAP_MTU)?;
    behind_host_tap(port, host_tap, vec![queue], PortMode::Memory, Box::new(()))
}

/// Creates the host TAP of a device that is not a Linux interface.
fn host_tap(name: &str, mac: [u8; 6], mtu: usize) -> Result<HostTap, Failure> {
    HostTap::new(&config::app::host_tap_name(name), mac, mtu).map_err(Failure::failed)
}

fn behind_host_tap(
    port: &config::Port,
    host_tap: HostTap,
    queues: Vec<Box<dyn Port>>,
    mode: PortMode,
    keep: Box<dyn Any + Send>,
) -> Result<OpenPort, Failure> {
    Ok(OpenPort {
        name: host_tap.name(),
        device: port.device.to_string(),
        keep_open: Vec::from_iter(host_tap.keep_open().map_err(Failure::failed)?),
        open: OpenDevice {
            ifindex: Some(host_tap.index().map_err(Failure::failed)?),
            mode,
            reason: None,
            queues,
            host: Box::new(host_tap),
            steering: Box::new(NoSteering),
            keep,
        },
        hardware: None,
        trouble: None,
        replaceable: None,
    })
}
