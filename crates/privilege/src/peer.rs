//! The groups of the process at the other end of a Unix socket (SO_PEERGROUPS).

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// `SO_PEERGROUPS` of `<asm-generic/socket.h>`.
const PEER_GROUPS: libc::c_int = 59;

/// Supplementary groups that the connected process had when it connected.
///
/// # Errors
/// The error of the system call.
pub fn groups_of(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: the buffer is as long as said and outlives the call, which writes its length back.
        let done = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                PEER_GROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if done == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

/// ID of a group, given by name or number; `None` if there is no such group.
///
/// # Errors
/// If the system's list of groups cannot be read.
pub fn group(name: &str) -> io::Result<Option<u32>> {
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    let name = CString::new(name).map_err(io::Error::other)?;
    let mut room = vec![0 as libc::c_char; 1 << 16];
    let mut entry = MaybeUninit::<libc::group>::uninit();
    let mut found = std::ptr::null_mut();
    // SAFETY: name, entry, room and result are as long as said and outlive the call.
    let error = unsafe {
        libc::getgrnam_r(name.as_ptr(), entry.as_mut_ptr(), room.as_mut_ptr(), room.len(), &raw mut found)
    };
    match error {
        0 if found.is_null() => Ok(None),
        // SAFETY: it is not null, so the call has filled in `entry`, to which it points.
        0 => Ok(Some(unsafe { (*found).gr_gid })),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn groups_are_those_of_the_process_at_the_other_end() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        let own: Vec<u32> = own.split_whitespace().map(|group| group.parse().unwrap()).collect();
        assert_eq!(groups_of(&one).unwrap(), own);
    }

    #[test]
    fn a_group_is_found_by_name_and_by_number() {
        assert_eq!(group("root").unwrap(), Some(0));
        assert_eq!(group("4711").unwrap(), Some(4711));
        assert_eq!(group("no-such-group").unwrap(), None);
    }
}
