//! Files in memory, allocation of a file's pages, and reading files that may be something else.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

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

/// Opens a regular file for reading; anything else is an error. Never waits, as opening a FIFO would.
///
/// # Errors
/// The system's error, or that it is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(file)
}

/// Reads an open file of at most so many bytes.
///
/// # Errors
/// The system's error, or that it is longer.
pub fn read_up_to(file: &File, bytes: u64) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    file.take(bytes + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > bytes {
        return Err(io::Error::other(format!("longer than {bytes} bytes")));
    }
    Ok(contents)
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
