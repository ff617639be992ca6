//! Turns off VLAN tag stripping of network cards: XDP would see a tagged frame without its tag.

use bm_sys::{Interfaces, Offload};

/// Makes a card keep tags in received frames, or strip them; returns whether that changed anything. Drivers that do
/// not support it report an error, and then there is nothing to restore.
pub fn keep(interface: &str, keep: bool) -> bool {
    Interfaces::open()
        .and_then(|interfaces| interfaces.set_offload(interface, Offload::ReceiveVlan, !keep))
        .unwrap_or(false)
}
