//! The mirror against a real kernel, in network namespaces of its own. Needs root and iproute2.
//!
//! Each test makes its changes with `ip` and then compares: nothing may differ from a fresh dump, and no
//! comparison by the watch itself runs before, so that none hides what the events missed.

#![allow(clippy::unwrap_used)]

#[path = "namespace/support.rs"]
mod support;

#[path = "namespace/churn.rs"]
mod churn;
#[path = "namespace/frr.rs"]
mod frr;
#[path = "namespace/links.rs"]
mod links;
#[path = "namespace/linux_only.rs"]
mod linux_only;
#[path = "namespace/neighbors.rs"]
mod neighbors;
#[path = "namespace/overrun.rs"]
mod overrun;
#[path = "namespace/routes.rs"]
mod routes;
#[path = "namespace/rulesets.rs"]
mod rulesets;
