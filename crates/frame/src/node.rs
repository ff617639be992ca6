//! NUMA nodes: which one a core belongs to, and how to place pages on the node of the worker that uses them.
//!
//! A core reaches memory of its own node faster, and without loading the link between the sockets.

use std::io;
use std::path::Path;
use std::ptr::NonNull;

/// Number of a NUMA node, as in `/sys/devices/system/node/nodeN`.
pub type Node = u32;

/// The node of a core; `None` if there is no such core, or the kernel has no NUMA support.
pub fn node_of_core(core: usize) -> Option<Node> {
    node_in(&Path::new("/sys/devices/system/cpu").join(format!("cpu{core}")))
}

fn node_in(folder: &Path) -> Option<Node> {
    let names = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.to_str()?.strip_prefix("node")?.parse().ok()).next()
}

/// Places the pages of a range on `node` if that has free memory, else elsewhere. They must not have been accessed
/// yet.
///
/// # Errors
/// What the system said: for example, that there is no such node.
pub(crate) fn prefer(start: NonNull<u8>, bytes: usize, node: Node) -> io::Result<()> {
    const WORD: usize = u64::BITS as usize;
    let mut mask = [0u64; 16];
    let word =
        mask.get_mut(node as usize / WORD).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    *word |= 1 << (node as usize % WORD);
    // SAFETY: it changes where pages of a mapping of ours come from, not what is in them; the mask lives on, and is as
    // long as said (the kernel takes one bit less).
    let done = unsafe {
        let most = mask.len() * WORD + 1;
        libc::syscall(libc::SYS_mbind, start.as_ptr(), bytes, libc::MPOL_PREFERRED, mask.as_ptr(), most, 0)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes the kernel allocate the pages of a range now. A kernel that cannot do this (before Linux 5.14) allocates
/// each at its first access.
pub(crate) fn populate(start: NonNull<u8>, bytes: usize) {
    // SAFETY: it makes pages of a mapping of ours, and writes nothing into them.
    let _later = unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cores_node_is_the_link_in_its_folder() {
        let folder = std::env::temp_dir().join(format!("bm-node-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("cache")).unwrap();
        assert_eq!(node_in(&folder), None);
        std::fs::create_dir_all(folder.join("node12")).unwrap();
        assert_eq!(node_in(&folder), Some(12));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(node_of_core(usize::MAX), None);
    }
}
