//! What Lua hooks and apps have in common.

use std::path::Path;
use std::time::Duration;

use bm_control::config::Config;
use bm_lua::Tree;

use crate::failure::Failure;

/// Hint for hooks and apps that get no packets since all ports use the kernel path.
pub const FOR_WORKERS: &str = "start with --path user or auto, set path = \"user\" for a port, select packets for workers with [[claim]]";

/// Name of the configuration file in messages.
pub fn of(file: Option<&Path>) -> String {
    file.map_or_else(|| "the configuration".into(), |file| file.display().to_string())
}

/// Directories that are searched for modules before our own.
pub fn trees(config: &Config) -> Vec<Tree> {
    config.lua.path.iter().flat_map(|folder| Tree::at(folder)).collect()
}

/// The error for Lua code that hangs in a C function, where only ending the process helps.
pub fn stuck(what: &str, lasts: Duration) -> Failure {
    let seconds = lasts.as_secs();
    let why = format!("{what} has been in a C function for {seconds} s and cannot be aborted");
    Failure::Failed(format!("{why}: Linux forwards from now on"))
}
