//! `show routes`: what the fast path does with each prefix, beside what the kernel says of it.

use crate::{Action, Hop, LinuxOnly};
use serde::{Deserialize, Serialize};

/// Routes of one routing table, in order of address, IPv4 first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routes {
    /// The routes.
    pub routes: Vec<Route>,
    /// Where to go on ([`crate::RouteQuery::after`]); absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// IPv4 routes of the table, in all.
    pub total_ipv4: usize,
    /// IPv6 routes of the table, in all.
    pub total_ipv6: usize,
    /// What the table is made as, IPv4 first; only of the families asked for.
    #[serde(default)]
    pub lookup: Vec<Lookup>,
    /// Where one address is asked for: what only Linux may handle of the packets to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub linux_only: Vec<LinuxOnlyTo>,
}

/// Packets to an address that only Linux may handle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinuxOnlyTo {
    /// Whether these are all packets to the address.
    pub all: bool,
    /// Which, and why.
    pub entry: LinuxOnly,
}

/// The structure that addresses are looked up in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lookup {
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// Its name, as `[fib]` of the configuration has it.
    pub structure: String,
    /// The widest form of its lookup on this CPU: `scalar`, `avx2` or `avx512`.
    pub version: String,
    /// The pages that its largest array lies in.
    pub pages: String,
    /// What it holds, in bytes.
    pub memory_bytes: u64,
}

/// A route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Route {
    /// Destination, such as `192.0.2.0/24`.
    pub prefix: String,
    /// What it is in the kernel.
    pub state: RouteState,
    /// The kernel's table that it came from; 0 where it came from a neighbour.
    pub table: u32,
    /// The kernel's type: `unicast`, `local`, `blackhole`, ...
    pub kind: String,
    /// Who made it, as `ip route` names it: `kernel`, `static`, `bgp`, ...
    pub protocol: String,
    /// Metric.
    pub metric: u32,
    /// Number of its next hop.
    pub next_hop: u32,
    /// What is done with packets now.
    pub action: Action,
    /// Where packets go: one hop, or the living members of a group.
    pub hops: Vec<Hop>,
    /// Its own MTU in bytes; 0 where the interface's holds.
    pub mtu_bytes: u32,
    /// Why packets go to Linux though Linux forwards them, where that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a route of ours is in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteState {
    /// A route.
    #[default]
    Route,
    /// No route but a neighbour on the link: packets need not wait for its address.
    Neighbor,
    /// A route that could not be compiled: its packets go to Linux.
    Refused,
}
