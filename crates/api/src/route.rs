//! `show routes`: what the fast path does with packets to each prefix, and the route in the kernel.

use crate::{Action, Hop, LinuxOnly};
use serde::{Deserialize, Serialize};

/// Routes of one routing table, in order of address, IPv4 first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Routes {
    pub routes: Vec<Route>,
    /// Value of `after` for the next reply; absent in the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Total number of IPv4 routes of the table.
    pub total_ipv4: usize,
    /// Total number of IPv6 routes of the table.
    pub total_ipv6: usize,
    /// Lookup structures of the table, IPv4 first; only for the requested families.
    #[serde(default)]
    pub lookup: Vec<Lookup>,
    /// With `address`: packets to it that only Linux may handle.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub linux_only: Vec<LinuxOnlyTo>,
}

/// Packets to an address that only Linux may handle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LinuxOnlyTo {
    /// Whether this covers all packets to the address.
    pub all: bool,
    /// Which packets, and why.
    pub entry: LinuxOnly,
}

/// A lookup structure for addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Lookup {
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// Name, as in `[fib]` of the configuration.
    pub structure: String,
    /// Version of its lookup function on this CPU: `scalar`, `avx2` or `avx512`.
    pub version: String,
    /// Kind of the memory pages of its largest array.
    pub pages: String,
    /// Memory use in bytes.
    pub memory_bytes: u64,
}

/// A prefix, and what the fast path does with packets to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Route {
    /// Destination, such as `192.0.2.0/24`.
    pub prefix: String,
    /// What the entry is in the kernel.
    pub state: RouteState,
    /// ID of the kernel's routing table; 0 for a neighbor.
    pub table: u32,
    /// The kernel's type: `unicast`, `local`, `blackhole`, ...
    pub kind: String,
    /// Protocol as in `ip route`: `kernel`, `static`, `bgp`, ...
    pub protocol: String,
    /// Metric as in `ip route`.
    pub metric: u32,
    /// Number of its next hop.
    pub next_hop: u32,
    /// What currently happens to packets.
    pub action: Action,
    /// Where packets are sent: one hop, or the usable members of a group.
    pub hops: Vec<Hop>,
    /// MTU of the route in bytes; 0 for that of the interface.
    pub mtu_bytes: u32,
    /// Why packets of a route that Linux forwards are left to Linux; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What an entry of our table is in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RouteState {
    #[default]
    Route,
    /// A neighbor on the link, whose MAC is known.
    Neighbor,
    /// A route that brickmoon cannot handle: its packets go to Linux.
    Refused,
}
