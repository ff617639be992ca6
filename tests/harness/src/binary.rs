//! The binary under test.

use std::path::{Path, PathBuf};

/// `$BRICKMOON`, or the one of the profile in which this test program is compiled, or else of another profile.
pub fn binary() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("BRICKMOON").map(PathBuf::from) {
        assert!(path.is_file(), "BRICKMOON={}: no such file", path.display());
        return Some(path);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // Test programs are in `deps`, beside the binary.
    let own = std::env::current_exe().ok().and_then(|test| Some(test.parent()?.parent()?.join("brickmoon")));
    let others = ["release", "debug"].map(|profile| root.join("target").join(profile).join("brickmoon"));
    own.into_iter().chain(others).find(|path| path.is_file())
}
