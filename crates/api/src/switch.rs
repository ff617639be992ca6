//! `show switch` and `show macs`: bridges among ports, and the stations that they know.

use crate::{Account, Mac};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All switches, in the order of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switches {
    /// The switches.
    pub switches: Vec<Switch>,
}

/// A switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Switch {
    /// Its name.
    pub name: String,
    /// Whether frames of different VLANs are kept apart.
    pub vlans: bool,
    /// How long a station is remembered after its last frame, in seconds; 0 is for ever.
    pub ageing_s: u64,
    /// Stations that it knows.
    pub stations: usize,
    /// How many there can be.
    pub stations_max: u32,
    /// The interface by which Linux is on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Its ports, by number of their interfaces.
    pub ports: Vec<SwitchPort>,
    /// Interfaces that should be ports and are not, with the reason.
    pub refused: BTreeMap<String, String>,
}

/// A port of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SwitchPort {
    /// The interface.
    pub name: String,
    /// Its number in Linux.
    pub ifindex: u32,
    /// Whether it is up.
    pub up: bool,
    /// Whether its device takes frames from the switch: a veth does once its far end has GRO.
    pub takes_frames: bool,
    /// Whether the kernel runs the program behind the driver.
    pub generic: bool,
    /// Largest packet, in bytes.
    pub mtu_bytes: u32,
    /// Its VLANs as `show switch` writes them: `10` without a tag, `20t` with one; `-` where none are known.
    pub vlans: String,
    /// What became of the frames that came in: `passed` are those that went on to one port, or to many.
    pub account: Account,
    /// Frames that went out here; one that goes to many counts at each.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// What it does otherwise than a port does by default, in the words of `bridge link`: `isolated on`.
    pub flags: Vec<String>,
    /// Stations that can be learned at it.
    pub fdb_max_learned: u32,
    /// What else happened, by name: `forwarded`, `flooded`, `learned`, `moved`, `move_refused`, `evicted`,
    /// `table_full`, `sums_completed`.
    pub counters: BTreeMap<String, u64>,
}

/// The stations of all switches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stations {
    /// By switch, VLAN and MAC.
    pub stations: Vec<Station>,
}

/// A station.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Station {
    /// The switch.
    pub switch: String,
    /// Its VLAN; absent in a switch that knows none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Its MAC.
    pub mac: Mac,
    /// The port that it is behind.
    pub port: String,
    /// How long ago it was heard, in milliseconds; absent where its place is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
}
