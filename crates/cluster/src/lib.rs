//! One node of a cluster of routers: fabric links, messages between nodes, and remote neighbors in Linux.
//!
//! ```text
//! external port ─► kernel path: route, TTL, next hop ─► fabric link ═══► [bm_fabric on the output node] ─► external port
//!                        ▲ the next hop's MAC: output node, port, index              ▲ map `neighbors`
//!                        │                                                             │
//! this node's Linux: routes and permanent neighbors ◄── [`Service`] ◄── messages ──► [`Service`] ◄── that node's Linux
//! ```
//!
//! The input node needs no code of its own: a remote neighbor is a neighbor on the fabric link, whose MAC is a fabric
//! address (`bm_vlb::address`), so the kernel path and Linux itself write it. Intermediates and output nodes read only the
//! MAC addresses, in a program of their own (`bpf/fabric.bpf.c`), which outlives the daemon.
//!
//! The members are configured, or come from a store (etcd), which a thread of its own follows (`store.rs`).
//!
//! Between nodes that have no link to each other, as in an n-fly, relays pass frames on (`relay.rs`, `bpf/relay.bpf.c`).
//!
//! Elsewhere: the choice of intermediates, which workers make (`bm_forward::Balancing`) with what [`Service::peers`] says.

mod clock;
mod confirm;
mod counters;
mod error;
mod fabric;
mod fabric_end;
mod indices;
mod kernel;
mod layout;
mod link_account;
mod liveness;
mod local;
mod members;
mod members_copy;
mod message;
mod neighbor;
mod neighbor_map;
mod node;
mod on_link;
mod other_nodes;
mod pins;
mod prefix;
mod probe;
mod prober;
mod program;
mod questions;
mod relay;
mod remote;
mod service;
mod session;
mod settings;
mod socket;
mod solicit;
mod store;
mod view;
mod ways;

#[cfg(test)]
mod tests;

pub use bm_etcd::{BadEndpoint, Endpoint, Settings as EtcdSettings};
pub use counters::{COUNTERS, Counters, REASONS};
pub use error::ClusterError;
pub use link_account::LinkLoss;
pub use members::Registration;
pub use other_nodes::OtherNodes;
pub use relay::{
    RELAY_COUNTERS, RelayCounts, RelayLink, RelaySettings, relay_counts, start_relay, stop_relay,
};
pub use service::Service;
pub use session::State;
pub use settings::{
    COPY, ExternalPort, FabricLink, Limits, Member, PREFIX, Problem, ROOM_WITH_STORE, SPEED, Settings,
    StoreSettings,
};
pub use store::Remover;
pub use view::{ClusterView, LinkView, StoreView};

/// Detaches the program that an earlier daemon left in this network namespace, and removes its routes and neighbors. Returns
/// the interfaces that were fabric links.
pub fn remove_kept() -> Vec<String> {
    let removed = pins::remove_kept();
    if removed.is_empty() {
        return Vec::new();
    }
    if let Err(error) = kernel::remove(&removed.iter().copied().collect()) {
        tracing::warn!(%error, "routes to other nodes of the cluster could not be removed");
    }
    removed.into_iter().filter_map(|ifindex| bm_sys::interface::name(ifindex).ok()).collect()
}
