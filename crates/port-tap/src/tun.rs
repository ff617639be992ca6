//! A TUN interface that exists already: packets without a link header, and not a port.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use bm_sys::tap;

use crate::error::TapError;
use crate::interface::{is_gone, open_device};

/// The queue of a TUN interface. While it is open, the interface has carrier.
pub struct Tun(File);

impl Tun {
    /// Opens the queue of an interface that exists; `None` if that is no TUN interface.
    ///
    /// # Errors
    /// [`TapError::Taken`] if another program has it open; see [`TapError`].
    pub fn open(name: &str) -> Result<Option<Self>, TapError> {
        let file = open_device(name)?;
        let attached = match tap::attach_tun(&file, name, false) {
            // It may have several queues.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => tap::attach_tun(&file, name, true),
            attached => attached,
        };
        let name = name.to_owned();
        match attached.map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => Ok(Some(Self(file))),
            Err((Some(libc::EINVAL), _)) => Ok(None),
            Err((Some(libc::EBUSY), error)) => Err(TapError::Taken { name, error }),
            Err((Some(libc::EPERM), error)) => Err(TapError::Permission { name, error }),
            Err((_, error)) => Err(TapError::System { name, step: "open a queue", error }),
        }
    }

    /// Gives Linux a packet, as received on the interface.
    ///
    /// # Errors
    /// The system's error; the packet is lost.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        match (&self.0).write(packet)? {
            length if length < packet.len() => Err(io::ErrorKind::WriteZero.into()),
            _ => Ok(()),
        }
    }

    /// The next packet that Linux sends there: its length. A packet larger than `buffer` is truncated.
    ///
    /// # Errors
    /// The system's error, after which nothing more comes: the interface was deleted.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.0).read(buffer) {
            Err(error) if is_gone(&error) => Err(error),
            // There is none, or it cannot be read: the next one may be.
            Err(_) => Ok(None),
            Ok(length) => Ok(Some(length).filter(|length| *length > 0)),
        }
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
