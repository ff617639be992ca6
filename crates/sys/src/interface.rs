//! Interfaces of a network namespace: numbers, names, MTU, MAC, flags.
//!
//! With ioctls, which refer to the network namespace of the socket: that of the thread that opened it. Files in
//! `/sys/class/net` show the namespace in which `/sys` was mounted, which may be another one.

use std::ffi::{CStr, c_int, c_short, c_ulong, c_void};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

/// The number of a request, and the type of what its `struct ifreq` holds behind the name: netdevice(7).
pub(crate) struct Code<T>(c_ulong, PhantomData<T>);

impl<T> Code<T> {
    /// A request that reads and writes one `struct ifreq`, in which it finds a `T`.
    pub(crate) const fn new(number: c_ulong) -> Self {
        Self(number, PhantomData)
    }
}

const GET_MTU: Code<c_int> = Code::new(libc::SIOCGIFMTU);
const SET_MTU: Code<c_int> = Code::new(libc::SIOCSIFMTU);
const GET_FLAGS: Code<c_short> = Code::new(libc::SIOCGIFFLAGS);
const SET_FLAGS: Code<c_short> = Code::new(libc::SIOCSIFFLAGS);
const GET_ADDRESS: Code<libc::sockaddr> = Code::new(libc::SIOCGIFHWADDR);
const SET_ADDRESS: Code<libc::sockaddr> = Code::new(libc::SIOCSIFHWADDR);
/// Only with a pointer to a [`Command`].
const ETHTOOL: Code<*mut c_void> = Code::new(libc::SIOCETHTOOL);

/// `struct ifreq`, with room behind it, since the kernel copies the whole whatever it holds.
///
/// Shared with the kernel for the length of an ioctl, which gets its address and is opaque to the compiler.
#[repr(C)]
pub(crate) struct Request<T> {
    name: [u8; libc::IFNAMSIZ],
    pub(crate) value: T,
    room: [u8; 24],
}

impl<T> Request<T> {
    /// A request about an interface. A name that no interface can have gives the kernel's error for an unknown one.
    pub(crate) fn new(name: &str, value: T) -> io::Result<Self> {
        let mut padded = [0; libc::IFNAMSIZ];
        if name.is_empty() || name.len() >= padded.len() || name.contains('\0') {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        padded[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Self { name: padded, value, room: [0; 24] })
    }

    /// The interface's name, which the kernel may have chosen.
    pub(crate) fn name(&self) -> String {
        let end = self.name.iter().position(|&byte| byte == 0).unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..end]).into_owned()
    }
}

/// Carries out a request.
pub(crate) fn ioctl<T>(file: &impl AsFd, code: Code<T>, request: &mut Request<T>) -> io::Result<()> {
    // SAFETY: the kernel reads and writes one `struct ifreq` (`Code`), for which `Request` has room. Where that holds a
    // pointer, it leads to a `Command`, which knows what the kernel reads and writes there. Both outlive the call.
    match unsafe { libc::ioctl(file.as_fd().as_raw_fd(), code.0 as _, std::ptr::from_mut(request)) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What an ethtool command reads and writes.
///
/// # Safety
/// The type is `#[repr(C)]` and holds numbers alone. It begins with the number of a command, which its constructors set,
/// and is the structure that goes with that command, as long as the kernel takes it to be.
pub(crate) unsafe trait Command {}

/// The hardware address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HardwareAddress {
    /// What kind of address it is (`ARPHRD_*`); 1 is Ethernet.
    pub kind: u16,
    /// Its first six bytes: the MAC of an Ethernet interface.
    pub mac: [u8; 6],
}

/// Flags of an interface that can be set and cleared (`IFF_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// It is administratively up.
    Up,
    /// It is up and has a carrier.
    Running,
    /// It receives frames for all MAC addresses.
    Promiscuous,
}

impl Flag {
    fn bit(self) -> c_short {
        let bit = match self {
            Self::Up => libc::IFF_UP,
            Self::Running => libc::IFF_RUNNING,
            Self::Promiscuous => libc::IFF_PROMISC,
        };
        bit as c_short
    }
}

/// Queries and changes interfaces of one network namespace, by name.
#[derive(Debug)]
pub struct Interfaces(OwnedFd);

impl Interfaces {
    /// For the interfaces of this thread's network namespace.
    ///
    /// # Errors
    /// The error of `socket`.
    pub fn open() -> io::Result<Self> {
        Ok(Self(socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?))
    }

    fn request<T>(&self, code: Code<T>, name: &str, value: T) -> io::Result<T> {
        let mut request = Request::new(name, value)?;
        ioctl(&self.0, code, &mut request)?;
        Ok(request.value)
    }

    /// Makes the driver carry out an ethtool command.
    pub(crate) fn ethtool<T: Command>(&self, name: &str, argument: &mut T) -> io::Result<()> {
        self.request(ETHTOOL, name, std::ptr::from_mut(argument).cast()).map(drop)
    }

