//! What apps there shall be, and how they are linked.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::modules::Tree;

/// The apps of a daemon and their links.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AppsSpec {
    /// The apps.
    pub apps: Vec<AppSpec>,
    /// Their links: to each other, and to what is outside.
    pub links: Vec<AppLink>,
    /// Names of what is outside: ports, and the router.
    pub outer: Vec<String>,
    /// Where modules are, before ours; apps that run keep those that they were started with.
    pub trees: Vec<Tree>,
}

/// An app.
#[derive(Clone, Debug, PartialEq)]
pub struct AppSpec {
    /// Its name.
    pub name: String,
    /// Where its class is.
    pub module: Module,
    /// Which class of the module; `None` if it has one only.
    pub class: Option<String>,
    /// Its argument, `Null` if there is none.
    pub argument: Value,
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

impl AppsSpec {
    /// As `core.part` reads it.
    pub(super) fn to_json(&self) -> Value {
        let app = |app: &AppSpec| {
            let mut value = json!({ "name": app.name });
            let (key, text) = match &app.module {
                Module::File(file) => ("file", file.display().to_string()),
                Module::Lua(name) => ("module", name.clone()),
                Module::Rust(name) => ("rust", name.clone()),
            };
            value[key] = text.into();
            // Null would be a value to Lua, and not a missing one.
            if let Some(class) = &app.class {
                value["class"] = class.as_str().into();
            }
            if !app.argument.is_null() {
                value["config"] = app.argument.clone();
            }
            value
        };
        let link = |link: &AppLink| {
            let AppLink { from: (from, output), to: (to, input) } = link;
            json!({ "from": from, "output": output, "to": to, "input": input })
        };
        json!({
            "apps": self.apps.iter().map(app).collect::<Vec<_>>(),
            "links": self.links.iter().map(link).collect::<Vec<_>>(),
            "outer": self.outer,
        })
    }
}
