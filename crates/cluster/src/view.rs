//! A node and its links, for replies to users.

use crate::counters::Counters;
use crate::link_account::LinkLoss;
use crate::members::Registration;
use crate::session::{Refusal, State};

/// A node as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// This node's name.
    pub name: String,
    /// Its number.
    pub node: u16,
    pub epoch: u8,
    /// Nodes to which there are links, and which are not members.
    pub not_members: Vec<String>,
    /// Number of members.
    pub members: usize,
    /// Neighbors of external ports that have an index.
    pub neighbors: usize,
    /// Neighbors without one, because all indices of this epoch are used.
    pub without_index: usize,
    /// Routes in Linux that lead to other nodes.
    pub routes: usize,
    /// Whether other nodes must not use this one as intermediate.
    pub is_drained: bool,
    /// The gap after which a flow may take another way.
    pub flowlet_gap_ns: u64,
    /// Links, in the order of the settings.
    pub links: Vec<LinkView>,
}

/// The store of the members, as this node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreView {
    /// The endpoint that was asked last.
    pub endpoint: String,
    /// Whether it answers.
    pub is_connected: bool,
    /// What is wrong.
    pub trouble: Option<String>,
    /// The nodes that are registered.
    pub registered: Vec<Registration>,
    /// Names of registrations that were made with another key.
    pub other_key: Vec<String>,
}

/// A link as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkView {
    /// Interface.
    pub device: String,
    /// Name of the node at the other end.
    pub peer: String,
    /// Its number.
    pub node: u16,
    /// The state; `None` while there is no interface.
    pub state: Option<State>,
    /// What is wrong.
    pub trouble: Option<String>,
    /// Round-trip time of the last probe.
    pub round_trip_ns: Option<u64>,
    /// After how long without an answer to a probe the link is found dead.
    pub timeout_ns: u64,
    /// How often it was.
    pub failures: u64,
    /// Whether that node must not be used as intermediate.
    pub is_drained: bool,
    /// Its epoch, if that is another one, whose frames both accept.
    pub epoch: Option<u8>,
    /// Frames that the peer has sent.
    pub carried: Option<LinkLoss>,
    /// Counters of received frames.
    pub counters: Counters,
}

/// What a state means, for the log.
pub(crate) fn describe_state(state: State) -> &'static str {
    match state {
        State::Up => "up",
        State::NoDaemon => "its daemon does not answer; its fabric program still forwards",
        State::NoProgram => "its fabric program does not answer probes, although its daemon runs",
        State::Down => "the node does not answer",
    }
}

/// Why messages of the node at the other end are refused, with a hint.
pub(crate) fn describe_refusal(why: &Refusal, peer: &str) -> String {
    match why {
        Refusal::Key => {
            "its messages are authenticated with another key: all nodes need the same `key_file`".into()
        }
        Refusal::Peer(name, node) => {
            let other =
                if name.is_empty() { format!("node {node}") } else { format!("{name} (node {node})") };
            format!(
                "{other} is at the other end instead of {peer}: check the cable, or `peer` of this [[cluster.fabric]]"
            )
        }
        Refusal::Receiver(name, node) => format!(
            "the other end expects node {node} instead of this node: check the cable, or `peer` in the [[cluster.fabric]] of {}",
            if name.is_empty() { peer } else { name }
        ),
        Refusal::Epoch(epoch) => {
            format!("{peer} has epoch {}: all nodes need the same members and epoch", epoch.number())
        }
    }
}
