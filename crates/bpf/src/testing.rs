//! For tests: a bpffs that exists only during the test.

use std::io;
use std::path::Path;

use crate::bpffs::{OWN, USUAL};
use crate::mount;

/// Gives this thread, and the processes that it starts, a mount namespace of their own, with an empty bpffs at the
/// usual place and none at brickmoon's.
///
/// # Errors
/// What was refused: it needs root.
pub fn own_bpffs() -> io::Result<()> {
    mount::leave()?;
    // Usually nothing is mounted there.
    let _none = mount::unmount_here(Path::new(OWN), libc::MNT_DETACH);
    mount::mount_here(Path::new(USUAL))
}
