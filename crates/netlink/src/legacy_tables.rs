//! Legacy iptables and ip6tables, which nobody announces: whether they are as they were.
//!
//! The kernel gives a table as one block of entries with their counters (`IPT_SO_GET_ENTRIES`). A digest of it, without
//! what packets change in it, is enough to see that somebody has replaced it. A table that is not in use is not asked
//! for, since the kernel would make it.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Of all tables of both families.
pub(crate) type Digest = u64;

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`, the same for both families.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;
/// Bytes of `struct ipt_getinfo`, and where its last number, the size of all entries, is.
const INFO: usize = 84;
const INFO_SIZE: usize = 80;
/// Bytes of a table's name.
const NAME: usize = 32;
/// Where entries begin in `struct ipt_get_entries`: behind name and size, at a multiple of 8.
const ENTRIES: usize = 40;

/// A family of tables.
struct Family {
    /// Lists those in use.
    names: &'static str,
    domain: i32,
    level: i32,
    /// Where an entry says how far it is to the next.
    next: usize,
    /// Where its two counters are.
    counters: usize,
}

const FAMILIES: [Family; 2] = [
    Family {
        names: "/proc/net/ip_tables_names",
        domain: libc::AF_INET,
        level: libc::IPPROTO_IP,
        next: 90,
        counters: 96,
    },
    Family {
        names: "/proc/net/ip6_tables_names",
        domain: libc::AF_INET6,
        level: libc::IPPROTO_IPV6,
        next: 142,
        counters: 152,
    },
];

/// The digest of all tables in use.
pub(crate) fn digest() -> Digest {
    let mut hasher = DefaultHasher::new();
    for family in &FAMILIES {
        for name in fs::read_to_string(family.names).unwrap_or_default().lines() {
            hasher.write(name.as_bytes());
            match entries(family, name) {
                Ok(entries) => hash(family, &entries, &mut hasher),
                // One that has just gone; what cannot be read differs from what could be.
                Err(error) => hasher.write_i32(error.raw_os_error().unwrap_or(-1)),
            }
        }
    }
    hasher.finish()
}

/// All but the counters.
fn hash(family: &Family, mut entries: &[u8], hasher: &mut DefaultHasher) {
    let after = family.counters + 16;
    while let Some(next) = entries.get(family.next..family.next + 2) {
        let length = usize::from(u16::from_ne_bytes([next[0], next[1]]));
        if length < after || length > entries.len() {
            break;
        }
        hasher.write(&entries[..family.counters]);
        hasher.write(&entries[after..length]);
        entries = &entries[length..];
    }
    hasher.write(entries);
}

fn entries(family: &Family, table: &str) -> io::Result<Vec<u8>> {
    // SAFETY: passes numbers.
    let socket =
        unsafe { libc::socket(family.domain, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just opened, and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let mut info = vec![0; INFO];
    let length = table.len().min(NAME - 1);
    info[..length].copy_from_slice(&table.as_bytes()[..length]);
    option(&socket, family.level, GET_INFO, &mut info)?;
    let size = info[INFO_SIZE..].first_chunk().map_or(0, |size| u32::from_ne_bytes(*size));
    let mut block = vec![0; ENTRIES + size as usize];
    block[..NAME].copy_from_slice(&info[..NAME]);
    block[NAME..NAME + 4].copy_from_slice(&size.to_ne_bytes());
    // Refused if the table was replaced in between: then it differs in any case.
    option(&socket, family.level, GET_ENTRIES, &mut block)?;
    block.drain(..ENTRIES);
    Ok(block)
}

fn option(socket: &OwnedFd, level: i32, name: i32, value: &mut [u8]) -> io::Result<()> {
    let mut length = value.len() as libc::socklen_t;
    // SAFETY: the kernel writes no more than `length` bytes of `value`, which it has.
    let failed =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &mut length) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_alone_are_no_change() {
        let family = &FAMILIES[0];
        let digest = |entries: &[u8]| {
            let mut hasher = DefaultHasher::new();
            hash(family, entries, &mut hasher);
            hasher.finish()
        };
        let mut entries = vec![0; 2 * 152];
        for at in [0, 152] {
            entries[at + 90..at + 92].copy_from_slice(&152u16.to_ne_bytes());
        }
        let before = digest(&entries);
        entries[152 + 100] = 1;
        assert_eq!(digest(&entries), before, "a counter");
        entries[152 + 120] = 1;
        assert_ne!(digest(&entries), before, "a target");
    }
}
