//! Turns off VLAN tag stripping of network cards: XDP would see a tagged frame without its tag.

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

/// Makes a card keep tags in received frames, or strip them; returns whether that changed anything. Drivers that do
/// not support it report an error, and then there is nothing to restore.
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
