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
//! `netns` and `command` create namespaces and run commands there, `lab` connects three of them as drawn, `subject`
//! puts a router in the middle: Linux alone, or brickmoon as its users start it. `packet` builds frames, `exchange`
//! sends and captures them, `case` contains the expected result, `differential` compares: Linux with
//! docs/conformance.md, brickmoon with Linux. `bridge` is a switch of brickmoon with many ends, `daemon` one on ports
//! of DPDK. `flow` counts the losses of a steady stream; `bgp` and `frr` add routes, `netlink` does so without a
//! routing daemon; `connections` empties the table of connection tracking, `conversation` is both ends of a
//! connection; `counters` are Linux's own; `reassembly` compares datagrams that Linux reassembled; `usage` measures the resources of a process.
//!
//! Nothing here uses brickmoon's crates except `bm-wire`'s checksum: the binary is controlled from outside. All
//! functions panic if a test cannot continue, and say how to fix it.

pub mod audit;
pub mod bgp;
pub mod binary;
pub mod bridge;
pub mod case;
pub mod command;
pub mod connections;
pub mod conversation;
pub mod counters;
pub mod daemon;
pub mod differential;
pub mod exchange;
pub mod faults;
pub mod flow;
pub mod foreign;
pub mod frr;
pub mod lab;
pub mod mounts;
pub mod netlink;
pub mod netns;
pub mod normalise;
pub mod packet;
pub mod reassembly;
pub mod report;
pub mod responder;
pub mod rulesets;
pub mod spread;
pub mod subject;
pub mod sys;
pub mod usage;

use std::time::Duration;

/// How long anything may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for so many milliseconds, in which something must go on or must not happen.
pub fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}
