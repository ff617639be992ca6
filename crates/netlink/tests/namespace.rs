//! Compares the mirror with a real kernel, in network namespaces. Needs root and iproute2.
//!
//! Each test makes changes with `ip`; afterwards the mirror must equal a fresh dump. The watch's own comparisons are
//! off, since they would hide missed events.

#![allow(clippy::unwrap_used)]

#[path = "namespace/netns.rs"]
mod netns;
#[path = "namespace/support.rs"]
mod support;

#[path = "namespace/advertised.rs"]
mod advertised;
#[path = "namespace/churn.rs"]
mod churn;
#[path = "namespace/frr.rs"]
mod frr;
#[path = "namespace/identity.rs"]
mod identity;
#[path = "namespace/links.rs"]
mod links;
#[path = "namespace/neighbors.rs"]
mod neighbors;
#[path = "namespace/overrun.rs"]
mod overrun;
#[path = "namespace/routes.rs"]
mod routes;
