//! Lua apps of the configuration: linked with the workers' ports and router, and reported by `show`.

use std::time::Instant;

use bm_api::Error;
use bm_cli::Failure;
use bm_control::config::Config;
use bm_control::config::app::{self, ROUTER, app_of_port};
use bm_forward::IPSEC_PORT;
use bm_graph::{Network, NetworkError};
use bm_lua::apps::{AppLink, AppNews, AppSet, AppSpec, AppsSpec, Module};
use bm_lua::hook::OnHang;
use bm_serve::app_report::PART;

use crate::workers::scripts::{self, trees};

/// The apps of a configuration in the form that `bm-lua` takes.
pub fn spec(config: &Config) -> AppsSpec {
    let links = config.links.iter();
    let ports = config.ports.iter().enumerate();
    let ports = ports.map(|(index, port)| in_lua(&app_of_port(&port.name(index)), "."));
    AppsSpec {
        apps: config.apps.iter().map(app_spec).collect(),
        links: links.map(|link| AppLink { from: end_in_lua(&link.from), to: end_in_lua(&link.to) }).collect(),
        outer: ports.chain([ROUTER.into()]).collect(),
        trees: trees(config),
        texts: Default::default(),
    }
}

fn app_spec(app: &app::App) -> AppSpec {
    AppSpec {
        name: app.name.clone(),
        module: match &app.module {
            app::Module::File(file) => Module::File(file.clone()),
            app::Module::Lua(name) => Module::Lua(name.clone()),
            app::Module::Rust(name) => Module::Rust(name.clone()),
        },
        class: app.class.clone(),
        argument: app.argument.clone(),
        core: app.core.map(|core| core as usize),
    }
}

/// Name of the app that sends what the slow path has processed.
pub const SLOW: &str = "slow";
/// Name of the app that chooses fabric links.
pub const BALANCER: &str = "balancer";

/// Names of the apps that decrypt and encrypt.
pub const DECRYPTION: &str = "decryption";
pub const ENCRYPTION: &str = "encryption";

/// The app that gets what ports receive: the router, or with IPsec the app ahead of it.
pub fn entry(config: &Config) -> &'static str {
    if config.ipsec.is_empty() { ROUTER } else { DECRYPTION }
}

/// A name in the form that Lua networks allow: letters, digits, `-`, `_` and the characters `others`; other characters by
/// their numbers.
fn in_lua(name: &str, others: &str) -> String {
    if name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c) || others.contains(c)) {
        return name.into();
    }
    let mut escaped = String::new();
    for byte in name.bytes() {
        match byte {
            b'-' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("_{byte:02x}")),
        }
    }
    escaped
}

/// An end of a link in a Lua network: links of the router have the names of ports, and so have the apps of ports.
fn end_in_lua(end: &(String, String)) -> (String, String) {
    let (app, link) = end;
    if app == ROUTER { (app.clone(), in_lua(link, "")) } else { (in_lua(app, "."), link.clone()) }
}

/// Name of a link between the router's app in a Lua network and the app outside that sends, `router` or `slow`.
fn from_outside(sender: &str, port: &str) -> String {
    format!("{sender}:{}", in_lua(port, ""))
}

/// Links a port with the router and the slow path, over the apps of IPsec.
fn join_with_ipsec(network: &mut Network, name: &str) -> Result<(), NetworkError> {
    let app = app_of_port(name);
    network.connect((&app, "output"), (DECRYPTION, name))?;
    network.connect((DECRYPTION, name), (ROUTER, name))?;
    join_senders(network, ENCRYPTION, |sender| format!("{sender}:{name}"), name)?;
    network.connect((ENCRYPTION, name), (&app, ENCRYPTION))
}

/// Links the port of IPsec interfaces, which has no device, with the router and the slow path.
fn join_ipsec_port(network: &mut Network) -> Result<(), NetworkError> {
    network.connect((DECRYPTION, IPSEC_PORT), (ROUTER, IPSEC_PORT))?;
    join_senders(network, ENCRYPTION, |sender| format!("{sender}:{IPSEC_PORT}"), IPSEC_PORT)
}

/// Links what sends to the port `name`, the router and the slow path, with an app that calls these links `input`.
fn join_senders(
    network: &mut Network,
    app: &str,
    input: impl Fn(&str) -> String,
    name: &str,
) -> Result<(), NetworkError> {
    for sender in [ROUTER, SLOW] {
        network.connect((sender, name), (app, &input(sender)))?;
    }
    Ok(())
}

