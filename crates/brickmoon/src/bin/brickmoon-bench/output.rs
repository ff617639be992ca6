//! Where results are written.

use crate::Failure;

/// Writes to standard output. A closed pipe (`| head`) is not an error.
pub fn write(text: &str) -> Result<(), Failure> {
    use std::io::Write as _;
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::failed(error)),
        _ => Ok(()),
    }
}
