//! The kernel path: common packets are forwarded from interface to interface in XDP, or at tc.
//!
//! ```text
//! bm-fib's builders ──► maps: hops, fib4, fib6, sources4, sources6 ──┐
//! control ──► [`Configuration`] ─┬─► map: views ─────────────────────────┤
//!                            └─► maps: filters, filter_sources ──────┼──► bpf/forward.bpf.c ─┬─► redirect
//! workers' sockets ──► [`Claims`]: map: claims ──────────────────────┤                       ├─► a worker
//! `show ports` ◄── map: counts ◄─────────────────────────────────────┤                       ├─► dropped
//! `show filters` ◄── map: filter_counts ◄────────────────────────────┘                       └─► Linux: all else
//! ```
//!
//! The program drops only what [`Filters`] say; what it neither forwards nor gives to a worker goes to Linux
//! unchanged, with the reason counted. The tables for filters, feasible reverse paths and claims exist only while
//! they are needed. Tables are written in place by the same builders that serve workers, in memory shared with the
//! maps ([`Kernel::source`]). The small tables ([`Configuration`]) are replaced as a whole, and so is the program when a
//! routing table is rebuilt ([`Kernel::publish`]): links are switched from one program to the next, which loses no
//! packet.
//!
//! Programs in the kernel do not register as readers. [`Grace`] does so for them: it lets the writer reuse memory
//! once an RCU grace period has passed.
//!
//! With [`Pins`] the program survives a crash of the daemon, and the next one takes it over ([`Kernel::take_over`]).
//! After a grace time without [`Kernel::beat`] it leaves everything to Linux.
//!
//! Absent on purpose: ICMP errors, fragments, neighbor resolution. Linux does them; where its firewall may drop a packet
//! before Linux asks for the neighbor, the program reports it, and control makes Linux ask ([`UnresolvedReader`]).

mod attach;
mod claims;
mod configuration;
mod counters;
mod dropped;
mod error;
mod filters;
mod flows;
mod grace;
mod jiffies;
mod kernel;
mod layout;
mod lease;
mod maps;
mod pins;
mod reports;
mod tags;
mod unresolved;
mod uppers;

pub use attach::{
    AttachChoice, Attachment, ifindex, is_ethernet, is_there, name as interface_name, why_no_frames,
};
pub use bm_bpf::AttachType;
pub use bm_bpf::{NoPins, Pins};
pub use bm_filter::{Filters, Rate};
pub use bm_wire::ReversePath;
pub use claims::Claims;
pub use configuration::{Configuration, Interface, PortVlan};
pub use counters::{COUNTERS, Counters, LEFT_TO_LINUX};
pub use dropped::{DropMonitor, DroppedByLinux, LinuxCause};
pub use error::KernelError;
pub use flows::{Report, ReportedConnection, ReportedTuple};
pub use grace::Grace;
pub use kernel::{ChangedAttachment, FlowArea, Kernel, TakenOver, Verdict, why_no_flows};
pub use layout::{BUCKETS, HOPS, INTERFACES};
pub use lease::{Lease, detach_from_parent, prioritize};
pub use pins::{claim_pins, remove_kept};
pub use reports::{ReportReader, Reports};
pub use unresolved::{Unresolved, UnresolvedReader};
pub use uppers::{UpperElsewhere, Uppers};
