//! Links that outlive the daemon: pinned in bpffs, in one folder for each network namespace and switch.
//!
//! ```text
//! /sys/fs/bpf/brickmoon-switch/4026531840/lan/7     namespace (its inode), switch, interface (its number)
//! ```
//!
//! `bm_bpf` decides which bpffs that is: a daemon mounts one where there is none.
//!
//! A pinned link keeps its program and the program's maps: after a crash the switch keeps forwarding, learning and
//! ageing. The next daemon loads its own program, copies the MAC addresses, and updates each link to it.
//! `bm_bpf::pins` creates and removes the files, and locks the folder of a switch.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use bm_bpf::Bpffs;
use bm_bpf::pins::{self, NotPinned, PinFolder, PinnedLink};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};

use crate::error::SwitchError;
use crate::layout::FdbEntry;
use crate::program::PROGRAM;
use crate::settings::Address;
use crate::table;

/// brickmoon's folder in bpffs, with a subfolder for each network namespace.
const FOLDER: &str = "brickmoon-switch";
/// The program's name starts with this; the version of its layout follows.
const PREFIX: &str = "bm_switch_";

/// The folder of one switch in bpffs, claimed until this is dropped.
pub struct Pins(PinFolder);

/// Whether a link was left by a switch of brickmoon, of any version.
pub fn is_ours(pinned: &PinnedLink) -> bool {
    pinned.program.name.starts_with(PREFIX)
}

/// A map of a link's program; `None` if its layout may be different from this version's.
fn map(pinned: &PinnedLink, name: &str) -> Option<MapHandle> {
    if pinned.program.name == PROGRAM { pinned.program.map(name) } else { None }
}

/// The MAC addresses that a link's program has learned; empty if its version uses another layout.
pub fn fdb(pinned: &PinnedLink) -> io::Result<Vec<(Address, FdbEntry)>> {
    map(pinned, "fdb").map_or_else(|| Ok(Vec::new()), |map| table::read(&map))
}

/// The slots of the ports of a link's program, by interface index.
pub fn slots(pinned: &PinnedLink) -> BTreeMap<u32, u32> {
    let Some(map) = map(pinned, "slots") else { return BTreeMap::new() };
    let number = |bytes: &[u8]| Some(u32::from_ne_bytes(bytes.try_into().ok()?));
    let slot = |key: Vec<u8>| {
        let value = map.lookup(&key, MapFlags::ANY).ok()??;
        Some((number(&key)?, number(&value)?))
    };
    map.keys().filter_map(slot).collect()
}

/// Where the folders of all network namespaces are.
fn root(bpffs: &Bpffs) -> PathBuf {
    bpffs.path().join(FOLDER)
}

impl Pins {
    /// Claims the folder of a switch. Mounts a bpffs where there is none.
    ///
    /// # Errors
    /// If there is no bpffs and none can be mounted, or another process has the folder.
    pub fn claim(switch: &str) -> io::Result<Self> {
        let bpffs = Bpffs::find_or_mount().map_err(io::Error::other)?;
        tracing::info!("switch {switch}: {bpffs}");
        let root = root(&bpffs);
        pins::sweep(&root, 2);
        let claim = |namespace: PathBuf| PinFolder::claim(&root, &namespace.join(switch));
        pins::of_namespace(&root).and_then(claim).map(Self).map_err(io::Error::other)
    }

    /// The links that are pinned for existing interfaces; files of other interfaces are removed.
    pub fn links(&self) -> Vec<PinnedLink> {
        self.0.links()
    }

    /// Pins a link of this switch.
    pub fn pin(&self, ifindex: u32, link: &mut Link) -> Result<PathBuf, SwitchError> {
        let failed = |NotPinned { path, error }| SwitchError::Pin { path, error };
        self.0.pin(ifindex, link).map_err(failed)
    }
}

/// Detaches the switches that an earlier daemon left running in this network namespace, except those named. Returns
/// the indices of the interfaces that were their ports.
pub fn remove_kept(but: &[&str]) -> Vec<u32> {
    let mut removed = Vec::new();
    let Some(root) = Bpffs::find().map(|bpffs| root(&bpffs)) else { return removed };
    let Ok(namespace) = pins::of_namespace(&root) else { return removed };
    let named = |switch: &OsString| but.iter().any(|but| switch == but);
    for switch in pins::names_in(&root.join(&namespace)).filter(|switch| !named(switch)) {
        // A process that the previous owner is starting may have its lock for a moment, so this is tried more than once.
        let Ok(folder) = PinFolder::claim(&root, &namespace.join(switch)) else { continue };
        for pinned in folder.links().into_iter().filter(is_ours) {
            removed.push(pinned.ifindex);
            pinned.remove();
        }
    }
    removed
}
