//! Routes: the message, and the part of it that many routes share.
//!
//! A full table has a million prefixes and a few hundred distinct ways to treat them. So a route is split into table
//! and prefix, and a [`RouteBody`] with all the rest, which the mirror stores once.

use crate::attribute::{self, Attributes, NESTED};
use crate::error::Malformed;
use crate::family::ip_address;
use crate::hop::{self, Hop, HopFlags, Via};
use bm_wire::Family;
use bm_wire::prefix::{Address, Prefix};
use std::fmt;
use std::net::IpAddr;

/// Fixed part of a message: `struct rtmsg`.
const HEADER: usize = 12;
/// Within it.
mod at {
    pub(crate) const DST_LENGTH: usize = 1;
    pub(crate) const SRC_LENGTH: usize = 2;
    pub const TOS: usize = 3;
    pub const TABLE: usize = 4;
    pub const PROTOCOL: usize = 5;
    pub(crate) const SCOPE: usize = 6;
    pub const KIND: usize = 7;
    pub const FLAGS: std::ops::Range<usize> = 8..12;
}
/// Attribute types (`RTA_*`); those of hops are in `hop`.
mod rta {
    pub(crate) const DST: u16 = 1;
    pub(crate) const SRC: u16 = 2;
    pub const OIF: u16 = 4;
    pub const PRIORITY: u16 = 6;
    pub(crate) const PREFSRC: u16 = 7;
    pub const METRICS: u16 = 8;
    pub(crate) const MULTIPATH: u16 = 9;
    pub(crate) const CACHEINFO: u16 = 12;
    pub const TABLE: u16 = 15;
    pub(crate) const PREF: u16 = 20;
    pub(crate) const NH_ID: u16 = 30;
}
/// Metric types (`RTAX_*`).
mod rtax {
    pub(crate) const LOCK: u16 = 1;
    pub const MTU: u16 = 2;
    pub(crate) const HOPLIMIT: u16 = 10;
}
/// A copy that the kernel made for one destination: not a route of a table.
pub(crate) const CLONED: u32 = 0x200;

/// The table that lists the machine's own addresses.
pub const TABLE_LOCAL: u32 = 255;
/// The table that routes go to unless they name another.
pub const TABLE_MAIN: u32 = 254;
/// The table that is searched last.
pub const TABLE_DEFAULT: u32 = 253;
/// Scope of a route whose destination is this machine.
pub(crate) const SCOPE_HOST: u8 = 254;

/// What a route does with a packet (`RTN_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RouteKind {
    /// Sends it on.
    #[default]
    Unicast,
    /// Delivers it here.
    Local,
    /// Delivers it here, or sends it as a broadcast.
    Broadcast,
    /// Delivers it here; an address of several machines.
    Anycast,
    /// A multicast destination.
    Multicast,
    /// Drops it in silence.
    Blackhole,
    /// Drops it with a "host unreachable" error.
    Unreachable,
    /// Drops it with a "prohibited" error.
    Prohibit,
    /// Continues with the next rule, as if this table had no route.
    Throw,
    /// Another, by the kernel's number.
    Other(u8),
}

impl RouteKind {
    const NAMED: [(u8, Self, &'static str); 9] = [
        (1, Self::Unicast, "unicast"),
        (2, Self::Local, "local"),
        (3, Self::Broadcast, "broadcast"),
        (4, Self::Anycast, "anycast"),
        (5, Self::Multicast, "multicast"),
        (6, Self::Blackhole, "blackhole"),
        (7, Self::Unreachable, "unreachable"),
        (8, Self::Prohibit, "prohibit"),
        (9, Self::Throw, "throw"),
    ];

    /// From the kernel's number.
    #[inline]
    pub fn from_number(number: u8) -> Self {
        match Self::NAMED.get(usize::from(number).wrapping_sub(1)) {
            Some((_, kind, _)) => *kind,
            None => Self::Other(number),
        }
    }

    /// The kernel's number.
    pub fn number(self) -> u8 {
        match self {
            Self::Other(number) => number,
            named => Self::NAMED.iter().find(|(_, kind, _)| *kind == named).map_or(0, |(number, ..)| *number),
        }
    }

    /// Whether it drops or skips, so that next hops do not matter.
    pub fn refuses(self) -> bool {
        matches!(self, Self::Blackhole | Self::Unreachable | Self::Prohibit | Self::Throw)
    }
}

impl fmt::Display for RouteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(number) => write!(f, "type-{number}"),
            named => f.write_str(
                Self::NAMED.iter().find(|(_, kind, _)| kind == named).map_or("", |(.., name)| name),
            ),
        }
    }
}

