//! What Lua hooks and apps have in common.

use std::time::Duration;

use bm_control::config::Config;
use bm_lua::Tree;

use crate::failure::Failure;

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
