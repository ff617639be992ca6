//! What the program at the egress of ports reports about packets that Linux has forwarded.

use std::net::IpAddr;

/// Addresses and ports of packets of one direction. Both addresses are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReportedTuple {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub source_port: u16,
    pub destination_port: u16,
}

impl ReportedTuple {
    /// Addresses and ports of packets of the other direction.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }
}

/// A packet that Linux has forwarded, as it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// IANA's number: TCP or UDP.
    pub protocol: u8,
    /// Its connection; `None` if it is not tracked.
    pub connection: Option<ReportedConnection>,
    /// Its addresses and ports as it leaves.
    pub sent: ReportedTuple,
    /// Index in Linux of the interface that it arrived on.
    pub input: u32,
    /// Index in Linux of the interface that it leaves by.
    pub output: u32,
    /// Its mark (`skb->mark`).
    pub mark: u32,
    /// Generation of nftables when it left.
    pub generation: u32,
    /// Low 32 bits of the kernel's jiffies when it left.
    pub jiffies: u32,
}

/// The connection of a packet (`struct nf_conn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedConnection {
    /// Packets of the direction in which it was opened, as they arrive.
    pub original: ReportedTuple,
    /// Packets of the other direction, as they arrive.
    pub reply: ReportedTuple,
    /// Zone of the original direction.
    pub zone: u16,
    /// Zone of the packet's direction.
    pub own_zone: u16,
    /// Whether the packet is of the other direction than the first one.
    pub is_reply: bool,
    /// `ct mark`.
    pub mark: u32,
    /// Bits of its status (`IPS_*`).
    pub status: u32,
    /// Seconds until it is removed.
    pub timeout_s: u32,
    /// `enum tcp_conntrack`: 3 is ESTABLISHED; 0 for other protocols.
    pub tcp_state: u8,
    /// The greatest number of TCP that packets of this direction have acknowledged, if it is known.
    pub acknowledged: Option<u32>,
}
