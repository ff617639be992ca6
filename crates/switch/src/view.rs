//! Ports and stations as those who ask are told of them. Nothing here changes anything.

use std::time::Duration;

use crate::counters::Counters;
use crate::settings::{Address, PortFlags, Vlans};

/// A port, for those who ask.
#[derive(Clone, Debug)]
pub struct PortView {
    /// The interface.
    pub name: String,
    /// Its number in Linux.
    pub ifindex: u32,
    /// Whether it is up.
    pub up: bool,
    /// Whether its device takes frames from the switch.
    pub takes_frames: bool,
    /// Whether the kernel runs the program behind the driver.
    pub generic: bool,
    /// Largest packet, in bytes.
    pub mtu: u32,
    /// Its VLANs.
    pub vlans: Vlans,
    /// What it does as a port of a bridge.
    pub flags: PortFlags,
    /// Stations that can be learned at it.
    pub fdb_max_learned: u32,
    /// What became of its frames.
    pub counters: Counters,
}

/// A station, for those who ask.
#[derive(Clone, Debug)]
pub struct StationView {
    /// Its address.
    pub address: Address,
    /// The interface that it is behind.
    pub port: String,
    /// How long ago it was heard; `None` if its place is given.
    pub age: Option<Duration>,
}
