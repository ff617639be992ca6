//! Links that outlive the daemon: pinned in bpffs, in one folder for each network namespace and switch.
//!
//! ```text
//! /sys/fs/bpf/brickmoon-switch/4026531840/lan/7     namespace (its inode), switch, interface (its number)
//! ```
//!
//! `bm_bpf` decides which bpffs that is: a daemon mounts one where there is none.
//!
//! A pinned link keeps its program and the program's maps: after a crash the switch keeps forwarding, learning and
//! ageing. The next daemon loads its own program, copies the MAC addresses, and updates each link to it. The folder
//! of a switch is claimed with a lock that ends with the process.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bm_bpf::{Bpffs, ClaimedFolder};
use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Program, libbpf_sys};

use crate::error::SwitchError;
use crate::layout::Station;
use crate::program::PROGRAM;
use crate::settings::Address;
use crate::table;

/// brickmoon's folder in bpffs, with a subfolder for each network namespace.
const FOLDER: &str = "brickmoon-switch";
/// The program's name starts with this; the version of its layout follows.
const PREFIX: &str = "bm_switch_";
/// The largest number of maps of a program.
const MAPS: usize = 32;

/// The folder of one switch in bpffs, claimed until this is dropped.
pub struct Pins {
    folder: ClaimedFolder,
}

/// A pinned link.
pub struct Pinned {
    pub path: PathBuf,
    pub link: Link,
    pub ifindex: u32,
    pub program: u32,
    name: String,
}

impl Pinned {
    fn open(path: PathBuf) -> Option<Self> {
        let link = Link::open(&path).ok()?;
        let info = link.info().ok()?;
        let LinkTypeInfo::Xdp(of) = info.info else { return None };
        let name = program_info(info.prog_id).map(|(name, _)| name).unwrap_or_default();
        Some(Self { path, link, ifindex: of.ifindex, program: info.prog_id, name })
    }

    /// Whether it was left by a switch of brickmoon, of any version.
    pub fn is_ours(&self) -> bool {
        self.name.starts_with(PREFIX)
    }

    /// A map of its program; `None` if its layout may be different from this version's.
    fn map(&self, name: &str) -> Option<MapHandle> {
        if self.name != PROGRAM {
            return None;
        }
        let (_, maps) = program_info(self.program).ok()?;
        maps.into_iter().filter_map(|id| MapHandle::from_map_id(id).ok()).find(|map| map.name() == name)
    }

    /// The MAC addresses that its program has learned; empty if its version uses another layout.
    pub fn stations(&self) -> io::Result<Vec<(Address, Station)>> {
        self.map("stations").map_or_else(|| Ok(Vec::new()), |map| table::read(&map))
    }

    /// The slots of its program's ports, by interface index.
    pub fn slots(&self) -> BTreeMap<u32, u32> {
        let Some(map) = self.map("slots") else { return BTreeMap::new() };
        let number = |bytes: &[u8]| Some(u32::from_ne_bytes(bytes.try_into().ok()?));
        let slot = |key: Vec<u8>| {
            let value = map.lookup(&key, MapFlags::ANY).ok()??;
            Some((number(&key)?, number(&value)?))
        };
        map.keys().filter_map(slot).collect()
    }

    /// Detaches the program from its interface and removes the file.
    pub fn remove(self) {
        // A link whose interface is gone is already detached; only its file is left.
        let _detached = self.link.detach();
        let _gone = fs::remove_file(&self.path);
    }
}

/// Name and maps of a program.
fn program_info(id: u32) -> io::Result<(String, Vec<u32>)> {
    let program = Program::fd_from_id(id).map_err(io::Error::other)?;
    let mut maps = [0u32; MAPS];
    let mut info = libbpf_sys::bpf_prog_info {
        nr_map_ids: MAPS as u32,
        map_ids: maps.as_mut_ptr() as u64,
        ..libbpf_sys::bpf_prog_info::default()
    };
    let mut len = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: the structure is whole, as long as `len` says, and its one array has the room that it says.
    let failed =
        unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &mut info, &mut len) };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(-failed));
    }
    let name = info.name.map(|byte| byte as u8);
    let name = CStr::from_bytes_until_nul(&name).map_err(io::Error::other)?;
    let count = (info.nr_map_ids as usize).min(MAPS);
    Ok((name.to_string_lossy().into_owned(), maps[..count].to_vec()))
}

/// Where the folders of all network namespaces are.
fn top(bpffs: &Bpffs) -> PathBuf {
    bpffs.path().join(FOLDER)
}

/// The name of the folder of this thread's network namespace.
fn namespace() -> io::Result<PathBuf> {
    let inode = fs::metadata("/proc/thread-self/ns/net")?.ino();
    Ok(inode.to_string().into())
}

impl Pins {
    /// Claims the folder of a switch. Mounts a bpffs where there is none.
    ///
    /// # Errors
    /// If there is no bpffs and none can be mounted, or another process has the folder.
    pub fn claim(switch: &str) -> io::Result<Self> {
        let bpffs = Bpffs::find_or_mount().map_err(io::Error::other)?;
        tracing::info!("switch {switch}: {bpffs}");
        sweep(&bpffs);
        let below = namespace()?.join(switch);
        let folder = ClaimedFolder::claim(&top(&bpffs), &below).map_err(io::Error::other)?;
        Ok(Self { folder })
    }

    /// The links that are pinned for existing interfaces; files of other interfaces are removed.
    pub fn links(&self) -> Vec<Pinned> {
        let links = folders(self.folder.path()).filter_map(Pinned::open);
        let (here, gone): (Vec<_>, Vec<_>) = links.partition(|pinned| pinned.ifindex != 0);
        gone.into_iter().for_each(Pinned::remove);
        here
    }

    /// Pins a link of this switch.
    pub fn pin(&self, ifindex: u32, link: &mut Link) -> Result<PathBuf, SwitchError> {
        let path = self.folder.path().join(ifindex.to_string());
        match link.pin(&path) {
            Ok(()) => Ok(path),
            Err(error) => Err(SwitchError::Pin { path, error }),
        }
    }
}

/// The entries of a folder; none if it does not exist.
fn folders(of: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(of).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Claims the folder of a switch if no other process has it.
fn try_claim(bpffs: &Bpffs, folder: &Path) -> Option<Pins> {
    let top = top(bpffs);
    let folder = ClaimedFolder::try_claim(&top, folder.strip_prefix(&top).ok()?).ok()?;
    Some(Pins { folder })
}

/// Removes files in folders that no process claims and whose interface no longer exists.
fn sweep(bpffs: &Bpffs) {
    let switches = folders(&top(bpffs)).flat_map(|namespace| folders(&namespace).collect::<Vec<_>>());
    for folder in switches {
        if let Some(pins) = try_claim(bpffs, &folder) {
            pins.links();
        }
    }
}

/// Detaches the switches that an earlier daemon left running in this network namespace, except those named. Returns
/// the indices of the interfaces that were their ports.
pub fn remove_kept(but: &[&str]) -> Vec<u32> {
    let mut removed = Vec::new();
    let (Some(bpffs), Ok(namespace)) = (Bpffs::find(), namespace()) else { return removed };
    let named = |folder: &PathBuf| folder.file_name().is_some_and(|name| but.iter().any(|but| name == *but));
    for folder in folders(&top(&bpffs).join(namespace)).filter(|folder| !named(folder)) {
        let Some(pins) = try_claim(&bpffs, &folder) else { continue };
        for pinned in pins.links().into_iter().filter(Pinned::is_ours) {
            removed.push(pinned.ifindex);
            pinned.remove();
        }
    }
    removed
}
