//! Reads the configuration: the file, overridden by the command line.

use std::collections::HashSet;
use std::path::Path;

use bm_api::Error;
use bm_control::config::{Config, Device, IdleChoice, PathChoice, Port};
use bm_fastpath::AttachChoice;

use super::probe;
use crate::args::{self, Poll, Up};
use crate::failure::Failure;
use crate::log;
use crate::plan::machine::Machine;
use crate::plan::{self, Request};

/// `brickmoon check`: reports what is wrong with a configuration file on this machine, and warns of missing interfaces.
pub fn check(file: &Path) -> Result<(), Failure> {
    let config = Config::load(file).map_err(Failure::usage)?;
    // Anybody may check a file; the daemon has these rights, or says so.
    let machine = Machine { net_admin: true, pins: true, ..probe::machine(&config) };
    let request = Request { file: Some(file), named: &[], may_grow: true };
    let plan = plan::plan(&config, &machine, &request).map_err(Failure::usage)?;
    plan.warnings.iter().for_each(|warning| log::say(&format!("warning: {warning}")));
    Ok(())
}

/// Reads and checks the configuration: the file, overridden by the command line. Also returns the machine that it was
/// checked for.
pub fn configuration(up: &Up) -> Result<(Config, Machine), Failure> {
    let config = match &up.config {
        Some(file) => Config::load(file).map_err(Failure::usage)?,
        None => Config::default(),
    };
    let config = with_arguments(config, up)?;
    let machine = probe::machine(&config);
    let request = Request { file: up.config.as_deref(), named: &up.ports, may_grow: up.config.is_some() };
    plan::plan(&config, &machine, &request)?;
    Ok((config, machine))
}

/// The configuration that `up` would have with these options, and the machine; neither is checked.
pub fn described(up: &Up) -> Result<(Config, Machine), Failure> {
    let file = up.config.as_deref().or_else(|| {
        let usual = Path::new(bm_control::config::FILE);
        (up.ports.is_empty() && usual.exists()).then_some(usual)
    });
    let config =
        file.map_or_else(|| Ok(Config::default()), |file| Config::load(file).map_err(Failure::usage))?;
    let config = with_arguments(config, up)?;
    let machine = probe::machine(&config);
    Ok((config, machine))
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
    config.daemon.web = up.web.or(config.daemon.web);
    config.daemon.web_token = up.web_token.clone().or(config.daemon.web_token);
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
    for option in &up.paths {
        let path = match option.path {
            args::Path::Kernel => PathChoice::Kernel,
            args::Path::User => PathChoice::User,
            args::Path::Auto => PathChoice::Auto,
        };
        let Some(name) = &option.port else {
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
