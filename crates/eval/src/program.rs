//! Finds the router: the program `brickmoon`, whose daemon the demo and the benches start.

use std::path::PathBuf;

/// Its name.
const ROUTER: &str = "brickmoon";

/// The router in the folder of this program, where both are built and installed; otherwise as found in PATH.
pub fn router() -> PathBuf {
    let beside = std::env::current_exe().map(|running| running.with_file_name(ROUTER));
    beside.ok().filter(|path| path.is_file()).unwrap_or_else(|| ROUTER.into())
}
