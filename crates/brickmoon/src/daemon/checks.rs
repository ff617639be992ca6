//! Checks of a configuration that need no device. `check`, `up` and `reload` all use them, so that none of them accepts
//! what another rejects.

use std::path::Path;

use bm_api::Error;
use bm_control::config::{self, Config, Device, IdleChoice, PathChoice, Port};
use bm_fastpath::AttachChoice;

use super::path::Paths;
use super::{apps, hooks, ports, running};

/// Runs all checks of a configuration whose ports use these paths; `file` is where it was read from.
///
/// # Errors
/// What is wrong and how to fix it, with line numbers where they help.
pub fn all(file: Option<&Path>, config: &Config, paths: &Paths) -> Result<(), Error> {
    if config.daemon.workers == Some(0) {
        return Err(Error::new("0 workers").hint("use at least one"));
    }
    switches(config)?;
    hooks::check(file, config)?;
    apps::check(file, config)?;
    // A file without ports leaves them to the command line.
    if has_ports(config).is_ok() {
        hooks::can_run(config, paths)?;
        apps::can_run(config, paths)?;
        rules(config)?;
        attached(config)?;
        running::check_queues(config).map_err(Error::new)?;
        without_effect(config, paths)?;
    }
    slots(config, paths)
}

/// Checks that there is anything to forward between.
///
/// # Errors
/// There is neither a port nor a switch.
pub fn has_ports(config: &Config) -> Result<(), Error> {
    if config.ports.is_empty() && config.switches.is_empty() {
        let hint =
            format!("name one with --port IF, or with a [[port]] or [[switch]] table in {}", config::FILE);
        return Err(Error::new("no port to forward on").hint(hint));
    }
    Ok(())
}

/// Checks that no port of the router is also a port of a switch.
///
/// # Errors
/// The first that is.
pub fn switches(config: &Config) -> Result<(), Error> {
    for port in config.ports.iter().filter_map(|port| port.device.interface()) {
        if let Some(switch) = config.switches.iter().find(|switch| switch.has(port)) {
            let why =
                format!("{port} is a port of switch {}, so it cannot be a port of the router", switch.name);
            return Err(Error::new(why).hint("remove it from one of them"));
        }
    }
    Ok(())
}

/// Checks that the rules of `[filter]` and `[[claim]]` name existing ports.
fn rules(config: &Config) -> Result<(), Error> {
    match config.unknown_ports_of_rules().first() {
        None => Ok(()),
        Some(name) => {
            let hint = "add it as a [[port]] or with --port, or remove `port` from the rule";
            Err(Error::new(format!("a [[filter.rule]] names the port {name}, which does not exist"))
                .hint(hint))
        }
    }
}

/// Checks that the kernel path can be attached as `attach` says.
fn attached(config: &Config) -> Result<(), Error> {
    let at_tc = |port: &&Port| config.attach_of(port) == AttachChoice::Tc;
    if let Some(port) = config.ports.iter().find(at_tc).filter(|_| !config.claims.is_empty()) {
        let why = format!(
            "port {}: attach = \"tc\" does not go with [[claim]]: only XDP can give packets to workers",
            port.device
        );
        return Err(Error::new(why).hint("set attach = \"xdp\", or remove the claims"));
    }
    let no_use = |port: &&Port| port.path == PathChoice::User && port.attach.is_some();
    if let Some(port) = config.ports.iter().find(no_use) {
        let why = format!("attach of port {} has no effect on the user path", port.device);
        return Err(Error::new(why).hint("remove it, or set path = \"kernel\" for this port"));
    }
    Ok(())
}

/// Checks that every setting has an effect: some are for workers, which the kernel path does not have.
fn without_effect(config: &Config, paths: &Paths) -> Result<(), Error> {
    if paths.needs_workers(config) {
        return Ok(());
    }
    let daemon = &config.daemon;
    let of_daemon = [
        ("workers", daemon.workers.is_some()),
        ("cores", !daemon.cores.is_empty()),
        ("rebalance", daemon.rebalance),
        ("idle = \"busy\"", daemon.idle == IdleChoice::Busy),
    ];
    if let Some((setting, _)) = of_daemon.into_iter().find(|(_, is_set)| *is_set) {
        let why = format!(
            "{setting} in [daemon] or on the command line has no effect: all ports use the kernel path, which has no workers"
        );
        return Err(Error::new(why).hint("remove it, or use the user path (--path user)"));
    }
    // With path "auto", such a setting applies if the user path is chosen.
    let told = |port: &&Port| port.path == PathChoice::Kernel || daemon.path == PathChoice::Kernel;
    for port in config.ports.iter().filter(told) {
        let of_port = [
            ("queues", port.queues.is_some()),
            ("queue_workers", !port.queue_workers.is_empty()),
            ("zero_copy", port.zero_copy != config::Switch::Auto),
            ("checksum_completion", port.checksum_completion != config::Switch::Auto),
        ];
        if let Some((setting, _)) = of_port.into_iter().find(|(_, is_set)| *is_set) {
            let why = format!("{setting} of port {} has no effect on the kernel path", port.device);
            return Err(Error::new(why).hint("remove it, or set path = \"user\" for this port"));
        }
    }
    Ok(())
}

