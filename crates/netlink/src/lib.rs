//! The kernel's tables by netlink, and our mirror of them.
//!
//! ```text
//! kernel ── events ──► Socket ─► Message ─► Mirror ─► Change   (drained in batches by the control plane)
//!        ── dumps ───►   "          "       fresh Mirror ─► differences ─► the same stream
//! ```
//!
//! [`Watch`] is the driver: it subscribes, dumps, applies events, and recovers when the kernel reports lost messages.
//! [`Mirror`] is pure: messages in, changes out, no socket and no clock, so its rules are tested without a kernel.
//! [`Batch`] goes the other way and writes many objects at once.
//!
//! Absent on purpose: any forwarding table. The code that builds one from routes is in a higher layer, reads the
//! mirror and never sees netlink messages.

pub mod address;
pub mod attribute;
pub mod batch;
pub mod dump;
pub mod error;
pub mod family;
pub mod first_change;
pub mod hop;
pub mod legacy_tables;
pub mod link;
pub mod link_counters;
pub mod list;
pub mod message;
pub mod mirror;
pub mod neighbor;
pub mod netconf;
pub mod netdev;
pub mod next_hop;
pub mod nft;
pub mod requests;
pub mod route;
pub mod rule;
pub mod settings;
pub mod socket;
pub mod sysctl;
pub mod watch;
pub mod xfrm;
pub mod xfrm_tables;

mod hash;

pub use address::Address;
pub use batch::{Batch, Outcome, Refusal};
pub use bm_wire::Family;
pub use error::{Error, Malformed};
pub use first_change::FirstChange;
pub use hop::{Hop, HopFlags, Via};
pub use link::{Kind, Link, Upper};
pub use link_counters::{Direction, LinkCounters, LinkCountersReader};
pub use message::Message;
pub use mirror::{BodyId, Change, Difference, Findings, Item, Mirror, Paths, Routes, Table};
pub use neighbor::Neighbor;
pub use netconf::Netconf;
pub use next_hop::{NextHop, Object};
pub use route::{RouteBody, RouteEvent, RouteKind, RouteMessage};
pub use rule::Rule;
pub use sysctl::{LinkSysctls, Sysctls};
pub use watch::{Audit, Options, Statistics, Watch};
pub use xfrm_tables::{SaKey, SaState, XfrmSas, XfrmTables};
