//! `[[app]]` and `[[link]]`: Lua apps between ports and the router.

use super::forms::word_or_number;
use super::section::is_plain;
use super::{Config, Device, Port};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Name of the router in `[[link]]`.
pub const ROUTER: &str = "router";
/// Names reserved for apps of the workers.
pub(super) const TAKEN: [&str; 3] = [ROUTER, "slow", "lua"];
/// All apps of the workers that are not ports.
const OWN: [&str; 6] = [ROUTER, "slow", "lua", "balancer", "decryption", "encryption"];

/// Name of the app of a port on workers, and in `[[link]]`. An interface can have the name of another app, or one that
/// begins like the name of that app's links, as VLAN interfaces of such an interface do; a colon it cannot have.
pub fn app_of_port(port: &str) -> String {
    let first = port.split('.').next().unwrap_or(port);
    if OWN.contains(&first) { format!("port:{port}") } else { port.into() }
}

/// An `[[app]]`: Lua, or a class in Rust, between ports and the router.
#[derive(Clone, Debug, PartialEq)]
pub struct App {
    /// Name of the app.
    pub name: String,
    /// Where its class is defined.
    pub module: Module,
    /// Name of the class; `None` if the module has only one.
    pub class: Option<String>,
    /// Argument of the class; `Null` if there is none.
    pub argument: Value,
    /// Core to run on, apart from the workers; `None` to run on every worker.
    pub core: Option<u32>,
    /// Line of the file.
    pub line: usize,
}

settings! {
    /// One `[[app]]` for each app: Lua between ports and the router, on every worker. `reload` applies changes;
    /// `brickmoon show apps` lists apps.
    #[table("[[app]]", "docs/lua.md")]
    impl App {
        /// Its name in links and in `show`.
        #[by_hand(name = "guard")]
        name,
        /// Where its class is: a Lua file (relative to the folder of this file), a Lua module such as
        /// "apps.basic.basic_apps", or a class in Rust: "memory", "tap:NAME", "pcap:IN,OUT".
        #[by_hand(module = "guard.lua")]
        module,
        /// Which class, if the file has several.
        #[by_hand(class = "Guard")]
        class,
        /// The core on which it runs, apart from the workers; "workers" to run it on all workers.
        #[setting(core = "workers", word_or_number(0..=4095), Workers)]
        core,
        /// Its argument, checked against the schema of its class.
        #[by_hand(config = { minimum = 255 })]
        argument,
    }
}

settings! {
    /// One `[[link]]` for each link, from an app's output to an app's input. Ports have the names that `show ports` prints:
    /// "eth0.output" has the packets that come in, and packets given to "eth0.ANY" are sent. The router has an input and an
    /// output for each port, with the port's name ("router.eth0"). Ports and the router are linked automatically unless a
    /// link here says otherwise. A change of links restarts the workers.
    #[table("[[link]]", "docs/lua.md")]
    by_hand {
        /// An app, a dot, and the name of an output in the app.
        from = "eth0.output",
        /// An app, a dot, and the name of an input in the app.
        to = "guard.input",
    }
}

settings! {
    /// A link to the router.
    #[table("[[link]]")]
    by_hand {
        from = "guard.output",
        to = "router.eth0",
    }
}

// JSON has no NaN, so equality is reflexive.
impl Eq for App {}

/// Where a class is defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Module {
    /// In a Lua file; a relative path starts at the directory of the configuration file.
    File(PathBuf),
    /// In a Lua module that is found by name.
    Lua(String),
    /// In Rust: `memory`, or a device.
    Rust(String),
}

impl Module {
    /// Parses `module` in `[[app]]`: a Lua file ends in `.lua`, a Rust class is `memory` or a device.
    pub(super) fn from_text(text: &str) -> Self {
        match text {
            file if Path::new(file).extension().is_some_and(|end| end == "lua") => Self::File(file.into()),
            class if class == "memory" || class.contains(':') => Self::Rust(class.into()),
            name => Self::Lua(name.into()),
        }
    }
}

/// A link: from an app's output to an app's input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// App and output.
    pub from: (String, String),
    /// App and input.
    pub to: (String, String),
    /// Line of the file.
    pub line: usize,
}

