//! Queries about a loaded program.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapHandle, Program, libbpf_sys};

/// Maximum number of maps of a program.
const MAPS: usize = 32;

/// A loaded program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramInfo {
    /// Its id, as `bpftool prog show id` takes it.
    pub id: u32,
    /// Its name, of 15 bytes at most.
    pub name: String,
    /// The ids of its maps.
    pub maps: Vec<u32>,
}

impl ProgramInfo {
    /// Queries the kernel.
    ///
    /// # Errors
    /// The kernel's error: usually that the program does not exist any more.
    pub fn query(id: u32) -> io::Result<Self> {
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
        Ok(Self { id, name: name.to_string_lossy().into_owned(), maps: maps[..count].to_vec() })
    }

    /// The program's map of this name.
    pub fn map(&self, name: &str) -> Option<MapHandle> {
        let mut maps = self.maps.iter().filter_map(|id| MapHandle::from_map_id(*id).ok());
        maps.find(|map| map.name() == name)
    }
}
