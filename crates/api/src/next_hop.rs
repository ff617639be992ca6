//! `show nexthops` and `show neighbors`: where packets go once their route is found.

use crate::Mac;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// All next hops in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextHops {
    /// The next hops, by number.
    pub next_hops: Vec<NextHop>,
    /// How many there can be.
    pub capacity: usize,
}

/// A next hop: what the fast path does once a route is found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NextHop {
    /// Its number, as [`crate::Route::next_hop`] names it.
    pub index: u32,
    /// What is done with packets now.
    pub action: Action,
    /// Where it leads; absent for groups and for what is not forwarded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hop: Option<Hop>,
    /// Number of the kernel's next-hop object that it was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<u32>,
    /// Members of a group, dead ones left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Share>,
    /// MTU of the routes that use it, in bytes; 0 where the interface's holds.
    pub mtu_bytes: u32,
    /// How many routes, groups and neighbours share it.
    pub users: u64,
}

/// What is done with a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Sent on.
    Forward,
    /// Given to Linux.
    #[default]
    Host,
    /// Waits in the slow path until the neighbour's Ethernet address is known.
    Resolve,
    /// Dropped in silence.
    Blackhole,
    /// Dropped; the sender is told that the host is unreachable.
    Unreachable,
    /// Dropped; the sender is told that this is prohibited.
    Prohibit,
    /// Shared among the members of a group.
    Group,
    /// Dropped; the sender is told that there is no route.
    NoRoute,
}

/// Where packets leave and who gets them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hop {
    /// The router; absent where destinations are on the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Name of the interface in Linux.
    pub interface: String,
    /// Number of the interface in Linux.
    pub ifindex: u32,
    /// The neighbour's Ethernet address, where packets can be sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
}

/// A member's part in a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Number of the member.
    pub index: u32,
    /// Its weight.
    pub weight: u32,
    /// Where it leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hop: Option<Hop>,
}

/// All neighbours on interfaces of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbors {
    /// The neighbours, by interface and address.
    pub neighbors: Vec<Neighbor>,
}

/// A neighbour as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbor {
    /// Its address.
    pub address: IpAddr,
    /// Name of the interface in Linux.
    pub interface: String,
    /// Number of the interface in Linux.
    pub ifindex: u32,
    /// Its Ethernet address, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// State, as `ip neigh` names it in lower case: `reachable`, `stale`, ...
    pub state: String,
    /// Whether packets can be sent to it now.
    pub usable: bool,
    /// Whether it says to be a router (IPv6).
    #[serde(default)]
    pub router: bool,
    /// Whether packets were sent to it since control last looked, some seconds ago at most.
    #[serde(default)]
    pub used: bool,
    /// Number of the next hop that sends to it, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_hop: Option<u32>,
}
