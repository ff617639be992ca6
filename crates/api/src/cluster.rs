//! `show cluster`: this node of a cluster, and its links to the others.

use crate::Account;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// This node as part of a cluster. Without `[cluster]` in the configuration, `members` is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Cluster {
    /// Name of this node.
    pub name: String,
    /// Its number.
    pub node: u16,
    /// Number of the membership, 0 to 255.
    pub epoch: u8,
    /// Number of members, this node among them.
    pub members: usize,
    /// Names of the members, with their numbers.
    pub member_list: BTreeMap<String, u16>,
    /// Nodes to which this one has a fabric link, and which are not members (yet).
    pub not_members: Vec<String>,
    /// The store from which the members come; without one they are configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<ClusterStore>,
    /// Neighbors of this node's external ports that have an index, so that other nodes can send to them.
    pub neighbors: usize,
    /// Neighbors without an index, because all of this epoch are used.
    pub neighbors_without_index: usize,
    /// Routes in Linux that lead to other nodes.
    pub routes: usize,
    /// Whether other nodes send nothing over this one: `brickmoon cluster drain`.
    pub drained: bool,
    /// How workers distribute packets for other nodes: `direct`, `vlb` or `classic`.
    pub balancing: String,
    /// What the external ports of this node receive together at most, in Mbit/s.
    pub speed: u64,
    /// The gap after which a flow may take another way, in microseconds.
    pub flowlet_gap_us: u64,
    /// What workers have done with packets for other nodes: `direct`, sent straight to their output node;
    /// `intermediate`, over another node; `flowlets`, first packets of flowlets; `split`, moved to another way within a
    /// flowlet; `over_share`, sent over a node that had more than its share; `sampled`, numbered. Empty without
    /// workers.
    pub balanced: BTreeMap<String, u64>,
    /// Links, in the order of the configuration.
    pub links: Vec<FabricLink>,
}

/// Frames that the peer has sent over a link. Sent frames that are neither in `arrived` nor in `lost` are on their way; more
/// can have arrived than were sent when the peer last reported its count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Carried {
    /// Counted by the interface of the peer.
    pub sent: u64,
    /// Counted by the fabric program of this node.
    pub arrived: u64,
    /// Neither arrived nor on their way.
    pub lost: u64,
}

/// The store of the members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ClusterStore {
    /// The endpoint that was asked last.
    pub endpoint: String,
    /// Whether it answers. While it does not, the members stay as they are.
    pub connected: bool,
    /// What is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// The nodes whose daemons run and reach the store.
    pub registered: Vec<RegisteredNode>,
    /// Names of registrations that were made with another key.
    pub other_key: Vec<String>,
}

/// A node whose daemon runs and reaches the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RegisteredNode {
    pub name: String,
    pub node: u16,
    /// Its current epoch.
    pub epoch: u8,
    /// Its external ports with their numbers.
    pub ports: BTreeMap<String, u8>,
}

/// A link of this node to another node of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FabricLink {
    /// Name of the interface.
    pub device: String,
    /// Name of the node at the other end.
    pub peer: String,
    /// Its number.
    pub node: u16,
    /// `up`; `no-daemon`: only the fabric program of the peer answers; `no-program`: only its daemon; `down`;
    /// `missing`: there is no interface, or it cannot be used.
    pub state: String,
    /// Whether the peer is drained: nothing is sent over it to other nodes.
    pub drained: bool,
    /// What is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Round-trip time of the last probe, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trip_us: Option<u64>,
    /// After how long without an answer to a probe the link counts as down, in microseconds.
    pub timeout_us: u64,
    /// How often it was found down since the daemon has started.
    pub failures: u64,
    /// The peer's epoch, if it differs from this node's: it has not changed yet. Nothing is lost meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u8>,
    /// Frames that workers of this node have sent by the link.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames that the peer has sent over the link since both ends compare their counters; absent before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_peer: Option<Carried>,
    /// Account of frames received from the peer. `passed`: sent to another node, or out of an external port; `host`:
    /// handed to Linux; `consumed`: probes, which are sent back.
    pub account: Account,
    /// Frames received from the peer in detail: `transit`, `output`, `linux_resolve`, `linux_host`, `linux_control`, `linux_other`,
    /// `probes`; of `output`, `sampled`: numbered by their input node, and `reordered`: arrived after a later one of
    /// their flow.
    pub counters: BTreeMap<String, u64>,
}
