//! Next-hop objects: hops that live on their own, and groups of them, that routes name by number.

use crate::attribute::{self, Attributes, NESTED};
use crate::error::Malformed;
use crate::hop::{Hop, HopFlags};
use std::fmt;

/// Message types, which libc does not have yet.
pub(crate) const RTM_NEWNEXTHOP: u16 = 104;
pub(crate) const RTM_DELNEXTHOP: u16 = 105;
pub(crate) const RTM_GETNEXTHOP: u16 = 106;

/// Fixed part of a message: `struct nhmsg`.
const HEADER: usize = 8;
/// One member of a group: ID, weight less one, its high byte, reserved.
const MEMBER: usize = 8;
/// Attribute types (`NHA_*`).
mod nha {
    pub const ID: u16 = 1;
    pub const GROUP: u16 = 2;
    pub(crate) const GROUP_TYPE: u16 = 3;
    pub const BLACKHOLE: u16 = 4;
    pub const OIF: u16 = 5;
    pub(crate) const GATEWAY: u16 = 6;
    pub(crate) const ENCAP_TYPE: u16 = 7;
    pub(crate) const FDB: u16 = 11;
    pub(crate) const RES_GROUP: u16 = 12;
    pub(crate) const RES_BUCKETS: u16 = 1;
    pub(crate) const RES_IDLE_TIMER: u16 = 2;
    pub(crate) const RES_UNBALANCED_TIMER: u16 = 3;
}
/// Group types (`NEXTHOP_GRP_TYPE_*`).
const RESILIENT: u16 = 1;

/// How a group keeps flows where they are when its members change. Times are in hundredths of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resilient {
    /// Size of the table of buckets.
    pub buckets: u16,
    /// How long a bucket is idle before it may move.
    pub idle_timer: u32,
    /// How long the group may be unbalanced before buckets are moved in any case; 0 forever.
    pub unbalanced_timer: u32,
}

/// A member of a group: another object, and its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// The object.
    pub id: u32,
    /// Its share, at least 1.
    pub weight: u16,
}

/// The content of a next-hop object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Object {
    /// One next hop.
    Hop(Hop),
    /// Drops every packet.
    Blackhole,
    /// Several objects, shared by weight.
    Group {
        /// Its members, in the kernel's order.
        members: Box<[Member]>,
        /// How it keeps flows, if it does.
        resilient: Option<Resilient>,
    },
}

/// A next-hop object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NextHop {
    /// Its number.
    pub id: u32,
    /// Its origin (`RTPROT_*`).
    pub protocol: u8,
    /// Its content.
    pub object: Object,
}

impl NextHop {
    /// Reads the part after the netlink header. `None` for an object that forwards no routed packets: an entry of a
    /// bridge's forwarding database.
    pub(crate) fn read(message: &[u8]) -> Result<Option<Self>, Malformed> {
        if message.len() < HEADER {
            return Err(Malformed::Header { kind: RTM_NEWNEXTHOP, length: message.len() });
        }
        let flags = attribute::number_u32(0, &message[4..8])?;
        let mut hop = Hop { weight: 1, flags: HopFlags::kept(flags), ..Hop::default() };
        let (mut id, mut blackhole, mut members, mut resilient) = (None, false, None, None);
        let mut group_type = 0;
        for attribute in Attributes::after_header(message, HEADER) {
            let (kind, value) = attribute?;
            match kind {
                nha::ID => id = Some(attribute::number_u32(kind, value)?),
                nha::GROUP => members = Some(read_members(value)?),
                nha::GROUP_TYPE => group_type = attribute::number_u16(kind, value)?,
                nha::BLACKHOLE => blackhole = true,
                nha::OIF => hop.ifindex = attribute::number_u32(kind, value)?,
                nha::GATEWAY => hop.gateway = Some(attribute::address(kind, value)?),
                nha::ENCAP_TYPE => hop.encap = attribute::number_u16(kind, value)?,
                nha::RES_GROUP => resilient = Some(read_resilient(value)?),
                nha::FDB => return Ok(None),
                _ => {}
            }
        }
        let object = match members {
            Some(members) => {
                let resilient = (group_type == RESILIENT).then(|| resilient.unwrap_or_default());
                Object::Group { members, resilient }
            }
            None if blackhole => Object::Blackhole,
            None => Object::Hop(hop),
        };
        let id = id.ok_or(Malformed::Missing { kind: nha::ID })?;
        Ok(Some(Self { id, protocol: message[2], object }))
    }

