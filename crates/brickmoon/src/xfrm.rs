//! `brickmoon xfrm`: runs a program, such as `ip xfrm`, with its XFRM sockets connected to the daemon instead of the
//! kernel.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use bm_cli::Failure;

use crate::args::Xfrm;

/// The library that connects a program; crates/xfrm/preload.
const LIBRARY: &str = "libbrickmoon-xfrm.so";
const INSTALLED: &str = "/usr/lib/brickmoon";

/// Becomes the program; returns why it cannot.
pub fn exec(xfrm: Xfrm) -> Failure {
    let Xfrm { xfrm_socket, preload, program } = xfrm;
    let Some((program, arguments)) = program.split_first() else {
        return Failure::Usage("which program? brickmoon xfrm ip xfrm state".into());
    };
    let Some(library) = preload.or_else(library) else {
        return Failure::Failed(format!(
            "{LIBRARY} is neither beside brickmoon nor in {INSTALLED}: `make install` puts it there, or name it with --preload"
        ));
    };
    // The loader only warns about a library that it cannot load, and the program would reach the kernel.
    if !library.is_file() {
        return Failure::Usage(format!("{}: there is no such file", library.display()));
    }
    if !xfrm_socket.exists() {
        return Failure::Failed(format!(
            "{}: there is no such socket; set xfrm_socket in [ipsec], or name it with --xfrm-socket",
            xfrm_socket.display()
        ));
    }
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", library).env("BRICKMOON_XFRM", xfrm_socket);
    Failure::Failed(format!("{}: {}", program.display(), command.exec()))
}

/// The library beside this program, or where it is installed.
fn library() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(LIBRARY)));
    beside.into_iter().chain([Path::new(INSTALLED).join(LIBRARY)]).find(|library| library.is_file())
}
