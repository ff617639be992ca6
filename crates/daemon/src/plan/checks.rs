//! Checks of a configuration that depend on no device.

use std::path::Path;

use bm_api::Error;
use bm_control::config::{self, Config, Device, FirewallMode, IdleChoice, PathChoice};
use bm_fastpath::AttachChoice;
use bm_forward::IPSEC_PORT;

use super::machine::Machine;
use super::path::Paths;
use super::{scripts, workers};

/// Runs all checks of a configuration whose ports use these paths; `file` is where it was read from.
///
/// # Errors
/// What is wrong and how to fix it, with line numbers where they help.
pub fn all(file: Option<&Path>, config: &Config, machine: &Machine, paths: &Paths) -> Result<(), Error> {
    if config.daemon.workers == Some(0) {
        return Err(Error::new("0 workers").hint("use at least one"));
    }
    web(config)?;
    switches(config)?;
    cluster(config, paths)?;
    ipsec(config, paths)?;
    scripts::check(file, config, machine)?;
    // A file without ports leaves them to the command line.
    if has_ports(config).is_ok() {
        scripts::get_packets(config, paths)?;
        rules(config)?;
        attached(config)?;
        workers::check_queues(config, machine).map_err(Error::new)?;
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

/// Checks that other machines cannot read the web page's data without a token.
fn web(config: &Config) -> Result<(), Error> {
    let Some(address) = config.daemon.web else { return Ok(()) };
    if config.daemon.web_token.is_some() || address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let why = format!("the web page at {address} would be open to other machines");
    let hint = "set `web_token` in [daemon] or --web-token to a file with a token, or use a loopback address such as \
                127.0.0.1:9480";
    Err(Error::new(why).hint(hint))
}

/// Checks that no port of the router is also a port of a switch.
///
/// # Errors
/// The first that is.
fn switches(config: &Config) -> Result<(), Error> {
    for port in config.ports.iter().filter_map(|port| port.device.interface()) {
        if let Some(switch) = config.switches.iter().find(|switch| switch.has(port)) {
            let why =
                format!("{port} is a port of switch {}, so it cannot be a port of the router", switch.name);
            return Err(Error::new(why).hint("remove it from one of them"));
        }
    }
    Ok(())
}

/// Checks that the external ports of a cluster are ports of the router, and that there are workers if they have to balance.
///
/// # Errors
/// What does not go together.
fn cluster(config: &Config, paths: &Paths) -> Result<(), Error> {
    let Some(cluster) = &config.cluster else { return Ok(()) };
    if cluster.uses_intermediates() && !paths.any_user() {
        return Err(Error::new(
            "balancing in [cluster] has no effect on the kernel path, which sends all packets straight to their output node",
        )
        .hint("set balancing = \"direct\", or use the user path (--path user) on the external ports"));
    }
    let ports: Vec<_> = config.ports.iter().filter_map(|port| port.device.interface()).collect();
    if let Some(port) = cluster.ports.iter().find(|port| !ports.contains(&port.device.as_str())) {
        let why = format!("the external port {} of the cluster is not a port of the router", port.device);
        return Err(
            Error::new(why).hint("add it as a [[port]] or with --port, or remove the [[cluster.port]]")
        );
    }
    let links = cluster.links.iter().map(|link| link.device.as_str());
    for device in links {
        let switch = config.switches.iter().find(|switch| switch.has(device));
        if switch.is_some() || ports.contains(&device) {
            let what = switch
                .map_or("a port of the router".into(), |switch| format!("a port of switch {}", switch.name));
            return Err(Error::new(format!("the fabric link {device} is also {what}"))
                .hint("remove it from one of them"));
        }
    }
    Ok(())
}

/// Checks that all packets pass through the apps of IPsec, so that none is sent in clear.
fn ipsec(config: &Config, paths: &Paths) -> Result<(), Error> {
    if config.ipsec.is_empty() {
        return Ok(());
    }
    let kernel = config.ports.iter().zip(&paths.0).find(|(_, path)| path.in_kernel);
    let (why, hint) = match kernel {
        Some((port, _)) => (
            format!("[ipsec] needs the user path, but port {} uses the kernel path", port.device),
            "remove path = \"kernel\" and the [[claim]] tables",
        ),
        None if config.cluster.is_some() => (
            "[ipsec] cannot be combined with [cluster]: links between nodes are not encrypted".into(),
            "remove one of them",
        ),
        None if !config.links.is_empty() => {
            ("[ipsec] cannot be combined with [[link]]".into(), "remove one of them")
        }
        None => return ipsec_interfaces(config).and_then(|()| of_kernel(config)),
    };
    Err(Error::new(why).hint(hint))
}

/// Checks that no IPsec interface is a port, and that no port has the name of theirs.
fn ipsec_interfaces(config: &Config) -> Result<(), Error> {
    let names: Vec<String> = config.ports.iter().enumerate().map(|(index, port)| port.name(index)).collect();
    if names.iter().any(|name| name == IPSEC_PORT) {
        return Err(Error::new(format!("a port cannot be called {IPSEC_PORT} where there is [ipsec]"))
            .hint("rename the interface with `ip link set dev ipsec name NAME`"));
    }
    let twice = config.ipsec.interfaces.iter().find(|own| names.contains(&own.device));
    twice.map_or(Ok(()), |own| {
        let why = format!("{} is a port, so it cannot be an [[ipsec.interface]]", own.device);
        Err(Error::new(why).hint("use an interface of its own, made with `ip tuntap add ipsec0 mode tun`"))
    })
}

/// Checks that `kernel = "on"` in `[ipsec]` is not contradicted.
fn of_kernel(config: &Config) -> Result<(), Error> {
    if !config.ipsec.kernel {
        return Ok(());
    }
    let others = if !config.ipsec.sas.is_empty() {
        "[[ipsec.sa]]"
    } else if !config.ipsec.policies.is_empty() {
        "[[ipsec.policy]]"
    } else if !config.ipsec.interfaces.is_empty() {
        let why = "kernel = \"on\" in [ipsec] cannot be combined with [[ipsec.interface]]: XFRM interfaces of the kernel are found without it";
        return Err(Error::new(why).hint("remove one of them"));
    } else if config.ipsec.xfrm_socket.is_some() {
        "xfrm_socket"
    } else if config.firewall.xfrm == FirewallMode::Bypass {
        let why = "kernel = \"on\" in [ipsec] applies the kernel's IPsec policies, xfrm = \"bypass\" in [firewall] ignores them";
        return Err(Error::new(why).hint("remove one of them"));
    } else {
        return Ok(());
    };
    let why = format!(
        "kernel = \"on\" in [ipsec] cannot be combined with {others}: all SAs and policies are then the kernel's"
    );
    Err(Error::new(why)
        .hint(format!("remove one of them, or add the SAs and policies of {others} with `ip xfrm`")))
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
    let at_tc = config.ports.iter().find(|port| config.attach_of(port) == AttachChoice::Tc);
    if let Some(port) = at_tc.filter(|_| !config.claims.is_empty()) {
        let why = format!(
            "port {}: attach = \"tc\" cannot be combined with [[claim]]: only XDP can pass packets to workers",
            port.device
        );
        return Err(Error::new(why).hint("set attach = \"xdp\", or remove the claims"));
    }
    let mut ports = config.ports.iter();
    if let Some(port) = ports.find(|port| port.path == PathChoice::User && port.attach.is_some()) {
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
    for port in &config.ports {
        if port.path != PathChoice::Kernel && daemon.path != PathChoice::Kernel {
            continue;
        }
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
    interfaces.try_for_each(|interface| workers::check_slots(interface, config.daemon.slot_size as usize))
}
