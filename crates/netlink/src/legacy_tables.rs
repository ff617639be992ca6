//! The tables of legacy iptables and ip6tables, as the kernel returns them: one block of entries each, with their
//! counters. A table that does not exist is not queried, since the kernel would create it.

mod digest;

pub(crate) use digest::{Digest, digest};

use crate::error::Error;
use bm_wire::Family;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`, the same for IPv6.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;
/// Bytes of a table's name.
const NAME: usize = 32;
/// `struct ipt_getinfo`: the name, a word of hooks, five start offsets, five end offsets, the number of entries,
/// their size.
const INFO: usize = 84;
/// `struct ipt_get_entries` without the entries, which are aligned to eight bytes.
const BEFORE_ENTRIES: usize = 40;
/// How often a table is read again because its size has changed.
const PASSES: u32 = 5;

/// A table: where its chains begin, and all its entries.
pub struct LegacyTable {
    /// Which hooks it has, as bits.
    pub hooks: u32,
    /// For each hook, where its first rule is.
    pub first: [u32; 5],
    /// For each hook, where its policy is.
    pub policy: [u32; 5],
    pub entries: Vec<u8>,
}

/// The names of the tables that there are.
pub fn names(family: Family) -> Vec<String> {
    let file = match family {
        Family::V4 => "/proc/thread-self/net/ip_tables_names",
        Family::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    // Without the file there is no module that could have tables.
    let names = fs::read_to_string(file).unwrap_or_default();
    names.lines().map(str::to_owned).filter(|name| !name.is_empty() && name.len() < NAME).collect()
}

/// Reads a table.
pub fn read(family: Family, name: &str) -> Result<LegacyTable, Error> {
    let doing = "read a legacy iptables table";
    let socket = socket(family).map_err(|source| Error::System { doing, source })?;
    let mut last = io::Error::from(io::ErrorKind::ResourceBusy);
    for _ in 0..PASSES {
        match read_once(&socket, family, name) {
            Ok(read) => return Ok(read),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => last = error,
            Err(source) => return Err(Error::System { doing, source }),
        }
    }
    Err(Error::System { doing, source: last })
}

fn socket(family: Family) -> io::Result<OwnedFd> {
    let family = match family {
        Family::V4 => AddressFamily::INET,
        Family::V6 => AddressFamily::INET6,
    };
    Ok(socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

fn read_once(socket: &OwnedFd, family: Family, name: &str) -> io::Result<LegacyTable> {
    let mut info = vec![0; INFO];
    info[..name.len()].copy_from_slice(name.as_bytes());
    ask(socket, family, GET_INFO, &mut info)?;
    let size = number(&info, 80);
    let mut entries = vec![0; BEFORE_ENTRIES + size as usize];
    entries[..name.len()].copy_from_slice(name.as_bytes());
    entries[NAME..NAME + 4].copy_from_slice(&size.to_ne_bytes());
    ask(socket, family, GET_ENTRIES, &mut entries)?;
    entries.drain(..BEFORE_ENTRIES);
    let [first, policy] = [36, 56].map(|start| [0, 1, 2, 3, 4].map(|hook| number(&info, start + 4 * hook)));
    Ok(LegacyTable { hooks: number(&info, NAME), first, policy, entries })
}

fn number(info: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]])
}

/// Queries a socket option; `value` contains the query and then the answer.
fn ask(socket: &OwnedFd, family: Family, option: i32, value: &mut [u8]) -> io::Result<()> {
    let level = match family {
        Family::V4 => libc::SOL_IP,
        Family::V6 => libc::SOL_IPV6,
    };
    let mut length = value.len() as libc::socklen_t;
    // SAFETY: `value` is `length` bytes that live for the call, which writes no more than that many.
    let rc = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, value.as_mut_ptr().cast(), &raw mut length)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
