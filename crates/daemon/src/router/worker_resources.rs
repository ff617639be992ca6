//! What workers need apart from ports: frame memory and Lua. Both are created with the first workers and then kept.

use std::sync::{Arc, OnceLock};

use bm_cli::Failure;
use bm_control::config::Config;
use bm_frame::FramePool;
use bm_lua::Natives;
use bm_lua::apps::{AppSet, AppWorld};
use bm_lua::hook::{HookSet, HookWorld};
use bm_stats::Registry;

use crate::plan::workers::Workers;
use crate::ports::open::{Opener, Rings};
use crate::workers::data_path::frame_memory;
use crate::workers::threads::WorkerContext;

/// Makes the Rust apps that Lua apps can use, with accounts in a registry.
pub type MakeNatives = fn(Arc<Registry>) -> Arc<dyn Natives>;

/// What workers need apart from ports; empty before the first workers.
pub struct WorkerResources {
    pub frame_pool: OnceLock<Arc<FramePool>>,
    natives: MakeNatives,
}

impl WorkerResources {
    /// Nothing yet; Lua apps will use apps in Rust that `natives` makes.
    pub fn new(natives: MakeNatives) -> Self {
        Self { frame_pool: OnceLock::new(), natives }
    }

    /// The frame memory; allocated for this configuration if there is none yet.
    pub fn frame_pool(&self, config: &Config, workers: &Workers) -> Result<&Arc<FramePool>, Failure> {
        if self.frame_pool.get().is_none() {
            let frame_pool = frame_memory(config, workers)?;
            let memory = frame_pool.memory();
            tracing::info!("{} MiB of frame memory on {}", memory.bytes() >> 20, memory.pages());
            return Ok(self.frame_pool.get_or_init(|| frame_pool));
        }
        self.frame_pool.get().ok_or_else(|| Failure::Failed("no frame memory".into()))
    }

    /// Creates the opener of ports that use this memory.
    pub fn opener(&self, config: &Config, workers: &Workers) -> Result<Opener, Failure> {
        let memory = self.frame_pool(config, workers)?;
        Opener::new(&Rings { memory, ring: workers.ring })
    }

    /// Creates the sets of Lua hooks and apps for workers, if they do not exist yet.
    pub fn scripts(&self, context: &WorkerContext) -> Result<(), Failure> {
        let (Some(frame_pool), None) = (self.frame_pool.get(), context.hooks.get()) else { return Ok(()) };
        let world = HookWorld { frame_pool: frame_pool.clone(), registry: context.registry.clone() };
        let hooks = Arc::new(HookSet::new(world).map_err(Failure::failed)?);
        let natives = (self.natives)(context.registry.clone());
        let world = AppWorld { frame_pool: frame_pool.clone(), natives };
        let apps = Arc::new(AppSet::new(world).map_err(Failure::failed)?);
        // Cannot fail: only one thread at a time starts workers.
        let _there = (context.hooks.set(hooks), context.apps.set(apps));
        Ok(())
    }
}