/// Everything of a route except its table and prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteBody {
    /// What it does with a packet.
    pub kind: RouteKind,
    /// Type of service that it is for; 0 for all.
    pub tos: u8,
    /// Its origin (`RTPROT_*`).
    pub protocol: u8,
    /// How far away the destination is (`RT_SCOPE_*`).
    pub scope: u8,
    /// IPv6 router preference (RFC 4191): 0 medium, 1 high, 3 low.
    pub preference: u8,
    /// Metric: among routes to one prefix the lowest is used.
    pub priority: u32,
    /// Greatest packet; 0 where the interface decides.
    pub mtu: u32,
    /// Whether that MTU is locked against Path MTU discovery.
    pub mtu_locked: bool,
    /// TTL or hop limit of the machine's own packets; 0 where settings decide.
    pub hop_limit: u32,
    /// Source address of the machine's own packets.
    pub preferred_source: Option<IpAddr>,
    /// Sources that it is for, address and length (IPv6 only); none for all.
    pub source: Option<(IpAddr, u8)>,
    /// What else Linux compares before it calls two routes the same, as it sent it (IPv4).
    pub others: Box<[u8]>,
    /// Where packets go.
    pub via: Via,
}

impl RouteBody {
    /// Whether it is the same route: equal except for what changes with the links' state.
    pub fn same_route(&self, other: &Self) -> bool {
        self.rank() == other.rank()
            && (self.kind, self.protocol, self.scope, self.preference)
                == (other.kind, other.protocol, other.scope, other.preference)
            && (self.mtu, self.mtu_locked, self.hop_limit) == (other.mtu, other.mtu_locked, other.hop_limit)
            && (self.preferred_source, self.source) == (other.preferred_source, other.source)
            && self.others == other.others
            && self.via.same_places(&other.via)
    }

    /// Sorts routes to one prefix in the order in which the kernel tries them: highest TOS first, then lowest metric.
    pub fn rank(&self) -> (std::cmp::Reverse<u8>, u32) {
        (std::cmp::Reverse(self.tos), self.priority)
    }
}

impl fmt::Display for RouteBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some((address, length)) = self.source {
            write!(f, " from {address}/{length}")?;
        }
        if self.via != Via::Nowhere {
            write!(f, " {}", self.via)?;
        }
        write!(f, " proto {} scope {} metric {}", self.protocol, self.scope, self.priority)?;
        if self.tos != 0 {
            write!(f, " tos {:#04x}", self.tos)?;
        }
        if self.mtu != 0 {
            write!(f, " mtu {}{}", if self.mtu_locked { "lock " } else { "" }, self.mtu)?;
        }
        if self.hop_limit != 0 {
            write!(f, " hoplimit {}", self.hop_limit)?;
        }
        if let Some(source) = self.preferred_source {
            write!(f, " src {source}")?;
        }
        if self.preference != 0 {
            write!(f, " pref {}", self.preference)?;
        }
        Ok(())
    }
}

/// What happened to a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteEvent {
    /// It is there: part of a dump, in the kernel's order.
    Listed,
    /// It was inserted before the others of its rank.
    Added,
    /// It was inserted after the others of its rank; for IPv6, its next hops were added to theirs.
    Appended,
    /// It took the place of the first of its rank.
    Replaced,
    /// It was deleted.
    Deleted,
}

/// A message about a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteMessage<A: Address> {
    /// What happened.
    pub event: RouteEvent,
    pub table: u32,
    /// Destination.
    pub prefix: Prefix<A>,
    /// The rest.
    pub body: RouteBody,
    /// How long the route is valid (IPv6), in hundredths of a second; negative once that is over, 0 for ever.
    pub lifetime: i32,
}

/// The parts of a route before its address family is a type.
struct Draft<'a> {
    destination: &'a [u8],
    table: u32,
    body: RouteBody,
    hop: Hop,
    hops: Option<Vec<Hop>>,
    object: Option<u32>,
    others: Vec<u8>,
    lifetime: i32,
}

