//! What is wrong with a configuration that no device has to be asked for: `check`, `up` and `reload` all ask here, so
//! that none of them takes what another refuses.

use std::path::Path;

use bm_api::Error;
use bm_control::config::{self, Config, Device, IdleChoice, PathChoice, Port};

use super::path::Paths;
use super::{apps, hooks, ports, running};

/// All checks of a configuration whose ports take these paths; `file` is what it was read from.
///
/// # Errors
/// What is wrong, with lines of the file where that is of use, and what to mend.
pub fn all(file: Option<&Path>, config: &Config, paths: &Paths) -> Result<(), Error> {
    if config.daemon.workers == Some(0) {
        return Err(Error::new("0 workers").mend("there must be one at least"));
    }
    switches(config)?;
    hooks::check(file, config)?;
    apps::check(file, config)?;
    // A file that names none leaves ports to the command line.
    if has_ports(config).is_ok() {
        hooks::can_run(config, paths)?;
        apps::can_run(config, paths)?;
        rules(config)?;
        running::check_queues(config).map_err(Error::new)?;
        without_effect(config, paths)?;
    }
    slots(config, paths)
}

/// Whether there is anything to forward between.
///
/// # Errors
/// There is neither a port nor a switch.
pub fn has_ports(config: &Config) -> Result<(), Error> {
    if config.ports.is_empty() && config.switches.is_empty() {
        let mend =
            format!("name one with --port IF, or with a [[port]] or [[switch]] table in {}", config::FILE);
        return Err(Error::new("there is no port to forward on").mend(mend));
    }
    Ok(())
}

/// Whether no port of the router is one of a switch.
///
/// # Errors
/// The first that is.
pub fn switches(config: &Config) -> Result<(), Error> {
    for port in config.ports.iter().filter_map(|port| port.device.interface()) {
        if let Some(switch) = config.switches.iter().find(|switch| switch.has(port)) {
            let why =
                format!("{port} is a port of switch {}, so it cannot be a port of the router", switch.name);
            return Err(Error::new(why).mend("take it out of one of them"));
        }
    }
    Ok(())
}

/// Whether what `[filter]` and `[[claim]]` ask for can be done.
fn rules(config: &Config) -> Result<(), Error> {
    match config.unknown_ports_of_rules().first() {
        None => Ok(()),
        Some(name) => {
            let mend = "name it in a [[port]] or with --port, or take `port` out of the rule";
            Err(Error::new(format!("a [[filter.rule]] is for packets from {name}, which is no port"))
                .mend(mend))
        }
    }
}

/// Whether every setting has an effect: some are for workers, and on the kernel path there are none.
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
        return Err(Error::new(why).mend("remove it, or use the user path (--path user)"));
    }
    // Where the path is chosen by itself, such a setting is for the case that it is the user path.
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
            return Err(Error::new(why).mend("remove it, or set path = \"user\" for this port"));
        }
    }
    Ok(())
}

/// Whether devices take slots of frame memory of this size.
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
    use crate::daemon::{path, why};

    /// What is wrong with a configuration if devices can do anything.
    fn wrong(text: &str) -> String {
        let config = Config::parse(Path::new("f.toml"), text).expect("a right file");
        match path::choose(&config, |_| None) {
            Err(failure) => why(failure),
            Ok(paths) => all(Some(Path::new("f.toml")), &config, &paths)
                .err()
                .map_or_else(String::new, |error| error.to_string()),
        }
    }

    #[test]
    fn refuses_what_no_device_could_help() {
        let port = |device: &str, path: &str| format!("[[port]]\ndevice = '{device}'\npath = '{path}'\n");
        for (text, why) in [
            (port("tap:x", "kernel"), "tap:x: the kernel path forwards between interfaces of Linux only"),
            (
                port("eth0", "kernel") + "[[hook]]\nfile = '/dev/null'\n",
                "hook null wants the user path, and these ports take the kernel path",
            ),
            (
                "[daemon]\nslot_size = 8192\n".to_string() + &port("eth0", "user"),
                "slot_size = 8192, and AF_XDP on eth0 takes slots of 2048 or 4096 bytes alone",
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
                "a [[filter.rule]] is for packets from eth7, which is no port",
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
            "veth1 is a port of switch lan, so it cannot be a port of the router: take it out of one of them";
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
