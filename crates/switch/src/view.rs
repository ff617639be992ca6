//! Read-only views of ports and MAC addresses, for the API.

use std::time::Duration;

use crate::counters::Counters;
use crate::settings::{Address, PortFlags, Vlans};

/// A port, as the API shows it.
#[derive(Clone, Debug)]
pub struct PortView {
    /// The interface.
    pub name: String,
    /// Its number in Linux.
    pub ifindex: u32,
    /// Whether it is up.
    pub up: bool,
    /// Whether its device can send frames that XDP redirects to it.
    pub takes_frames: bool,
    /// Whether its program runs in generic mode.
    pub generic: bool,
    /// Largest packet, in bytes.
    pub mtu: u32,
    pub vlans: Vlans,
    /// Its bridge port flags.
    pub flags: PortFlags,
    /// Addresses that can be learned at it.
    pub fdb_max_learned: u32,
    pub counters: Counters,
}

/// An entry of the MAC address table, as the API shows it.
#[derive(Clone, Debug)]
pub struct FdbEntryView {
    /// Its MAC address and VLAN.
    pub address: Address,
    /// The interface that it is behind.
    pub port: String,
    /// The time since its last frame; `None` for a static entry.
    pub age: Option<Duration>,
}
