//! Links that outlive the daemon ([`bm_bpf::pins`]), in one folder for each switch.
//!
//! ```text
//! /sys/fs/bpf/brickmoon-switch/4026531840/lan/7     namespace (its inode), switch, interface (its number)
//! ```
//!
//! After a crash the switch keeps forwarding, learning and ageing. The next daemon loads its own program, copies the MAC
//! addresses, and updates each link to it.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use bm_bpf::{NoPins, PinnedLink, Pins, pins};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::layout::FdbEntry;
use crate::program::PROGRAM;
use crate::settings::Address;
use crate::table;

/// brickmoon's folder in bpffs, with a subfolder for each network namespace.
const FOLDER: &str = "brickmoon-switch";
/// The program's name starts with this; the version of its layout follows.
const PREFIX: &str = "bm_switch_";

/// Claims the folder of a switch.
pub fn claim(switch: &str) -> Result<Pins, NoPins> {
    let pins = Pins::claim(FOLDER, Path::new(switch))?;
    tracing::info!("switch {switch}: {}", pins.bpffs());
    Ok(pins)
}

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
    let slots = map.keys().filter_map(|key| {
        let slot = map.lookup(&key, MapFlags::ANY).ok()??;
        Some((number(&key)?, number(&slot)?))
    });
    slots.collect()
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

/// Detaches the switches that an earlier daemon left running in this network namespace, except those named. Returns
/// the indices of the interfaces that were their ports.
pub fn remove_kept(but: &[&str]) -> Vec<u32> {
    let mut removed = Vec::new();
    for switch in pins::kept_folders(FOLDER) {
        if !but.iter().any(|but| switch == *but) {
            // A daemon that runs keeps its switches.
            removed.extend(pins::remove_kept(FOLDER, Path::new(&switch), is_ours).unwrap_or_default());
        }
    }
    removed
}