    /// The index of an interface.
    ///
    /// # Errors
    /// The kernel's error: usually that there is no interface of that name.
    pub fn index(&self, name: &str) -> io::Result<u32> {
        Ok(netdevice::name_to_index(&self.0, name)?)
    }

    /// The MTU in bytes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn mtu(&self, name: &str) -> io::Result<u32> {
        self.request(GET_MTU, name, 0).map(c_int::cast_unsigned)
    }

    /// Changes the MTU.
    ///
    /// # Errors
    /// The kernel's error: usually that the driver does not support such an MTU.
    pub fn set_mtu(&self, name: &str, bytes: u32) -> io::Result<()> {
        self.request(SET_MTU, name, bytes.cast_signed()).map(drop)
    }

    /// The hardware address.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn hardware_address(&self, name: &str) -> io::Result<HardwareAddress> {
        let address = self.request(GET_ADDRESS, name, libc::sockaddr { sa_family: 0, sa_data: [0; 14] })?;
        let mac = std::array::from_fn(|at| address.sa_data[at] as u8);
        Ok(HardwareAddress { kind: address.sa_family, mac })
    }

    /// The MAC of an Ethernet interface.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn mac(&self, name: &str) -> io::Result<[u8; 6]> {
        self.hardware_address(name).map(|address| address.mac)
    }

    /// Changes the MAC of an Ethernet interface.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_mac(&self, name: &str, mac: [u8; 6]) -> io::Result<()> {
        let mut address = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: [0; 14] };
        for (to, from) in address.sa_data.iter_mut().zip(mac) {
            *to = from as libc::c_char;
        }
        self.request(SET_ADDRESS, name, address).map(drop)
    }

    /// Whether a flag is set.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn flag(&self, name: &str, flag: Flag) -> io::Result<bool> {
        Ok(self.request(GET_FLAGS, name, 0)? & flag.bit() != 0)
    }

    /// Sets a flag or clears it; whether that changed anything.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_flag(&self, name: &str, flag: Flag, on: bool) -> io::Result<bool> {
        let before = self.request(GET_FLAGS, name, 0)?;
        let after = if on { before | flag.bit() } else { before & !flag.bit() };
        if before != after {
            self.request(SET_FLAGS, name, after)?;
        }
        Ok(before != after)
    }
}

/// The index of an interface of this thread's network namespace; `None` if there is no interface of that name.
pub fn index(name: &str) -> Option<u32> {
    Interfaces::open().ok()?.index(name).ok()
}

/// The name of an interface of this thread's network namespace.
///
/// # Errors
/// The kernel's error: usually that the interface does not exist.
pub fn name(index: u32) -> io::Result<String> {
    Ok(netdevice::index_to_name(&Interfaces::open()?.0, index)?)
}

/// Index and name of every interface of this thread's network namespace.
///
/// # Errors
/// The C library's error.
pub fn list() -> io::Result<Vec<(u32, String)>> {
    // SAFETY: takes nothing, and gives an array that is ours until we give it back.
    let Some(all) = NonNull::new(unsafe { libc::if_nameindex() }) else {
        return Err(io::Error::last_os_error());
    };
    let mut found = Vec::new();
    let mut at = all;
    // SAFETY: the array ends with an entry of index 0, behind which nothing is read. Names are strings that end in
    // zero. Nothing of the array is used after it was given back.
    unsafe {
        while at.as_ref().if_index != 0 {
            let name = CStr::from_ptr(at.as_ref().if_name).to_string_lossy().into_owned();
            found.push((at.as_ref().if_index, name));
            at = at.add(1);
        }
        libc::if_freenameindex(all.as_ptr());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ifreq_has_the_kernels_size() {
        let least = size_of::<libc::ifreq>();
        assert!(size_of::<Request<c_short>>() >= least && size_of::<Request<libc::sockaddr>>() >= least);
        assert_eq!(std::mem::offset_of!(Request<*mut c_void>, value), libc::IFNAMSIZ);
    }

    #[test]
    fn the_loopback_is_found_by_index_and_name() {
        let interfaces = Interfaces::open().unwrap();
        assert_eq!(interfaces.index("lo").unwrap(), 1);
        assert_eq!((index("lo"), name(1).unwrap()), (Some(1), "lo".into()));
        assert!(list().unwrap().contains(&(1, "lo".into())));
        assert_eq!(interfaces.hardware_address("lo").unwrap().kind, libc::ARPHRD_LOOPBACK);
        assert_eq!(interfaces.mac("lo").unwrap(), [0; 6]);
        assert!(interfaces.mtu("lo").unwrap() >= 1280);
        assert!(!interfaces.flag("lo", Flag::Promiscuous).unwrap());
    }

    #[test]
    fn an_impossible_name_is_an_unknown_interface() {
        let interfaces = Interfaces::open().unwrap();
        for name in ["", "sixteen-letters-", "l\0", "no-such-one"] {
            let error = interfaces.mtu(name).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{name:?}");
            assert_eq!(index(name), None, "{name:?}");
        }
        assert!(name(u32::MAX >> 1).is_err());
    }
}
