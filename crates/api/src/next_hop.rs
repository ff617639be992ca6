//! `show nexthops` and `show neighbors`: where routes send packets.

use crate::Mac;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// All next hops in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NextHops {
    /// The next hops, by number.
    pub next_hops: Vec<NextHop>,
    /// Maximum number of next hops.
    pub capacity: usize,
}

/// A next hop: what the fast path does with packets whose route leads to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NextHop {
    /// Its number: `next_hop` of routes.
    pub index: u32,
    /// What currently happens to packets.
    pub action: Action,
    /// Where packets are sent; absent for groups and for other actions than forwarding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hop: Option<Hop>,
    /// ID of the kernel's nexthop object that it was made from (`ip nexthop`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<u32>,
    /// Members of a group, without unusable ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Share>,
    /// MTU of the routes that use it, in bytes; 0 for that of the interface.
    pub mtu_bytes: u32,
    /// Number of routes, groups and neighbors that use it.
    pub users: u64,
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Sent to the next hop.
    Forward,
    /// Handed to Linux.
    #[default]
    Host,
    /// Held in the slow path until the MAC of the neighbor is known.
    Resolve,
    /// Dropped silently.
    Blackhole,
    /// Dropped, with an ICMP error: host unreachable.
    Unreachable,
    /// Dropped, with an ICMP error: administratively prohibited.
    Prohibit,
    /// Distributed among the members of a group.
    Group,
    /// Dropped, with an ICMP error: no route to destination.
    NoRoute,
}

/// Interface and neighbor that packets are sent to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Hop {
    /// Address of the gateway; absent if the destinations are on the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Name of the interface in Linux.
    pub interface: String,
    /// Number of the interface in Linux.
    pub ifindex: u32,
    /// MAC of the neighbor; absent while unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
}

/// A member of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Share {
    /// Number of the next hop.
    pub index: u32,
    /// Weight within the group.
    pub weight: u32,
    /// Where packets are sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hop: Option<Hop>,
}

/// All neighbors on brickmoon's interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Neighbors {
    /// The neighbors, by interface and address.
    pub neighbors: Vec<Neighbor>,
}

/// A neighbor of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Neighbor {
    /// IP address.
    pub address: IpAddr,
    /// Name of the interface in Linux.
    pub interface: String,
    /// Number of the interface in Linux.
    pub ifindex: u32,
    /// MAC; absent while unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// State, as `ip neigh` names it in lower case: `reachable`, `stale`, ...
    pub state: String,
    /// Whether packets can be sent to it now.
    pub usable: bool,
    /// Whether it has announced itself as a router (IPv6).
    #[serde(default)]
    pub router: bool,
    /// Whether packets were sent to it since the last check, a few seconds ago.
    #[serde(default)]
    pub used: bool,
    /// Number of the next hop that sends to it, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<u32>,
}
