//! Ports that the kernel path forwards for: its program on their interfaces.

use bm_control::config::{Config, Device, Port};
use bm_control::driver::LEASE;
use bm_fastpath::{Attachment, Claims, Kernel, NoPins, Pins};

use super::path::Paths;
use super::ports::GENERIC;
use super::presence::{Presence, unfit};
use crate::Failure;

/// Says, now and in `status`, that the program ends with the daemon.
fn unpinned(why: &NoPins) -> String {
    let note = format!("the kernel path ends with the daemon, since its program cannot be pinned: {why}");
    tracing::warn!("{note}");
    note
}

/// A port of the kernel path.
pub struct OnPort {
    /// Whether the program is on its interface.
    pub presence: Presence,
    /// Why it is not as fast there as it could be.
    pub reason: Option<String>,
}

/// The kernel path, what came of its ports, where workers' sockets go if packets are claimed, and notes for `status`.
pub type Started = (Option<Kernel>, Vec<Option<OnPort>>, Option<Claims>, Vec<String>);

/// Loads the kernel path and puts it on its ports, as far as their interfaces are there; those must do as they are.
pub fn start(config: &Config, paths: &Paths) -> Result<Started, Failure> {
    let mut kernel = Kernel::load(LEASE).map_err(Failure::failed)?;
    let claims = paths.claims(config).then(|| kernel.take_claims()).transpose().map_err(Failure::failed)?;
    let mut notes = Vec::new();
    match Pins::claim() {
        Ok(pins) => {
            tracing::info!("{}", pins.bpffs());
            kernel = kernel.pinned(pins);
        }
        Err(why) => notes.push(unpinned(&why)),
    }
    let mut put_on = |name: &str| kernel.attach(name).map_err(Failure::failed);
    let on = attach(config, paths, claims.is_some(), &|_| true, &mut put_on)?;
    Ok((Some(kernel), on, claims, notes))
}

/// Puts the kernel path on one interface, if that is there. `attach` does it.
///
/// # Errors
/// Why an interface that is there cannot have it.
pub fn attach_one(
    name: &str,
    claims: bool,
    attach: impl FnOnce(&str) -> Result<Attachment, Failure>,
) -> Result<OnPort, Failure> {
    if !bm_fastpath::is_there(name) {
        return Ok(OnPort { presence: Presence::Missing, reason: None });
    }
    if let Some(why) = unfit(name) {
        return Ok(OnPort { presence: Presence::refused(why), reason: None });
    }
    let Attachment { ifindex, generic, adopted } = match attach(name) {
        Err(_) if !bm_fastpath::is_there(name) => {
            return Ok(OnPort { presence: Presence::Missing, reason: None });
        }
        attached => attached?,
    };
    if let Some(layout) = adopted {
        tracing::info!(%name, layout, "an earlier daemon's program forwards here until our tables are whole");
    }
    if generic && claims {
        return Err(Failure::Failed(format!(
            "{name}: {GENERIC}, where what workers give back to Linux would be claimed again: take [[claim]] out of the configuration, or give the port path = \"user\""
        )));
    }
    if let Some(why) = bm_fastpath::why_no_frames(name) {
        tracing::warn!("{why}. Linux forwards what leaves there.");
    }
    let presence = Presence::Here { ifindex, birth: None };
    Ok(OnPort { presence, reason: generic.then(|| GENERIC.into()) })
}

/// Has the kernel path on those ports of the configuration that take it, as far as their interfaces are there; for
/// each port what came of it, none for ports of workers. An interface that cannot have it is an error for ports that
/// `strict` names; others go without until it can.
pub fn attach(
    config: &Config,
    paths: &Paths,
    claims: bool,
    strict: &dyn Fn(&Port) -> bool,
    attach: &mut dyn FnMut(&str) -> Result<Attachment, Failure>,
) -> Result<Vec<Option<OnPort>>, Failure> {
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
        on.push(Some(match attach_one(name, claims, &mut *attach) {
            Err(failure) if !strict(port) => {
                let why = super::why(failure);
                tracing::warn!(%why, "port {name} waits");
                OnPort { presence: Presence::refused(why), reason: None }
            }
            taken => taken?,
        }));
    }
    Ok(on)
}

/// No kernel path: workers forward alone.
pub fn without(config: &Config) -> Started {
    remove_kept();
    (None, config.ports.iter().map(|_| None).collect(), None, Vec::new())
}

/// Takes off what an earlier daemon left in the kernel, where workers are to forward now.
fn remove_kept() {
    match bm_fastpath::remove_kept() {
        Ok(interfaces) if interfaces.is_empty() => {}
        Ok(interfaces) => {
            let interfaces = interfaces.join(", ");
            tracing::info!(interfaces, "took off the kernel path that an earlier daemon left");
        }
        // What a daemon at work has is its own.
        Err(why) => tracing::debug!(%why, "nothing to take off"),
    }
}
