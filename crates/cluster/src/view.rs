//! A node and its links, for replies to users.

use crate::counters::Counters;
use crate::session::{Refused, State};

/// A node as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// Its name.
    pub name: String,
    /// Its number.
    pub node: u16,
    /// The epoch.
    pub epoch: u8,
    /// How many members there are.
    pub members: usize,
    /// Neighbors of external ports that have an index, and those for which there was none left.
    pub neighbors: usize,
    /// Neighbors without an index, because all of this epoch are used up.
    pub without_index: usize,
    /// Routes in Linux that lead to other nodes.
    pub routes: usize,
    /// Links, in the order of the settings.
    pub links: Vec<LinkView>,
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
    /// How long a probe took to come back.
    pub round_trip_ns: Option<u64>,
    /// Counters of received frames.
    pub counters: Counters,
}

/// What a state means.
pub fn of_state(state: State) -> &'static str {
    match state {
        State::Up => "up",
        State::NoDaemon => "its daemon does not answer; its fabric program goes on",
        State::NoProgram => "its fabric program does not answer probes, although its daemon runs",
        State::Down => "nothing answers",
    }
}

/// Why messages of the node at the other end of a link are refused, and what to do.
pub fn refusal(why: &Refused, peer: &str) -> String {
    let named = |name: &str, node: u16| match name {
        "" => format!("node {node}"),
        name => format!("{name} (node {node})"),
    };
    match why {
        Refused::Key => {
            "its messages are authenticated with another key: `key_file` has to be the same on all nodes"
                .into()
        }
        Refused::Peer(name, node) => format!(
            "{} is at the other end instead of {peer}: check the cable, or `peer` of this [[cluster.fabric]]",
            named(name, *node)
        ),
        Refused::Receiver(name, node) => format!(
            "the other end takes this node for node {node}: check the cable, or `peer` of the [[cluster.fabric]] of {}",
            if name.is_empty() { peer } else { name }
        ),
        Refused::Epoch(epoch) => {
            format!("{peer} has epoch {}: all nodes need the same members and the same epoch", epoch.number())
        }
    }
}
