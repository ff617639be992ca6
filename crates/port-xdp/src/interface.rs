//! What the kernel says about an interface: index, MAC address, MTU, driver, queues. By ioctl, because that answers
//! for the network namespace of the caller whatever is mounted on `/sys`.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use crate::error::XdpError;

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
/// The card strips VLAN tags from received frames, and stores them where XDP programs cannot see them.
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

/// `struct ethtool_drvinfo`, of which one field is read.
///
/// Shared with the kernel for the length of an ioctl, which gets its address and is opaque to the compiler.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// `struct ethtool_channels`.
///
/// Shared with the kernel for the length of an ioctl, which gets its address and is opaque to the compiler.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    max: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_value`.
///
/// Shared with the kernel for the length of an ioctl, which gets its address and is opaque to the compiler.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// An interface in the network namespace of the thread.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    pub name: String,
    pub index: u32,
    pub mac: [u8; 6],
    pub mtu: usize,
    pub driver: String,
    pub queues: u32,
}

impl Interface {
    pub(crate) fn find(name: &str) -> Result<Self, XdpError> {
        let none = || XdpError::NoInterface { interface: name.into() };
        let asked = |step| move |error| XdpError::System { interface: name.into(), step, error };
        let asker = Asker::new(name).map_err(asked("opening a query socket"))?.ok_or_else(none)?;
        // SAFETY: the request has the answer's field of the union written by the kernel.
        let index = unsafe { asker.get(libc::SIOCGIFINDEX).map_err(|_| none())?.ifr_ifru.ifru_ifindex };
        // SAFETY: as above.
        let mtu = unsafe { asker.get(libc::SIOCGIFMTU).map_err(asked("reading its MTU"))?.ifr_ifru.ifru_mtu };
        // SAFETY: as above.
        let address = unsafe {
            asker.get(libc::SIOCGIFHWADDR).map_err(asked("reading its MAC address"))?.ifr_ifru.ifru_hwaddr
        };
        let mac = std::array::from_fn(|i| address.sa_data[i] as u8);
        Ok(Self {
            name: name.into(),
            index: index as u32,
            mac,
            mtu: mtu as usize,
            driver: asker.driver(),
            queues: asker.queues(name, index as u32, mac),
        })
    }

    /// Tells the card to leave VLAN tags in received frames; returns whether that changed anything.
    pub(crate) fn keep_tags_in_frames(&self, keep: bool) -> io::Result<bool> {
        let Some(asker) = Asker::new(&self.name)? else { return Ok(false) };
        let mut value = Value { command: ETHTOOL_GFLAGS, data: 0 };
        asker.ethtool(&mut value)?;
        let wanted = if keep { value.data & !ETH_FLAG_RXVLAN } else { value.data | ETH_FLAG_RXVLAN };
        if wanted == value.data {
            return Ok(false);
        }
        asker.ethtool(&mut Value { command: ETHTOOL_SFLAGS, data: wanted }).map(|()| true)
    }
}

/// The number of receive queues of an interface; 1 if that is unknown, or there is no such interface.
pub fn queues(interface: &str) -> u32 {
    Interface::find(interface).map_or(1, |interface| interface.queues)
}

/// A socket for queries about one interface.
struct Asker {
    socket: OwnedFd,
    request: libc::ifreq,
}

impl Asker {
    /// `None` if the name is not valid for an interface.
    fn new(name: &str) -> io::Result<Option<Self>> {
        // SAFETY: an `ifreq` of zeroes is valid: numbers, bytes and null pointers.
        let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
        if name.is_empty() || name.len() >= request.ifr_name.len() {
            return Ok(None);
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is fresh and owned by nobody else.
        Ok(Some(Self { socket: unsafe { OwnedFd::from_raw_fd(fd) }, request }))
    }

    fn get(&self, code: libc::c_ulong) -> io::Result<libc::ifreq> {
        let mut request = self.request;
        // SAFETY: these codes read and write one `ifreq`, which outlives the call.
        match unsafe { libc::ioctl(self.socket.as_raw_fd(), code as _, &mut request) } {
            0 => Ok(request),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// `T` must be the structure that belongs to its first field, the command.
    fn ethtool<T>(&self, argument: &mut T) -> io::Result<()> {
        let mut request = self.request;
        request.ifr_ifru.ifru_data = std::ptr::from_mut(argument).cast();
        // SAFETY: the kernel reads the command, then reads and writes the structure of that command, which
        // the callers below pass whole; it outlives the call.
        match unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Empty if there is none.
    fn driver(&self) -> String {
        let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
        if self.ethtool(&mut info).is_err() {
            return String::new();
        }
        let end = info.driver.iter().position(|&byte| byte == 0).unwrap_or(info.driver.len());
        String::from_utf8_lossy(&info.driver[..end]).into_owned()
    }

    /// The number of receive queues: from the driver, else from `/sys`, else one.
    fn queues(&self, name: &str, index: u32, mac: [u8; 6]) -> u32 {
        let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
        if self.ethtool(&mut channels).is_ok() && channels.combined + channels.receive > 0 {
            return channels.combined + channels.receive;
        }
        // It may be mounted for another network namespace, which has another interface of that name.
        let folder = Path::new("/sys/class/net").join(name);
        let said = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
        let [a, b, c, d, e, f] = mac;
        let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        if said("ifindex").trim() != index.to_string() || said("address").trim() != mac {
            return 1;
        }
        let Ok(entries) = fs::read_dir(folder.join("queues")) else { return 1 };
        let receive =
            entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("rx-"));
        (receive.count() as u32).max(1)
    }
}
