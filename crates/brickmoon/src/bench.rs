//! `brickmoon bench`, `demo`, `simulate` and `plan`, which another program runs: `brickmoon-bench`.
//!
//! The router contains nothing that exists only to be measured (docs/decisions/0027-benches-apart.md). For these commands
//! its process is replaced by that program, so options, help and exit status are those of `brickmoon-bench`.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use bm_cli::Failure;

use crate::args::PassedOn;

const PROGRAM: &str = "brickmoon-bench";

/// Replaces this process by `brickmoon-bench`. Returns only if that fails.
pub fn exec(command: &str, verbose: u8, passed_on: PassedOn) -> Failure {
    let program = beside().unwrap_or_else(|| PROGRAM.into());
    let verbosity = std::iter::repeat_n("-v", verbose.into());
    let error = Command::new(&program).args(verbosity).arg(command).args(passed_on.arguments).exec();
    if error.kind() == ErrorKind::NotFound {
        return Failure::Failed(format!(
            "brickmoon {command} needs the program {PROGRAM}, which is neither in the folder of brickmoon nor in PATH; \
             in the source tree, `make build` builds both and `make install` installs both"
        ));
    }
    Failure::Failed(format!("start {}: {error}", program.display()))
}

/// The program in the folder that this one was started from.
fn beside() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.with_file_name(PROGRAM);
    path.is_file().then_some(path)
}
