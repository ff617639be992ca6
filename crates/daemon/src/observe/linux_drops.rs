//! What Linux drops of the packets that came in on our ports, for `show drops` and metrics.
//!
//! The program that counts is loaded before privileges are dropped. Which interfaces belong to ports is set by the thread that
//! follows interfaces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use bm_fastpath::{DropMonitor, DroppedByLinux};

use crate::lock;

/// The counting program, and the ports of the interfaces.
pub struct LinuxDrops(Mutex<State>);

struct State {
    /// The program, or why there is none.
    program: Result<DropMonitor, String>,
    /// The port of each interface, including those of the past: what was counted on these stays.
    ports: BTreeMap<u32, String>,
}

impl LinuxDrops {
    /// Loads the program. Everything else works without it; `show drops` says why it is missing.
    pub fn load() -> Self {
        let program =
            DropMonitor::load().inspect_err(|why| tracing::debug!(%why, "Linux's drops are not counted"));
        Self(Mutex::new(State { program, ports: BTreeMap::new() }))
    }

    /// Counts on these interfaces from now on; each with the name of its port.
    pub fn follow(&self, interfaces: BTreeMap<u32, String>) {
        let state = &mut *lock(&self.0);
        let Ok(program) = &mut state.program else { return };
        let indices: BTreeSet<u32> = interfaces.keys().copied().collect();
        // The next change of an interface tries again.
        if let Err(why) = program.count(&indices) {
            tracing::warn!("{why}");
        }
        state.ports.extend(interfaces);
    }

    /// What has been counted, with the name of the port.
    ///
    /// # Errors
    /// Why nothing is counted.
    pub fn read(&self) -> Result<Vec<(String, DroppedByLinux)>, String> {
        let state = lock(&self.0);
        let counted = state.program.as_ref().map_err(Clone::clone)?.read()?;
        let named = counted
            .into_iter()
            .filter_map(|dropped| Some((state.ports.get(&dropped.ifindex)?.clone(), dropped)));
        Ok(named.collect())
    }
}
