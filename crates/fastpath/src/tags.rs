//! Cards that take VLAN tags out of frames: XDP would see a frame of a VLAN as one without a tag.

use std::io;

use crate::ethtool;

/// `ETHTOOL_GFLAGS`, `ETHTOOL_SFLAGS`, `ETH_FLAG_RXVLAN` of `<linux/ethtool.h>`.
const GET_FLAGS: u32 = 0x25;
const SET_FLAGS: u32 = 0x26;
const RECEIVE_VLAN: u32 = 1 << 8;

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
    let mut value = Value { command: GET_FLAGS, data: 0 };
    // SAFETY: both commands take a `struct ethtool_value`.
    unsafe { ethtool::ask(interface, &mut value) }?;
    let wanted = if keep { value.data & !RECEIVE_VLAN } else { value.data | RECEIVE_VLAN };
    if wanted == value.data {
        return Ok(false);
    }
    // SAFETY: as above.
    unsafe { ethtool::ask(interface, &mut Value { command: SET_FLAGS, data: wanted }) }.map(|()| true)
}
