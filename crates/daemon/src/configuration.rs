//! Reads the configuration: the file, overridden by the command line.

use std::collections::HashSet;
use std::path::Path;

use bm_api::Error;
use bm_cli::Failure;
use bm_control::config::{Config, Device, Port};

use crate::log;
use crate::options::Options;
use crate::plan::machine::Machine;
use crate::plan::{self, Request};
use crate::ports::probe;

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
pub fn configuration(options: &Options) -> Result<(Config, Machine), Failure> {
    let config = match &options.config {
        Some(file) => Config::load(file).map_err(Failure::usage)?,
        None => Config::default(),
    };
    let config = with_arguments(config, options)?;
    let machine = probe::machine(&config);
    let request = Request {
        file: options.config.as_deref(),
        named: &options.ports,
        may_grow: options.config.is_some(),
    };
    plan::plan(&config, &machine, &request)?;
    Ok((config, machine))
}

/// The configuration that `up` would have with these options, and the machine; neither is checked.
pub fn described(options: &Options) -> Result<(Config, Machine), Failure> {
    let file = options.config.as_deref().or_else(|| {
        let usual = Path::new(bm_control::config::FILE);
        (options.ports.is_empty() && usual.exists()).then_some(usual)
    });
    let config =
        file.map_or_else(|| Ok(Config::default()), |file| Config::load(file).map_err(Failure::usage))?;
    let config = with_arguments(config, options)?;
    let machine = probe::machine(&config);
    Ok((config, machine))
}

/// Overrides a configuration with the options of the command line.
fn with_arguments(mut config: Config, options: &Options) -> Result<Config, Failure> {
    let mut named = HashSet::new();
    for port in &options.ports {
        let device: Device = port.parse().map_err(Failure::usage)?;
        if !named.insert(device.clone()) {
            return Err(Failure::Usage(format!("--port {port}: duplicate port {device}")));
        }
        if config.ports.iter().all(|other| other.device != device) {
            config.ports.push(Port::new(device));
        }
    }
    if let Some(socket) = &options.socket {
        config.daemon.socket.clone_from(socket);
    }
    config.daemon.metrics = options.metrics.or(config.daemon.metrics);
    config.daemon.web = options.web.or(config.daemon.web);
    config.daemon.web_token = options.web_token.clone().or(config.daemon.web_token);
    config.daemon.idle = options.idle.unwrap_or(config.daemon.idle);
    config.daemon.workers = options.workers.or(config.daemon.workers);
    config.daemon.attach = options.attach.unwrap_or(config.daemon.attach);
    for option in &options.paths {
        let Some(name) = &option.port else {
            config.daemon.path = option.path;
            continue;
        };
        let named = config
            .ports
            .iter_mut()
            .find(|port| port.device.to_string() == *name || port.device.interface() == Some(name.as_str()));
        let Some(port) = named else {
            return Err(Failure::Usage(format!("--path {name}=..: unknown port; add it with --port")));
        };
        port.path = option.path;
    }
    Ok(config)
}

/// Reads the file of a running daemon again, overridden by its command line.
///
/// # Errors
/// What is wrong with the file, or that there is none.
pub fn read_again(options: &Options) -> Result<Config, Error> {
    let Some(file) = &options.config else {
        let hint = "start it with `brickmoon up --config FILE`";
        return Err(Error::new("the daemon was started without a configuration file").hint(hint));
    };
    let config = Config::load(file).map_err(Error::new)?;
    with_arguments(config, options).map_err(Error::new)
}
