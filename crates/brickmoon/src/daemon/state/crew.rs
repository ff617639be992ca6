//! What workers need beside ports: frames, and Lua. Both are made when there are workers for the first time, and stay.

use std::sync::{Arc, OnceLock};

use bm_control::config::Config;
use bm_frame::Depot;
use bm_lua::apps::{AppSet, AppWorld};
use bm_lua::hook::{HookSet, HookWorld};

use crate::Failure;
use crate::daemon::dataplane::Shared;
use crate::daemon::ports::{Opener, Rings};
use crate::daemon::running::{self, frame_memory};

/// What workers need beside ports, from the first time on that there are workers.
#[derive(Default)]
pub(super) struct Crew {
    pub depot: OnceLock<Arc<Depot>>,
}

impl Crew {
    /// The frames, large enough for this configuration if they are made now.
    pub fn depot(&self, config: &Config) -> Result<&Arc<Depot>, Failure> {
        if self.depot.get().is_none() {
            let depot = frame_memory(config)?;
            let memory = depot.memory();
            tracing::info!("{} MiB of frames on {}", memory.bytes() >> 20, memory.pages());
            return Ok(self.depot.get_or_init(|| depot));
        }
        self.depot.get().ok_or_else(|| Failure::Failed("there are no frames".into()))
    }

    /// What opens ports on these frames.
    pub fn opener(&self, config: &Config) -> Result<Opener, Failure> {
        let memory = self.depot(config)?;
        Opener::new(&Rings { memory, ring: running::ring(config, memory.memory().slots()) })
    }

    /// Makes Lua on workers, hooks and apps, unless that is there.
    pub fn scripts(&self, shared: &Shared) -> Result<(), Failure> {
        let (Some(depot), None) = (self.depot.get(), shared.hooks.get()) else { return Ok(()) };
        let world = HookWorld { depot: depot.clone(), registry: shared.registry.clone() };
        let hooks = Arc::new(HookSet::new(world).map_err(Failure::failed)?);
        let natives = Arc::new(crate::lua::Natives::new(shared.registry.clone()));
        let world = AppWorld { depot: depot.clone(), natives };
        let apps = Arc::new(AppSet::new(world).map_err(Failure::failed)?);
        // One thread at a time starts workers.
        let _there = (shared.hooks.set(hooks), shared.apps.set(apps));
        Ok(())
    }
}
