//! What is configured for a security association (SA): who, how, with which keys, for how long.
//!
//! It describes; [`Outbound`](crate::Outbound) and [`Inbound`](crate::Inbound) are made from it, and hold what changes
//! with each packet.

use std::fmt;
use std::net::IpAddr;

use sha2::{Digest, Sha256};

use crate::lifetime::Limits;
use crate::secret::Secret;
use crate::selector::Selector;
use crate::suite::Suite;

/// Which SA: its SPI and destination. The protocol is always ESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SaId {
    /// Security parameters index.
    pub spi: u32,
    /// Destination of its packets.
    pub destination: IpAddr,
}

/// Which packets an SA or a policy is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Packets to the peer.
    Out,
    /// Packets from the peer.
    In,
}

/// What is inside of ESP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A whole IP packet.
    #[default]
    Tunnel,
    /// What follows the IP header.
    Transport,
}

/// DF in the outer IPv4 header (RFC 4301 8.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Df {
    /// As in the inner header; set for IPv6, which routers do not fragment.
    #[default]
    Copy,
    Set,
    /// Clear: packets that are too large are fragmented after encryption.
    Clear,
}

/// DSCP in the outer header (RFC 4301 5.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dscp {
    /// As in the inner header.
    #[default]
    Copy,
    /// Always this value, 0 to 63.
    Set(u8),
}

/// ECN in the outer header (RFC 6040 4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// As in the inner header.
    #[default]
    Normal,
    /// Not-ECT, for peers that do not copy marks to the inner header.
    Compatibility,
}

/// Ports of UDP encapsulation (RFC 3948).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpPorts {
    /// Source port, 4500 if there is no NAT; 0 for any, of an inbound SA.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
}

/// A security association.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sa {
    /// Where it is configured, for errors: whatever the caller uses, such as an offset in a file.
    pub at: usize,
    /// Whether we send or receive its packets.
    pub direction: Direction,
    /// Security parameters index, from 256.
    pub spi: u32,
    /// Source of its packets.
    pub source: IpAddr,
    /// Destination of its packets.
    pub destination: IpAddr,
    /// Tunnel or transport.
    pub mode: Mode,
    /// Encryption and integrity.
    pub suite: Suite,
    /// Key for encryption, with the salt behind it if the suite has one.
    pub encryption_key: Secret,
    /// Key for integrity, if the suite has one of its own.
    pub integrity_key: Secret,
    /// Sequence numbers of 64 bits (RFC 4304).
    pub esn: bool,
    /// Packets in the replay window, at most [`WINDOW_MAX`](crate::WINDOW_MAX); 0 accepts replays.
    pub replay_window: u32,
    /// The number that an IKE daemon gives to a policy and its SAs; 0 for none.
    pub reqid: u32,
    /// The CPU whose packets it is for (RFC 9611); `None` for all.
    pub cpu: Option<u32>,
    /// The number of the interface that it belongs to, as Linux's XFRM interfaces have one; 0 for none.
    pub if_id: u32,
    /// UDP encapsulation.
    pub udp: Option<UdpPorts>,
    /// Lifetimes.
    pub limits: Limits,
    /// DF of the outer header.
    pub df: Df,
    /// DSCP of the outer header.
    pub dscp: Dscp,
    /// ECN of the outer header; what was marked on the way is always copied to the inner one.
    pub ecn: Ecn,
    /// TTL or hop limit of the outer header, from 1.
    pub ttl: u8,
    /// Path MTU to the peer, for packets that must not be fragmented.
    pub path_mtu: u16,
    /// Inner packets that may come out of it: those of any of these; of all kinds if there are none.
    pub selectors: Vec<Selector>,
}

impl Sa {
    /// An SA for a tunnel, with the usual settings: no ESN, a window of 64 packets, no limits, TTL 64.
    pub fn new(direction: Direction, id: SaId, source: IpAddr, suite: Suite) -> Self {
        Self {
            at: 0,
            direction,
            spi: id.spi,
            source,
            destination: id.destination,
            mode: Mode::default(),
            suite,
            encryption_key: Secret::none(),
            integrity_key: Secret::none(),
            esn: false,
            replay_window: 64,
            reqid: 0,
            cpu: None,
            if_id: 0,
            udp: None,
            limits: Limits::default(),
            df: Df::default(),
            dscp: Dscp::default(),
            ecn: Ecn::default(),
            ttl: 64,
            path_mtu: u16::MAX,
            selectors: Vec::new(),
        }
    }

    /// Which SA it is.
    pub fn id(&self) -> SaId {
        SaId { spi: self.spi, destination: self.destination }
    }

    /// A number that is the same for all SAs with the same suite and keys, from which the keys cannot be found: half of
    /// a SHA-256. No two of these SAs may use the same sequence number.
    pub fn fingerprint(&self) -> u128 {
        let mut hash = Sha256::new_with_prefix(b"brickmoon ESP keys 1\0");
        hash.update(self.suite.name());
        hash.update([self.encryption_key.len() as u8]);
        hash.update(self.encryption_key.bytes());
        hash.update(self.integrity_key.bytes());
        hash.finalize().first_chunk().map_or(0, |half| u128::from_be_bytes(*half))
    }
}

impl fmt::Display for SaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dst {} spi {:#010x}", self.destination, self.spi)
    }
}
