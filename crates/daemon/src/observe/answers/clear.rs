//! What the counters were when a user cleared them: `show ports` and `show drops` count from there.
//!
//! The counters themselves go on, for metrics and for other readers.

use std::sync::Mutex;
use std::time::Instant;

use bm_api::{Cleared, Drops, Ports};

use crate::lock;

/// What the counters were, and when.
#[derive(Default)]
pub struct Baseline(Mutex<Option<(Instant, Ports, Drops)>>);

impl Baseline {
    /// Counts from these on.
    pub fn set(&self, ports: Ports, drops: Drops) {
        *lock(&self.0) = Some((Instant::now(), ports, drops));
    }

    /// Counts from the start again.
    pub fn forget(&self) {
        *lock(&self.0) = None;
    }

    pub fn cleared(&self) -> Cleared {
        let baseline = lock(&self.0);
        let Some((at, ports, drops)) = baseline.as_ref() else { return Cleared::default() };
        Cleared { ago_s: Some(at.elapsed().as_secs()), ports: ports.clone(), drops: drops.clone() }
    }
}
