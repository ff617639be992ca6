//! An open port, whatever kind of device it is.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bm_api::PortMode;
use bm_control::config;
use bm_graph::ReplaceablePort;
use bm_port::{HostPort, NoSteering, Port, Steering};

use super::places::{Nowhere, Places, ReplaceableHost};
use crate::failure::Failure;

/// An open device, with the parts for workers, the slow path and control.
pub struct OpenPort {
    /// Name of the interface in Linux.
    pub name: String,
    /// As the configuration names it.
    pub device: String,
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
    /// For replacing the interface by another; only for ports on Linux interfaces.
    pub places: Option<Places>,
    /// The hardware's own counters, where there are any.
    pub hardware: Option<Hardware>,
    /// Asks the device what is wrong with it, if it can tell.
    pub trouble: Option<Trouble>,
    /// Descriptors that keep our interfaces, with addresses and routes, while workers are restarted.
    pub held: Vec<OwnedFd>,
}

/// Reads the counters of a device, by name.
pub type Hardware = Arc<dyn Fn() -> Vec<(String, u64)> + Send + Sync>;

/// Asks a device why it does not work.
pub type Trouble = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// A Linux interface opened for workers: all that is replaced when another interface takes its place.
pub struct OnInterface {
    /// Index of the interface in Linux.
    pub ifindex: u32,
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

impl OpenPort {
    /// A port of the kernel path in a daemon without workers.
    pub fn in_kernel(port: &config::Port, ifindex: Option<u32>, reason: Option<String>) -> Self {
        Self {
            name: port.name(0),
            device: port.device.to_string(),
            ifindex,
            mode: PortMode::Kernel,
            reason,
            queues: Vec::new(),
            host: Box::new(Nowhere),
            steering: Box::new(NoSteering),
            keep: Box::new(()),
            places: None,
            hardware: None,
            trouble: None,
            held: Vec::new(),
        }
    }

    /// A port whose interface may disappear and come back. It starts with the interface `on`, or without one and with
    /// room for `places` queues.
    pub fn on(
        interface: &str,
        port: &config::Port,
        on: Option<OnInterface>,
        places: usize,
    ) -> Result<Self, Failure> {
        let missing = || OnInterface {
            ifindex: 0,
            mode: PortMode::Copy,
            reason: None,
            queues: Vec::new(),
            host: Box::new(Nowhere),
            steering: Box::new(NoSteering),
            keep: Box::new(()),
        };
        let is_there = on.is_some();
        let OnInterface { ifindex, mode, reason, queues, host, steering, keep } = on.unwrap_or_else(missing);
        let devices: Vec<_> = match is_there {
            true => queues.into_iter().map(Some).collect(),
            false => (0..places.max(1)).map(|_| None).collect(),
        };
        let (mut queues, mut replacers) = (Vec::new(), Vec::new());
        for device in devices {
            let (queue, replacer) = ReplaceablePort::new(device).map_err(Failure::failed)?;
            queues.push(Box::new(queue) as Box<dyn Port>);
            replacers.push(replacer);
        }
        let (host, replaceable) = ReplaceableHost::new(host);
        Ok(Self {
            name: interface.into(),
            device: port.device.to_string(),
            ifindex: is_there.then_some(ifindex),
            mode,
            reason,
            queues,
            host: Box::new(host),
            steering,
            keep,
            hardware: None,
            trouble: None,
            held: Vec::new(),
            places: Some(Places { queues: replacers, host: replaceable }),
        })
    }
}
