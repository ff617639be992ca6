//! What workers need apart from ports: frame memory and Lua. Both are created with the first workers and then kept.

use std::sync::{Arc, OnceLock};

use bm_control::config::Config;
use bm_frame::Depot;
use bm_lua::apps::{AppSet, AppWorld};
use bm_lua::hook::{HookSet, HookWorld};

use crate::Failure;
use crate::daemon::dataplane::Shared;
use crate::daemon::ports::{Opener, Rings};
use crate::daemon::running::{self, frame_memory};

/// What workers need apart from ports; empty before the first workers.
#[derive(Default)]
pub(super) struct Crew {
    pub depot: OnceLock<Arc<Depot>>,
}

impl Crew {
    /// The frame memory; allocated for this configuration if there is none yet.
    pub fn depot(&self, config: &Config) -> Result<&Arc<Depot>, Failure> {
        if self.depot.get().is_none() {
            let depot = frame_memory(config)?;
            let memory = depot.memory();
            tracing::info!("{} MiB of frame memory on {}", memory.bytes() >> 20, memory.pages());
            return Ok(self.depot.get_or_init(|| depot));
        }
        self.depot.get().ok_or_else(|| Failure::Failed("no frame memory".into()))
    }

    /// Creates the opener of ports that use this memory.
    pub fn opener(&self, config: &Config) -> Result<Opener, Failure> {
        let memory = self.depot(config)?;
        Opener::new(&Rings { memory, ring: running::ring(config, memory.memory().slots()) })
    }

    /// Creates the sets of Lua hooks and apps for workers, if they do not exist yet.
    pub fn scripts(&self, shared: &Shared) -> Result<(), Failure> {
        let (Some(depot), None) = (self.depot.get(), shared.hooks.get()) else { return Ok(()) };
        let world = HookWorld { depot: depot.clone(), registry: shared.registry.clone() };
        let hooks = Arc::new(HookSet::new(world).map_err(Failure::failed)?);
        let natives = Arc::new(crate::lua::Natives::new(shared.registry.clone()));
        let world = AppWorld { depot: depot.clone(), natives };
        let apps = Arc::new(AppSet::new(world).map_err(Failure::failed)?);
        // Cannot fail: only one thread at a time starts workers.
        let _there = (shared.hooks.set(hooks), shared.apps.set(apps));
        Ok(())
    }
}
