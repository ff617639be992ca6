//! Lua apps of the configuration: linked with the workers' ports and router, and reported by `show`.

use std::time::Instant;

use bm_api::Error;
use bm_control::config::Config;
use bm_control::config::app::{self, ROUTER};
use bm_forward::IPSEC_PORT;
use bm_graph::{Network, NetworkError};
use bm_lua::apps::{AppLink, AppNews, AppSet, AppSpec, AppsSpec, Module};
use bm_lua::hook::OnHang;

use super::scripts::{self, trees};
use crate::failure::Failure;
use crate::serve::app_report::PART;

/// The apps of a configuration in the form that `bm-lua` takes.
pub fn spec(config: &Config) -> AppsSpec {
    let app = |app: &app::App| AppSpec {
        name: app.name.clone(),
        module: match &app.module {
            app::Module::File(file) => Module::File(file.clone()),
            app::Module::Lua(name) => Module::Lua(name.clone()),
            app::Module::Rust(name) => Module::Rust(name.clone()),
        },
        class: app.class.clone(),
        argument: app.argument.clone(),
        core: app.core.map(|core| core as usize),
    };
    let link = |link: &app::Link| AppLink { from: link.from.clone(), to: link.to.clone() };
    let ports = config.ports.iter().enumerate().map(|(index, port)| port.name(index));
    AppsSpec {
        apps: config.apps.iter().map(app).collect(),
        links: config.links.iter().map(link).collect(),
        outer: ports.chain([ROUTER.into()]).collect(),
        trees: trees(config),
    }
}

/// Name of the app that chooses fabric links.
pub const BALANCER: &str = "balancer";

/// Names of the apps that decrypt and encrypt.
pub const DECRYPTION: &str = "decryption";
pub const ENCRYPTION: &str = "encryption";

/// The app that gets what ports receive: the router, or with IPsec the app ahead of it.
pub fn entry(config: &Config) -> &'static str {
    if config.ipsec.is_empty() { ROUTER } else { DECRYPTION }
}

/// Links a port with the router and the slow path, over the apps of IPsec.
fn join_with_ipsec(network: &mut Network, name: &str) -> Result<(), NetworkError> {
    network.link(&format!("{name}.output -> {DECRYPTION}.{name}"))?;
    network.link(&format!("{DECRYPTION}.{name} -> router.{name}"))?;
    network.link(&format!("router.{name} -> {ENCRYPTION}.router:{name}"))?;
    network.link(&format!("slow.{name} -> {ENCRYPTION}.slow:{name}"))?;
    network.link(&format!("{ENCRYPTION}.{name} -> {name}.{ENCRYPTION}"))
}

/// Links the port of IPsec interfaces, which has no device, with the router and the slow path.
fn join_ipsec_port(network: &mut Network) -> Result<(), NetworkError> {
    network.link(&format!("{DECRYPTION}.{IPSEC_PORT} -> router.{IPSEC_PORT}"))?;
    network.link(&format!("router.{IPSEC_PORT} -> {ENCRYPTION}.router:{IPSEC_PORT}"))?;
    network.link(&format!("slow.{IPSEC_PORT} -> {ENCRYPTION}.slow:{IPSEC_PORT}"))
}

