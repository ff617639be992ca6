//! The configured apps and their links.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::modules::Tree;
use crate::state::LuaError;

/// The apps of a daemon and their links.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AppsSpec {
    pub apps: Vec<AppSpec>,
    /// Their links: between apps, and to what is outside.
    pub links: Vec<AppLink>,
    /// Names of what is outside: ports, and the router.
    pub outer: Vec<String>,
    /// Folders with modules, searched before the binary; running apps keep those with which they were started.
    pub trees: Vec<Tree>,
    /// What files contain, if they are not to be read: an earlier version must not change with them.
    pub texts: BTreeMap<PathBuf, String>,
}

/// An `[[app]]` of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct AppSpec {
    pub name: String,
    /// Where its class is.
    pub module: Module,
    /// Which class of the module; `None` if it has only one.
    pub class: Option<String>,
    /// Its argument, `Null` if there is none.
    pub argument: Value,
    /// The core on which it runs, in a separate worker with others of that core; `None` for every worker.
    pub core: Option<usize>,
}

/// Where a class is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Module {
    /// In a file.
    File(PathBuf),
    /// In a Lua module that is found by name, such as `apps.basic.basic_apps`.
    Lua(String),
    /// In Rust, such as `memory` or `pcap:in.pcap`.
    Rust(String),
}

/// A link, from an app's output to an app's input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppLink {
    /// App and output.
    pub from: (String, String),
    /// App and input.
    pub to: (String, String),
}

/// The apps of one kind of worker.
pub(super) struct WorkerSpec {
    /// The core on which the apps are placed; `None` for the workers with ports.
    pub core: Option<usize>,
    /// The apps and their links.
    pub apps: AppsSpec,
}

impl AppsSpec {
    /// A copy that includes what its files contain now. A file that cannot be read, or is not text, is left to those who
    /// run it.
    pub(super) fn with_texts(&self) -> Self {
        let files = self.apps.iter().filter_map(|app| match &app.module {
            Module::File(file) => Some(file),
            Module::Lua(_) | Module::Rust(_) => None,
        });
        let texts = files.filter_map(|file| Some((file.clone(), std::fs::read_to_string(file).ok()?)));
        Self { texts: texts.collect(), ..self.clone() }
    }

    /// Whether it has the links of `other`, so that workers can have either.
    pub(super) fn is_linked_like(&self, other: &Self) -> bool {
        self.links == other.links && self.outer == other.outer && self.cores().eq(other.cores())
    }

    /// The core of each app.
    fn cores(&self) -> impl Iterator<Item = Option<usize>> {
        self.apps.iter().map(|app| app.core)
    }

    fn core_of(&self, app: &str) -> Option<usize> {
        self.apps.iter().find(|other| other.name == app).and_then(|app| app.core)
    }

    /// The apps of a core without their links.
    fn of_core(&self, core: Option<usize>) -> WorkerSpec {
        let apps = self.apps.iter().filter(|app| app.core == core).cloned().collect();
        let outer = if core.is_none() { self.outer.clone() } else { Vec::new() };
        WorkerSpec { core, apps: Self { apps, links: Vec::new(), outer, ..self.clone() } }
    }

    /// The apps of each kind of worker: first of those with ports, which are all equal, then of each core on which apps
    /// are placed. Links between them become rings.
    ///
    /// # Errors
    /// A link between an app with a core and something that each of `workers` workers has.
    pub(super) fn by_core(&self, workers: usize) -> Result<Vec<WorkerSpec>, LuaError> {
        let mut cores: Vec<_> = self.cores().flatten().collect();
        cores.sort_unstable();
        cores.dedup();
        let mut specs = vec![self.of_core(None)];
        specs.extend(cores.into_iter().map(|core| self.of_core(Some(core))));
        for link in &self.links {
            let (from, to) = (self.core_of(&link.from.0), self.core_of(&link.to.0));
            let name = format!("{}.{} -> {}.{}", link.from.0, link.from.1, link.to.0, link.to.1);
            if from == to {
                add_link(&mut specs, from, None, link.clone());
                continue;
            }
            if workers > 1 && (from.is_none() || to.is_none()) {
                return Err(LuaError::new(format!(
                    "link {name}: with {workers} workers, apps of the workers cannot be linked with an app that has its own core: set workers = 1 in [daemon], or leave `core` out"
                )));
            }
            let [exit, entry] = ring(link, &name);
            add_link(&mut specs, from, Some(exit.0), exit.1);
            add_link(&mut specs, to, Some(entry.0), entry.1);
        }
        Ok(specs)
    }

    /// As `core.part` reads it.
    pub(super) fn to_json(&self) -> Value {
        let links = self.links.iter().map(|AppLink { from: (from, output), to: (to, input) }| {
            json!({ "from": from, "output": output, "to": to, "input": input })
        });
        let texts = self.texts.iter();
        let texts = texts.map(|(file, text)| (file.display().to_string(), Value::from(text.as_str())));
        json!({
            "apps": self.apps.iter().map(AppSpec::to_json).collect::<Vec<_>>(),
            "links": links.collect::<Vec<_>>(),
            "outer": self.outer,
            "texts": texts.collect::<Value>(),
        })
    }
}

impl AppSpec {
    fn to_json(&self) -> Value {
        let mut value = json!({ "name": self.name });
        let (key, text) = match &self.module {
            Module::File(file) => ("file", file.display().to_string()),
            Module::Lua(name) => ("module", name.clone()),
            Module::Rust(name) => ("rust", name.clone()),
        };
        value[key] = text.into();
        // For Lua null would be a value, not a missing one.
        if let Some(class) = &self.class {
            value["class"] = class.as_str().into();
        }
        if !self.argument.is_null() {
            value["config"] = self.argument.clone();
        }
        value
    }
}

/// Adds a link to the apps of a core, with an app for it.
fn add_link(specs: &mut [WorkerSpec], core: Option<usize>, app: Option<AppSpec>, link: AppLink) {
    if let Some(spec) = specs.iter_mut().find(|spec| spec.core == core) {
        spec.apps.apps.extend(app);
        spec.apps.links.push(link);
    }
}

/// Both ends of a ring in place of a link: an app in Rust for each, with its link to the app next to it.
fn ring(link: &AppLink, name: &str) -> [(AppSpec, AppLink); 2] {
    let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let [exit, entry] = [("to", '>'), ("from", '<')].map(|(side, class)| AppSpec {
        name: format!("{side}_{plain}"),
        module: Module::Rust(format!("ring{class}{name}")),
        class: None,
        argument: Value::Null,
        core: None,
    });
    let out = AppLink { from: link.from.clone(), to: (exit.name.clone(), "input".into()) };
    let back = AppLink { from: (entry.name.clone(), "output".into()), to: link.to.clone() };
    [(exit, out), (entry, back)]
}
