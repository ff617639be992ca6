//! Compares the list with what a real kernel does, in network namespaces. Needs root, iproute2, nft and iptables.

#![allow(clippy::unwrap_used)]

#[path = "../../netlink/tests/namespace/netns.rs"]
#[allow(dead_code, reason = "the tests of bm-netlink use more of it")]
mod netns;

#[path = "namespace/elements.rs"]
mod elements;
#[path = "namespace/flows.rs"]
mod flows;
#[path = "namespace/linux_only.rs"]
mod linux_only;
#[path = "namespace/rulesets.rs"]
mod rulesets;
