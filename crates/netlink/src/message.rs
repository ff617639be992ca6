//! Netlink messages: splitting a buffer into messages, and parsing them.

use crate::attribute::{self, aligned};
use crate::error::Malformed;
use crate::route::{RouteEvent, RouteMessage};
use crate::{Address, Link, Neighbor, NextHop, Rule, netconf, next_hop};
use bm_wire::Family;

/// Length of the netlink header.
pub const HEADER: usize = 16;

/// A message of a buffer: the fields of its header, and the rest.
#[derive(Clone, Copy, Debug)]
pub struct Raw<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    /// Port of the socket whose request this answers, or whose request made the event; 0 for none.
    pub port: u32,
    pub body: &'a [u8],
}

/// The messages of a buffer.
pub struct Messages<'a>(pub &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Raw<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let room = self.0.len();
        if room == 0 {
            return None;
        }
        let number = |at: usize| Some(u32::from_ne_bytes(self.0.get(at..at + 4)?.try_into().ok()?));
        let length = number(0).unwrap_or_default() as usize;
        if length < HEADER || length > room {
            self.0 = &[];
            return Some(Err(Malformed::Message { length, room }));
        }
        let (sequence, port) = (number(8)?, number(12)?);
        let [low, high, low_flags, high_flags] = number(4)?.to_ne_bytes();
        let raw = Raw {
            kind: u16::from_ne_bytes([low, high]),
            flags: u16::from_ne_bytes([low_flags, high_flags]),
            sequence,
            port,
            body: &self.0[HEADER..length],
        };
        self.0 = &self.0[aligned(length).min(room)..];
        Some(Ok(raw))
    }
}

/// A message of the kernel, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A link is there, or has changed.
    Link(Link),
    /// A link was deleted, or has moved to another namespace.
    LinkGone(u32),
    /// An address is there, or has changed.
    Address(Address),
    /// An address was deleted.
    AddressGone(Address),
    /// A neighbor was added or changed.
    Neighbor(Neighbor),
    /// A neighbor was deleted.
    NeighborGone(Neighbor),
    /// An IPv4 route.
    Route4(RouteMessage<u32>),
    /// An IPv6 route.
    Route6(RouteMessage<u128>),
    /// A next-hop object is there, or has changed.
    NextHop(NextHop),
    /// A next-hop object was deleted.
    NextHopGone(u32),
    /// A rule is there.
    Rule(Rule),
    /// A rule was deleted.
    RuleGone(Rule),
    /// Settings of an interface have changed.
    Netconf {
        family: Family,
        /// Interface, [`netconf::ALL`] or [`netconf::DEFAULT`].
        ifindex: i32,
        /// The settings in the message.
        update: netconf::NetconfUpdate,
    },
    /// An interface no longer has settings of a family.
    NetconfGone {
        family: Family,
        /// Interface.
        ifindex: i32,
    },
}

impl Message {
    /// Parses a message. `None` if it is not about a table that is mirrored.
    pub fn read(raw: &Raw<'_>) -> Result<Option<Self>, Malformed> {
        let body = raw.body;
        Ok(match raw.kind {
            libc::RTM_NEWROUTE => return route(new_route(raw.flags), body),
            libc::RTM_DELROUTE => return route(RouteEvent::Deleted, body),
            libc::RTM_NEWLINK => Link::read(body)?.map(Self::Link),
            libc::RTM_DELLINK => Link::read(body)?.map(|link| Self::LinkGone(link.ifindex)),
            libc::RTM_NEWADDR => Address::read(body)?.map(Self::Address),
            libc::RTM_DELADDR => Address::read(body)?.map(Self::AddressGone),
            libc::RTM_NEWNEIGH => Neighbor::read(body)?.map(Self::Neighbor),
            libc::RTM_DELNEIGH => Neighbor::read(body)?.map(Self::NeighborGone),
            libc::RTM_NEWRULE => Rule::read(body)?.map(Self::Rule),
            libc::RTM_DELRULE => Rule::read(body)?.map(Self::RuleGone),
            next_hop::RTM_NEWNEXTHOP => NextHop::read(body)?.map(Self::NextHop),
            next_hop::RTM_DELNEXTHOP => NextHop::read(body)?.map(|object| Self::NextHopGone(object.id)),
            netconf::RTM_NEWNETCONF => netconf::read(body)?.map(|(family, ifindex, update)| Self::Netconf {
                family,
                ifindex,
                update,
            }),
            netconf::RTM_DELNETCONF => {
                netconf::read(body)?.map(|(family, ifindex, _)| Self::NetconfGone { family, ifindex })
            }
            _ => None,
        })
    }

    /// The messages of a buffer as the kernel sent it, for tests and tools: messages about other tables are left out.
    pub fn read_all(buffer: &[u8]) -> Result<Vec<Self>, Malformed> {
        Messages(buffer).filter_map(|raw| raw.and_then(|raw| Self::read(&raw)).transpose()).collect()
    }
}

/// The position of a new route, according to its flags.
fn new_route(flags: u16) -> RouteEvent {
    let has = |flag: i32| i32::from(flags) & flag != 0;
    if has(libc::NLM_F_MULTI) {
        RouteEvent::Listed
    } else if has(libc::NLM_F_REPLACE) {
        RouteEvent::Replaced
    } else if has(libc::NLM_F_APPEND) {
        RouteEvent::Appended
    } else {
        RouteEvent::Added
    }
}

#[inline]
fn route(event: RouteEvent, body: &[u8]) -> Result<Option<Message>, Malformed> {
    match body.first().copied().and_then(Family::from_number) {
        Some(Family::V4) => Ok(RouteMessage::<u32>::read(event, body)?.map(Message::Route4)),
        Some(Family::V6) => Ok(RouteMessage::<u128>::read(event, body)?.map(Message::Route6)),
        None => Ok(None),
    }
}

/// Begins a message: its header with the length still open.
pub(crate) fn begin(message: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32) -> usize {
    let start = message.len();
    message.extend_from_slice(&[0; 4]);
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    message.extend_from_slice(&sequence.to_ne_bytes());
    // The kernel fills in our port.
    message.extend_from_slice(&[0; 4]);
    start
}

/// Ends a message begun at `start`: its length is known now.
pub(crate) fn end(message: &mut Vec<u8>, start: usize) {
    let length = (message.len() - start) as u32;
    message[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    message.resize(start + attribute::aligned(length as usize), 0);
}
