//! The router app: fast path, slow path, host path.

#![forbid(unsafe_code)]

mod compiled;
#[cfg(test)]
mod conformance;
mod entrance;
mod hop_by_hop;
mod input;
mod lookup;
mod output;
mod rewrite;
mod route;
mod router;
mod slow;
mod source;
pub mod tables;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod validate;
mod verdict;

pub use entrance::Entrance;
pub use router::{Router, RouterPort};
pub use slow::{Now, Resolver, SlowConfig, SlowPath, SlowPort, SlowReturn, SlowThread, WaitLimits};
pub use verdict::{Refusal, Verdict};
