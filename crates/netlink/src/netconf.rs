//! Settings of an interface that the kernel announces (`RTM_NEWNETCONF`), for each family.

use crate::attribute::{self, Attributes};
use crate::error::Malformed;
use bm_wire::Family;
use std::fmt;

/// Message types, which libc does not have.
pub(crate) const RTM_NEWNETCONF: u16 = 80;
pub(crate) const RTM_DELNETCONF: u16 = 81;
pub(crate) const RTM_GETNETCONF: u16 = 82;

/// Fixed part of a message: `struct netconfmsg`.
const HEADER: usize = 1;
/// Attribute types (`NETCONFA_*`).
mod netconfa {
    pub const IFINDEX: u16 = 1;
    pub(crate) const FORWARDING: u16 = 2;
    pub(crate) const RP_FILTER: u16 = 3;
    pub(crate) const MC_FORWARDING: u16 = 4;
    pub(crate) const PROXY_NEIGH: u16 = 5;
    pub(crate) const IGNORE_ROUTES_WITH_LINKDOWN: u16 = 6;
    pub(crate) const BC_FORWARDING: u16 = 8;
    pub(crate) const FORCE_FORWARDING: u16 = 9;
}

/// In place of an interface: settings for all.
pub const ALL: i32 = -1;
/// In place of an interface: settings for new ones.
pub const DEFAULT: i32 = -2;

/// The settings. `rp_filter` is 0 (off), 1 (strict) or 2 (loose).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Netconf {
    /// Packets that arrive here may be forwarded.
    pub forwarding: bool,
    /// Source address check; the greater of this and that of [`ALL`] is in effect.
    pub rp_filter: u8,
    /// Multicast is forwarded.
    pub mc_forwarding: bool,
    /// The machine answers on behalf of neighbors elsewhere.
    pub proxy_neigh: bool,
    /// Hops over a link without carrier are not used.
    pub ignore_routes_with_linkdown: bool,
    /// Directed broadcasts are forwarded.
    pub bc_forwarding: bool,
    /// Packets that arrive here are forwarded even if those of [`ALL`] are not (IPv6, Linux 6.17).
    pub force_forwarding: bool,
}

/// The settings in a message: an event contains only those that changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetconfUpdate {
    forwarding: Option<bool>,
    rp_filter: Option<u8>,
    mc_forwarding: Option<bool>,
    proxy_neigh: Option<bool>,
    ignore_routes_with_linkdown: Option<bool>,
    bc_forwarding: Option<bool>,
    force_forwarding: Option<bool>,
}

impl Netconf {
    /// Without what the kernel changes silently.
    pub(crate) fn announced(&self) -> Self {
        Self { bc_forwarding: false, ..*self }
    }

    /// Applies the settings in a message.
    pub(crate) fn take(&mut self, update: &NetconfUpdate) {
        fn set<T: Copy>(ours: &mut T, update: Option<T>) {
            *ours = update.unwrap_or(*ours);
        }
        set(&mut self.forwarding, update.forwarding);
        set(&mut self.rp_filter, update.rp_filter);
        set(&mut self.mc_forwarding, update.mc_forwarding);
        set(&mut self.proxy_neigh, update.proxy_neigh);
        set(&mut self.ignore_routes_with_linkdown, update.ignore_routes_with_linkdown);
        set(&mut self.bc_forwarding, update.bc_forwarding);
        set(&mut self.force_forwarding, update.force_forwarding);
    }
}

/// Reads the part after the netlink header: family, interface ([`ALL`], [`DEFAULT`] or an index) and settings. `None`
/// for an address family other than IPv4 and IPv6.
pub(crate) fn read(message: &[u8]) -> Result<Option<(Family, i32, NetconfUpdate)>, Malformed> {
    let Some(&number) = message.first() else {
        return Err(Malformed::Header { kind: RTM_NEWNETCONF, length: 0 });
    };
    let Some(family) = Family::from_number(number) else { return Ok(None) };
    let (mut ifindex, mut update) = (None, NetconfUpdate::default());
    for attribute in Attributes::after_header(message, HEADER) {
        let (kind, value) = attribute?;
        if kind == netconfa::IFINDEX {
            ifindex = Some(attribute::number_i32(kind, value)?);
            continue;
        }
        let flag = || attribute::number_u32(kind, value).map(|value| Some(value != 0));
        match kind {
            netconfa::FORWARDING => update.forwarding = flag()?,
            netconfa::RP_FILTER => update.rp_filter = Some(attribute::number_u32(kind, value)? as u8),
            netconfa::MC_FORWARDING => update.mc_forwarding = flag()?,
            netconfa::PROXY_NEIGH => update.proxy_neigh = flag()?,
            netconfa::IGNORE_ROUTES_WITH_LINKDOWN => update.ignore_routes_with_linkdown = flag()?,
            netconfa::BC_FORWARDING => update.bc_forwarding = flag()?,
            netconfa::FORCE_FORWARDING => update.force_forwarding = flag()?,
            _ => {}
        }
    }
    let ifindex = ifindex.ok_or(Malformed::Missing { kind: netconfa::IFINDEX })?;
    Ok(Some((family, ifindex, update)))
}

impl fmt::Display for Netconf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rp_filter {}", self.rp_filter)?;
        for (set, name) in [
            (self.forwarding, "forwarding"),
            (self.mc_forwarding, "mc_forwarding"),
            (self.proxy_neigh, "proxy_neigh"),
            (self.ignore_routes_with_linkdown, "ignore_routes_with_linkdown"),
            (self.bc_forwarding, "bc_forwarding"),
            (self.force_forwarding, "force_forwarding"),
        ] {
            if set {
                write!(f, " {name}")?;
            }
        }
        Ok(())
    }
}
