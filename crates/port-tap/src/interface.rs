//! A TAP interface: creating it, setting MAC address and MTU, bringing it up; and its descriptors.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

use bm_sys::{Flag, Interfaces, tap};

use crate::error::TapError;

const DEVICE: &str = "/dev/net/tun";

/// One interface. The name may be a pattern (`bm%d`) until the kernel has chosen.
pub(crate) struct Interface {
    name: String,
    interfaces: Interfaces,
}

impl Interface {
    pub(crate) fn new(name: &str) -> Result<Self, TapError> {
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains(['/', '\0', ' ']) {
            return Err(TapError::Name { name: name.into() });
        }
        match Interfaces::open() {
            Ok(interfaces) => Ok(Self { name: name.into(), interfaces }),
            Err(error) => Err(TapError::System { name: name.into(), step: "opening a query socket", error }),
        }
    }

    pub(crate) fn name(&self) -> String {
        self.name.clone()
    }

    /// Opens one queue, and creates the interface if needed.
    pub(crate) fn open_queue(&mut self) -> Result<File, TapError> {
        let file = open_device(&self.name)?;
        let chosen = match tap::attach(&file, &self.name, true) {
            // It may exist already, with a single queue.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => tap::attach(&file, &self.name, false),
            chosen => chosen,
        };
        self.name = chosen.map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => TapError::Permission { name: self.name(), error },
            Some(libc::EBUSY | libc::EINVAL | libc::EEXIST) => TapError::Taken { name: self.name(), error },
            _ => TapError::System { name: self.name(), step: "open a queue", error },
        })?;
        Ok(file)
    }

    pub(crate) fn mac(&self) -> Result<[u8; 6], TapError> {
        self.interfaces.mac(&self.name).map_err(self.failed("reading its MAC address"))
    }

    pub(crate) fn set_mac(&mut self, mac: [u8; 6]) -> Result<(), TapError> {
        self.interfaces.set_mac(&self.name, mac).map_err(self.failed("setting its MAC address"))
    }

    pub(crate) fn mtu(&self) -> Result<usize, TapError> {
        let mtu = self.interfaces.mtu(&self.name).map_err(self.failed("reading its MTU"))?;
        Ok(mtu as usize)
    }

    pub(crate) fn set_mtu(&mut self, mtu: usize) -> Result<(), TapError> {
        self.interfaces.set_mtu(&self.name, mtu as u32).map_err(self.failed("setting its MTU"))
    }

    pub(crate) fn index(&self) -> Result<u32, TapError> {
        self.interfaces.index(&self.name).map_err(self.failed("reading its index"))
    }

    pub(crate) fn set_up(&mut self) -> Result<(), TapError> {
        self.interfaces.set_flag(&self.name, Flag::Up, true).map(drop).map_err(self.failed("bringing it up"))
    }

    fn failed(&self, step: &'static str) -> impl Fn(io::Error) -> TapError {
        move |error| TapError::System { name: self.name(), step, error }
    }
}

/// Opens the device that becomes a queue of this interface.
pub(crate) fn open_device(name: &str) -> Result<File, TapError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    options.open(DEVICE).map_err(|error| not_opened(name.into(), error))
}

/// Why the device could not be opened, with the fix.
fn not_opened(name: String, error: io::Error) -> TapError {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => TapError::Permission { name, error },
        // The file does not exist, or has no driver.
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => TapError::NoDriver { error },
        _ => TapError::System { name, step: "opening /dev/net/tun", error },
    }
}

/// Another descriptor of a queue, which keeps its interface alive. `None` if the interface allows no other queue: it
/// was created by another program, and exists without this process.
pub(crate) fn keep_open(queue: &File) -> Result<Option<OwnedFd>, TapError> {
    let failed = |error| TapError::System { name: "TAP".into(), step: "keeping it open", error };
    if !tap::is_multi_queue(queue).map_err(failed)? {
        return Ok(None);
    }
    queue.try_clone().map(|queue| Some(queue.into())).map_err(failed)
}

/// Whether a TAP interface still exists, whatever it is called now and in whichever network namespace it is.
pub struct TapPresence {
    pub(crate) queue: OwnedFd,
    pub(crate) name: String,
}

impl TapPresence {
    /// What is wrong with it, and how to fix that.
    pub fn trouble(&self) -> Option<String> {
        let gone = tap::is_multi_queue(&self.queue).is_err_and(|error| is_gone(&error));
        gone.then(|| {
            let name = &self.name;
            format!("the TAP interface {name} was deleted: restart brickmoon to create it again")
        })
    }
}

/// Whether a call on a queue can be made again: there is nothing to read, no room to write, or it was interrupted.
pub(crate) fn is_try_again(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Whether an error on a queue shows that its interface is deleted.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBADFD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_driver_is_distinguished_from_other_errors() {
        let output = |code| not_opened("tap0".into(), io::Error::from_raw_os_error(code)).to_string();
        for code in [libc::ENOENT, libc::ENODEV, libc::ENXIO] {
            assert!(output(code).ends_with("load the driver with: modprobe tun"), "{}", output(code));
        }
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            let output = output(code);
            assert!(
                output.starts_with("TAP interface tap0: opening /dev/net/tun: ")
                    && !output.contains("modprobe")
            );
        }
        assert!(output(libc::EACCES).contains("run as root"));
    }
}
