//! Ethtool ioctls.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `SIOCETHTOOL`.
const ETHTOOL: libc::c_ulong = 0x8946;
/// `ETHTOOL_GDRVINFO` of `<linux/ethtool.h>`.
const GET_DRIVER: u32 = 3;

/// `ETHTOOL_GSTATS`.
const GET_STATISTICS: u32 = 0x1d;
/// The number of statistics there is room for; a veth has fewer than twenty per queue.
const STATISTICS: usize = 4096;

/// `struct ethtool_drvinfo`. Not shared: the kernel fills it in during a system call.
#[repr(C)]
pub struct Driver {
    command: u32,
    name: [u8; 32],
    others: [[u8; 32]; 4],
    reserved: [u8; 12],
    private_flags: u32,
    statistics: u32,
    sizes: [u32; 3],
}

impl Driver {
    /// Its name, such as `veth`.
    pub fn name(&self) -> String {
        let name = CStr::from_bytes_until_nul(&self.name).unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}

/// The driver of an interface; `None` if it is unknown.
pub fn driver(interface: &str) -> Option<Driver> {
    let mut driver = Driver {
        command: GET_DRIVER,
        name: [0; 32],
        others: [[0; 32]; 4],
        reserved: [0; 12],
        private_flags: 0,
        statistics: 0,
        sizes: [0; 3],
    };
    // SAFETY: `Driver` has the layout and the size of what the command fills in.
    unsafe { ask(interface, &mut driver) }.ok().map(|()| driver)
}

/// `struct ethtool_stats` with room. Not shared: the kernel fills it in during a system call.
#[repr(C)]
struct Statistics {
    command: u32,
    count: u32,
    of: [u64; STATISTICS],
}

/// The index of a veth's other end in the network namespace of that end; `None` if this is not a veth.
///
/// It is the first of a veth's statistics. Sysfs would show the interfaces of the namespace that mounted it instead.
pub fn veth_peer(interface: &str) -> Option<u32> {
    let driver = driver(interface).filter(|driver| driver.name() == "veth")?;
    if driver.statistics == 0 || driver.statistics as usize > STATISTICS {
        return None;
    }
    let count = driver.statistics;
    let mut statistics = Box::new(Statistics { command: GET_STATISTICS, count, of: [0; STATISTICS] });
    // SAFETY: it has room for as many statistics as the driver just said it has.
    unsafe { ask(interface, &mut *statistics) }.ok()?;
    u32::try_from(statistics.of[0]).ok().filter(|number| *number != 0)
}

/// Runs an ethtool command on an interface.
///
/// # Errors
/// What the kernel said: no such interface, or a driver that does not know the command.
///
/// # Safety
/// `value` starts with an ethtool command, and is the structure that belongs to it.
pub unsafe fn ask<T>(interface: &str, value: &mut T) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is fresh and owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: an `ifreq` of zeroes is valid: numbers, bytes and null pointers.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(value).cast();
    // SAFETY: the code reads an `ifreq` whose data points to a structure that outlives the call, and is the one that
    // the command wants, as the caller promises.
    match unsafe { libc::ioctl(socket.as_raw_fd(), ETHTOOL as _, &mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
