//! Connections of a real kernel, in network namespaces. Needs root, iproute2, nft, and a kernel with conntrack.

#![allow(clippy::unwrap_used)]

#[path = "../../netlink/tests/namespace/netns.rs"]
#[allow(dead_code, reason = "the tests of bm-netlink use more of it")]
mod netns;

#[path = "namespace/bed.rs"]
mod bed;
#[path = "namespace/connections.rs"]
mod connections;
#[path = "namespace/updates.rs"]
mod updates;
