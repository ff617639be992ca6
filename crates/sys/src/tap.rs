//! Queues of TAP and TUN interfaces: an open `/dev/net/tun` becomes one.

use std::ffi::{c_int, c_short};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::interface::{Code, Request, ioctl};

const SET_INTERFACE: Code<c_short> = Code::new(libc::TUNSETIFF as _);
const GET_INTERFACE: Code<c_short> = Code::new(libc::TUNGETIFF as _);

/// Makes an open `/dev/net/tun` a queue of the TAP interface `name`, and creates the interface if it does not exist. The
/// name may be a pattern (`bm%d`); returns the name that the kernel chose.
///
/// # Errors
/// The kernel's error: EBUSY or EINVAL for an interface that cannot have this queue.
pub fn attach(device: &impl AsFd, name: &str, multi_queue: bool) -> io::Result<String> {
    let queues = if multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | queues;
    let mut request = Request::new(name, flags as c_short)?;
    ioctl(device, SET_INTERFACE, &mut request)?;
    Ok(request.name())
}

/// Makes an open `/dev/net/tun` a queue of the TUN interface `name`: packets without a link header, and nothing in front.
///
/// # Errors
/// The kernel's error: EBUSY if another program has it, EINVAL if it is no TUN interface or has not as many queues.
pub fn attach_tun(device: &impl AsFd, name: &str, multi_queue: bool) -> io::Result<()> {
    let queues = if multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | queues;
    let mut request = Request::new(name, flags as c_short)?;
    ioctl(device, SET_INTERFACE, &mut request)
}

/// Whether the interface of a queue can have several queues.
///
/// # Errors
/// The kernel's error: EBADFD if the interface is deleted.
pub fn is_multi_queue(queue: &impl AsFd) -> io::Result<bool> {
    // The kernel fills in the name, too.
    let mut request = Request::new("tap", 0)?;
    ioctl(queue, GET_INTERFACE, &mut request)?;
    Ok(c_int::from(request.value) & libc::IFF_MULTI_QUEUE != 0)
}

/// Turns the carrier of a queue's interface on or off.
///
/// # Errors
/// The kernel's error.
pub fn set_carrier(queue: &impl AsFd, up: bool) -> io::Result<()> {
    let carrier = c_int::from(up);
    // SAFETY: the request reads one number, which outlives the call.
    match unsafe { libc::ioctl(queue.as_fd().as_raw_fd(), libc::TUNSETCARRIER as _, &carrier) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
