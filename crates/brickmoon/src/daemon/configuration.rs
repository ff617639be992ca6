//! Reads the configuration: the file, overridden by the command line.

use std::collections::HashSet;
use std::path::Path;

use bm_api::Error;
use bm_control::config::{Config, Device, IdleChoice, PathChoice, Port};
use bm_fastpath::AttachChoice;

use super::{checks, path, presence};
use crate::args::{self, Poll, Up};
use crate::failure::Failure;
use crate::log;

/// `brickmoon check`: reports what is wrong with a configuration file, and warns of missing interfaces.
pub fn check(file: &Path) -> Result<(), Failure> {
    let config = Config::load(file).map_err(Failure::usage)?;
    // The devices may be on another machine, or appear later.
    let paths = path::choose(&config, |_| None)?;
    checks::all(Some(file), &config, &paths).map_err(Failure::usage)?;
    for name in config.ports.iter().filter_map(missing) {
        log::say(&format!("warning: port {name}: {}", presence::missing(name)));
    }
    Ok(())
}

/// The interface of a port, if it does not exist.
fn missing(port: &Port) -> Option<&str> {
    let Device::Xdp(name) = &port.device else { return None };
    (!bm_fastpath::is_there(name)).then_some(name)
}

/// Reads and checks the configuration: the file, overridden by the command line.
pub fn configuration(up: &Up) -> Result<Config, Failure> {
    let config = match &up.config {
        Some(file) => Config::load(file).map_err(Failure::usage)?,
        None => Config::default(),
    };
    let config = with_arguments(config, up)?;
    // Ports can be added to a file later; without a file they never can.
    if up.config.is_none() {
        checks::has_ports(&config).map_err(Failure::usage)?;
    }
    asked_for(&config, up)?;
    let paths = path::choose(&config, path::obstacle)?;
    checks::all(up.config.as_deref(), &config, &paths).map_err(Failure::usage)?;
    Ok(config)
}

/// Checks that the interfaces named on the command line exist. Such a name is more often mistyped than meant for an
/// interface that appears later.
fn asked_for(config: &Config, up: &Up) -> Result<(), Failure> {
    let is_asked = |port: &&Port| up.ports.iter().any(|asked| asked.parse().as_ref() == Ok(&port.device));
    match config.ports.iter().filter(is_asked).find_map(missing) {
        None => Ok(()),
        Some(name) => Err(Failure::Failed(format!(
            "interface {name:?} does not exist: `ip link` lists interfaces; a [[port]] in a configuration file waits for its interface"
        ))),
    }
}

/// Overrides a configuration with the options of the command line.
fn with_arguments(mut config: Config, up: &Up) -> Result<Config, Failure> {
    let mut named = HashSet::new();
    for port in &up.ports {
        let device: Device = port.parse().map_err(Failure::usage)?;
        if !named.insert(device.clone()) {
            return Err(Failure::Usage(format!("--port {port}: duplicate port {device}")));
        }
        if config.ports.iter().all(|other| other.device != device) {
            config.ports.push(Port::new(device));
        }
    }
    if let Some(socket) = &up.socket {
        config.daemon.socket.clone_from(socket);
    }
    config.daemon.metrics = up.metrics.or(config.daemon.metrics);
    config.daemon.idle = up.poll.map_or(config.daemon.idle, |poll| match poll {
        Poll::Busy => IdleChoice::Busy,
        Poll::Sleep => IdleChoice::Sleep,
    });
    config.daemon.workers = up.workers.map(|workers| workers as u32).or(config.daemon.workers);
    config.daemon.attach = up.attach.map_or(config.daemon.attach, |attach| match attach {
        args::Attach::Xdp => AttachChoice::Xdp,
        args::Attach::Tc => AttachChoice::Tc,
        args::Attach::Auto => AttachChoice::Auto,
    });
    for said in &up.paths {
        let path = match said.path {
            args::Path::Kernel => PathChoice::Kernel,
            args::Path::User => PathChoice::User,
            args::Path::Auto => PathChoice::Auto,
        };
        let Some(name) = &said.port else {
            config.daemon.path = path;
            continue;
        };
        let is_it = |port: &&mut Port| {
            port.device.to_string() == *name || port.device.interface() == Some(name.as_str())
        };
        let Some(port) = config.ports.iter_mut().find(is_it) else {
            return Err(Failure::Usage(format!("--path {name}=..: unknown port; add it with --port")));
        };
        port.path = path;
    }
    Ok(config)
}

/// Reads the file of a running daemon again, overridden by its command line.
///
/// # Errors
/// What is wrong with the file, or that there is none.
pub fn read_again(up: &Up) -> Result<Config, Error> {
    let Some(file) = &up.config else {
        let hint = "start it with `brickmoon up --config FILE`";
        return Err(Error::new("the daemon was started without a configuration file").hint(hint));
    };
    let config = Config::load(file).map_err(Error::new)?;
    with_arguments(config, up).map_err(Error::new)
}
