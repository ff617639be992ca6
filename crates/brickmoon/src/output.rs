//! Standard output of commands.

use std::io::{ErrorKind, Write as _, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

use bm_cli::Failure;

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Writes to standard output. A closed pipe (`| head`) is not an error.
pub fn write(text: &str) -> Result<(), Failure> {
    let mut output = stdout();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {
            CLOSED.store(true, Ordering::Relaxed);
            Ok(())
        }
        written => written.map_err(Failure::failed),
    }
}

/// Whether the reader has closed the pipe.
pub fn is_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}
