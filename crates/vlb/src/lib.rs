//! Direct VLB, for many servers that act as one router: which way a packet takes between them.
//!
//! ```text
//!            input node                           transit                     output node
//! packet ─► Balancer::choose ─► Direct ──────────────────────────────► transit::receive ─► port, neighbor
//!                └────────────► Via(node) ─► transit::receive ───────► OrderCounter
//!                   quotas: Membership, capacity of links      Topology::next_link at each node
//! ```
//!
//! Valiant load balancing (VLB) sends each packet over a random intermediate node, so that no matrix of traffic
//! overloads a link. Direct VLB (RouteBricks, SOSP 2009) sends as much as a quota allows straight to the output node.
//!
//! The data path and the simulator share this code, so all of it is functions of time and packets: time is an argument
//! in nanoseconds, seeds are arguments. Nothing here reads a clock, knows a device, or allocates on a packet's way.

#![forbid(unsafe_code)]

pub mod address;
pub mod balancer;
mod bucket;
mod epoch;
mod flowlet;
pub mod membership;
pub mod published;
pub mod quota;
pub mod reorder;
pub mod rollout;
pub mod spread;
pub mod topology;
pub mod transit;

pub use address::{Destination, Node, NotFabric, Port, Sample, Source, To};
pub use balancer::{Balancer, Choice, Packet, Peer};
pub use membership::{Accepted, Change, Epoch, Membership};
pub use published::{PeersCopy, PublishedPeers};
pub use quota::{Mode, Rule};
pub use reorder::{OrderCounter, Sampler};
pub use spread::DelaySpread;
pub use topology::{Link, LinkId, Topology};
pub use transit::{Step, TransitDrop, receive};
