//! Ports of the kernel path: attaches its program to their interfaces.

use bm_cli::Failure;
use bm_control::config::{Config, Device, Port};
use bm_control::control_thread::{Handle, LEASE};
use bm_fastpath::{AttachChoice, AttachType, Attachment, Claims, Kernel, NoPins, claim_pins};

use crate::plan::path::Paths;
use crate::ports::open::GENERIC;
use crate::ports::presence::{Presence, unfit};

/// Logs, and returns as a note for `status`, that the program ends with the daemon.
fn unpinned(why: &NoPins) -> String {
    let note = format!("the kernel path will end with the daemon: its program cannot be pinned: {why}");
    tracing::warn!("{note}");
    note
}

/// A port of the kernel path.
pub struct KernelPort {
    /// Whether the program is attached to the interface.
    pub presence: Presence,
    /// Why it is slower there than it could be.
    pub reason: Option<String>,
}

/// The kernel path after the start.
pub struct KernelPath {
    /// The loaded programs; `None` if workers forward for all ports.
    pub kernel: Option<Kernel>,
    /// The state of each port of the configuration; `None` for ports of workers.
    pub ports: Vec<Option<KernelPort>>,
    /// The map for workers' sockets, if there are claims.
    pub claims: Option<Claims>,
    /// Notes for `status`.
    pub notes: Vec<String>,
}

/// Loads the kernel path and attaches it to those of its ports whose interfaces exist.
///
/// # Errors
/// If it cannot be loaded, or an existing interface cannot take it.
pub fn start(config: &Config, paths: &Paths) -> Result<KernelPath, Failure> {
    let mut kernel = Kernel::load(LEASE).map_err(Failure::failed)?;
    let frame_max = bm_port_xdp::frame_max(config.daemon.slot_size as usize);
    let claims =
        paths.claims(config).then(|| kernel.take_claims(frame_max)).transpose().map_err(Failure::failed)?;
    let mut notes = Vec::new();
    match claim_pins() {
        Ok(pins) => {
            tracing::info!("{}", pins.bpffs());
            kernel = kernel.pinned(pins);
        }
        Err(why) => notes.push(unpinned(&why)),
    }
    let ports = attach(config, paths, claims.is_some(), &|_| true, &mut |name, choice| {
        kernel.attach(name, choice).map_err(Failure::failed)
    })?;
    Ok(KernelPath { kernel: Some(kernel), ports, claims, notes })
}

/// Attaches the kernel path of the control thread to an interface.
///
/// # Errors
/// If the interface cannot take it, or the control thread has ended.
pub fn attach_by(control: &Handle, name: &str, choice: AttachChoice) -> Result<Attachment, Failure> {
    let name = name.to_owned();
    control.try_ask(move |control| control.attach(&name, choice)).map_err(Failure::failed)
}

/// Attaches the kernel path to one interface, if it exists, by calling `attach`.
///
/// # Errors
/// Why an existing interface cannot take it.
pub fn attach_one(
    name: &str,
    choice: AttachChoice,
    claims: bool,
    attach: impl FnOnce(&str, AttachChoice) -> Result<Attachment, Failure>,
) -> Result<KernelPort, Failure> {
    if !bm_fastpath::is_there(name) {
        return Ok(KernelPort { presence: Presence::Missing, reason: None });
    }
    if let Some(why) = unfit(name) {
        return Ok(KernelPort { presence: Presence::refused(why), reason: None });
    }
    let Attachment { ifindex, generic, adopted, attach_type } = match attach(name, choice) {
        Err(_) if !bm_fastpath::is_there(name) => {
            return Ok(KernelPort { presence: Presence::Missing, reason: None });
        }
        attached => attached?,
    };
    if let Some(layout) = adopted {
        tracing::info!(%name, layout, "the program of an earlier daemon forwards here until our tables are complete");
    }
    if generic && claims {
        return Err(Failure::Failed(format!(
            "{name}: {GENERIC}; packets that workers give back to Linux would be claimed again: remove [[claim]] from the configuration, or set path = \"user\" for this port"
        )));
    }
    if let Some(why) = bm_fastpath::why_no_frames(name).filter(|_| attach_type == AttachType::Xdp) {
        tracing::warn!("{why}: Linux forwards packets that leave there");
    }
    let presence = Presence::Here { ifindex, generation: None };
    Ok(KernelPort { presence, reason: generic.then(|| GENERIC.into()) })
}

/// Attaches the kernel path to those of its ports whose interfaces exist. Returns the result for each port, `None` for
/// ports of workers.
///
/// # Errors
/// An existing interface cannot take it and `strict` names its port; other ports wait until it can.
pub fn attach(
    config: &Config,
    paths: &Paths,
    claims: bool,
    strict: &dyn Fn(&Port) -> bool,
    attach: &mut dyn FnMut(&str, AttachChoice) -> Result<Attachment, Failure>,
) -> Result<Vec<Option<KernelPort>>, Failure> {
    let mut on = Vec::new();
    for (port, path) in config.ports.iter().zip(&paths.0) {
        let Device::Xdp(name) = &port.device else {
            on.push(None);
            continue;
        };
        if !path.in_kernel {
            on.push(None);
            continue;
        }
        on.push(Some(match attach_one(name, config.attach_of(port), claims, &mut *attach) {
            Err(failure) if !strict(port) => {
                let why = failure.to_string();
                tracing::warn!(%why, "port {name} is waiting");
                KernelPort { presence: Presence::refused(why), reason: None }
            }
            taken => taken?,
        }));
    }
    Ok(on)
}

/// Starts without the kernel path: workers forward for all ports.
pub fn without(config: &Config) -> KernelPath {
    remove_kept();
    let ports = config.ports.iter().map(|_| None).collect();
    KernelPath { kernel: None, ports, claims: None, notes: Vec::new() }
}

/// Detaches the kernel path that an earlier daemon left, since workers forward now.
fn remove_kept() {
    match bm_fastpath::remove_kept() {
        Ok(interfaces) if interfaces.is_empty() => {}
        Ok(interfaces) => {
            let interfaces = interfaces.join(", ");
            tracing::info!(interfaces, "detached the kernel path that an earlier daemon left");
        }
        // The kernel path may belong to a running daemon.
        Err(why) => tracing::debug!(%why, "no kernel path of an earlier daemon to detach"),
    }
}