/// Links the ports `names` with the router and the slow path, or with apps where the configuration links them. Packets for
/// fabric links pass through the balancer; nothing comes in by these.
pub fn join(network: &mut Network, config: &Config, names: &[String]) -> Result<(), NetworkError> {
    let has = |app: &str, name: &str, from: bool| {
        let mut ends = config.links.iter().map(|link| if from { &link.from } else { &link.to });
        ends.any(|(one, end)| one == app && end == name)
    };
    let fabric = config.fabric_devices();
    for name in names.iter().filter(|name| network.has(name)).cloned().collect::<Vec<_>>() {
        if fabric.contains(&name) {
            network.link(&format!("router.{name} -> {BALANCER}.{name}"))?;
            network.link(&format!("{BALANCER}.{name} -> {name}.{BALANCER}"))?;
            network.link(&format!("slow.{name} -> {name}.slow"))?;
            continue;
        }
        if !config.ipsec.is_empty() {
            join_with_ipsec(network, &name)?;
            continue;
        }
        if !has(&name, "output", true) && !has(ROUTER, &name, false) {
            network.link(&format!("{name}.output -> router.{name}"))?;
        }
        if has(ROUTER, &name, true) {
            // Packets from the slow path take the same links as those of the router.
            network.link(&format!("router.{name} -> {PART}.router:{name}"))?;
            network.link(&format!("slow.{name} -> {PART}.slow:{name}"))?;
        } else {
            network.link(&format!("router.{name} -> {name}.router"))?;
            network.link(&format!("slow.{name} -> {name}.slow"))?;
        }
    }
    if !config.ipsec.is_empty() {
        join_ipsec_port(network)?;
    }
    let is_app = |name: &str| config.apps.iter().any(|app| app.name == name);
    for app::Link { from: (from, output), to: (to, input), .. } in &config.links {
        // A worker without a queue of a port does not have the port.
        if !is_app(from) && from != ROUTER && network.has(from) {
            network.link(&format!("{from}.{output} -> {PART}.{from}:{output}"))?;
        }
        if !is_app(to) && network.has(to) {
            network.link(&format!("{PART}.{to}:{input} -> {to}.{input}"))?;
        }
    }
    Ok(())
}

/// Replaces the apps of all workers by those of `config`.
pub fn reload(set: &AppSet, config: &Config) -> Result<(), Error> {
    let hint = "fix the file and reload; until then the previous apps keep running";
    set.reload(&spec(config)).map_err(|error| Error::new(error).hint(hint))
}

/// Interrupts apps that hang, unless `on_hang` forbids it. Returns why the workers must be restarted, if they must.
///
/// # Errors
/// A call hangs that is not or cannot be interrupted, so that only ending the process helps.
pub fn supervise(set: &AppSet, on_hang: OnHang) -> Result<Option<String>, Failure> {
    let mut trouble = None;
    for news in set.supervise(Instant::now(), on_hang) {
        match news {
            AppNews::Failed { worker, why } => {
                trouble.get_or_insert(format!("the apps of worker {worker} failed: {why}"));
            }
            AppNews::Stuck { lasts } => return Err(scripts::hang_failure("an app", lasts, on_hang)),
        }
    }
    Ok(trouble)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::scripts::tests::{config, link};

    struct Nothing;
    impl bm_graph::App for Nothing {}

    fn joined(links: &str) -> Vec<String> {
        let mut network = Network::new();
        for name in ["eth0", "eth1", "router", "slow", "lua"] {
            network.app(name, Box::new(Nothing)).expect("names differ");
        }
        let config = config(links);
        join(&mut network, &config, &["eth0".into(), "eth1".into()]).expect("links fit");
        network.links().map(ToString::to_string).collect()
    }

    #[test]
    fn configured_links_pass_through_apps() {
        let plain = joined("");
        assert_eq!(plain.len(), 6);
        assert_eq!(plain[0], "eth0.output -> router.eth0");
        let ways = link("eth0.output", "guard.input")
            + &link("guard.output", "router.eth0")
            + &link("router.eth1", "guard.back")
            + &link("guard.out", "eth1.guard");
        assert_eq!(
            joined(&ways),
            [
                "router.eth0 -> eth0.router",
                "slow.eth0 -> eth0.slow",
                "eth1.output -> router.eth1",
                "router.eth1 -> lua.router:eth1",
                "slow.eth1 -> lua.slow:eth1",
                "eth0.output -> lua.eth0:output",
                "lua.router:eth0 -> router.eth0",
                "lua.eth1:guard -> eth1.guard",
            ]
        );
    }

    #[test]
    fn links_name_host_taps_as_linux_does() {
        for device in ["net_pcap0,rx_pcap=a.pcap", "0000:01:00.0", "eth_af_packet_with_a_long_name"] {
            let port = bm_control::config::Port::new(bm_control::config::Device::Dpdk(device.into()));
            assert_eq!(port.name(0), bm_port_dpdk::Spec::new(device).host_tap());
        }
    }
}
