//! `clear counters`: what the counters were at one time, for displays that count from then on.
//!
//! The counters themselves never go back, since metrics and other readers depend on that.

use serde::{Deserialize, Serialize};

use crate::{Drops, Ports};

/// What the counters were when they were cleared last; everything is empty if they were not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Cleared {
    /// Seconds since then; absent if the counters have not been cleared since the start of the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ago_s: Option<u64>,
    pub ports: Ports,
    pub drops: Drops,
}
