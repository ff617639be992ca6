//! AF_XDP ports with their own steering program.
//!
//! ```text
//!  NIC ─► steer.bpf.c ─── what the fast path wants ──► socket of the queue ─► XdpPort::receive
//!             │                                                               XdpPort::transmit ─► NIC
//!             └── XDP_PASS: all the rest, and all of it while no worker is bound ─► Linux
//!                                                        XdpHost::deliver ─────────► Linux
//! ```
//!
//! [`XdpDevice`] attaches the program to an interface and makes an [`XdpPort`] of each queue; all ports of a process
//! use one [`Shared`] frame memory. Nothing is pinned: however the process ends, the kernel detaches the program and
//! Linux gets all frames again. Absent on purpose: any knowledge of routes. Linux's own addresses are set with
//! [`XdpSteering`].

mod batch;
mod device;
mod error;
mod host;
mod in_flight;
mod interface;
mod options;
mod port;
mod pulse;
mod ring;
mod shared;
mod socket;
mod steer;

pub use batch::DELIVER_MAX;
pub use device::{XdpDevice, check_mtu};
pub use error::XdpError;
pub use host::XdpHost;
pub use interface::{mtu, queues};
pub use options::{Attach, Bind, BusyPoll, Checksums, Options, RING};
pub use port::XdpPort;
pub use shared::Shared;
pub use steer::{SteerCounters, XdpSteering};

/// Made from `bpf/steer.bpf.c` at build.
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/steer.skel.rs"));
}
