//! A TAP interface: creating it, setting MAC address and MTU, bringing it up; and its descriptors.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::error::TapError;

const DEVICE: &str = "/dev/net/tun";

/// A request about one interface. The name may be a pattern (`bm%d`) until the kernel has chosen.
pub(crate) struct Interface {
    request: libc::ifreq,
    /// Any socket works for ioctls.
    socket: OwnedFd,
}

// SAFETY: the request may hold a pointer by its type, and never does: no request below uses one.
unsafe impl Send for Interface {}

impl Interface {
    pub(crate) fn new(name: &str) -> Result<Self, TapError> {
        // SAFETY: an `ifreq` of zeroes is valid: numbers, bytes and null pointers.
        let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
        if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains(['/', '\0', ' ']) {
            return Err(TapError::Name { name: name.into() });
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            return Err(TapError::System { name: name.into(), step: "opening a query socket", error });
        }
        // SAFETY: the descriptor is fresh and owned by nobody else.
        Ok(Self { request, socket: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    pub(crate) fn name(&self) -> String {
        let name = self.request.ifr_name.iter().map(|&c| c as u8).take_while(|&c| c != 0);
        String::from_utf8_lossy(&name.collect::<Vec<_>>()).into_owned()
    }

    /// Opens one queue, and creates the interface if needed.
    pub(crate) fn open_queue(&mut self) -> Result<File, TapError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open(DEVICE).map_err(|error| not_opened(self.name(), error))?;
        let flags = libc::IFF_TAP | libc::IFF_NO_PI;
        let made = match self.set_flags(&file, flags | libc::IFF_MULTI_QUEUE) {
            // It may exist already, with a single queue.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => self.set_flags(&file, flags),
            made => made,
        };
        made.map(|()| file).map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => TapError::Permission { name: self.name(), error },
            Some(libc::EBUSY | libc::EINVAL | libc::EEXIST) => TapError::Taken { name: self.name(), error },
            _ => TapError::System { name: self.name(), step: "open a queue", error },
        })
    }

    fn set_flags(&mut self, file: &File, flags: libc::c_int) -> io::Result<()> {
        self.request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: the request reads and writes one `ifreq`, which outlives the call.
        check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &mut self.request) })
    }

    pub(crate) fn mac(&self) -> Result<[u8; 6], TapError> {
        // SAFETY: the kernel has written this field of the union.
        let address =
            unsafe { self.ask(libc::SIOCGIFHWADDR, "reading its MAC address")?.ifr_ifru.ifru_hwaddr };
        Ok(std::array::from_fn(|i| address.sa_data[i] as u8))
    }

    pub(crate) fn set_mac(&mut self, mac: [u8; 6]) -> Result<(), TapError> {
        let mut address = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: [0; 14] };
        for (to, from) in address.sa_data.iter_mut().zip(mac) {
            *to = from as libc::c_char;
        }
        self.request.ifr_ifru.ifru_hwaddr = address;
        self.ask(libc::SIOCSIFHWADDR, "setting its MAC address").map(drop)
    }

    pub(crate) fn mtu(&self) -> Result<usize, TapError> {
        // SAFETY: the kernel has written this field of the union.
        Ok(unsafe { self.ask(libc::SIOCGIFMTU, "reading its MTU")?.ifr_ifru.ifru_mtu } as usize)
    }

    pub(crate) fn set_mtu(&mut self, mtu: usize) -> Result<(), TapError> {
        self.request.ifr_ifru.ifru_mtu = mtu as libc::c_int;
        self.ask(libc::SIOCSIFMTU, "setting its MTU").map(drop)
    }

    pub(crate) fn index(&self) -> Result<u32, TapError> {
        // SAFETY: the kernel has written this field of the union.
        Ok(unsafe { self.ask(libc::SIOCGIFINDEX, "reading its index")?.ifr_ifru.ifru_ifindex } as u32)
    }

    pub(crate) fn set_up(&mut self) -> Result<(), TapError> {
        // SAFETY: the kernel has written this field of the union.
        let flags = unsafe { self.ask(libc::SIOCGIFFLAGS, "reading its flags")?.ifr_ifru.ifru_flags };
        self.request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
        self.ask(libc::SIOCSIFFLAGS, "bringing it up").map(drop)
    }

    fn ask(&self, code: libc::c_ulong, step: &'static str) -> Result<libc::ifreq, TapError> {
        let mut request = self.request;
        // SAFETY: these codes read and write one `ifreq`, which outlives the call.
        let done = check(unsafe { libc::ioctl(self.socket.as_raw_fd(), code as _, &mut request) });
        done.map(|()| request).map_err(|error| TapError::System { name: self.name(), step, error })
    }
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
pub(crate) fn hold(queue: &File) -> Result<Option<OwnedFd>, TapError> {
    let failed = |error| TapError::System { name: "TAP".into(), step: "keeping it open", error };
    // SAFETY: numbers and bytes, for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: the request is written to, and outlives the call.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNGETIFF as _, &mut request) }).map_err(failed)?;
    // SAFETY: the kernel has written this field of the union.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    if libc::c_int::from(flags) & libc::IFF_MULTI_QUEUE == 0 {
        return Ok(None);
    }
    queue.try_clone().map(|queue| Some(queue.into())).map_err(failed)
}

/// Turns the carrier of a queue's interface on or off.
pub(crate) fn set_carrier(queue: &File, up: bool) -> io::Result<()> {
    let carrier = libc::c_int::from(up);
    // SAFETY: the request reads one number, which outlives the call.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETCARRIER as _, &carrier) })
}

/// Whether an error on a queue shows that its interface is deleted.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBADFD)
}

/// A file that never becomes readable.
pub(crate) fn silent() -> io::Result<File> {
    // SAFETY: passes numbers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    check(fd)?;
    // SAFETY: the descriptor is fresh and owned by nobody else.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_driver_is_told_from_other_trouble() {
        let said = |code| not_opened("tap0".into(), io::Error::from_raw_os_error(code)).to_string();
        for code in [libc::ENOENT, libc::ENODEV, libc::ENXIO] {
            assert!(said(code).ends_with("load the driver with: modprobe tun"), "{}", said(code));
        }
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            let said = said(code);
            assert!(
                said.starts_with("TAP interface tap0: opening /dev/net/tun: ") && !said.contains("modprobe")
            );
        }
        assert!(said(libc::EACCES).contains("run as root"));
    }
}
