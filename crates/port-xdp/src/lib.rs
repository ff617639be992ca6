//! AF_XDP ports with their own steering program.
//!
//! ```text
//!  NIC ─► steer.bpf.c ─── packets to forward ────────► socket of the queue ─► XdpPort::receive
//!             │                                                               XdpPort::transmit ─► NIC
//!             └── XDP_PASS: all others, and all packets while no worker is bound ─► Linux
//!                                                        XdpHost::deliver ─────────► Linux
//! ```
//!
//! [`XdpDevice`] attaches the program to an interface and opens an [`XdpPort`] for each queue; all ports of a process
//! use one [`Shared`] frame memory. Nothing is pinned: however the process ends, the kernel detaches the program and
//! Linux gets all frames again. Absent on purpose: any knowledge of routes. Linux's own addresses are set with
//! [`XdpSteering`].

mod batch;
mod device;
mod error;
mod heartbeat;
mod host;
mod in_flight;
mod interface;
mod options;
mod port;
mod ring;
mod routes;
mod shared;
mod socket;
mod steer;

pub use batch::DELIVER_MAX;
pub use device::{XdpDevice, check_mtu};
pub use error::XdpError;
pub use host::XdpHost;
pub use interface::{keep_tags, mtu, queues};
pub use options::{Attach, Bind, BusyPoll, Checksums, Local, Options, RING};
pub use port::XdpPort;
pub use shared::Shared;
pub use steer::{STEER_COUNTERS, SteerCounters, XdpSteering, frame_max};

/// Generated from `bpf/steer.bpf.c` during the build.
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/steer.skel.rs"));
}
