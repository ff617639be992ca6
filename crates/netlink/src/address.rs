//! Addresses of the machine itself.

use crate::attribute::{self, Attributes};
use crate::error::Malformed;
use std::fmt;
use std::net::IpAddr;

/// Fixed part of a message: `struct ifaddrmsg`.
const HEADER: usize = 8;
/// Attribute types (`IFA_*`).
mod ifa {
    pub const ADDRESS: u16 = 1;
    pub const LOCAL: u16 = 2;
    pub const BROADCAST: u16 = 4;
    pub const FLAGS: u16 = 8;
}

/// An address on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The interface.
    pub ifindex: u32,
    /// The address.
    pub local: IpAddr,
    /// Length of the prefix that is on the link.
    pub length: u8,
    /// The address at the other end, if the prefix belongs to it (`ip address add .. peer ..`).
    pub peer: Option<IpAddr>,
    /// Broadcast address (IPv4).
    pub broadcast: Option<IpAddr>,
    /// How far it is valid (`RT_SCOPE_*`).
    pub scope: u8,
    /// The kernel's flags (`IFA_F_*`).
    pub flags: u32,
}

impl Address {
    /// An IPv4 address of a prefix that has another address already.
    pub const SECONDARY: u32 = 1;
    /// An IPv6 address that is already in use by another host.
    pub(crate) const DAD_FAILED: u32 = 8;
    /// A home address of Mobile IPv6.
    pub const HOME: u32 = 0x10;
    /// An IPv6 address that is still being checked for duplicates.
    pub const TENTATIVE: u32 = 0x40;

    /// Whether it may be used as the source of a packet. The mirror contains no others.
    pub fn usable(&self) -> bool {
        self.flags & (Self::TENTATIVE | Self::DAD_FAILED) == 0
    }

    /// What identifies it: for IPv6 the link and the address alone, as the kernel can change the rest.
    pub(crate) fn identity(&self) -> (u32, IpAddr, u8, Option<IpAddr>) {
        match self.local {
            IpAddr::V4(_) => (self.ifindex, self.local, self.length, self.peer),
            IpAddr::V6(_) => (self.ifindex, self.local, 0, None),
        }
    }

    /// Reads the part after the netlink header. `None` for an address family other than IPv4 and IPv6.
    pub(crate) fn read(message: &[u8]) -> Result<Option<Self>, Malformed> {
        if message.len() < HEADER {
            return Err(Malformed::Header { kind: libc::RTM_NEWADDR, length: message.len() });
        }
        if crate::Family::from_number(message[0]).is_none() {
            return Ok(None);
        }
        let (mut address, mut local, mut broadcast) = (None, None, None);
        let mut flags = u32::from(message[2]);
        for attribute in Attributes::after_header(message, HEADER) {
            match attribute? {
                (ifa::ADDRESS, value) => address = Some(attribute::address(ifa::ADDRESS, value)?),
                (ifa::LOCAL, value) => local = Some(attribute::address(ifa::LOCAL, value)?),
                (ifa::BROADCAST, value) => broadcast = Some(attribute::address(ifa::BROADCAST, value)?),
                (ifa::FLAGS, value) => flags = attribute::number_u32(ifa::FLAGS, value)?,
                _ => {}
            }
        }
        // If both are given, the one that is not local belongs to the other end.
        let missing = Malformed::Missing { kind: ifa::ADDRESS };
        let local = local.or(address).ok_or(missing)?;
        Ok(Some(Self {
            ifindex: attribute::number_u32(0, &message[4..8])?,
            local,
            length: message[1],
            peer: address.filter(|address| *address != local),
            broadcast,
            scope: message[3],
            flags,
        }))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.local)?;
        if let Some(peer) = self.peer {
            write!(f, " peer {peer}")?;
        }
        write!(f, "/{} dev {} scope {}", self.length, self.ifindex, self.scope)
    }
}
