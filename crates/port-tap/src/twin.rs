//! The TAP interface that stands in Linux for a port that the kernel does not know.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use bm_port::HostPort;

use crate::error::TapError;
use crate::interface::Interface;

/// The TAP twin of a port: has its MAC and MTU, and goes with the process.
pub struct Twin {
    interface: Interface,
    file: File,
}

impl Twin {
    /// Makes the interface `name` with the port's MAC and MTU, and sets it up.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn new(name: &str, mac: [u8; 6], mtu: usize) -> Result<Self, TapError> {
        let mut interface = Interface::new(name)?;
        let file = interface.open_queue()?;
        interface.set_mac(mac)?;
        interface.set_mtu(mtu)?;
        interface.set_up()?;
        Ok(Self { interface, file })
    }

    /// The interface's name.
    pub fn name(&self) -> String {
        self.interface.name()
    }

    /// The interface's index.
    ///
    /// # Errors
    /// [`TapError::System`] if the interface is gone.
    pub fn index(&self) -> Result<u32, TapError> {
        self.interface.index()
    }
}

impl HostPort for Twin {
    fn deliver(&mut self, packet: &[u8]) -> io::Result<()> {
        self.file.write(packet).map(drop)
    }

    /// A packet larger than `buffer` comes cut: give it at least the MTU and 22 bytes for the header.
    fn collect<'a>(&mut self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        match self.file.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            read => read.map(|length| Some(&buffer[..length])),
        }
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}
