//! What tests and benches share: network namespaces, traffic through them, and the routing tables that determine where
//! each packet must go.
//!
//! ```text
//! tables, rib ──► addresses, oracle ──► traffic (generator, sink)
//!             └─► testbed (namespaces, kernel routes) ◄──┘
//! ```
//!
//! Everything is generated from seeds, so that the same options give the same run. The router itself uses none of this,
//! and this crate knows neither the router nor the benches: `bm-eval` measures with it.

pub mod addresses;
pub mod interrupt;
pub mod oracle;
pub mod random;
pub mod rib;
pub mod tables;
pub mod testbed;
pub mod traffic;
