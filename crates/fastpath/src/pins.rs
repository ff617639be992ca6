//! Links that outlive the daemon ([`bm_bpf::pins`]).
//!
//! ```text
//! /sys/fs/bpf/brickmoon/4026531840/7     namespace (its inode), then interface (its index in Linux)
//! ```
//!
//! After a crash packets are still forwarded, with the last tables.

use std::path::Path;

use bm_bpf::{NoPins, PinnedLink, Pins, pins};

/// brickmoon's folder in bpffs, with a subfolder for each network namespace.
const FOLDER: &str = "brickmoon";
/// The program's name starts with this; its layout version follows.
const PREFIX: &str = "bm_forward_";
/// The name of the program for tc ends with this.
const AT_TC: &str = "_tc";

/// Claims the folder of this network namespace.
///
/// # Errors
/// If there is no bpffs and none can be mounted, or another process has the folder.
pub fn claim_pins() -> Result<Pins, NoPins> {
    Pins::claim(FOLDER, Path::new(""))
}

/// The layout version of the program of a link; `None` if it is not brickmoon's.
pub(crate) fn version_of(pinned: &PinnedLink) -> Option<u32> {
    version(&pinned.program.name)
}

/// The layout version in the name of a program of brickmoon.
fn version(name: &str) -> Option<u32> {
    let version = name.strip_prefix(PREFIX)?;
    version.strip_suffix(AT_TC).unwrap_or(version).parse().ok()
}

/// Detaches the programs that an ended daemon left on interfaces of this network namespace; returns their names.
///
/// # Errors
/// If a running daemon has the folder.
pub fn remove_kept() -> Result<Vec<String>, NoPins> {
    let removed = pins::remove_kept(FOLDER, Path::new(""), |pinned| version_of(pinned).is_some())?;
    Ok(removed.into_iter().map(crate::attach::name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_bpf::AttachType;

    #[test]
    fn recognizes_its_own_programs_by_name() {
        for attach_type in [AttachType::Xdp, AttachType::Tc] {
            assert_eq!(version(crate::kernel::forwards(attach_type)), Some(7));
        }
        assert_eq!(version("bm_forward_17"), Some(17));
        for other in ["bm_forward_", "bm_forward", "steer", "xdp_pass", ""] {
            assert_eq!(version(other), None, "{other}");
        }
    }
}
