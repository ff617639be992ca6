//! The API of the control socket: all requests and replies.
//!
//! ```text
//! brickmoon show, web, scripts ── GET /v1/routes?address=192.0.2.1 ──► daemon, /run/brickmoon/api.sock
//!                              ◄── 200 {"routes":[..]}  or  4xx {"message":..,"hint":..} ──
//! ```
//!
//! HTTP over a Unix socket, with JSON bodies. [`request`] has the paths and their parameters, the other modules a type
//! for each reply. Within a version fields may be added, but are never renamed, removed or given another meaning; readers
//! ignore unknown fields. Names end in their units (`_bytes`, `_ms`, `_s`); counters never decrease while the daemon runs.
//!
//! Absent on purpose: tables, sockets and packets. Programs that print or serve these types need no other crate of
//! brickmoon.

#![forbid(unsafe_code)]

pub mod cleared;
pub mod cluster;
pub mod codec;
pub mod collector;
pub mod error;
pub mod explain;
pub mod filter;
pub mod firewall;
pub mod flow;
pub mod hook;
pub mod ipsec;
pub mod next_hop;
pub mod number;
pub mod port;
pub mod request;
pub mod route;
pub mod status;
pub mod switch;
pub mod verify;
pub mod worker;

pub use bm_wire::{Mac, ReversePath, Vlan};
pub use cleared::Cleared;
pub use cluster::{Carried, Cluster, ClusterStore, FabricLink, RegisteredNode};
pub use codec::{decode, encode};
pub use collector::{Collector, Collectors};
pub use error::Error;
pub use explain::{Explanation, Fate, SentFrame, Step};
pub use filter::{Filter, Filters, SourceCheck};
pub use firewall::{Bypassed, Firewall, LinuxOnly};
pub use flow::{ClearedFlows, Flow, FlowQuery, FlowTuple, Flows, FlowsState};
pub use hook::{Hook, Hooks};
pub use ipsec::{IpsecPolicies, IpsecPolicy, Sa, Sas};
pub use next_hop::{Action, Hop, Neighbor, Neighbors, NextHop, NextHops, Share};
pub use port::{Account, CountedBy, Interface, Port, PortMode, PortState, Ports, Queue, Traffic};
pub use request::{ExplainQuery, RouteQuery};
pub use route::{LinuxOnlyTo, Lookup, Route, RouteState, Routes};
pub use status::{Mirror, Reloaded, Status, Stopping};
pub use switch::{MacEntry, Macs, Switch, SwitchPort, Switches};
pub use verify::{Area, Difference, Verify};
pub use worker::{
    App, AppTime, Apps, Cause, Causes, Drop, DropAt, Drops, Link, Links, LinuxDrop, LinuxDropAt, Lua, Worker,
    Workers,
};
