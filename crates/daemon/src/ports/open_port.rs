//! An open port, whatever kind of device it is.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bm_api::PortMode;
use bm_cli::Failure;
use bm_control::config;
use bm_graph::ReplaceablePort;
use bm_port::{HostPort, NoSteering, Port, Steering};

use crate::ports::replaceable::{NoHost, ReplaceableDevices, ReplaceableHost};

/// A port of the configuration with its open device.
pub struct OpenPort {
    /// Name of the interface in Linux.
    pub name: String,
    /// The device's name in the configuration.
    pub device: String,
    /// The parts for workers, the slow path and control.
    pub open: OpenDevice,
    /// For replacing the interface by another; only for ports on Linux interfaces.
    pub replaceable: Option<ReplaceableDevices>,
    /// The hardware's own counters, where there are any.
    pub hardware: Option<HardwareCounters>,
    /// Asks the device what is wrong with it, if it can tell.
    pub trouble: Option<Diagnosis>,
    /// Descriptors that keep the interfaces that we created, with addresses and routes, while workers are restarted.
    pub keep_open: Vec<OwnedFd>,
}

/// Reads the counters of a device, by name.
pub type HardwareCounters = Arc<dyn Fn() -> Vec<(String, u64)> + Send + Sync>;

/// Asks a device why it does not work.
pub type Diagnosis = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// An open device, with its parts for workers, the slow path and control: all that is replaced when another interface
/// takes its place.
pub struct OpenDevice {
    /// Index of the interface in Linux; `None` while it does not exist.
    pub ifindex: Option<u32>,
    /// How its frames get to a worker.
    pub mode: PortMode,
    /// Why the mode is not the best one.
    pub reason: Option<String>,
    /// The queues in use.
    pub queues: Vec<Box<dyn Port>>,
    /// Delivers frames to Linux.
    pub host: Box<dyn HostPort>,
    /// Through which control sets the packets that the port takes.
    pub steering: Box<dyn Steering>,
    /// Kept as long as the port; dropping it detaches the steering program.
    pub keep: Box<dyn Any + Send>,
}

impl OpenDevice {
    /// No device: nothing is received, sent or delivered.
    fn none(mode: PortMode) -> Self {
        Self {
            ifindex: None,
            mode,
            reason: None,
            queues: Vec::new(),
            host: Box::new(NoHost),
            steering: Box::new(NoSteering),
            keep: Box::new(()),
        }
    }
}

impl OpenPort {
    /// A port of the kernel path in a daemon without workers.
    pub fn in_kernel(port: &config::Port, ifindex: Option<u32>, reason: Option<String>) -> Self {
        Self {
            name: port.name(0),
            device: port.device.to_string(),
            open: OpenDevice { ifindex, reason, ..OpenDevice::none(PortMode::Kernel) },
            replaceable: None,
            hardware: None,
            trouble: None,
            keep_open: Vec::new(),
        }
    }

    /// A port whose interface may disappear and come back. It starts with an open interface, or without one and with
    /// room for `queues_max` queues.
    pub fn on(
        interface: &str,
        port: &config::Port,
        open: Option<OpenDevice>,
        queues_max: usize,
    ) -> Result<Self, Failure> {
        let (open, devices) = match open {
            Some(mut open) => {
                let queues = std::mem::take(&mut open.queues);
                (open, queues.into_iter().map(Some).collect())
            }
            None => {
                let missing: Vec<_> = (0..queues_max.max(1)).map(|_| None).collect();
                (OpenDevice::none(PortMode::Copy), missing)
            }
        };
        let (mut queues, mut replacers) = (Vec::new(), Vec::new());
        for device in devices {
            let (queue, replacer) = ReplaceablePort::new(device).map_err(Failure::failed)?;
            queues.push(Box::new(queue) as Box<dyn Port>);
            replacers.push(replacer);
        }
        let (host, replaceable_host) = ReplaceableHost::new(open.host);
        Ok(Self {
            name: interface.into(),
            device: port.device.to_string(),
            open: OpenDevice { queues, host: Box::new(host), ..open },
            replaceable: Some(ReplaceableDevices { queues: replacers, host: replaceable_host }),
            hardware: None,
            trouble: None,
            keep_open: Vec::new(),
        })
    }
}
