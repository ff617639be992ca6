//! How much of the public API exists: looks up what Snabb's READMEs describe in the modules as they are loaded here.

use std::path::Path;
use std::process::Command;

use super::shell;

/// READMEs of the tree, with the Lua module of the names in them, if it is a different one.
const LOOK: &str = include_str!("coverage.lua");

/// A table by README: how many functions, methods and variables are described, how many exist, and which do not.
pub fn count(root: &Path, binary: &Path, copy: &Path) -> Result<String, String> {
    let script = root.join("target/snabb/coverage.lua");
    std::fs::write(&script, LOOK).map_err(|why| format!("{}: {why}", script.display()))?;
    let mut command = Command::new(binary);
    command.args(["run", "--path"]).arg(copy).arg(&script).arg(copy.join("src"));
    shell(command.current_dir(copy.join("src")))
}
