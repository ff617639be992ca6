//! The binary under test.

use std::path::{Path, PathBuf};

/// `$BRICKMOON`, or the newest that the workspace has built.
pub fn binary() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("BRICKMOON").map(PathBuf::from) {
        assert!(path.is_file(), "BRICKMOON={}: no such file", path.display());
        return Some(path);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    ["release", "debug"]
        .map(|profile| root.join("target").join(profile).join("brickmoon"))
        .into_iter()
        .find(|path| path.is_file())
}