impl<A: Address> RouteMessage<A> {
    /// Reads the part after the netlink header. `None` for what is not a route of a table.
    pub(crate) fn read(event: RouteEvent, message: &[u8]) -> Result<Option<Self>, Malformed> {
        if message.len() < HEADER {
            return Err(Malformed::Header { kind: libc::RTM_NEWROUTE, length: message.len() });
        }
        let flags = attribute::number_u32(0, &message[at::FLAGS])?;
        if flags & CLONED != 0 {
            return Ok(None);
        }
        let mut draft = Draft::new(message, flags);
        for attribute in Attributes::after_header(message, HEADER) {
            let (kind, value) = attribute?;
            draft.take(kind, value, message[at::SRC_LENGTH])?;
        }
        let length = message[at::DST_LENGTH];
        let bad = Malformed::Value { kind: rta::DST, length: draft.destination.len() };
        let address = match draft.destination {
            [] => A::default(),
            bytes => A::from_bytes(bytes).ok_or(bad)?,
        };
        let prefix = Prefix::containing(address, length).ok_or(bad)?;
        let (table, lifetime, mut body) = (draft.table, draft.lifetime, draft.finish());
        if A::FAMILY == Family::V6 {
            // The kernel starts an event with the next hop that changed, and a dump with another one: the order has
            // no meaning, so it must not make a difference.
            body.via.hops_mut().sort_unstable();
            // Linux distinguishes IPv6 routes by metric and next hop only, and changes the rest without a message.
            body.others = Box::default();
        }
        Ok(Some(Self { event, table, prefix, body, lifetime }))
    }

    /// Appends the part after the netlink header of a request to add or delete this route.
    pub(crate) fn write(table: u32, prefix: Prefix<A>, body: &RouteBody, message: &mut Vec<u8>) {
        let short = u8::try_from(table).unwrap_or(0);
        let source_length = body.source.map_or(0, |(_, length)| length);
        let flags = match &body.via {
            Via::One(hop) => hop.flags.0 & HopFlags::ONLINK,
            _ => 0,
        };
        let six = A::FAMILY == Family::V6;
        message.extend_from_slice(&[A::FAMILY.number(), prefix.length(), source_length, body.tos]);
        message.extend_from_slice(&[short, body.protocol, body.scope, body.kind.number(), flags, 0, 0, 0]);
        attribute::put_address(message, rta::DST, &prefix.first().show());
        attribute::put(message, rta::TABLE, &table.to_ne_bytes());
        attribute::put(message, rta::PRIORITY, &body.priority.to_ne_bytes());
        if let Some((source, _)) = body.source {
            attribute::put_address(message, rta::SRC, &source);
        }
        if let Some(source) = body.preferred_source {
            attribute::put_address(message, rta::PREFSRC, &source);
        }
        if body.preference != 0 {
            attribute::put(message, rta::PREF, &[body.preference]);
        }
        let lock = u32::from(body.mtu_locked) << rtax::MTU;
        let metrics = [(rtax::MTU, body.mtu), (rtax::LOCK, lock), (rtax::HOPLIMIT, body.hop_limit)];
        if metrics.iter().any(|(_, value)| *value != 0) {
            attribute::put_nested(message, rta::METRICS | NESTED, |list| {
                let set = metrics.into_iter().filter(|(_, value)| *value != 0);
                set.for_each(|(kind, value)| attribute::put(list, kind, &value.to_ne_bytes()));
            });
        }
        match &body.via {
            Via::Nowhere => {}
            Via::One(hop) => {
                if hop.ifindex != 0 {
                    attribute::put(message, rta::OIF, &hop.ifindex.to_ne_bytes());
                }
                hop.put(message, six);
            }
            Via::Many(hops) => attribute::put_nested(message, rta::MULTIPATH | NESTED, |list| {
                hop::put_list(list, hops, six);
            }),
            Via::Object(id) => attribute::put(message, rta::NH_ID, &id.to_ne_bytes()),
        }
    }
}

