//! Chooses the path of each port's packets.
//!
//! ```text
//! [[port]] path, --path PORT=..  ─► else [daemon] path, --path ─► else: kernel, unless something needs workers
//! ```
//!
//! All ports without a path of their own need workers if the configuration sets workers or cores, balances the load of a
//! cluster, or has hooks or apps (unless claims select their packets, or some port is set to the user path). A single port needs workers if its
//! device is not a Linux interface, or if its interface is in a VRF and workers can open it; the other ports stay in the
//! kernel. An interface that XDP cannot send through does too: the kernel path is at tc there (`bm_fastpath`).
//!
//! An interface that does not exist, or has no Ethernet header, needs no workers. The first is checked again when it
//! appears; packets of the second go to Linux on either path.

use bm_cli::Failure;
use bm_control::config::{Config, Device, IdleChoice, PathChoice, Port};

use super::machine::{Interface, Machine};
use super::workers;

/// The path of one port, and the reason if it was chosen automatically.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPath {
    /// Whether its packets take the kernel path.
    pub in_kernel: bool,
    /// Reason for `show ports`; `None` if the configuration sets the path.
    pub reason: Option<String>,
}

/// The paths of all ports, in the order of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths(pub Vec<PortPath>);

impl Paths {
    /// Whether any port uses the kernel path.
    pub fn any_kernel(&self) -> bool {
        self.0.iter().any(|port| port.in_kernel)
    }

    /// Whether any port uses the user path.
    pub fn any_user(&self) -> bool {
        self.0.iter().any(|port| !port.in_kernel)
    }

    /// `kernel`, `user` or `mixed`.
    pub fn name(&self) -> &'static str {
        match (self.any_kernel(), self.any_user()) {
            (true, false) => "kernel",
            (true, true) => "mixed",
            (false, _) => "user",
        }
    }

    /// Whether workers are needed, for ports of the user path or for claimed packets.
    pub fn needs_workers(&self, config: &Config) -> bool {
        self.any_user() || self.claims(config)
    }

    /// Whether workers get claimed packets from ports of the kernel path.
    pub fn claims(&self, config: &Config) -> bool {
        self.any_kernel() && !config.claims.is_empty()
    }

    /// The reason of the paths, if all ports have the same.
    pub fn reason(&self) -> Option<String> {
        let first = self.0.first()?.reason.clone();
        self.0.iter().all(|port| port.reason == first).then_some(first).flatten()
    }

    /// Whether workers may replace the kernel path on all its ports: no path is set by the configuration.
    pub fn may_use_workers_instead(&self) -> bool {
        self.0.iter().filter(|port| port.in_kernel).all(|port| port.reason.is_some())
    }

    /// These paths where there is no kernel path, for this reason.
    fn without_kernel_path(&self, why: &str) -> Self {
        let mut paths = self.clone();
        for path in paths.0.iter_mut().filter(|path| path.in_kernel) {
            *path = PortPath { in_kernel: false, reason: Some(why.into()) };
        }
        paths
    }
}

/// Chooses the paths.
///
/// # Errors
/// If a port is set to the kernel path but is not a Linux interface.
pub fn choose(config: &Config, machine: &Machine) -> Result<Paths, Failure> {
    let why = needs_workers(config);
    let mut paths = Paths::default();
    for port in &config.ports {
        let configured = match port.path {
            PathChoice::Auto => config.daemon.path,
            path => path,
        };
        paths.0.push(match configured {
            PathChoice::User => PortPath { in_kernel: false, reason: None },
            PathChoice::Kernel => PortPath { in_kernel: true, reason: None },
            PathChoice::Auto => {
                let own = match &port.device {
                    Device::Xdp(name) => machine.interfaces.get(name).and_then(Interface::obstacle),
                    device => Some(format!("{device} is not a Linux interface")),
                };
                let obstacle = own.or_else(|| why.map(String::from));
                PortPath {
                    in_kernel: obstacle.is_none(),
                    reason: obstacle.or_else(|| Some(in_kernel_since(config).into())),
                }
            }
        });
    }
    for (port, path) in config.ports.iter().zip(&paths.0) {
        if path.in_kernel && !matches!(port.device, Device::Xdp(_)) {
            return Err(Failure::Usage(format!(
                "{}: the kernel path needs Linux interfaces: use --path user, or path = \"user\" for this port",
                port.device
            )));
        }
    }
    Ok(match &machine.no_kernel_path {
        Some(why) => paths.without_kernel_path(why),
        None => paths,
    })
}

/// Why workers cannot open the interface of a port.
pub fn cannot_be_opened(config: &Config, port: &Port, interface: &Interface) -> Option<Failure> {
    let Device::Xdp(name) = &port.device else { return None };
    if !interface.ethernet {
        return None;
    }
    too_few_queues(config, port, name, interface).map(Failure::Usage)
}

/// Why the queues of an interface are not enough for the configured number of workers.
fn too_few_queues(config: &Config, port: &Port, name: &str, interface: &Interface) -> Option<String> {
    let workers = config.daemon.workers? as usize;
    let queues = interface.queues.min(port.queues.map_or(usize::MAX, |queues| queues as usize));
    (queues < workers).then(|| workers::too_few_queues(name, queues, workers))
}

/// Reason for the kernel path on ports without a path of their own.
fn in_kernel_since(config: &Config) -> &'static str {
    if config.claims.is_empty() { "nothing in use needs workers" } else { "workers get only claimed packets" }
}

/// What in the configuration needs the user path on all ports without a path of their own.
fn needs_workers(config: &Config) -> Option<&'static str> {
    let daemon = &config.daemon;
    // Apps, hooks and workers get the packets of ports that are set to the user path, or the claimed packets.
    if config.ports.iter().any(|port| port.path == PathChoice::User) || !config.claims.is_empty() {
        return None;
    }
    if !config.apps.is_empty() {
        return Some("apps run on workers");
    }
    if !config.ipsec.is_empty() {
        return Some("IPsec runs on workers");
    }
    if !config.hooks.is_empty() {
        return Some("hooks run on workers");
    }
    if config.cluster.as_ref().is_some_and(bm_cluster::Settings::uses_intermediates) {
        return Some("workers choose the intermediates of the cluster");
    }
    if daemon.workers.is_some() || !daemon.cores.is_empty() {
        return Some("workers or cores are configured");
    }
    (daemon.idle == IdleChoice::Busy).then_some("busy polling needs workers")
}

/// Whether to load the kernel path although there are no ports yet, since ports may be added that use it.
pub fn may_use_kernel_later(config: &Config) -> bool {
    config.ports.is_empty() && config.daemon.path != PathChoice::User && needs_workers(config).is_none()
}
