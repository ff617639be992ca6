//! `[lua]`: settings of hooks and apps.

use std::path::PathBuf;

use super::forms::{Choice, Folders};

/// What to do about a Lua function that does not return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HungCalls {
    /// Interrupt it; its worker continues without it.
    #[default]
    Interrupt,
    /// Leave packets to Linux and end the daemon, which systemd starts again.
    Restart,
}

const HUNG_CALLS: [(&str, HungCalls); 2] =
    [("interrupt", HungCalls::Interrupt), ("restart", HungCalls::Restart)];

settings! {
    /// Settings of hooks and apps.
    #[table("[lua]", "docs/hooks.md", "docs/lua.md")]
    pub struct Lua {
        /// Folders with modules for hooks and apps to require; they take precedence over brickmoon's own. Names are
        /// relative to the folder of this file, and the root of a Snabb checkout stands for all its Lua folders. `reload`
        /// loads hooks with new folders; if there are apps, it restarts the workers.
        #[setting(path = [], Folders("[\"lua\", \"/usr/share/lua/site\"]"), Live)]
        pub path: Vec<PathBuf>,
        /// What happens if a hook or app does not return while packets wait for it. "interrupt": it is interrupted after
        /// 100 ms of processor time or half a second of sleep, and its worker continues without it. "restart": nothing
        /// interrupts it. After ten seconds, in which Linux forwards, the daemon ends with status 1, and systemd starts it
        /// again.
        #[setting(hung_calls = "interrupt", Choice(&HUNG_CALLS), Live)]
        pub hung_calls: HungCalls,
        /// Line of `path`; 0 if it is not set.
        pub line: usize,
    }
}
