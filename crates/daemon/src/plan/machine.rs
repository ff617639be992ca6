//! What a plan must know of the machine.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bm_control::config::{Device, Port};
use bm_frame::Node;

/// The machine, as far as plans depend on it. `ports::probe` reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The interfaces of the configuration that exist, by name.
    pub interfaces: BTreeMap<String, Interface>,
    /// How many CPUs this process may use.
    pub cpus: usize,
    /// The online cores; empty if that is unknown.
    pub online: Vec<u32>,
    /// The NUMA node of each core of the configuration, where it is known.
    pub nodes: BTreeMap<u32, Node>,
    /// Whether this build has DPDK.
    pub dpdk: bool,
    /// Whether this process has CAP_NET_ADMIN, which all ports need.
    pub net_admin: bool,
    /// Whether there is a bpffs or one can be mounted, so that the kernel path can outlive the daemon.
    pub pins: bool,
    /// Why there is no kernel path, if it has been tried or its time has passed.
    pub no_kernel_path: Option<String>,
    /// The frame memory that the daemon has already allocated, in slots.
    pub slots: Option<usize>,
    /// What is wrong with the Lua files of the configuration.
    pub scripts: Scripts,
}

/// An interface in Linux.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Whether it has Ethernet headers and a MAC address.
    pub ethernet: bool,
    /// MTU in bytes.
    pub mtu: usize,
    /// Number of receive queues.
    pub queues: usize,
    /// The name of the interface, or of a VLAN on it, if that is in a VRF.
    pub in_vrf: Option<String>,
    /// Why XDP cannot send frames through it, such as a driver, or a veth whose other end has GRO off.
    pub cannot_send: Option<String>,
}

/// What is wrong with Lua files and their directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scripts {
    /// Files of hooks that cannot be read or compiled, with the error.
    pub hooks: BTreeMap<PathBuf, String>,
    /// Directories of `[lua] path` that do not exist.
    pub missing: Vec<PathBuf>,
    /// Apps that cannot be created, with the error; or why that cannot be known.
    pub apps: Vec<(String, String)>,
    /// Why apps could not be checked.
    pub unchecked: Option<String>,
}

impl Machine {
    /// The interface of a port, if it does not exist.
    pub fn missing<'p>(&self, port: &'p Port) -> Option<&'p str> {
        let Device::Xdp(name) = &port.device else { return None };
        (!self.interfaces.contains_key(name)).then_some(name)
    }
}

impl Interface {
    /// Why the kernel path cannot forward what comes in although the user path could; `None` if it can. Whether XDP can
    /// send through it does not matter: at tc the kernel path sends through any device.
    pub fn obstacle(&self) -> Option<String> {
        let name = self.in_vrf.as_ref().filter(|_| self.ethernet)?;
        Some(format!("{name} is in a VRF, which the kernel path does not support"))
    }
}
