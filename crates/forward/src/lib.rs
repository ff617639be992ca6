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
//! [`Router`] runs on each worker and processes bursts; [`SlowPath`] runs on a separate thread and does everything
//! else that the RFCs and Linux require; both read [`tables::Tables`], which control publishes. Decisions are pure
//! functions over packet bytes (`input`, `validate`, `rewrite`, `hop_by_hop`, `slow::option`, ...), and the slow path
//! repeats the fast path's, so that a table that changes meanwhile does no harm.
//!
//! Never here: netlink, devices, Lua, a clock, a lock on a worker. The time is an argument of each step. What is not
//! understood goes to Linux unchanged, and what is lost is counted with a reason.

#![deny(unsafe_code)]

mod balancing;
mod burst;
mod compiled;
#[cfg(test)]
mod conformance;
mod fast;
pub mod filter;
mod hook;
mod interface;
mod ipsec;
mod lease;
mod output;
mod punt_queue;
mod route;
mod router;
mod slow;
mod stages;
pub mod tables;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod trial;
mod verdict;

pub use balancing::{Balancing, BalancingCounter, BalancingCounters, BalancingPlan, FabricPort};
pub use ipsec::{
    Controls, CurrentPolicies, Decryption, Encryption, IPSEC_PORT, IpsecPlan, IpsecWorker, Moved, NewSa,
    PolicySas, SaNumbers, SaPlan, SaStatus, Status, Wanted, if_id_of,
};
pub use lease::Lease;
pub use punt_queue::PuntQueue;
pub use router::{Router, RouterPort};
pub use slow::{
    Now, OwnPackets, Resolution, Resolver, SlowConfig, SlowCounter, SlowPath, SlowPort, SlowReturn,
    SlowThread, WaitLimits,
};
pub use trial::{Disposition, DryRun, DryRunError, Outcome, RouteInfo};
pub use verdict::{Refusal, Verdict};