    /// Appends the part after the netlink header of a request to create this object.
    pub(crate) fn write(&self, message: &mut Vec<u8>) {
        let (family, flags) = match &self.object {
            Object::Hop(hop) => {
                let family = hop.gateway.map_or(crate::Family::V4, |gateway| crate::Family::of(&gateway));
                (family.number(), hop.flags.0 & HopFlags::ONLINK)
            }
            Object::Blackhole => (crate::Family::V4.number(), 0),
            Object::Group { .. } => (libc::AF_UNSPEC as u8, 0),
        };
        message.extend_from_slice(&[family, 0, self.protocol, 0, flags, 0, 0, 0]);
        attribute::put(message, nha::ID, &self.id.to_ne_bytes());
        match &self.object {
            Object::Hop(hop) => {
                attribute::put(message, nha::OIF, &hop.ifindex.to_ne_bytes());
                if let Some(gateway) = &hop.gateway {
                    attribute::put_address(message, nha::GATEWAY, gateway);
                }
            }
            Object::Blackhole => attribute::put(message, nha::BLACKHOLE, &[]),
            Object::Group { members, resilient } => write_group(members, resilient.as_ref(), message),
        }
    }
}

fn read_members(value: &[u8]) -> Result<Box<[Member]>, Malformed> {
    if !value.len().is_multiple_of(MEMBER) {
        return Err(Malformed::Value { kind: nha::GROUP, length: value.len() });
    }
    let members = value.chunks_exact(MEMBER).map(|bytes| {
        Ok(Member {
            id: attribute::number_u32(nha::GROUP, &bytes[..4])?,
            // Newer kernels have a high byte of the weight; older ones leave it zero.
            weight: (u16::from(bytes[5]) << 8 | u16::from(bytes[4])).saturating_add(1),
        })
    });
    members.collect()
}

fn read_resilient(value: &[u8]) -> Result<Resilient, Malformed> {
    let mut resilient = Resilient::default();
    for attribute in Attributes::new(value) {
        let (kind, value) = attribute?;
        match kind {
            nha::RES_BUCKETS => resilient.buckets = attribute::number_u16(kind, value)?,
            nha::RES_IDLE_TIMER => resilient.idle_timer = attribute::number_u32(kind, value)?,
            nha::RES_UNBALANCED_TIMER => resilient.unbalanced_timer = attribute::number_u32(kind, value)?,
            _ => {}
        }
    }
    Ok(resilient)
}

fn write_group(members: &[Member], resilient: Option<&Resilient>, message: &mut Vec<u8>) {
    attribute::put_nested(message, nha::GROUP, |list| {
        for member in members {
            let [low, high] = member.weight.saturating_sub(1).to_le_bytes();
            list.extend_from_slice(&member.id.to_ne_bytes());
            list.extend_from_slice(&[low, high, 0, 0]);
        }
    });
    let Some(resilient) = resilient else { return };
    attribute::put(message, nha::GROUP_TYPE, &RESILIENT.to_ne_bytes());
    attribute::put_nested(message, nha::RES_GROUP | NESTED, |list| {
        attribute::put(list, nha::RES_BUCKETS, &resilient.buckets.to_ne_bytes());
        attribute::put(list, nha::RES_IDLE_TIMER, &resilient.idle_timer.to_ne_bytes());
        attribute::put(list, nha::RES_UNBALANCED_TIMER, &resilient.unbalanced_timer.to_ne_bytes());
    });
}

impl fmt::Display for NextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id {}", self.id)?;
        match &self.object {
            Object::Hop(hop) => write!(f, " {hop}")?,
            Object::Blackhole => f.write_str(" blackhole")?,
            Object::Group { members, resilient } => {
                f.write_str(" group")?;
                for member in members {
                    write!(f, " {},{}", member.id, member.weight)?;
                }
                if let Some(resilient) = resilient {
                    write!(f, " resilient buckets {}", resilient.buckets)?;
                }
            }
        }
        write!(f, " proto {}", self.protocol)
    }
}
