//! NUMA nodes: which one a core belongs to, and how to place pages on the node of the worker that uses them.
//!
//! A core reaches memory of its own node faster, and without loading the link between the sockets.

use std::path::Path;

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
