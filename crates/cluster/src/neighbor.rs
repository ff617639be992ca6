//! A neighbor of an external port of this node, and what frames name it by.

use std::net::IpAddr;

/// A neighbor of an external port of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalNeighbor {
    /// Index of the external port's interface in Linux.
    pub ifindex: u32,
    /// Number of the external port.
    pub port: u8,
    /// Its IP address.
    pub address: IpAddr,
    /// Its MAC.
    pub to: [u8; 6],
    /// The MAC of the port.
    pub from: [u8; 6],
}

/// What frames name a neighbor by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Index {
    pub number: u16,
    /// Five bits that have to be those of the address: in place of the external port.
    pub check: u8,
}

/// A neighbor that Linux has on an external port, at an address that is on-link there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    pub neighbor: LocalNeighbor,
    /// An administrator has added it (`nud permanent`): nobody is asked.
    pub is_static: bool,
}

impl Candidate {
    /// Its interface and address.
    pub(crate) fn key(&self) -> (u32, IpAddr) {
        (self.neighbor.ifindex, self.neighbor.address)
    }
}