/// Links the ports `names` with the router and the slow path, or with apps where the configuration links them. Packets for
/// fabric links pass through the balancer; nothing comes in by these.
pub fn join(network: &mut Network, config: &Config, names: &[String]) -> Result<(), NetworkError> {
    let has = |app: &str, name: &str, from: bool| {
        let mut ends = config.links.iter().map(|link| if from { &link.from } else { &link.to });
        ends.any(|(one, end)| one == app && end == name)
    };
    let fabric = config.fabric_devices();
    for name in names {
        let app = app_of_port(name);
        if !network.has(&app) {
            continue;
        }
        if fabric.contains(name) {
            network.connect((ROUTER, name), (BALANCER, name))?;
            network.connect((BALANCER, name), (&app, BALANCER))?;
            network.connect((SLOW, name), (&app, SLOW))?;
            continue;
        }
        if !config.ipsec.is_empty() {
            join_with_ipsec(network, name)?;
            continue;
        }
        if !has(&app, "output", true) && !has(ROUTER, name, false) {
            network.connect((&app, "output"), (ROUTER, name))?;
        }
        match has(ROUTER, name, true) {
            // Packets from the slow path take the same links as those of the router.
            true => join_senders(network, PART, |sender| from_outside(sender, name), name)?,
            false => join_senders(network, &app, str::to_owned, name)?,
        }
    }
    if !config.ipsec.is_empty() {
        join_ipsec_port(network)?;
    }
    let apps: Vec<&str> = config.apps.iter().map(|app| app.name.as_str()).collect();
    for app::Link { from, to, .. } in &config.links {
        let [of_from, of_to] = [from, to].map(|end| {
            let (app, link) = end_in_lua(end);
            format!("{app}:{link}")
        });
        // A worker without a queue of a port does not have the port.
        if !apps.contains(&from.0.as_str()) && from.0 != ROUTER && network.has(&from.0) {
            network.connect((&from.0, &from.1), (PART, &of_from))?;
        }
        if !apps.contains(&to.0.as_str()) && network.has(&to.0) {
            network.connect((PART, &of_to), (&to.0, &to.1))?;
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
            AppNews::Failed { worker, why, goes_back } => {
                let back = if goes_back { ", and go back to their version before" } else { "" };
                trouble.get_or_insert(format!("the apps of worker {worker} failed{back}: {why}"));
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
        joined_by(&config(links), &["eth0", "eth1"]).links().map(ToString::to_string).collect()
    }

    fn joined_by(config: &Config, ports: &[&str]) -> Network {
        let mut network = Network::new();
        for name in ["router", "slow", "lua", "decryption", "encryption", "balancer"] {
            network.app(name, Box::new(Nothing)).expect("names differ");
        }
        for port in ports {
            network
                .app(&app_of_port(port), Box::new(Nothing))
                .expect("names of ports differ from other apps");
        }
        let names: Vec<String> = ports.iter().map(|port| (*port).into()).collect();
        join(&mut network, config, &names).expect("links fit");
        network.check().expect("all apps exist");
        network
    }

    /// Names that interfaces can have, and that once were, or contain, parts of the syntax of links and apps.
    const ODD: [&str; 14] = [
        "eth0.100",
        "router",
        "slow",
        "lua",
        "decryption",
        "router.100",
        "lua.5",
        "eth0#1",
        "a->b",
        "a@b.7",
        "\"'",
        "é",
        "balancer",
        "..1",
    ];

    #[test]
    fn any_name_of_an_interface_fits_between_ports_and_router() {
        let network = joined_by(&config(""), &ODD);
        let links: Vec<_> = network.links().collect();
        assert_eq!(links.len(), 3 * ODD.len());
        for port in ODD {
            let ends = [(ROUTER.to_owned(), port.to_owned()), (SLOW.to_owned(), port.to_owned())];
            assert!(
                links
                    .iter()
                    .any(|link| link.to == ends[0] && link.from == (app_of_port(port), "output".into()))
            );
            assert!(ends.iter().all(|end| links.iter().any(|link| link.from == *end)), "{port}");
        }
    }

    #[test]
    fn any_name_of_an_interface_fits_into_a_lua_network() {
        let ports: String = ODD.iter().map(|port| format!("[[port]]\ndevice = '''{port}'''\n")).collect();
        let through = |port: &str| {
            let app = app_of_port(port);
            format!(
                "[[link]]\nfrom = '''router.{port}'''\nto = 'guard.in_{0}'\n[[link]]\nfrom = 'guard.out_{0}'\nto = '''{app}.guard'''\n",
                in_lua(port, "")
            )
        };
        let links: String = ODD.into_iter().map(through).collect();
        let text = format!("{ports}[[app]]\nname = 'guard'\nmodule = 'guard.lua'\n{links}");
        let config = Config::parse(std::path::Path::new("/x.toml"), &text).expect("right");
        assert_eq!(config.check_links(), []);
        let spec = spec(&config);
        let fits = |name: &str, others: &str| {
            name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c) || others.contains(c))
        };
        let apps: std::collections::BTreeSet<_> = spec.outer.iter().collect();
        assert_eq!(apps.len(), ODD.len() + 1, "names stay different");
        assert!(apps.iter().all(|app| fits(app, ".")), "{apps:?}");
        for AppLink { from, to } in &spec.links {
            assert!([from, to].iter().all(|(app, link)| fits(app, ".") && fits(link, "")), "{from:?} {to:?}");
        }
        let network = joined_by(&config, &ODD);
        for port in ODD {
            let inside = from_outside("router", port);
            assert!(network.links().any(|link| link.to == (PART.into(), inside.clone())), "{port}");
            let back = format!("{}:guard", in_lua(&app_of_port(port), "."));
            assert!(network.links().any(|link| link.from == (PART.into(), back.clone())), "{port}");
        }
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
