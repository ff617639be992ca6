//! Where the router is: the program `brickmoon`, whose daemon the demo and the benches start.

use std::path::PathBuf;

/// Its name.
const ROUTER: &str = "brickmoon";

/// The router beside the program that is running, where both are installed and built; else as PATH finds it.
pub fn router() -> PathBuf {
    let beside = std::env::current_exe().map(|running| running.with_file_name(ROUTER));
    beside.ok().filter(|path| path.is_file()).unwrap_or_else(|| ROUTER.into())
}
