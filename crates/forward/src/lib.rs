//! The router app: fast path, slow path, host path.
//!
//! ```text
//!            link of a port                                               link of a port
//! worker:         '-> Router: input > validate > lookup > rewrite > output ----^
//!                        refused: '----------'---------'---.                   |
//!                                          two queues      v                   | SlowReturn
//! own thread:                                   SlowPath: decide anew --> queue of the port's worker
//!                                                  '-> HostPort: Linux
//! ```
//!
//! [`Router`] runs on each worker and moves bursts; [`SlowPath`] runs on a thread of its own and owes each
//! packet what the RFCs and Linux owe it; both read [`tables::Tables`], which control publishes. Decisions are
//! pure functions over packet bytes (`input`, `validate`, `rewrite`, `hop_by_hop`, `slow::option`, ...), and the
//! slow path makes the fast path's again, so that a table that changes on the way does no harm.
//!
//! Never here: netlink, devices, Lua, a clock, a lock on a worker. Time comes in with each step. What is not
//! understood goes to Linux as it came, and what is lost is counted under a name.

#![deny(unsafe_code)]

mod compiled;
#[cfg(test)]
mod conformance;
mod entrance;
pub mod filter;
mod hook;
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