/// Checks that devices accept the size of frame memory slots.
fn slots(config: &Config, paths: &Paths) -> Result<(), Error> {
    // Without workers there is no frame memory.
    let interfaces = config.ports.iter().filter(|_| paths.needs_workers(config));
    let mut interfaces = interfaces.filter_map(|port| match &port.device {
        Device::Xdp(interface) => Some(interface),
        _ => None,
    });
    interfaces.try_for_each(|interface| ports::check_slots(interface, config.daemon.slot_size as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::path;

    /// The error of a configuration, assuming devices that can do everything.
    fn wrong(text: &str) -> String {
        let config = Config::parse(Path::new("f.toml"), text).expect("a right file");
        match path::choose(&config, |_| None) {
            Err(failure) => failure.to_string(),
            Ok(paths) => all(Some(Path::new("f.toml")), &config, &paths)
                .err()
                .map_or_else(String::new, |error| error.to_string()),
        }
    }

    #[test]
    fn refuses_what_no_device_could_help() {
        let port = |device: &str, path: &str| format!("[[port]]\ndevice = '{device}'\npath = '{path}'\n");
        for (text, why) in [
            (port("tap:x", "kernel"), "tap:x: the kernel path needs Linux interfaces"),
            (
                port("eth0", "kernel") + "[[hook]]\nfile = '/dev/null'\n",
                "hook null needs the user path, but the ports use the kernel path",
            ),
            (
                "[daemon]\nslot_size = 8192\n".to_string() + &port("eth0", "user"),
                "slot_size = 8192, but AF_XDP on eth0 needs slots of 2048 or 4096 bytes",
            ),
            (port("eth0", "user") + "[[hook]]\nfile = '/nowhere/x.lua'\n", "f.toml, line 4: hook x: "),
            (
                "[daemon]\nworkers = 2\n".to_string() + &port("eth0", "kernel"),
                "workers in [daemon] or on the command line has no effect: all ports use the kernel path",
            ),
            (
                port("eth0", "kernel") + "zero_copy = 'on'\n",
                "zero_copy of port xdp:eth0 has no effect on the kernel path",
            ),
            (
                port("eth0", "auto") + "[[filter.rule]]\nport = 'eth7'\naction = 'drop'\n",
                "a [[filter.rule]] names the port eth7, which does not exist",
            ),
        ] {
            let said = wrong(&text);
            assert!(said.starts_with(why), "{text}: {said:?}");
        }
    }

    #[test]
    fn a_port_of_a_switch_that_the_command_line_names_is_refused() {
        let text = "[[switch]]\nname = 'lan'\nports = ['veth*']\n";
        let mut config = Config::parse(Path::new("f.toml"), text).expect("a right file");
        config.ports.push(bm_control::config::Port::new(Device::Xdp("veth1".into())));
        let said = all(None, &config, &Paths::default()).map_err(|error| error.to_string());
        let why =
            "veth1 is a port of switch lan, so it cannot be a port of the router: remove it from one of them";
        assert_eq!(said, Err(why.into()));
    }

    #[test]
    fn takes_what_some_device_can_do() {
        for text in [
            "",
            "[daemon]\nworkers = 2\n[[port]]\ndevice = 'eth0'\n",
            "[[port]]\ndevice = 'eth0'\nzero_copy = 'off'\n",
            "[daemon]\nworkers = 2\n[[port]]\ndevice = 'eth0'\npath = 'kernel'\n[[claim]]\nprotocol = 'udp'\n",
            "[[hook]]\nfile = '/dev/null'\n",
            "[[filter.rule]]\nport = 'eth7'\naction = 'drop'\n",
            "[[port]]\ndevice = 'tap:x'\n[[hook]]\nfile = '/dev/null'\n",
            "[daemon]\nslot_size = 8192\n[[port]]\ndevice = 'tap:x'\n",
        ] {
            assert_eq!(wrong(text), "", "{text}");
        }
    }
}