impl<'a> Draft<'a> {
    fn new(message: &[u8], flags: u32) -> Self {
        let body = RouteBody {
            kind: RouteKind::from_number(message[at::KIND]),
            tos: message[at::TOS],
            protocol: message[at::PROTOCOL],
            scope: message[at::SCOPE],
            ..RouteBody::default()
        };
        let hop = Hop { weight: 1, flags: HopFlags::kept(flags), ..Hop::default() };
        let table = u32::from(message[at::TABLE]);
        let (others, lifetime) = (Vec::new(), 0);
        Self { destination: &[], table, body, hop, hops: None, object: None, others, lifetime }
    }

    #[inline]
    fn take(&mut self, kind: u16, value: &'a [u8], source_length: u8) -> Result<(), Malformed> {
        match kind {
            rta::DST => self.destination = value,
            rta::TABLE => self.table = attribute::number_u32(kind, value)?,
            rta::PRIORITY => self.body.priority = attribute::number_u32(kind, value)?,
            rta::OIF => self.hop.ifindex = attribute::number_u32(kind, value)?,
            rta::PREFSRC => self.body.preferred_source = Some(attribute::address(kind, value)?),
            rta::PREF => self.body.preference = attribute::number_u8(kind, value)?,
            rta::METRICS => self.metrics(value)?,
            rta::MULTIPATH => self.hops = Some(hop::read_list(kind, value)?),
            rta::NH_ID => self.object = Some(attribute::number_u32(kind, value)?),
            rta::SRC => self.body.source = ip_address(value).map(|address| (address, source_length)),
            rta::CACHEINFO => self.lifetime = lifetime(value),
            _ => {
                if !self.hop.take(kind, value)? {
                    attribute::put(&mut self.others, kind, value);
                }
            }
        }
        Ok(())
    }

    fn metrics(&mut self, value: &[u8]) -> Result<(), Malformed> {
        for attribute in Attributes::new(value) {
            match attribute? {
                (rtax::MTU, value) => self.body.mtu = attribute::number_u32(rtax::MTU, value)?,
                (rtax::HOPLIMIT, value) => {
                    self.body.hop_limit = attribute::number_u32(rtax::HOPLIMIT, value)?;
                }
                (rtax::LOCK, value) => {
                    let locked = attribute::number_u32(rtax::LOCK, value)?;
                    self.body.mtu_locked = locked >> rtax::MTU & 1 == 1;
                    if locked & !(1 << rtax::MTU) != 0 {
                        attribute::put(&mut self.others, rtax::LOCK, value);
                    }
                }
                (kind, value) => attribute::put(&mut self.others, kind, value),
            }
        }
        Ok(())
    }

    /// The next hops, from the attributes. If the route refers to an object, the kernel also lists the object's hops,
    /// for programs that do not know objects; the object is what counts, because it changes independently.
    fn finish(mut self) -> RouteBody {
        self.body.others = self.others.into();
        self.body.via = match (self.object, self.hops) {
            (Some(id), _) => Via::Object(id),
            (None, Some(hops)) => Via::from_hops(hops),
            (None, None) if self.hop.ifindex == 0 && self.hop.gateway.is_none() => Via::Nowhere,
            (None, None) => Via::One(self.hop),
        };
        self.body
    }
}

/// Reads table and destination of what the kernel has learned about one destination of a route.
pub(crate) fn read_exception<A: Address>(message: &[u8]) -> Result<Option<(u32, Prefix<A>)>, Malformed> {
    if message.len() < HEADER {
        return Err(Malformed::Header { kind: libc::RTM_NEWROUTE, length: message.len() });
    }
    let flags = attribute::number_u32(0, &message[at::FLAGS])?;
    if flags & CLONED == 0 {
        return Ok(None);
    }
    let mut draft = Draft::new(message, flags);
    for attribute in Attributes::after_header(message, HEADER) {
        let (kind, value) = attribute?;
        draft.take(kind, value, message[at::SRC_LENGTH])?;
    }
    let address = A::from_bytes(draft.destination);
    Ok(address.and_then(|address| Some((draft.table, Prefix::containing(address, message[at::DST_LENGTH])?))))
}

/// How long a route is valid: `rta_expires` of `struct rta_cacheinfo`.
fn lifetime(value: &[u8]) -> i32 {
    let expires = value.get(8..12).and_then(|bytes| bytes.try_into().ok());
    expires.map_or(0, i32::from_ne_bytes)
}
