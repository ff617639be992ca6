//! Namespace tests: the router as its users and its packets see it, with Linux as the oracle.
//!
//! ```text
//!   bm-..-src          bm-..-rtr                      bm-..-snk
//!   ┌───────┐   s0-r0 ┌─────────┐ r1-k0              ┌───────┐
//!   │  src  ├─────────┤ subject ├────────────────────┤  snk  │   mtu 1500
//!   └───────┘         │         ├────────────────────┤       │
//!                     └─────────┘ r2-k1              └───────┘   mtu 1300
//! ```
//!
//! `netns` and `command` make namespaces and run things there, `lab` joins three of them as drawn, `subject`
//! puts a router in the middle: Linux alone, or brickmoon as its users start it. `packet` builds frames,
//! `exchange` sends and captures them, `case` says what must come of it, `differential` judges: Linux by
//! docs/conformance.md, brickmoon by Linux. `bridge` has a switch of brickmoon among many ends,
//! `daemon` one on ports of DPDK. `flow` counts what a steady stream loses; `bgp` and `frr` feed routes,
//! `netlink` does so without a routing daemon; `usage` tells what a process holds.
//!
//! Nothing here uses brickmoon's crates but `bm-wire`'s checksum: the binary is driven from outside. All
//! functions panic where a test could not go on, and say what to mend.

pub mod audit;
pub mod bgp;
pub mod bridge;
pub mod case;
pub mod command;
pub mod daemon;
pub mod differential;
pub mod exchange;
pub mod faults;
pub mod flow;
pub mod frr;
pub mod lab;
pub mod mounts;
pub mod netlink;
pub mod netns;
pub mod normalise;
pub mod packet;
pub mod report;
pub mod responder;
pub mod rulesets;
pub mod spread;
pub mod subject;
pub mod sys;
pub mod usage;
