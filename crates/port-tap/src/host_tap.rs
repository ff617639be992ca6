//! The TAP interface that represents a port in Linux that the kernel does not know.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bm_port::HostPort;

use crate::error::TapError;
use crate::interface::{self, Interface, is_gone, is_try_again};

/// The host TAP of a port: it has the port's MAC address and MTU, and is deleted with the process.
pub struct HostTap {
    interface: Interface,
    file: File,
    /// The interface was deleted: its descriptor is always ready, but never has data.
    gone: bool,
}

impl HostTap {
    /// Creates the interface `name` with the port's MAC address and MTU, and brings it up.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn new(name: &str, mac: [u8; 6], mtu: usize) -> Result<Self, TapError> {
        let mut interface = Interface::new(name)?;
        let file = interface.open_queue()?;
        // The kernel flushes neighbors each time a MAC address is set, even the same one.
        if interface.mac()? != mac {
            interface.set_mac(mac)?;
        }
        interface.set_mtu(mtu)?;
        interface.set_up()?;
        Ok(Self { interface, file, gone: false })
    }

    /// The interface's name.
    pub fn name(&self) -> String {
        self.interface.name()
    }

    /// A descriptor that keeps the interface in Linux, with its addresses and routes, when the host TAP is dropped;
    /// another host TAP of that name then takes it over. `None` if it stays anyway.
    ///
    /// # Errors
    /// [`TapError::System`] if there are no descriptors left.
    pub fn keep_open(&self) -> Result<Option<OwnedFd>, TapError> {
        interface::keep_open(&self.file)
    }

    /// The interface's index.
    ///
    /// # Errors
    /// [`TapError::System`] if the interface is gone.
    pub fn index(&self) -> Result<u32, TapError> {
        self.interface.index()
    }
}

/// Changes a host TAP while the slow path uses it: Linux may change its MAC address and MTU, the port its carrier.
pub struct HostTapHandle {
    interface: Interface,
    file: File,
}

impl HostTap {
    /// Another descriptor of the interface.
    ///
    /// # Errors
    /// [`TapError::System`] if there are no descriptors left.
    pub fn handle(&self) -> Result<HostTapHandle, TapError> {
        let name = self.name();
        let file = self.file.try_clone();
        let file =
            file.map_err(|error| TapError::System { name: name.clone(), step: "keeping it open", error })?;
        Ok(HostTapHandle { interface: Interface::new(&name)?, file })
    }
}

impl HostTapHandle {
    /// The interface's current MAC address.
    ///
    /// # Errors
    /// [`TapError::System`] if the interface is gone.
    pub fn mac(&self) -> Result<[u8; 6], TapError> {
        self.interface.mac()
    }

    /// The interface's current MTU in bytes.
    ///
    /// # Errors
    /// [`TapError::System`] if the interface is gone.
    pub fn mtu(&self) -> Result<usize, TapError> {
        self.interface.mtu()
    }

    /// Sets the interface's MTU.
    ///
    /// # Errors
    /// [`TapError::System`] if Linux refuses.
    pub fn set_mtu(&mut self, mtu: usize) -> Result<(), TapError> {
        self.interface.set_mtu(mtu)
    }

    /// Sets the interface's MAC address.
    ///
    /// # Errors
    /// [`TapError::System`] if Linux refuses.
    pub fn set_mac(&mut self, mac: [u8; 6]) -> Result<(), TapError> {
        self.interface.set_mac(mac)
    }

    /// Sets the carrier: without it, Linux sends nothing there and removes the interface's routes.
    ///
    /// # Errors
    /// [`TapError::System`] if the kernel does not support it (before 5.0).
    pub fn set_carrier(&self, up: bool) -> Result<(), TapError> {
        bm_sys::tap::set_carrier(&self.file, up).map_err(|error| TapError::System {
            name: self.interface.name(),
            step: "setting its carrier",
            error,
        })
    }
}

impl HostPort for HostTap {
    fn deliver(&mut self, packet: &[u8]) -> io::Result<()> {
        match self.file.write(packet)? {
            length if length < packet.len() => Err(io::ErrorKind::WriteZero.into()),
            _ => Ok(()),
        }
    }

    /// A packet larger than `buffer` is truncated: the buffer should have the MTU and 22 bytes for the header. After
    /// the interface is deleted there is one error, and nothing from then on.
    fn collect<'a>(&mut self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        if self.gone {
            return Ok(None);
        }
        match self.file.read(buffer) {
            Err(error) if is_try_again(&error) => Ok(None),
            Err(error) if is_gone(&error) => {
                self.gone = true;
                tracing::error!(
                    "the interface {} was deleted: Linux is no longer connected to its port; restart brickmoon to create it again",
                    self.name()
                );
                Err(error)
            }
            read => read.map(|length| Some(&buffer[..length])),
        }
    }

    /// `None` once the interface is deleted.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        (!self.gone).then(|| self.file.as_fd())
    }
}
