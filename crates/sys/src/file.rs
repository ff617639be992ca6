//! Files in memory, and allocation of a file's pages.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

/// A nameless file in memory that can grow and cannot be shortened. `name` shows in /proc.
///
/// # Errors
/// What `memfd_create` or `fcntl` say.
pub fn memfd(name: &CStr) -> io::Result<OwnedFd> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
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
