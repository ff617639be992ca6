//! The Rust apps that Lua programs can use: ports and the router.
//!
//! ```lua
//! config.app(c, "eth0", "xdp:eth0")                        -- every frame of the interface
//! config.app(c, "rt", "router", { ports = { "eth0" } })    -- opens its ports first; apps of these ports are then its queues
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bm_control::config::Device;
use bm_graph::PortApp;
use bm_lua::{AppRequest, NativeApp, Natives};
use bm_port::{LoopPort, Port, Steering as _};
use bm_port_dpdk::{DpdkDevice, Spec};
use bm_port_pcap::PcapPort;
use bm_port_tap::TapDevice;
use bm_port_xdp::{Options, Shared, XdpDevice};
use bm_stats::{Account, Registry, Scope};
use serde_json::Value;

use super::port_memory::PortMemory;
use super::router::Routers;

/// The open devices by name. Workers share a device; each has its own queue of it.
pub struct Apps {
    registry: Arc<Registry>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    memory: Option<PortMemory>,
    shared: Option<Arc<Shared>>,
    xdp: HashMap<String, XdpDevice>,
    taps: HashMap<String, TapDevice>,
    dpdk: HashMap<String, DpdkDevice>,
    routers: Routers,
}

impl Apps {
    /// Starts with no open devices; accounts are kept in `registry`.
    pub fn new(registry: Arc<Registry>) -> Self {
        Self { registry, open: Mutex::default() }
    }

    /// Makes an app of a port, with its accounts.
    fn port_app(&self, wanted: &AppRequest<'_>, port: Box<dyn Port>) -> Result<NativeApp, String> {
        let (name, queue) = (wanted.name, wanted.worker);
        let account =
            |scope: Scope<'_>| Account::open(&self.registry, scope).map_err(|error| error.to_string());
        let received = account(Scope::PortReceive { port: name, queue })?;
        let sent = account(Scope::PortTransmit { port: name, queue })?;
        let app = PortApp::new(port, received, sent);
        Ok(NativeApp { app: Box::new(app), pulls: true })
    }
}

impl Natives for Apps {
    fn open(&self, wanted: &AppRequest<'_>) -> Result<NativeApp, String> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if wanted.class == "router" {
            let memory = open.memory(wanted)?;
            return open.routers.open(wanted, &memory, &self.registry);
        }
        let port = open.port(wanted)?;
        self.port_app(wanted, port)
    }
}

impl Open {
    fn memory(&mut self, wanted: &AppRequest<'_>) -> Result<PortMemory, String> {
        if self.memory.is_none() {
            self.memory = Some(PortMemory::beside(wanted.frame_pool)?);
        }
        self.memory.clone().ok_or_else(|| "no memory for ports".into())
    }

    /// Opens the port that `wanted` names.
    fn port(&mut self, wanted: &AppRequest<'_>) -> Result<Box<dyn Port>, String> {
        if let Some(port) = self.routers.port(wanted)? {
            return Ok(port);
        }
        if wanted.class == "memory" {
            return Ok(Box::new(LoopPort::default()));
        }
        let device: Device = wanted.class.parse().map_err(|_| unknown(wanted.class))?;
        match device {
            Device::Xdp(name) => self.xdp(wanted, &name),
            Device::Tap(name) => self.tap(wanted, &name),
            Device::Dpdk(device) => self.dpdk(wanted, &device),
            Device::Pcap { .. } if wanted.workers > 1 => {
                let workers = wanted.workers;
                Err(format!(
                    "{} has only one queue, but each of {workers} workers needs one: use --workers 1",
                    wanted.class
                ))
            }
            Device::Pcap { input, output } => {
                let repeat = wanted.argument.get("repeat").and_then(Value::as_bool).unwrap_or(false);
                let port = PcapPort::new(input.as_deref(), output.as_deref(), repeat);
                Ok(Box::new(port.map_err(|error| error.to_string())?))
            }
        }
    }

    /// Opens this worker's queue of an interface; the program gets all frames of the interface.
    fn xdp(&mut self, wanted: &AppRequest<'_>, name: &str) -> Result<Box<dyn Port>, String> {
        let memory = self.memory(wanted)?;
        if self.shared.is_none() {
            self.shared = Some(Shared::new(&memory.frame_pool).map_err(text)?);
        }
        if !self.xdp.contains_key(name)
            && let Some(shared) = &self.shared
        {
            let options = Options { everything: true, tagged: true, ..Options::default() };
            self.xdp.insert(name.into(), XdpDevice::attach(name, shared, options).map_err(text)?);
        }
        let device = self.xdp.get(name).ok_or("the interface is gone")?;
        let (queue, queues) = (wanted.worker as u32, device.queues());
        if queue >= queues {
            return Err(format!(
                "{name} has {queues} queue(s), but worker {queue} needs its own: use fewer workers, or `ethtool -L {name} combined {}`",
                wanted.workers
            ));
        }
        let queue = device.queue(queue).map_err(text)?;
        device.steering().map_err(text)?.set_active(true).map_err(text)?;
        Ok(memory.port(Box::new(queue)))
    }

    fn tap(&mut self, wanted: &AppRequest<'_>, name: &str) -> Result<Box<dyn Port>, String> {
        if !self.taps.contains_key(name) {
            self.taps.insert(name.into(), TapDevice::open(name).map_err(text)?);
        }
        let device = self.taps.get_mut(name).ok_or("the interface is gone")?;
        Ok(Box::new(device.queue(wanted.frame_pool.memory().room()).map_err(text)?))
    }
}

impl Open {
    /// Opens this worker's queue of a DPDK device, with frames in the program's own memory.
    fn dpdk(&mut self, wanted: &AppRequest<'_>, name: &str) -> Result<Box<dyn Port>, String> {
        if !self.dpdk.contains_key(name) {
            let options = bm_port_dpdk::Options { queues: wanted.workers as u16, mtu: None };
            let device = DpdkDevice::open(&Spec::new(name), wanted.frame_pool, options).map_err(text)?;
            self.dpdk.insert(name.into(), device);
        }
        let device = self.dpdk.get(name).ok_or("the device is gone")?;
        Ok(Box::new(device.queue(wanted.worker as u16).map_err(text)?))
    }
}

fn unknown(class: &str) -> String {
    format!(
        "there is no app in Rust named {class:?}: use xdp:IF, tap:NAME, pcap:IN,OUT, dpdk:DEVICE, memory or router"
    )
}

fn text(error: impl ToString) -> String {
    error.to_string()
}
