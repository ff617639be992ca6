//! What a daemon does with a configuration on a machine: decided here, carried out by `router`.
//!
//! ```text
//! configuration, machine ─► plan ─► Plan: path of each port, workers, queues, rings, warnings    or an error with its fix
//! ```
//!
//! A plan depends on nothing else: nothing here reads the machine or changes it. `check`, `up` and `reload` all plan with
//! [`plan`], so that none of them accepts what another rejects.

pub mod changes;
mod checks;
pub mod machine;
pub mod path;
pub mod scripts;
pub mod workers;

#[cfg(test)]
mod tests;

use std::path::Path;

use bm_control::config::{Config, Device, Fail, Port};
use bm_control::nftables;
use bm_fastpath::AttachChoice;

use bm_cli::Failure;
use machine::Machine;
use path::Paths;
use workers::Workers;

/// What is planned for a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The path of each port, with its reason.
    pub paths: Paths,
    /// Whether to load the kernel path, for ports that use it now or later.
    pub with_kernel: bool,
    /// Workers with their queues, rings and frame memory; `None` if nothing needs workers.
    pub workers: Option<Workers>,
    /// What works, but not as one may expect.
    pub warnings: Vec<String>,
}

/// The request, apart from the configuration.
#[derive(Clone, Copy, Default)]
pub struct Request<'a> {
    /// Where the configuration was read from, for messages.
    pub file: Option<&'a Path>,
    /// Ports that the command line names: their interfaces must exist.
    pub named: &'a [String],
    /// Whether ports can be added later: a file can be changed, the command line cannot.
    pub may_grow: bool,
}

/// Plans for a configuration on a machine.
///
/// # Errors
/// What is wrong with the configuration on this machine, and how to fix it.
pub fn plan(config: &Config, machine: &Machine, request: &Request<'_>) -> Result<Plan, Failure> {
    if !request.may_grow {
        checks::has_ports(config).map_err(Failure::usage)?;
    }
    exist(config, machine, request.named)?;
    if !machine.net_admin {
        return Err(Failure::Failed(
            "permission denied: run as root, or with CAP_NET_ADMIN, CAP_BPF and CAP_NET_RAW".into(),
        ));
    }
    let paths = path::choose(config, machine)?;
    checks::all(request.file, config, machine, &paths).map_err(Failure::usage)?;
    if let Some((_, problem)) = problems(config, machine, &paths).into_iter().next() {
        return Err(problem);
    }
    Ok(with_paths(config, machine, paths))
}

/// A plan for paths that have been chosen before.
pub fn with_paths(config: &Config, machine: &Machine, paths: Paths) -> Plan {
    Plan {
        with_kernel: machine.no_kernel_path.is_none()
            && (paths.any_kernel() || path::may_use_kernel_later(config)),
        workers: paths.needs_workers(config).then(|| Workers::plan(config, machine)),
        warnings: warnings(config, machine, &paths),
        paths,
    }
}

/// Checks that the interfaces named on the command line exist. Such a name is more often mistyped than meant for an
/// interface that appears later.
fn exist(config: &Config, machine: &Machine, named: &[String]) -> Result<(), Failure> {
    let mut ports =
        config.ports.iter().filter(|port| named.iter().any(|name| name.parse().as_ref() == Ok(&port.device)));
    match ports.find_map(|port| machine.missing(port)) {
        None => Ok(()),
        Some(name) => Err(Failure::Failed(format!(
            "interface {name:?} does not exist: `ip link` lists interfaces; a [[port]] in a configuration file waits for its interface"
        ))),
    }
}

/// Why ports cannot be opened on this machine, with their indices. A port whose interface does not exist waits for it.
pub fn problems(config: &Config, machine: &Machine, paths: &Paths) -> Vec<(usize, Failure)> {
    let mut problems = Vec::new();
    for (index, port) in config.ports.iter().enumerate() {
        let problem = match &port.device {
            Device::Dpdk(device) if !machine.dpdk => Some(Failure::Failed(without_dpdk(device))),
            Device::Xdp(name) if paths.needs_workers(config) => {
                let interface = machine.interfaces.get(name);
                interface.and_then(|interface| path::cannot_be_opened(config, port, interface))
            }
            _ => None,
        };
        problems.extend(problem.map(|problem| (index, problem)));
    }
    problems
}

fn without_dpdk(device: &str) -> String {
    bm_port_dpdk::DpdkError::NotBuilt { device: device.into() }.to_string()
}

/// What works, but not as one may expect.
fn warnings(config: &Config, machine: &Machine, paths: &Paths) -> Vec<String> {
    let ports = config.ports.iter().zip(&paths.0);
    let mut warnings: Vec<_> =
        ports.filter_map(|(port, path)| warning(config, machine, paths, port, path)).collect();
    let by_workers = (0..config.ports.len()).filter(|index| !paths.0[*index].in_kernel);
    warnings.extend(by_workers.filter_map(|index| closed(config, index)));
    if paths.any_kernel() && !machine.pins {
        warnings.push("the kernel path will end with the daemon: there is no bpffs, and this process may not mount one (CAP_SYS_ADMIN)".into());
    }
    warnings.extend(config.ipsec.public_keys());
    warnings
}

/// What works on a port, but not as one may expect.
fn warning(
    config: &Config,
    machine: &Machine,
    paths: &Paths,
    port: &Port,
    path: &path::PortPath,
) -> Option<String> {
    let Device::Xdp(name) = &port.device else { return None };
    let Some(interface) = machine.interfaces.get(name) else {
        return Some(format!("port {name}: {}", missing(name)));
    };
    if !interface.ethernet {
        return Some(format!("port {name} is waiting: {}", not_ethernet(name)));
    }
    let for_workers = !path.in_kernel || paths.claims(config);
    if let Some(why) = too_large(name, interface.mtu, config.daemon.slot_size).filter(|_| for_workers) {
        return Some(format!("port {name}: {why}"));
    }
    // Frames that the kernel path at tc sends do not depend on XDP.
    let by_xdp = path.in_kernel && config.attach_of(port) == AttachChoice::Xdp;
    let why = interface.cannot_send.as_ref().filter(|_| by_xdp)?;
    Some(format!("port {name}: {why}: Linux forwards packets that leave there"))
}

/// When a port of workers forwards nothing, since nftables cannot filter in place of them.
fn closed(config: &Config, index: usize) -> Option<String> {
    let port = &config.ports[index];
    let is_meant =
        config.filter.fail == Fail::Closed && config.filters_drop() && nftables::drops(config, index);
    let why = nftables::inexact(config, index).filter(|_| is_meant)?;
    Some(format!(
        "port {}: while no worker receives its packets, all that Linux would forward are dropped, since {why}: path = \"kernel\" filters without workers",
        port.name(index)
    ))
}

/// Which packets to workers Linux forwards, if the MTU allows some that fit into no slot.
pub fn too_large(name: &str, mtu: usize, slot_size: u32) -> Option<String> {
    let why = bm_port_xdp::check_mtu(name, mtu, slot_size as usize).err()?;
    Some(format!("Linux forwards packets that fit into no slot: {why}"))
}

/// Message for a port whose interface does not exist.
pub fn missing(name: &str) -> String {
    format!("interface {name} does not exist; the port is used as soon as it appears")
}

/// Why no path can use an interface without Ethernet headers.
pub fn not_ethernet(name: &str) -> String {
    format!("{name} is not an Ethernet interface: Linux forwards its packets")
}
