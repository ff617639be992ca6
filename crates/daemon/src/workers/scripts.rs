//! What Lua hooks and apps have in common.

use std::time::Duration;

use bm_cli::Failure;
use bm_control::config::{Config, HungCalls};
use bm_lua::Tree;
use bm_lua::hook::OnHang;

/// Directories that are searched for modules before our own.
pub fn trees(config: &Config) -> Vec<Tree> {
    config.lua.path.iter().flat_map(|folder| Tree::at(folder)).collect()
}

/// What the configuration says about Lua code that hangs.
pub fn on_hang(config: &Config) -> OnHang {
    match config.lua.hung_calls {
        HungCalls::Interrupt => OnHang::Interrupt,
        HungCalls::Restart => OnHang::Wait,
    }
}

/// The error for Lua code that hangs and is not interrupted, so that only ending the process helps.
pub fn hang_failure(what: &str, lasts: Duration, on_hang: OnHang) -> Failure {
    let seconds = lasts.as_secs();
    let why = match on_hang {
        OnHang::Interrupt => {
            format!("{what} has been in a C function for {seconds} s and cannot be interrupted")
        }
        OnHang::Wait => {
            format!("{what} has not returned for {seconds} s (`hung_calls` in [lua] is \"restart\")")
        }
    };
    Failure::Failed(format!("{why}: Linux forwards from now on"))
}
