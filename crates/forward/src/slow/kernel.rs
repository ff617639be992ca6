//! What the slow path asks of the kernel; others make the system calls.

use std::io;
use std::net::IpAddr;

use bm_graph::Waker;

/// Makes the kernel resolve neighbors. Control does this with netlink.
pub trait Resolver: Send {
    /// Requests `address` on the interface with Linux's index `ifindex`. The answer arrives as a changed next hop or
    /// as a route to the neighbor; this does not wait for it.
    fn resolve(&mut self, ifindex: u32, address: IpAddr);

    /// Passes the waker of the slow path: it should be woken when a neighbor has answered, so that waiting frames
    /// are sent before later ones. Without that, the answer is noticed within a millisecond.
    fn set_waker(&mut self, _waker: Waker) {}

    /// What the kernel has said about neighbors since the last call, so that frames for them do not wait longer.
    fn next_resolution(&mut self) -> Option<(u32, IpAddr, Resolution)> {
        None
    }
}

/// Sends IP packets of this router through Linux, by Linux's routes.
pub trait OwnPackets: Send {
    /// Sends a packet, beginning with its IP header.
    ///
    /// # Errors
    /// The system's error; the packet is then lost, and the caller counts it.
    fn send(&mut self, packet: &[u8]) -> io::Result<()>;
}

/// Why frames do not wait longer for a neighbor whose MAC is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The kernel has given up.
    Failed,
    /// The kernel has a MAC that it does not announce.
    LeftToLinux,
}
