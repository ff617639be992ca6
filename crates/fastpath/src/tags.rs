//! Cards that take VLAN tags out of frames: XDP would see a frame of a VLAN as one without a tag.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `ETHTOOL_GFLAGS`, `ETHTOOL_SFLAGS`, `ETH_FLAG_RXVLAN` of `<linux/ethtool.h>`.
const GET_FLAGS: u32 = 0x25;
const SET_FLAGS: u32 = 0x26;
const RECEIVE_VLAN: u32 = 1 << 8;
/// `SIOCETHTOOL`.
const ETHTOOL: libc::c_ulong = 0x8946;

/// `struct ethtool_value`.
///
/// Shared with the kernel for the length of an ioctl, which gets its address and is opaque to the compiler.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Has a card leave tags in received frames, or take them out; whether that changed anything. Drivers that cannot
/// say so, and then there is nothing to put back.
pub fn keep(interface: &str, keep: bool) -> bool {
    try_keep(interface, keep).unwrap_or(false)
}

fn try_keep(interface: &str, keep: bool) -> io::Result<bool> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is fresh and owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut value = Value { command: GET_FLAGS, data: 0 };
    ask(&socket, interface, &mut value)?;
    let wanted = if keep { value.data & !RECEIVE_VLAN } else { value.data | RECEIVE_VLAN };
    if wanted == value.data {
        return Ok(false);
    }
    ask(&socket, interface, &mut Value { command: SET_FLAGS, data: wanted }).map(|()| true)
}

fn ask(socket: &OwnedFd, interface: &str, value: &mut Value) -> io::Result<()> {
    // SAFETY: an `ifreq` of zeroes is valid: numbers, bytes and null pointers.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(value).cast();
    // SAFETY: the code reads an `ifreq` whose data points to a value that outlives the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), ETHTOOL as _, &mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
