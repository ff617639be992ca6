//! The configuration in use, with what was planned for it.

use bm_control::config::Config;

use crate::plan::Plan;

/// The configuration in use, and its plan.
#[derive(Default)]
pub struct Setup {
    pub config: Config,
    pub plan: Plan,
}
