//! The configuration in use, with what was planned for it.

use bm_control::config::Config;

use crate::daemon::path::Paths;

/// The configuration in use, and the paths of its ports.
#[derive(Default)]
pub struct Setup {
    pub config: Config,
    pub paths: Paths,
}
