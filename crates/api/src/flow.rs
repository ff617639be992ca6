//! Flows: what Linux decided about their first packets, and brickmoon repeats.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Selects flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FlowQuery {
    /// Which flows, in words of tcpdump's language: `host`, `net` and `port`, each with `src` or `dst` before it, `tcp`,
    /// `udp`, `ip`, `ip6`, and `in` or `out` with a port; joined by `and`, and with `not` before any of them. Addresses and
    /// ports count as they arrive and as they leave. Absent for all flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// The order: `packets` or `bytes`, most first, or `idle`, least first; absent for that in which the table has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort: Option<String>,
    /// Maximum number of flows; 10,000 if absent, and at most. 0 only counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Flows of connections that Linux has accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Flows {
    /// As many of those that were asked for as the reply may have.
    pub flows: Vec<Flow>,
    /// Number of flows that were asked for.
    pub matching: u64,
    /// Number of all flows, and what became of earlier ones.
    pub state: FlowsState,
}

/// One direction of a connection, or packets of one tuple that Linux does not track.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Flow {
    /// `tcp`, `udp` or a number.
    pub protocol: String,
    /// The interface that its packets arrive on.
    pub input: String,
    /// The interface that they leave by.
    pub output: String,
    /// Addresses and ports of its packets as they arrive.
    pub arrives: FlowTuple,
    /// As they leave; absent if nothing is translated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaves: Option<FlowTuple>,
    /// Packets that brickmoon has forwarded. Those that Linux forwarded, such as the first ones, are not among them.
    pub packets: u64,
    /// Bytes of these packets as they arrived.
    pub bytes: u64,
    /// Seconds since the flow was learned.
    pub age_s: u64,
    /// Seconds since brickmoon last forwarded a packet of it.
    pub idle_s: u64,
    /// Whether a FIN or RST was seen: its packets go to Linux from then on.
    #[serde(default)]
    pub ended: bool,
}

/// Source and destination of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FlowTuple {
    /// The address that they come from.
    pub source: IpAddr,
    /// Of TCP or UDP.
    pub source_port: u16,
    /// The address that they go to.
    pub destination: IpAddr,
    /// Of TCP or UDP.
    pub destination_port: u16,
}

/// State of the table of flows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FlowsState {
    /// Families whose packets are forwarded by flow at present: `ipv4`, `ipv6`.
    pub families: Vec<String>,
    /// Why flows are not in use; absent if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
    /// Number of flows.
    pub flows: u64,
    /// Maximum number of flows: `max` in `[flows]`; 0 if there is no table.
    pub max: u64,
    /// Flows learned since the start.
    pub learned: u64,
    /// Flows that have ended since the start, by reason: `connection` (Linux has forgotten the connection), `changed` (its
    /// mark or state has changed), `rules` (rules, routes or interfaces have changed), `room` (other flows took its place),
    /// `lost` (events were lost), `idle`, `cleared`.
    pub ended: BTreeMap<String, u64>,
    /// Reports of packets that no flow was made of, by reason.
    pub not_learned: BTreeMap<String, u64>,
    /// Flows that found no room.
    pub full: u64,
}

/// The flows that a request has cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClearedFlows {
    /// How many there were.
    pub flows: u64,
}
