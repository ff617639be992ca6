//! The TAP interface that stands in Linux for a port that the kernel does not know.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bm_port::HostPort;

use crate::error::TapError;
use crate::interface::{self, Interface, is_gone};

/// The TAP twin of a port: has its MAC and MTU, and goes with the process.
pub struct Twin {
    interface: Interface,
    file: File,
    /// The interface was deleted, for good: its descriptor is always ready and never gives anything.
    gone: bool,
}

impl Twin {
    /// Makes the interface `name` with the port's MAC and MTU, and sets it up.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn new(name: &str, mac: [u8; 6], mtu: usize) -> Result<Self, TapError> {
        let mut interface = Interface::new(name)?;
        let file = interface.open_queue()?;
        // The kernel forgets neighbours with every MAC that it is given, also one that the interface has.
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

    /// What keeps the interface in Linux, with its addresses and routes, though the twin goes; another twin of the
    /// name then takes it over. `None` where somebody else does.
    ///
    /// # Errors
    /// [`TapError::System`] if there are no descriptors left.
    pub fn hold(&self) -> Result<Option<OwnedFd>, TapError> {
        interface::hold(&self.file)
    }

    /// The interface's index.
    ///
    /// # Errors
    /// [`TapError::System`] if the interface is gone.
    pub fn index(&self) -> Result<u32, TapError> {
        self.interface.index()
    }
}

/// What tends a twin while the slow path holds it: Linux may change its MAC and MTU, the port its carrier.
pub struct TwinHandle {
    interface: Interface,
    file: File,
}

impl Twin {
    /// A second hold on the interface.
    ///
    /// # Errors
    /// [`TapError::System`] if there are no descriptors left.
    pub fn handle(&self) -> Result<TwinHandle, TapError> {
        let name = self.name();
        let file = self.file.try_clone();
        let file =
            file.map_err(|error| TapError::System { name: name.clone(), step: "keeping it open", error })?;
        Ok(TwinHandle { interface: Interface::new(&name)?, file })
    }
}

impl TwinHandle {
    /// The interface's MAC, as Linux has it now.
    ///
    /// # Errors
    /// [`TapError::System`] if the interface is gone.
    pub fn mac(&self) -> Result<[u8; 6], TapError> {
        self.interface.mac()
    }

    /// The interface's MTU in bytes, as Linux has it now.
    ///
    /// # Errors
    /// [`TapError::System`] if the interface is gone.
    pub fn mtu(&self) -> Result<usize, TapError> {
        self.interface.mtu()
    }

    /// Gives the interface another MTU.
    ///
    /// # Errors
    /// [`TapError::System`] if Linux refuses.
    pub fn set_mtu(&mut self, mtu: usize) -> Result<(), TapError> {
        self.interface.set_mtu(mtu)
    }

    /// Gives the interface another MAC.
    ///
    /// # Errors
    /// [`TapError::System`] if Linux refuses.
    pub fn set_mac(&mut self, mac: [u8; 6]) -> Result<(), TapError> {
        self.interface.set_mac(mac)
    }

    /// Whether the port has a link: without, Linux sends nothing there and takes its routes away.
    ///
    /// # Errors
    /// [`TapError::System`] if the kernel cannot (before 5.0).
    pub fn set_carrier(&self, up: bool) -> Result<(), TapError> {
        interface::set_carrier(&self.file, up).map_err(|error| TapError::System {
            name: self.interface.name(),
            step: "setting its carrier",
            error,
        })
    }
}

impl HostPort for Twin {
    fn deliver(&mut self, packet: &[u8]) -> io::Result<()> {
        self.file.write(packet).map(drop)
    }

    /// A packet larger than `buffer` comes cut: give it at least the MTU and 22 bytes for the header. Once the
    /// interface is deleted there is an error, and from then on nothing.
    fn collect<'a>(&mut self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        if self.gone {
            return Ok(None);
        }
        match self.file.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
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

    /// Nothing once the interface is gone.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        (!self.gone).then(|| self.file.as_fd())
    }
}