impl Link {
    /// Parses an end: an app, a dot, and the name of the link in the app. Names of `ports` may contain dots; links of the
    /// router are named after them.
    pub(super) fn end(text: &str, ports: &[String]) -> Option<(String, String)> {
        let of_router = text.strip_prefix(ROUTER).and_then(|rest| rest.strip_prefix('.'));
        if let Some(port) = of_router.filter(|port| !port.is_empty()) {
            return Some((ROUTER.into(), port.into()));
        }
        let (app, link) = text.rsplit_once('.')?;
        let is_port = ports.iter().any(|port| app_of_port(port) == app);
        let is_app = !app.is_empty() && app.chars().all(|c| is_plain(c) || c == '.');
        let is_link = !link.is_empty() && link.chars().all(is_plain);
        ((is_port || is_app) && is_link).then(|| (app.into(), link.into()))
    }
}

impl Port {
    /// Name of the port at this index in `show ports` and `[[link]]`.
    pub fn name(&self, index: usize) -> String {
        match &self.device {
            Device::Xdp(name) => name.clone(),
            Device::Tap(name) => host_tap_name(name),
            Device::Dpdk(device) => {
                let name = device.split(',').next().unwrap_or_default();
                let name = name.strip_prefix("net_").or_else(|| name.strip_prefix("0000:")).unwrap_or(name);
                host_tap_name(&name.replace(|c: char| ":./".contains(c) || c.is_whitespace(), "-"))
            }
            Device::Pcap { .. } => host_tap_name(&format!("pcap{index}")),
        }
    }
}

/// Name of the host TAP of a device that is not a Linux interface, cut to the maximum length of interface names.
pub fn host_tap_name(name: &str) -> String {
    let mut name = format!("bm-{name}");
    while name.len() > super::device::NAME_MAX {
        name.pop();
    }
    name
}

impl Config {
    /// Whether there is an app between this port and the router.
    pub fn has_apps_behind(&self, port: &str) -> bool {
        let app = app_of_port(port);
        self.links.iter().any(|link| {
            let (from_app, output) = &link.from;
            let (to_app, input) = &link.to;
            (*from_app == app && output == "output") || (to_app == ROUTER && input == port)
        })
    }

    /// Errors in names of apps and ends of links, by line.
    pub fn check_links(&self) -> Vec<(usize, String)> {
        let ports: Vec<_> = self.ports.iter().enumerate().map(|(index, port)| port.name(index)).collect();
        let mut problems = Vec::new();
        for app in self.apps.iter().filter(|app| ports.contains(&app.name)) {
            problems.push((
                app.line,
                format!("app {0}: there is also a port {0}: give the app another name", app.name),
            ));
        }
        for (at, link) in self.links.iter().enumerate() {
            let wrong =
                [(&link.from, true), (&link.to, false)].map(|(end, from)| self.end(&ports, end, from));
            let has_app = self.apps.iter().any(|app| [&link.from.0, &link.to.0].contains(&&app.name));
            if wrong.iter().all(Option::is_none) && !has_app {
                let why = "this [[link]] involves no app: ports and the router are linked automatically";
                problems.push((link.line, why.into()));
            }
            problems.extend(wrong.into_iter().flatten().map(|why| (link.line, why)));
            for before in &self.links[..at] {
                for (end, other) in [(&link.from, &before.from), (&link.to, &before.to)] {
                    if end == other {
                        let ((app, name), line) = (end, before.line);
                        problems.push((
                            link.line,
                            format!("{app}.{name} already has a link, on line {line}: remove one of the two"),
                        ));
                    }
                }
            }
        }
        problems
    }

    /// Error in one end of a link.
    fn end(&self, ports: &[String], end: &(String, String), from: bool) -> Option<String> {
        let (app, name) = end;
        if self.apps.iter().any(|known| known.name == *app) {
            return None;
        }
        if app == ROUTER {
            let known = ports.join(", ");
            return (!ports.contains(name))
                .then(|| format!("{app}.{name}: links of the router have the names of ports: {known}"));
        }
        let ports: Vec<_> = ports.iter().map(|port| app_of_port(port)).collect();
        if ports.contains(app) {
            return match (from, name.as_str()) {
                (true, "output") => None,
                (true, _) => {
                    Some(format!("{app}.{name}: packets that arrive on a port come from {app}.output"))
                }
                (false, "router" | "slow") => {
                    Some(format!("{app}.{name} is the link of the router to the port: use another name"))
                }
                (false, _) => None,
            };
        }
        let known = self.apps.iter().map(|app| app.name.clone()).chain(ports.iter().cloned());
        let known: Vec<_> = known.chain([ROUTER.into()]).collect();
        Some(format!("{app}.{name}: unknown app or port {app}, expected one of {}", known.join(", ")))
    }
}
