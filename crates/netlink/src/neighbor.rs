//! Neighbors: which MAC address belongs to an IP address on a link.

use crate::attribute::{self, Attributes};
use crate::error::Malformed;
use std::fmt;
use std::net::IpAddr;

/// Fixed part of a message: `struct ndmsg`.
pub(crate) const HEADER: usize = 12;
/// Attribute types (`NDA_*`).
mod nda {
    pub(crate) const DST: u16 = 1;
    pub(crate) const LLADDR: u16 = 2;
}
/// Flags (`NTF_*`).
mod ntf {
    pub(crate) const USE: u8 = 1;
    pub(crate) const PROXY: u8 = 8;
    pub const ROUTER: u8 = 0x80;
}

/// Type of an entry that is a host.
const RTN_UNICAST: u8 = 1;

/// States (`NUD_*`), as bits.
pub mod state {
    /// Being asked for.
    pub const INCOMPLETE: u16 = 0x01;
    /// Confirmed lately.
    pub const REACHABLE: u16 = 0x02;
    /// Known, but not confirmed lately.
    pub const STALE: u16 = 0x04;
    /// In use again, and about to be confirmed.
    pub const DELAY: u16 = 0x08;
    /// Being confirmed.
    pub const PROBE: u16 = 0x10;
    /// Did not answer.
    pub const FAILED: u16 = 0x20;
    /// Needs no resolution.
    pub const NOARP: u16 = 0x40;
    /// Configured by the administrator.
    pub const PERMANENT: u16 = 0x80;
    /// States in which packets can be sent.
    pub const VALID: u16 = PERMANENT | NOARP | REACHABLE | PROBE | STALE | DELAY;
}

/// An entry of the kernel's neighbor table (`ip neighbor`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Neighbor {
    /// The link.
    pub ifindex: u32,
    pub address: IpAddr,
    /// State, one bit of [`state`].
    pub state: u16,
    /// Its Ethernet address, where known.
    pub mac: Option<[u8; 6]>,
    /// Whether it claims to be a router (IPv6).
    pub router: bool,
}

impl Neighbor {
    /// Where packets for it can be sent now.
    pub fn reachable_at(&self) -> Option<[u8; 6]> {
        self.mac.filter(|_| self.state & state::VALID != 0)
    }

    /// Whether it is being asked for, or did not answer.
    pub fn unresolved(&self) -> bool {
        self.state & (state::INCOMPLETE | state::FAILED) != 0
    }

    /// Whether a request to use it would make the kernel confirm it again.
    pub fn needs_use(&self) -> bool {
        self.state & (state::STALE | state::FAILED) != 0
    }

    /// Whether only an administrator changes it.
    pub fn is_permanent(&self) -> bool {
        self.state & state::PERMANENT != 0
    }

    /// Reads the part after the netlink header. `None` for other entries: a proxy entry or a bridge's. Entries that
    /// need no resolution because they are not hosts (multicast, the machine's own) get no state: the kernel creates
    /// and deletes them without events, so they cannot be mirrored.
    pub(crate) fn read(message: &[u8]) -> Result<Option<Self>, Malformed> {
        if message.len() < HEADER {
            return Err(Malformed::Header { kind: libc::RTM_NEWNEIGH, length: message.len() });
        }
        let flags = message[10];
        if crate::Family::from_number(message[0]).is_none() || flags & ntf::PROXY != 0 {
            return Ok(None);
        }
        let (mut address, mut mac) = (None, None);
        for attribute in Attributes::after_header(message, HEADER) {
            match attribute? {
                (nda::DST, value) => address = Some(attribute::address(nda::DST, value)?),
                (nda::LLADDR, value) => mac = value.try_into().ok(),
                _ => {}
            }
        }
        let state = attribute::number_u16(0, &message[8..10])?;
        let silent = state == state::NOARP && (message[11] != RTN_UNICAST || mac.is_none());
        Ok(Some(Self {
            ifindex: attribute::number_u32(0, &message[4..8])?,
            address: address.ok_or(Malformed::Missing { kind: nda::DST })?,
            state: if silent { 0 } else { state },
            mac,
            router: flags & ntf::ROUTER != 0,
        }))
    }

    /// Appends the part after the netlink header of a request to use the neighbor: the kernel resolves it if it is
    /// unknown, and confirms it if it is stale, as for a packet of its own.
    pub(crate) fn write_use(ifindex: u32, address: &IpAddr, message: &mut Vec<u8>) {
        message.extend_from_slice(&[crate::Family::of(address).number(), 0, 0, 0]);
        message.extend_from_slice(&ifindex.to_ne_bytes());
        message.extend_from_slice(&[0, 0, ntf::USE, 0]);
        attribute::put_address(message, nda::DST, address);
    }
}

/// Appends the part after the netlink header of a request to add a permanent neighbor.
pub(crate) fn write_permanent(ifindex: u32, address: &IpAddr, mac: [u8; 6], message: &mut Vec<u8>) {
    message.extend_from_slice(&[crate::Family::of(address).number(), 0, 0, 0]);
    message.extend_from_slice(&ifindex.to_ne_bytes());
    message.extend_from_slice(&state::PERMANENT.to_ne_bytes());
    message.extend_from_slice(&[0, 0]);
    attribute::put_address(message, nda::DST, address);
    attribute::put(message, nda::LLADDR, &mac);
}

/// Whether the kernel does not announce an entry.
pub(crate) fn is_unannounced(message: &[u8]) -> bool {
    let state = message.get(8..10).map_or(0, |bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    state == state::NOARP && message.get(11).is_some_and(|kind| *kind != RTN_UNICAST)
}

/// Appends the part after the netlink header of a request about a neighbor: to find it, or to delete it.
pub(crate) fn write_which(ifindex: u32, address: &IpAddr, message: &mut Vec<u8>) {
    message.extend_from_slice(&[crate::Family::of(address).number(), 0, 0, 0]);
    message.extend_from_slice(&ifindex.to_ne_bytes());
    message.extend_from_slice(&[0; 4]);
    attribute::put_address(message, nda::DST, address);
}

impl fmt::Display for Neighbor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} dev {}", self.address, self.ifindex)?;
        if let Some([a, b, c, d, e, g]) = self.mac {
            write!(f, " mac {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")?;
        }
        f.write_str(match self.state {
            state::INCOMPLETE => " incomplete",
            state::REACHABLE => " reachable",
            state::STALE => " stale",
            state::DELAY => " delay",
            state::PROBE => " probe",
            state::FAILED => " failed",
            state::NOARP => " noarp",
            state::PERMANENT => " permanent",
            _ => " unknown-state",
        })
    }
}
