//! The daemon's configuration: one TOML file, every key has a default.
//!
//! ```text
//! brickmoon.toml ─► read (spans, so each error has its line) ─► Config ─► diff ─► what can change at run time
//! ```
//!
//! `up`, `check` and `reload` use this module; the command line shares [`Device`]. All errors of a file are reported at
//! once. Absent on purpose: routes, addresses and anything else that Linux knows. A setting is declared once, with
//! `settings!` (`declare.rs`), in the module of its table; `docs/brickmoon.toml`, which shows every key with its default,
//! follows from that.

#[macro_use]
mod declare;

pub mod app;
mod closest;
mod cluster;
mod daemon;
mod device;
mod diff;
mod error;
mod export;
mod filter;
mod firewall;
mod flows;
mod forms;
mod hook;
mod ipsec;
mod lua;
mod port;
mod read;
mod router;
mod section;
mod switch;

pub use daemon::{Daemon, IdleChoice, PathChoice, Switch};
pub use declare::Effect;
pub use device::{Device, DeviceError};
pub use diff::Change;
pub use error::{ConfigError, Problem, ProblemKind};
pub use export::{Collector, Export, ExportFormat};
pub use filter::{Fail, Filter, SourceRule};
pub use firewall::{Firewall, FirewallMode};
pub use flows::{Flows, FlowsMode};
pub use hook::{Hook, HookFailure, HookStage};
pub use ipsec::{Ipsec, IpsecInterface, LeftToLinux};
pub use lua::{HungCalls, Lua};
pub use port::Port;
pub use router::{Fib, Mirror, Neighbors, SlowPath};

use bm_filter::Rule;
use bm_wire::ReversePath;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Default path of the configuration file.
pub const FILE: &str = "/etc/brickmoon/brickmoon.toml";

/// The contents of a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub daemon: Daemon,
    /// Each `[[port]]`, in the order of the file.
    pub ports: Vec<Port>,
    pub fib: Fib,
    pub slow_path: SlowPath,
    pub neighbors: Neighbors,
    pub mirror: Mirror,
    /// Each `[[switch]]`, in the order of the file.
    pub switches: Vec<bm_switch::Settings>,
    /// `[cluster]`; `None` for a router of its own.
    pub cluster: Option<bm_cluster::Settings>,
    pub filter: Filter,
    pub firewall: Firewall,
    pub flows: Flows,
    pub ipsec: Ipsec,
    /// Each `[[claim]]`: packets that workers get although their port uses the kernel path. The action of the rule is
    /// not used.
    pub claims: Vec<Rule>,
    pub export: Export,
    pub lua: Lua,
    /// Each `[[hook]]`, in the order they run.
    pub hooks: Vec<Hook>,
    /// Each `[[app]]`, in the order of the file.
    pub apps: Vec<app::App>,
    /// Each `[[link]]`, in the order of the file.
    pub links: Vec<app::Link>,
}

impl Config {
    /// One received frame in so many is sampled; 0 for none, since nobody would be told.
    pub fn sample_one_in(&self) -> u32 {
        if self.export.collectors.is_empty() { 0 } else { self.export.one_in }
    }

    /// Whether any port checks sources by feasible paths.
    pub fn asks_for_feasible(&self) -> bool {
        self.ports.iter().any(|port| self.source_rule(port).own() == ReversePath::Feasible)
    }

    /// Whether filters drop anything that Linux would forward.
    pub fn filters_drop(&self) -> bool {
        self.filter.drops() || self.ports.iter().any(|port| self.source_rule(port).own() != ReversePath::Off)
    }

    /// Names of unknown ports in rules.
    pub fn unknown_ports_of_rules(&self) -> Vec<&str> {
        let ports = self.ports.iter().filter_map(|port| port.device.interface());
        let interfaces = self.ipsec.interfaces.iter().map(|interface| interface.device.as_str());
        let known: Vec<&str> = ports.chain(interfaces).collect();
        let rules = self.filter.rules.iter().chain(&self.claims);
        rules.filter_map(|rule| rule.port.as_deref()).filter(|name| !known.contains(name)).collect()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// All errors of the file.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        match std::fs::read_to_string(file) {
            Ok(text) => {
                let mut config = Self::parse(file, &text)?;
                let is_public = std::fs::metadata(file).is_ok_and(|about| about.mode() & 0o044 != 0);
                config.ipsec.public_file = (is_public && config.ipsec.has_keys_here).then(|| file.into());
                Ok(config)
            }
            Err(error) => Err(ConfigError::unreadable(file, &error)),
        }
    }

    /// Parses a text; `file` is for error messages and relative paths.
    ///
    /// # Errors
    /// All errors of the text.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let folder = file.parent().unwrap_or(Path::new(""));
        let mut config =
            read::config(text, folder).map_err(|problems| ConfigError { file: file.into(), problems })?;
        config.hooks.iter_mut().for_each(|hook| hook.file = folder.join(&hook.file));
        config.daemon.web_token.iter_mut().for_each(|token| *token = folder.join(&token));
        config.lua.path.iter_mut().for_each(|tree| *tree = folder.join(&tree));
        for app in &mut config.apps {
            if let app::Module::File(file) = &mut app.module {
                *file = folder.join(&file);
            }
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests;
