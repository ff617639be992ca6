//! `[[app]]` and `[[link]]`: apps in Lua between ports and the router.

use super::{Config, Device, Port};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// How `[[link]]` calls the router.
pub const ROUTER: &str = "router";
/// Names that apps cannot have, since the workers' own are called so.
pub(super) const TAKEN: [&str; 3] = [ROUTER, "slow", "lua"];

/// An app.
#[derive(Clone, Debug, PartialEq)]
pub struct App {
    /// Its name.
    pub name: String,
    /// Where its class is.
    pub module: Module,
    /// Which class of the module; `None` if it has one only.
    pub class: Option<String>,
    /// Its argument; `Null` if there is none.
    pub argument: Value,
    /// The core that it has to itself, with others of that core; `None` to be on every worker.
    pub core: Option<u32>,
    /// Line of the file.
    pub line: usize,
}

// Numbers that are no numbers cannot be told apart, and JSON has none.
impl Eq for App {}

/// Where a class is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Module {
    /// In a Lua file; a relative name begins at the configuration file's folder.
    File(PathBuf),
    /// In a Lua module that is found by name.
    Lua(String),
    /// In Rust: `memory`, or a device.
    Rust(String),
}

impl Module {
    /// What `module` in `[[app]]` stands for: a file ends in `.lua`, a class in Rust is `memory` or a device.
    pub(super) fn of(text: &str) -> Self {
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
    /// An end as it is written: what stands behind the last dot is the app's name for the link.
    pub(super) fn end(text: &str) -> Option<(String, String)> {
        let (app, link) = text.rsplit_once('.')?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let fine = !app.is_empty() && app.chars().all(|c| plain(c) || c == '.') && link.chars().all(plain);
        (fine && !link.is_empty()).then(|| (app.into(), link.into()))
    }
}

impl Port {
    /// What `show ports` and `[[link]]` call the port at this place in the configuration.
    pub fn name(&self, index: usize) -> String {
        match &self.device {
            Device::Xdp(name) => name.clone(),
            Device::Tap(name) => twin_name(name),
            Device::Dpdk(device) => {
                let name = device.split(',').next().unwrap_or_default();
                let name = name.strip_prefix("net_").or_else(|| name.strip_prefix("0000:")).unwrap_or(name);
                let unfit = |c: char| matches!(c, ':' | '.' | '/') || c.is_whitespace();
                twin_name(&name.replace(unfit, "-"))
            }
            Device::Pcap { .. } => twin_name(&format!("pcap{index}")),
        }
    }
}

/// The twin in Linux of a device that is no interface there, cut to what an interface's name may hold.
pub fn twin_name(name: &str) -> String {
    format!("bm-{name}").chars().take(15).collect()
}

impl Config {
    /// Whether an app stands between this port and the router.
    pub fn has_apps_behind(&self, port: &str) -> bool {
        let ends = |(app, link): &(String, String), of: &str, name: &str| app == of && link == name;
        self.links.iter().any(|link| ends(&link.from, port, "output") || ends(&link.to, ROUTER, port))
    }

    /// What is wrong with the ends of links, by line.
    pub fn check_links(&self) -> Vec<(usize, String)> {
        let ports: Vec<_> = self.ports.iter().enumerate().map(|(index, port)| port.name(index)).collect();
        let mut problems = Vec::new();
        for app in self.apps.iter().filter(|app| ports.contains(&app.name)) {
            problems.push((
                app.line,
                format!("app {0}: a port is called {0} too: give the app another name", app.name),
            ));
        }
        for (at, link) in self.links.iter().enumerate() {
            let wrong =
                [(&link.from, true), (&link.to, false)].map(|(end, from)| self.end(&ports, end, from));
            let inner = |name: &str| self.apps.iter().any(|app| app.name == name);
            if wrong.iter().all(Option::is_none) && !inner(&link.from.0) && !inner(&link.to.0) {
                let why = "this [[link]] leads past all apps: ports and the router are linked by themselves";
                problems.push((link.line, why.into()));
            }
            problems.extend(wrong.into_iter().flatten().map(|why| (link.line, why)));
            for before in &self.links[..at] {
                for ((app, name), taken) in [(&link.from, &before.from), (&link.to, &before.to)] {
                    if (app, name) == (&taken.0, &taken.1) {
                        let line = before.line;
                        problems.push((
                            link.line,
                            format!("{app}.{name} has a link already, on line {line}: a place takes one"),
                        ));
                    }
                }
            }
        }
        problems
    }

    /// What is wrong with one end of a link.
    fn end(&self, ports: &[String], (app, name): &(String, String), from: bool) -> Option<String> {
        if self.apps.iter().any(|known| known.name == *app) {
            return None;
        }
        if app == ROUTER {
            let known = ports.join(", ");
            return (!ports.contains(name)).then(|| {
                format!("{app}.{name}: links of the router are called as ports, of which there are {known}")
            });
        }
        if ports.contains(app) {
            return match (from, name.as_str()) {
                (true, "output") => None,
                (true, _) => Some(format!("{app}.{name}: what comes in on a port is at {app}.output")),
                (false, "router" | "slow") => Some(format!(
                    "{app}.{name} is the router's own link to the port: call this one otherwise"
                )),
                (false, _) => None,
            };
        }
        let known = self.apps.iter().map(|app| app.name.clone()).chain(ports.iter().cloned());
        let known: Vec<_> = known.chain([ROUTER.into()]).collect();
        Some(format!("{app}.{name}: no app or port is called {app}: there are {}", known.join(", ")))
    }
}
