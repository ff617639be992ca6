//! `show switch` and `show macs`: switches, and the MAC addresses that they have learned.

use crate::{Account, Mac};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All switches, in the order of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Switches {
    pub switches: Vec<Switch>,
}

/// A learning bridge, with its ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Switch {
    pub name: String,
    /// Whether the switch is VLAN-aware.
    pub vlans: bool,
    /// Ageing time of learned MAC addresses, in seconds; 0 for no ageing.
    pub ageing_s: u64,
    /// Number of MAC addresses in the table.
    pub macs: usize,
    /// Maximum number of MAC addresses.
    pub macs_max: u32,
    /// The interface that connects Linux to the switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Ports, by interface index.
    pub ports: Vec<SwitchPort>,
    /// Interfaces that should be ports but cannot, with the reason.
    pub refused: BTreeMap<String, String>,
}

/// An interface that belongs to a switch, with its state and counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SwitchPort {
    /// Name of the interface.
    pub name: String,
    /// Index of the interface in Linux.
    pub ifindex: u32,
    /// Whether it is up.
    pub up: bool,
    /// Whether its device accepts frames from XDP; a veth does if the other end has GRO on.
    pub takes_frames: bool,
    /// Whether XDP runs in generic mode.
    pub generic: bool,
    /// MTU in bytes.
    pub mtu_bytes: u32,
    /// VLANs in the form of `show switch`: `10` untagged, `20t` tagged; `-` if the switch is not VLAN-aware.
    pub vlans: String,
    /// Account of received frames; `passed` counts those that were forwarded or flooded.
    pub account: Account,
    /// Frames sent through this port; a flooded frame counts at each port.
    pub sent: u64,
    /// Bytes of these frames.
    pub sent_bytes: u64,
    /// Flags that differ from the defaults, in the terms of `bridge link`, such as `isolated on`.
    pub flags: Vec<String>,
    /// Maximum number of MAC addresses learned on this port.
    pub fdb_max_learned: u32,
    /// Further counters by name: `forwarded`, `flooded`, `learned`, `moved`, `move_refused`, `evicted`,
    /// `table_full`, `sums_completed`.
    pub counters: BTreeMap<String, u64>,
}

/// The MAC addresses of all switches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Macs {
    /// The addresses, by switch, VLAN and MAC.
    pub macs: Vec<MacEntry>,
}

/// A MAC address that a switch has learned or that is configured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct MacEntry {
    /// Name of the switch.
    pub switch: String,
    /// VLAN ID; absent if the switch is not VLAN-aware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The MAC address.
    pub mac: Mac,
    /// The port where it was learned.
    pub port: String,
    /// Time since its last frame, in milliseconds; absent for static entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
}
