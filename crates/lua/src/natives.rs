//! Apps in Rust that a Lua program uses: requested by name, opened by a `Natives`.

use std::sync::Arc;

use bm_frame::FramePool;
use bm_graph::App;
use serde_json::Value;

/// An app in Rust requested with `config.app(c, name, "class", argument)`.
#[derive(Clone, Copy)]
pub struct AppRequest<'a> {
    /// The class, such as `router` or `xdp:eth0`.
    pub class: &'a str,
    /// The app's name in the network.
    pub name: &'a str,
    /// Its argument, `Null` if there is none.
    pub argument: &'a Value,
    /// Which worker it is for, out of how many: a port gives each its own queue.
    pub worker: usize,
    /// How many workers run the program.
    pub workers: usize,
    /// Where its frames come from.
    pub frame_pool: &'a Arc<FramePool>,
}

/// An app in Rust that a program has requested, ready to run.
pub struct NativeApp {
    pub app: Box<dyn App>,
    /// Whether it receives packets from outside: then it is pulled, and links that it fills come first.
    pub pulls: bool,
}

/// Creates the apps in Rust that Lua programs name.
pub trait Natives: Send + Sync {
    /// Creates an app.
    ///
    /// # Errors
    /// What is wrong with the class or its argument, for the program's author.
    fn open(&self, request: &AppRequest<'_>) -> Result<NativeApp, String>;
}

/// No apps in Rust except those of this crate.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoNatives;

impl Natives for NoNatives {
    fn open(&self, request: &AppRequest<'_>) -> Result<NativeApp, String> {
        Err(format!("there is no app in Rust named {:?}", request.class))
    }
}
