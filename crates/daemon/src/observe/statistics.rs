//! The daemon's counters in shared memory, and their file.

use std::path::PathBuf;
use std::sync::Arc;

use bm_cli::Failure;
use bm_control::config::Config;
use bm_stats::Registry;

/// Maximum number of counters: about eighty per account, and three accounts per port and worker.
const COUNTERS: usize = 1 << 17;

/// A file that is removed on drop: at the end, or if the start fails.
pub struct CounterFile(PathBuf);

impl Drop for CounterFile {
    fn drop(&mut self) {
        // It may already be gone.
        let _gone = std::fs::remove_file(&self.0);
    }
}

/// Counters that other processes can read, and their file, which is removed with the daemon.
pub fn counters(config: &Config) -> Result<(Arc<Registry>, CounterFile), Failure> {
    let file = config.daemon.socket.with_extension("stats");
    let registry = Arc::new(Registry::create(&file, COUNTERS).map_err(Failure::failed)?);
    Ok((registry, CounterFile(file)))
}
