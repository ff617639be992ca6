//! Files in memory, and allocation of a file's pages.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A nameless file in memory that can grow and cannot be shortened. `name` shows in /proc.
///
/// # Errors
/// What `memfd_create` or `fcntl` say.
pub fn memfd(name: &CStr) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a string that ends in zero, and the call only makes a new file.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call gave us the file, and nobody else has its number.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a seal on a file of our own; no memory is touched.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// Makes the file system allocate the pages of a file now. If it is full, that gives an error here instead of a SIGBUS
/// at a later store to a mapping.
///
/// # Errors
/// The error of `posix_fallocate`.
pub fn allocate(file: &File, bytes: usize) -> io::Result<()> {
    // SAFETY: takes numbers.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
